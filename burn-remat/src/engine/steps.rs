//! Where one training step ends and the next begins.
//!
//! Three signals, the surest first:
//!
//! 1. The program says so ([`mark`](super::Engine::mark)).
//! 2. Parameters are updated: an operation takes a root that is older than the step and that recorded operations had
//!    read, and gives a tensor of the same shape. The first operation that reads a successor made in this step begins
//!    the next one. This finds optimizer steps, however many passes were accumulated into one; running statistics, which
//!    are updated in the middle of a step and read in the middle of the next, do not disturb it.
//! 3. Where nothing is updated in this way (the program keeps the old parameters, say): the bytes of live tensors that
//!    were computed rise through forward and backward and fall to almost nothing at the end. A boundary is the lowest
//!    point after such a fall, recognised once they rise again.

/// Fraction of the peak below which a valley counts as the end of a step, and by which it must rise again.
const FRACTION: f64 = 0.1;

/// Finds boundaries by the surest signal that a program has given so far.
#[derive(Default)]
pub(super) struct StepDetector {
    peak: u64,
    valley: Option<Valley>,
    source: Source,
    /// Clock of the last boundary.
    boundary: u64,
    /// Roots that recorded operations have read, and updates, for the first step's sake.
    roots_read: u64,
    updates: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    #[default]
    Valleys,
    Updates,
    Marks,
}

struct Valley {
    bytes: u64,
    clock: u64,
}

impl StepDetector {
    /// The program marks its steps. Returns whether this is its first mark.
    pub fn mark(&mut self) -> bool {
        std::mem::replace(&mut self.source, Source::Marks) != Source::Marks
    }

    /// Whether steps are told by marks or by updates, at the operation itself.
    pub fn is_exact(&self) -> bool {
        self.source != Source::Valleys
    }

    /// A parameter was updated.
    pub fn update(&mut self) {
        self.updates += 1;
        self.source = self.source.max(Source::Updates);
    }

    /// Whether a root that came to be at `clock` can be a parameter: those are older than the step. In the first step
    /// nothing tells.
    pub fn may_be_parameter(&self, clock: u64) -> bool {
        self.boundary == 0 || clock < self.boundary
    }

    /// Whether reading a tensor that was an update at `clock` begins a step.
    ///
    /// In the first step random noise that is consumed in backward looks like a parameter: there, a third of the roots that were
    /// read must have been updated.
    pub fn begins_step(&self, clock: u64) -> bool {
        self.source == Source::Updates
            && clock > self.boundary
            && (self.boundary > 0 || 3 * self.updates >= self.roots_read)
    }

    /// A recorded operation reads a root for the first time.
    pub fn root_read(&mut self) {
        self.roots_read += 1;
    }

    /// A step has begun at `clock`.
    pub fn set_boundary(&mut self, clock: u64) {
        self.boundary = clock;
    }

    /// Takes the bytes of computed live tensors; returns the clock of a boundary recognised by them.
    pub fn observe(&mut self, bytes: u64, clock: u64) -> Option<u64> {
        if self.source != Source::Valleys {
            return None;
        }
        self.peak = self.peak.max(bytes);
        let threshold = (self.peak as f64 * FRACTION) as u64;
        match &mut self.valley {
            Some(valley) if bytes > valley.bytes.saturating_add(threshold) => {
                let boundary = valley.clock;
                self.valley = None;
                self.peak = bytes;
                Some(boundary)
            }
            Some(valley) => {
                if bytes <= valley.bytes {
                    *valley = Valley { bytes, clock: clock + 1 };
                }
                None
            }
            None => {
                if bytes < threshold {
                    self.valley = Some(Valley { bytes, clock: clock + 1 });
                }
                None
            }
        }
    }
}

/// What the engine counts within one step.
#[derive(Default)]
pub(super) struct Step {
    /// Time of first runs.
    pub compute_ns: u64,
    /// Time of recomputations.
    pub recompute_ns: u64,
    /// Most bytes held.
    pub peak: u64,
    /// Whether more than the budget was held.
    pub over_budget: bool,
    /// Whether the recomputation limit was reached.
    pub gave_up: bool,
}

impl Step {
    /// A step's own compute time: that of the last whole step, or of this one so far.
    pub fn base_ns(&self, last: u64) -> f64 {
        self.compute_ns.max(last) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes over one step: up to `peak` in forward, down in backward, a small remainder.
    fn step(peak: u64) -> impl Iterator<Item = u64> {
        (0..=10).map(move |k| peak * k / 10).chain((0..10).rev().map(move |k| peak * k / 10))
    }

    #[test]
    fn a_sawtooth_has_one_boundary_per_tooth() {
        let mut detector = StepDetector::default();
        let found: Vec<u64> = (0..5)
            .flat_map(|_| step(1000))
            .enumerate()
            .filter_map(|(clock, bytes)| detector.observe(bytes, clock as u64))
            .collect();
        assert_eq!(found.len(), 4);
        assert!(found.windows(2).all(|pair| pair[1] - pair[0] == 21));
    }

    #[test]
    fn a_dip_that_stays_high_is_no_boundary() {
        let mut detector = StepDetector::default();
        let bytes = [100, 500, 1000, 400, 900, 300, 1000];
        assert!(bytes.iter().enumerate().all(|(clock, &bytes)| detector.observe(bytes, clock as u64).is_none()));
    }

    #[test]
    fn a_surer_signal_switches_the_others_off() {
        let mut detector = StepDetector::default();
        detector.update();
        assert!(step(1000).chain(step(1000)).all(|bytes| detector.observe(bytes, 0).is_none()));
        assert!(detector.begins_step(5));
        detector.set_boundary(6);
        assert!(!detector.begins_step(5) && detector.begins_step(7));
        assert!(detector.mark());
        assert!(!detector.mark());
        detector.update();
        assert!(!detector.begins_step(7));
    }
}
