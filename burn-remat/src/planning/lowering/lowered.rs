//! A graph and what it stands for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn_remat_core::{Place, Position, TracedStub};
use burn_remat_plan::{Graph, OpId, Step, ValueId};

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Lowered {
    pub graph: Graph,
    /// The positions that each op of the graph stands for. The range is empty for an op that only marks where a storage is released: it comes right
    /// before `start`.
    pub ranges: Vec<Range<Position>>,
    /// The storage of each value.
    pub places: Vec<Place>,
    /// The value of each storage that has one.
    pub values: Vec<Option<ValueId>>,
    /// Storages that are not values but are kept until the update that cuts them.
    pub small: Vec<bool>,
    /// First operation of the update that cuts each storage: see [`Large::until`](super::large::Large::until).
    pub until: Vec<usize>,
    /// Bytes held during each operation if nothing is evicted.
    pub store_all: Vec<u64>,
    /// Time of all operations, run once, in ns.
    pub cost_ns: u64,
    /// The factor by which a preference has multiplied the cost of each op.
    pub weights: Vec<f64>,
    /// Which ops run another one again, because a policy says so.
    pub again: Vec<bool>,
    pub forms: Forms,
}

/// The part of a graph that is about other forms of its values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forms {
    /// Ops that unpack a value from its form, which the op before them makes.
    pub unpacks: BTreeSet<OpId>,
    /// Values that stand for a form or a stub of another one.
    pub small: BTreeSet<ValueId>,
    /// Alternatives of ops that read a stub, and that stub.
    pub stubs: BTreeMap<(OpId, usize), TracedStub>,
}

impl Lowered {
    /// Time that a step of a plan takes, in ns.
    pub fn cost_of(&self, step: Step) -> f64 {
        let ops = self.graph.ops();
        match step {
            Step::Compute(op) => ops[op].cost / self.weights[op],
            Step::ComputeAlternative(op, k) => ops[op].alternatives[k].cost / self.weights[op],
            Step::Evict(_) => 0.0,
        }
    }

    /// Whether preferences weight the graph's costs. Its bounds are then not bounds on time.
    pub fn is_weighted(&self) -> bool {
        self.weights.iter().any(|&weight| weight != 1.0)
    }

    /// Most bytes held if nothing is evicted.
    pub fn peak(&self) -> u64 {
        self.store_all.iter().max().copied().unwrap_or(0)
    }
}
