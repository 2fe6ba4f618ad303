//! How many new bytes an operation will really take.
//!
//! Its outputs may be views of an input or be written in place. The backend decides that from facts that are visible here (who
//! owns the buffer, who consumes it) and some that are not (strides), but the same operation in the same place of a step decides the
//! same way every time. So an operation is expected to take what it took the last time it came on tensors of these shapes, or the same
//! share of its outputs if it has only come on tensors of other shapes; the largest outcome counts. An operation that was never seen is expected to take the
//! full size: the first update of an optimizer has then evicted nothing that its second needs.
//!
//! Outcomes are learned while memory is tight. Those of operations that are large compared with the budget are always learned.

use core::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use crate::facts::{Kind, TensorFacts};

/// With more signatures than this, all are forgotten: a program whose shapes never come back.
const MOST: usize = 100_000;
/// Outputs of at least one part in this many of the budget are large.
const LARGE: u64 = 256;
/// Shares of outputs are counted in parts of this size.
const PARTS: u128 = 256;

/// What is visible of an input and indicates whether it is overwritten.
pub(crate) struct Seen {
    pub facts: TensorFacts,
    pub made_by: Kind,
    pub consumed: bool,
    /// Whether its buffer is shared by no other tensor, and whether the buffer is larger than the tensor.
    pub buffer: Option<(bool, bool)>,
}

/// An operation that is about to run.
#[derive(Clone, Copy)]
pub(crate) struct Signature {
    /// A hash that includes the shapes, and one without them.
    exact: u64,
    alike: u64,
    /// Bytes of its outputs.
    full: u64,
}

impl Signature {
    /// The signature of an operation that may run `again` and whose inputs have the layout `arrangement`.
    pub fn new(
        (kind, again, arrangement): (Kind, bool, u64),
        outputs: &[TensorFacts],
        full: u64,
        inputs: impl Iterator<Item = Seen>,
    ) -> Self {
        let [mut exact, mut alike] = [FxHasher::default(), FxHasher::default()];
        (kind, again, arrangement).hash(&mut alike);
        // If there are several outputs, which of them is written in place depends on their sizes.
        let shapes = if outputs.len() == 1 { &mut exact } else { &mut alike };
        outputs.iter().for_each(|output| output.shape.hash(shapes));
        for Seen { facts, made_by, consumed, buffer } in inputs {
            (facts.shape, made_by).hash(&mut exact);
            (consumed, buffer, outputs.iter().any(|output| output.bytes == facts.bytes)).hash(&mut alike);
        }
        let alike = alike.finish();
        alike.hash(&mut exact);
        Self { exact: exact.finish(), alike, full }
    }
}

/// Outcomes by signature.
#[derive(Default)]
pub(crate) struct Reuse {
    seen: FxHashMap<u64, u64>,
    /// The largest share of outputs that was taken, in [`PARTS`].
    shares: FxHashMap<u64, u64>,
    /// The operation that is about to run, if its outcome is learned.
    pending: Option<Signature>,
}

impl Reuse {
    /// Whether the outcome of an operation with outputs of `full` bytes is learned even if there is enough room.
    #[inline]
    pub fn learns(full: u64, budget: u64) -> bool {
        full >= budget / LARGE
    }

    /// Nothing is learned from the next operation.
    #[inline]
    pub fn skip(&mut self) {
        self.pending = None;
    }

    /// The bytes that the operation that runs next is expected to take.
    pub fn expect(&mut self, signature: Signature) -> u64 {
        self.pending = Some(signature);
        let share = |share: &u64| (u128::from(signature.full) * u128::from(*share)).div_ceil(PARTS) as u64;
        let exact = self.seen.get(&signature.exact).copied();
        exact.or_else(|| self.shares.get(&signature.alike).map(share)).unwrap_or(signature.full)
    }

    /// Learns what the operation that has just run took.
    #[inline]
    pub fn learn(&mut self, bytes: u64) {
        if let Some(signature) = self.pending.take() {
            self.insert(signature, bytes);
        }
    }

    fn insert(&mut self, signature: Signature, bytes: u64) {
        let share = (u128::from(bytes) * PARTS).div_ceil(u128::from(signature.full.max(1))) as u64;
        for (map, key, outcome) in
            [(&mut self.seen, signature.exact, bytes), (&mut self.shares, signature.alike, share)]
        {
            if map.len() >= MOST {
                map.clear();
            }
            let known = map.entry(key).or_insert(outcome);
            *known = outcome.max(*known);
        }
    }
}
