//! What is left of passes that seem to be over.
//!
//! - A program keeps some of it: activations that it logs. Other passes that have saved as much keep as much.
//! - The next backward pass needs it: one forward with two backward passes and an update between them, as when one network learns from what another
//!   has made before that one learns. That is one pass.
//!
//! Each operation takes constant work.

use alloc::vec::Vec;

/// By the time an optimizer updates, its backward pass has released at least one part in this many of what was saved; and a backward pass that needs as much
/// of the previous pass belongs to it.
pub(super) const PART: u64 = 4;
/// Passes are of one kind, as far as that matters here, if the bytes that they save differ by at most one part in this many.
const ALIKE: u64 = 32;
/// How many kinds are distinguished.
const KINDS: usize = 8;

fn is_alike(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= other / ALIKE
}

/// What is left of a pass that seems to be over.
#[derive(Clone, Copy, Default)]
pub(super) struct Rest {
    /// What was made between these clocks was saved.
    pub from: u64,
    pub to: u64,
    /// Bytes that are still held, and how many there were at most.
    pub bytes: u64,
    pub saved: u64,
    /// The number that identifies its kind.
    pub kind: u64,
    /// Bytes that were held when the next backward pass began, if it has begun, and bytes of them that were read since.
    pub at_next: Option<u64>,
    pub read: u64,
}

impl Rest {
    fn contains(&self, born: u64) -> bool {
        (self.from..self.to).contains(&born)
    }

    /// Whether the next backward pass has needed it.
    fn was_needed(&self) -> bool {
        let Some(at_next) = self.at_next.filter(|&bytes| bytes > 0) else { return false };
        let needed = self.read.min(at_next - self.bytes.min(at_next));
        needed >= self.saved / PART && self.bytes <= at_next / PART
    }
}

/// See the [module](self). The most recent kinds come first.
#[derive(Default)]
pub(super) struct Kept {
    /// The share of what was saved that the program keeps, for each kind of pass.
    shares: Vec<(u64, f64)>,
    /// Kinds that go on with the next backward pass.
    go_on: Vec<u64>,
    /// What is left of the last pass, and of the one before.
    last: Rest,
    earlier: Rest,
}

impl Kept {
    /// A pass seems to be over, and this is left of it.
    pub fn over(&mut self, rest: Rest) {
        self.earlier = core::mem::replace(&mut self.last, rest);
    }

    /// The program has released this many bytes that were made at `born`.
    #[inline]
    pub fn let_go(&mut self, born: u64, bytes: u64) {
        for rest in [&mut self.last, &mut self.earlier] {
            if rest.contains(born) {
                rest.bytes = rest.bytes.saturating_sub(bytes);
            }
        }
    }

    /// Whether anything was left when the next backward pass began.
    #[inline]
    pub fn left_something(&self) -> bool {
        [&self.last, &self.earlier].into_iter().any(|rest| rest.at_next.is_some_and(|bytes| bytes > 0))
    }

    /// An operation reads this many bytes that were made at `born`.
    #[inline]
    pub fn read(&mut self, born: u64, bytes: u64) {
        for rest in [&mut self.last, &mut self.earlier] {
            if rest.at_next.is_some() && rest.contains(born) {
                rest.read += bytes;
            }
        }
    }

    /// Whether so much is left of the last pass, with no backward pass since, that the next one may need it.
    pub fn awaits_backward(&self) -> bool {
        let Rest { bytes, saved, at_next, .. } = self.last;
        at_next.is_none() && bytes > 0 && bytes >= saved / PART
    }

    /// The next backward pass begins: what was expected to be kept but is gone by now was not kept.
    pub fn backward_begins(&mut self) {
        if self.last.at_next.is_some() {
            // The end of its pass was not seen.
            self.over(Rest::default());
        }
        let Rest { bytes, saved, kind, .. } = self.last;
        self.last.at_next = Some(bytes);
        let share = bytes as f64 / saved.max(1) as f64;
        if saved > 0 && share < self.share(kind) {
            self.learn(kind, share);
        }
    }

    /// A parameter has been updated, so the previous backward pass is over: it may have belonged to the same pass as the one before it. Returns whether
    /// that turns out only now.
    pub fn updated(&mut self) -> bool {
        let needed = [self.last, self.earlier].into_iter().find(|rest| rest.was_needed() && !self.goes_on(rest.kind));
        if let Some(rest) = needed {
            self.go_on.insert(0, rest.kind);
            self.go_on.truncate(KINDS);
        }
        needed.is_some()
    }

    /// The share that is kept of a pass of this kind. An unknown kind is assumed to be like the last one.
    pub fn share(&self, kind: u64) -> f64 {
        let known = self.shares.iter().find(|(of, _)| is_alike(*of, kind));
        known.or(self.shares.first()).map_or(0.0, |(_, share)| *share)
    }

    pub fn learn(&mut self, kind: u64, share: f64) {
        self.shares.retain(|(of, _)| !is_alike(*of, kind));
        self.shares.insert(0, (kind, share));
        self.shares.truncate(KINDS);
    }

    /// Whether a pass of this kind goes on with the next backward pass.
    pub fn goes_on(&self, kind: u64) -> bool {
        self.go_on.iter().any(|&of| is_alike(of, kind))
    }

    /// A pass of this kind does not go on.
    pub fn ends(&mut self, kind: u64) {
        self.go_on.retain(|&of| !is_alike(of, kind));
    }
}
