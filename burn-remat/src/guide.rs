//! What real steps with small batches say about the same program with a larger batch.

use burn_remat_core::{Trace, TracedOp};

/// How many operations of a step are searched for the current one.
const WINDOW: usize = 4;

/// A measured step with a small batch, and what the same operations took with a larger one.
#[derive(Debug)]
pub(crate) struct Guide {
    /// The step with the smaller batch.
    pub trace: Trace,
    /// For each operation of that step.
    larger: Vec<Option<Measured>>,
}

/// The measurement of an operation.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Bytes of the tensors that it reads and makes.
    bytes: u64,
    ns: u64,
}

impl Measured {
    fn of(op: &TracedOp, trace: &Trace) -> Self {
        let made = op.outputs..op.outputs + op.writes.len() as u32;
        let read = op.inputs.iter().map(|&(number, _)| number);
        let bytes = read.chain(made).map(|number| trace.tensors[number as usize].bytes).sum();
        Self { bytes, ns: op.cost_ns }
    }
}

impl Guide {
    /// A guide from two steps of a program, or from one.
    pub fn new(trace: Trace, larger: Option<&Trace>) -> Self {
        let mut measured = vec![None; trace.ops.len()];
        let mut next = 0;
        if let Some(larger) = larger {
            for (op, measured) in trace.ops.iter().zip(&mut measured) {
                if let Some(at) = like(larger, next, op.kind) {
                    *measured = Some(Measured::of(&larger.ops[at], larger));
                    next = at + 1;
                }
            }
        }
        Self { trace, larger: measured }
    }

    /// Time, in ns, of operation `at` when it reads and makes tensors of this many bytes. Sizes grow linearly with the batch, and so does the time, apart
    /// from a fixed part: two measurements give both. With one measurement, there is no fixed part.
    pub fn cost(&self, at: usize, bytes: u64) -> u64 {
        let small = Measured::of(&self.trace.ops[at], &self.trace);
        let larger = self.larger[at].filter(|larger| larger.bytes > small.bytes);
        let ns = match larger {
            Some(larger) => {
                let per_byte = larger.ns.saturating_sub(small.ns) as f64 / (larger.bytes - small.bytes) as f64;
                larger.ns as f64 + per_byte * (bytes as f64 - larger.bytes as f64)
            }
            None => small.ns as f64 * bytes as f64 / small.bytes.max(1) as f64,
        };
        (ns.max(0.0) as u64).max(1)
    }
}

/// The next operation of this kind, beginning with the one at `next`.
pub(crate) fn like(trace: &Trace, next: usize, kind: u64) -> Option<usize> {
    let ahead = trace.ops[next.min(trace.ops.len())..].iter().take(WINDOW);
    ahead.zip(next..).find(|(op, _)| op.kind == kind).map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use burn_remat_core::TracedTensor;

    use super::*;

    /// A step of operations, each of which reads one tensor: kind, bytes and time.
    fn step(ops: &[(u64, u64, u64)]) -> Trace {
        let mut trace = Trace::default();
        for (number, &(kind, bytes, cost_ns)) in (0..).zip(ops) {
            trace.tensors.push(TracedTensor { place: number, shape: 0, bytes, buffer_bytes: bytes });
            let inputs = [(number, true)].into_iter().collect();
            trace.ops.push(TracedOp { kind, inputs, cost_ns, ..TracedOp::default() });
        }
        trace
    }

    #[test]
    fn two_batches_tell_what_is_fixed_and_what_grows() {
        let small = step(&[(1, 200, 1000), (2, 200, 50), (3, 4096, 70), (4, 100, 10)]);
        let larger = step(&[(1, 800, 1600), (9, 5, 5), (2, 800, 40), (3, 4096, 60)]);
        let guide = Guide::new(small.clone(), Some(&larger));
        let alone = Guide::new(small, None);
        // 800 ns at any size, and 1 ns per byte.
        assert_eq!([200, 800, 3200].map(|bytes| guide.cost(0, bytes)), [1000, 1600, 4000]);
        assert_eq!(alone.cost(0, 3200), 16_000);
        // It was no slower with more bytes: all of its time is fixed.
        assert_eq!(guide.cost(1, 3200), 40);
        // Sizes that do not grow, and an operation that the larger step does not have.
        assert_eq!((guide.cost(2, 4096), guide.cost(3, 200)), (70, 20));
    }
}
