//! What a plan does with each value: keeps it, computes it again, brings it back from another form, or does without it.
//!
//! A value that is gone and made again has come back once an op has read it since; what is made again beside what was wanted,
//! and given up unread, has not. It comes back from another form where the op that makes it *unpacks* one ([`form_of`]). An op that runs by an
//! alternative which does not read a value, while the value is not there, spares it.
//!
//! Complexity: O(steps + uses).

use crate::graph::{Graph, Op, OpId, Phase, ValueId};
use crate::plan::{Plan, Step};

/// What a plan does with a value. Times are in the unit of those that were given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decision {
    /// How often it is computed again.
    pub recomputed: u32,
    /// How often it comes back from another form.
    pub restored: u32,
    /// How often an op ran without it.
    pub spared: u32,
    /// The last of these ops, and the alternative by which it ran.
    pub spared_by: Option<(OpId, usize)>,
    /// Time that it takes to bring it back, every time together.
    pub time: f64,
    /// The longest time between two ops that need it, as they first run.
    pub idle: f64,
}

/// The decision on each value of `graph` under a valid `plan`, whose steps take `times`.
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

/// What an op makes from another form, and which: it reads nothing but `<name> packed` and is called `<name> from <form>`, as the
/// graphs of measured steps have it.
pub fn form_of<'a>(graph: &Graph, op: &'a Op) -> Option<(&'a str, &'a str)> {
    let &[packed] = op.inputs.as_slice() else { return None };
    let (name, form) = op.name.rsplit_once(" from ")?;
    let is_of = |packed: &str| packed.strip_suffix(" packed") == Some(name);
    is_of(&graph.values()[packed].name).then_some((name, form))
}

/// What an op reads in place of a value where it runs by an alternative: `signs` where that is called `<name> from signs`. An alternative that
/// is called otherwise says nothing.
pub fn substitute_of(graph: &Graph, (op, k): (OpId, usize)) -> Option<&str> {
    let name = &graph.ops()[op].alternatives[k].name;
    name.strip_prefix(&*graph.ops()[op].name)?.strip_prefix(" from ")
}

/// Which values are activations, made in the forward pass, that an op after it reads; where no phases are given, all that are computed.
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

/// How a value that is there again was made.
#[derive(Clone, Copy)]
enum Made {
    Again(f64),
    FromForm(f64),
}

struct State<'a> {
    graph: &'a Graph,
    found: Vec<Decision>,
    resident: Vec<bool>,
    /// Values that were made again and that nothing has read since.
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
