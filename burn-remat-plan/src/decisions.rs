//! What a plan does with each value: keeps it, recomputes it, restores it from a compressed form or a copy, or does without it.
//!
//! A value counts as recomputed or restored only once an op reads it afterwards: if an op makes a value again as a by-product and the value is evicted
//! unread, it does not count. It counts as restored if the op that makes it *unpacks* a compressed form or a copy ([`form_of`]). A value is spared if an
//! op runs with an alternative that does not read it while it is not resident.
//!
//! Complexity: O(steps + uses).

use crate::graph::{Graph, Op, OpId, Phase, ValueId};
use crate::plan::{Plan, Step};

/// What a plan does with a value. Times are in the unit of the `times` passed to [`decisions`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decision {
    /// How often it is recomputed.
    pub recomputed: u32,
    /// How often it is restored from a compressed form or a copy.
    pub restored: u32,
    /// How often an op ran without it.
    pub spared: u32,
    /// The last of these ops, and the alternative that it ran with.
    pub spared_by: Option<(OpId, usize)>,
    /// Total time spent on recomputing and restoring it.
    pub time: f64,
    /// The longest time between the first runs of two successive ops that need it.
    pub idle: f64,
}

/// The decision on each value of `graph` in a valid `plan` whose steps take `times`.
///
/// ```
/// use burn_remat_plan::decisions::decisions;
/// use burn_remat_plan::{GraphBuilder, Op, sequence::plan_from_order};
///
/// let mut builder = GraphBuilder::new("chain");
/// let (x, y, z) = (builder.value(8, "x"), builder.value(4, "y"), builder.value(2, "z"));
/// builder.op(Op::new("f", 1.0, vec![], vec![x]));
/// builder.op(Op::new("g", 1.0, vec![x], vec![y]));
/// builder.op(Op::new("h", 1.0, vec![x, y], vec![z]));
/// let graph = builder.build()?;
/// // `f` runs again for `h`.
/// let plan = plan_from_order(&graph, &[0, 1, 0, 2]);
/// let found = decisions(&graph, &plan, &vec![1.0; plan.steps.len()]);
/// assert_eq!((found[x].recomputed, found[y].recomputed), (1, 0));
/// # Ok::<(), burn_remat_plan::GraphError>(())
/// ```
pub fn decisions(graph: &Graph, plan: &Plan, times: &[f64]) -> Vec<Decision> {
    let mut state = State::new(graph);
    for (&step, &time) in plan.steps.iter().zip(times) {
        match step {
            Step::Evict(value) => (state.resident[value], state.unread[value]) = (false, None),
            Step::Compute(op) => state.compute(op, None, time),
            Step::ComputeAlternative(op, k) => state.compute(op, Some(k), time),
        }
    }
    graph.results().iter().for_each(|&value| state.read(value));
    state.found
}

/// The name of the value that an op unpacks, and the form that it unpacks. Such an op reads only `<name> packed` and is called `<name> from <form>`, as
/// in the graphs of measured steps.
pub fn form_of<'a>(graph: &Graph, op: &'a Op) -> Option<(&'a str, &'a str)> {
    let &[packed] = op.inputs.as_slice() else { return None };
    let (name, form) = op.name.rsplit_once(" from ")?;
    let is_of = |packed: &str| packed.strip_suffix(" packed") == Some(name);
    is_of(&graph.values()[packed].name).then_some((name, form))
}

/// What an op reads in place of a value when it runs with an alternative: `signs` if the alternative is called `<name> from signs`. `None` if its name has
/// another form.
pub fn substitute_of(graph: &Graph, (op, k): (OpId, usize)) -> Option<&str> {
    let name = &graph.ops()[op].alternatives[k].name;
    name.strip_prefix(&*graph.ops()[op].name)?.strip_prefix(" from ")
}

/// Which values are activations: made in the forward pass and read by an op after it. If the graph has no phases, all computed values are.
pub fn activations(graph: &Graph) -> Vec<bool> {
    let is_later = |op: &&Op| op.phase.is_some_and(|phase| phase != Phase::Forward);
    let mut are = vec![!graph.ops().iter().any(|op| is_later(&op)); graph.values().len()];
    for op in graph.ops().iter().filter(is_later) {
        op.inputs.iter().for_each(|&value| are[value] = true);
    }
    for (value, is) in are.iter_mut().enumerate() {
        *is &= graph.producer(value).is_some_and(|op| !is_later(&&graph.ops()[op]));
    }
    are
}

/// How a value that is resident again was made.
#[derive(Clone, Copy)]
enum Made {
    Again(f64),
    FromForm(f64),
}

struct State<'a> {
    graph: &'a Graph,
    found: Vec<Decision>,
    resident: Vec<bool>,
    /// Values that were made again and have not been read since.
    unread: Vec<Option<Made>>,
    /// Ops that have run.
    seen: Vec<bool>,
    /// When each value was last needed by an op that ran for the first time.
    needed: Vec<Option<f64>>,
    now: f64,
}

impl<'a> State<'a> {
    fn new(graph: &'a Graph) -> Self {
        let count = graph.values().len();
        let resident = (0..count).map(|value| graph.producer(value).is_none()).collect();
        let (found, seen) = (vec![Decision::default(); count], vec![false; graph.ops().len()]);
        Self { graph, found, resident, unread: vec![None; count], seen, needed: vec![None; count], now: 0.0 }
    }

    fn compute(&mut self, id: OpId, alternative: Option<usize>, time: f64) {
        let op = &self.graph.ops()[id];
        let inputs = alternative.map_or(&op.inputs, |k| &op.alternatives[k].inputs);
        inputs.iter().for_each(|&value| self.read(value));
        for &value in &op.inputs {
            if !self.resident[value] && inputs.binary_search(&value).is_err() {
                self.found[value].spared += 1;
                self.found[value].spared_by = alternative.map(|k| (id, k));
            }
        }
        let runs_again = std::mem::replace(&mut self.seen[id], true);
        if !runs_again {
            op.inputs.iter().for_each(|&value| self.need(value));
        }
        self.now += time;
        let is_form = alternative.is_none() && form_of(self.graph, op).is_some();
        for &value in &op.outputs {
            if !std::mem::replace(&mut self.resident[value], true) && runs_again {
                self.unread[value] = Some(if is_form { Made::FromForm(time) } else { Made::Again(time) });
            }
            if !runs_again {
                self.need(value);
            }
        }
    }

    fn need(&mut self, value: ValueId) {
        if let Some(before) = self.needed[value].replace(self.now) {
            self.found[value].idle = self.found[value].idle.max(self.now - before);
        }
    }

    fn read(&mut self, value: ValueId) {
        let found = &mut self.found[value];
        match self.unread[value].take() {
            Some(Made::Again(time)) => (found.recomputed, found.time) = (found.recomputed + 1, found.time + time),
            Some(Made::FromForm(time)) => (found.restored, found.time) = (found.restored + 1, found.time + time),
            None => {}
        }
    }
}
