//! The operations that matter in a step.
//!
//! A program does much besides the work that takes memory: it assembles batches item by item, keeps scores, draws indices, inspects what its layers
//! return. Such operations, *glue*, make only small tensors, and those that they read are small or live on; they come in any number and order. Steps
//! are the same if their other operations, the *spine*, are the same.

use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::trace::{Number, Trace, TracedOp, extend};

/// A tensor is small if it takes less than one part in this many of the most that the step holds.
const PART: u64 = 4096;

/// The spine of a step: the operations that make something large or are the last to read it. The others are glue, which comes in any number and order.
#[derive(Clone, Debug, Default)]
pub struct Spine {
    /// Most bytes of a small tensor: a power of two, so that steps that hold about as much agree on it.
    small: u64,
    /// Whether an operation is glue.
    glue: Vec<bool>,
    structure: u64,
}

impl Spine {
    /// The spine of a step. O(operations).
    pub fn of(trace: &Trace) -> Self {
        let small = (trace.peak() / PART).checked_ilog2().map_or(0, |exponent| 1 << exponent);
        let mut spine = Self { small, glue: Vec::with_capacity(trace.ops.len()), structure: 0 };
        // Large tensors by their order on the spine.
        let (mut known, mut count) = (vec![None; trace.tensors.len()], 0_u32);
        let mut order = |number: Number| {
            let known = &mut known[number as usize];
            let is_new = known.is_none();
            (*known.get_or_insert_with(|| (count, count += 1).0), is_new)
        };
        for op in &trace.ops {
            let ends_any = spine.large_inputs(trace, op).any(|(_, last)| last);
            let is_glue = !ends_any && spine.large_outputs(trace, op).next().is_none();
            spine.glue.push(is_glue);
            if is_glue {
                continue;
            }
            let mut hasher = FxHasher::default();
            (op.kind, op.rule).hash(&mut hasher);
            for (number, last) in spine.large_inputs(trace, op) {
                let (at, is_new) = order(number);
                let shape = is_new.then(|| trace.tensors[number as usize].shape);
                (at, shape, last).hash(&mut hasher);
            }
            for number in spine.large_outputs(trace, op) {
                (order(number).0, trace.tensors[number as usize].shape).hash(&mut hasher);
            }
            spine.structure = extend(spine.structure, hasher.finish());
        }
        spine
    }

    /// Identifies the step: equal for steps that do the same apart from glue.
    pub fn structure(&self) -> u64 {
        self.structure
    }

    pub(crate) fn is_small(&self, bytes: u64) -> bool {
        bytes <= self.small
    }

    /// The next operation at or after `position` that is not glue; the end of the step if there is none.
    pub(crate) fn next(&self, position: usize) -> usize {
        let ahead = self.glue.iter().skip(position).position(|&glue| !glue);
        ahead.map_or(self.glue.len(), |ahead| position + ahead)
    }

    /// Whether only glue comes at or after `position`.
    pub(crate) fn is_over(&self, position: usize) -> bool {
        self.next(position) == self.glue.len()
    }

    /// The large inputs of an operation of the step, and whether it is the last to use them.
    pub(crate) fn large_inputs<'a>(
        &self,
        trace: &'a Trace,
        op: &'a TracedOp,
    ) -> impl Iterator<Item = (Number, bool)> + use<'a> {
        let small = self.small;
        op.inputs.iter().copied().filter(move |&(number, _)| trace.tensors[number as usize].buffer_bytes > small)
    }

    fn large_outputs<'a>(&self, trace: &'a Trace, op: &TracedOp) -> impl Iterator<Item = Number> + use<'a> {
        let small = self.small;
        let outputs = op.outputs..op.outputs + op.writes.len() as Number;
        outputs.filter(move |&number| trace.tensors[number as usize].buffer_bytes > small)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::trace::TracedTensor;

    /// Reads the first tensor; then `small` operations on small tensors; then one operation on a large tensor, and one that reads both.
    fn step(small: u32) -> Trace {
        let mut trace = Trace { held_at_start: 1 << 20, ..Trace::default() };
        let tensor = |bytes| TracedTensor { place: 0, shape: bytes, bytes, buffer_bytes: bytes };
        trace.tensors.push(tensor(1000));
        let mut make = |kind, inputs: &[Number], bytes| {
            let outputs = trace.tensors.len() as Number;
            trace.tensors.push(tensor(bytes));
            trace.ops.push(TracedOp {
                kind,
                inputs: inputs.iter().map(|&number| (number, false)).collect(),
                outputs,
                writes: smallvec![0],
                ..TracedOp::default()
            });
            outputs
        };
        for at in 0..small {
            make(1, &[], 100 + u64::from(at));
        }
        let large = make(2, &[0], 1000);
        make(3, &[large, 0], 1000);
        trace
    }

    #[test]
    fn steps_are_the_same_but_for_glue() {
        let [none, some, more] = [0, 3, 5].map(|small| Spine::of(&step(small)));
        assert_eq!(none.structure(), some.structure());
        assert_eq!(none.structure(), more.structure());
        assert_eq!((some.next(0), some.next(3), some.next(4), some.next(5)), (3, 3, 4, 5));
        let mut other = step(3);
        other.ops[4].inputs.reverse();
        assert_ne!(Spine::of(&other).structure(), some.structure());
        let mut other = step(3);
        other.ops[3].kind = 9;
        assert_ne!(Spine::of(&other).structure(), some.structure());
    }
}
