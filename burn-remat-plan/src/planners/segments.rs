//! What the segment heuristics share: from a set of checkpoints to a plan, and the best plan of several sets.
//!
//! The forward ops, in execution order, are cut into segments after every checkpoint. A set of checkpoints fixes the
//! retention of every value, after Chen et al. as Checkmate reads them (section 6.2, appendix B):
//!
//! - outputs of a checkpoint are retained for good, as are roots, which cannot be computed again;
//! - other outputs of a forward op are retained as long as the forward pass needs them; then, from the first backward
//!   use of any value of their segment, which computes the whole segment again, to their own last use;
//! - the last segment is never dropped: its backward pass follows at once;
//! - outputs of the other ops are retained to their last use.
//!
//! [`computations`](crate::frontier::computations) then gives the cheapest schedule, and [`plan_from_order`](crate::sequence::plan_from_order) evicts
//! everything, checkpoints included, after its last use: the published heuristics keep checkpoints to the end.
//!
//! [`passes`](crate::views::passes) says where the forward pass ends.
//!
//! Complexity: O(ops + uses + steps of the plan) for each set of checkpoints.

use std::collections::BTreeSet;

use super::incumbent::Incumbent;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::frontier::{Retention, computations_within};
use crate::graph::{Graph, OpId};
use crate::planner::{Outcome, Request, Status, StopReason};
use crate::views::passes::forward_length;

/// The most checkpoint sets that a greedy search tries.
const MOST_SETS: usize = 48;

/// Bytes that a schedule takes for each of its computations: its number, the steps of its plan, their memory.
const BYTES_PER_COMPUTATION: u64 = 120;

/// The forward ops of a graph and which of them may be checkpoints.
pub(crate) struct Segments<'a> {
    graph: &'a Graph,
    /// Forward ops, ascending.
    pub forward: Vec<OpId>,
    /// Per op: whether it may be a checkpoint.
    candidate: Vec<bool>,
}

impl<'a> Segments<'a> {
    /// Every forward op is a candidate.
    pub fn new(graph: &'a Graph) -> Self {
        let length = forward_length(graph);
        let candidate = (0..graph.ops().len()).map(|op| op < length).collect();
        Self { graph, forward: (0..length).collect(), candidate }
    }

    /// The candidates are only those forward ops after which no forward op needs anything made before them.
    pub fn at_articulation_points(graph: &'a Graph) -> Self {
        let mut segments = Self::new(graph);
        // Furthest forward use of what was made before the current op.
        let mut reach = 0;
        for &op in &segments.forward {
            segments.candidate[op] = reach <= op;
            for &value in &graph.ops()[op].outputs {
                reach = reach.max(segments.last_forward_use(value).unwrap_or(0));
            }
        }
        segments
    }

    /// A forward op that needs more than the forward op right before it, if there is one.
    pub fn branching_op(&self) -> Option<OpId> {
        let from_afar = |op: OpId, before: Option<OpId>| {
            let producers = self.graph.ops()[op].inputs.iter().filter_map(|&value| self.graph.producer(value));
            producers.into_iter().any(|producer| self.is_forward(producer) && Some(producer) != before)
        };
        let previous = std::iter::once(None).chain(self.forward.iter().copied().map(Some));
        self.forward.iter().copied().zip(previous).find(|&(op, before)| from_afar(op, before)).map(|(op, _)| op)
    }

    fn is_forward(&self, op: OpId) -> bool {
        op < self.forward.len()
    }

    fn last_forward_use(&self, value: usize) -> Option<OpId> {
        self.graph.consumers(value).iter().copied().rfind(|&op| self.is_forward(op))
    }

    fn candidates(&self) -> impl Iterator<Item = OpId> + '_ {
        self.forward.iter().copied().filter(|&op| self.candidate[op])
    }

    /// Every k-th candidate, for k the square root of their number, rounded down and up.
    pub fn sqrt_sets(&self) -> Vec<Vec<OpId>> {
        let candidates: Vec<_> = self.candidates().collect();
        let root = (candidates.len() as f64).sqrt();
        let every = |k: usize| -> Vec<OpId> { candidates.iter().copied().skip(k - 1).step_by(k).collect() };
        let sizes = BTreeSet::from([root.floor().max(1.0) as usize, root.ceil().max(1.0) as usize]);
        sizes.into_iter().map(every).collect()
    }

    /// The sets that Chen's greedy walk makes for different segment budgets b: a candidate becomes a checkpoint when
    /// the outputs since the last one exceed b. The budgets tried are sums that occur, evenly spread in rank.
    pub fn greedy_sets(&self) -> Vec<Vec<OpId>> {
        let mut sets = BTreeSet::new();
        for budget in self.segment_budgets() {
            let mut open = 0;
            let mut set = Vec::new();
            for &op in &self.forward {
                open += self.graph.bytes_of(&self.graph.ops()[op].outputs);
                if self.candidate[op] && open > budget {
                    set.push(op);
                    open = 0;
                }
            }
            sets.insert(set);
        }
        sets.into_iter().collect()
    }

    /// 0 and up to [`MOST_SETS`] sizes of runs that start after a candidate and end at one.
    fn segment_budgets(&self) -> Vec<u64> {
        // Bytes of all outputs up to and including each candidate.
        let mut total = 0;
        let mut ends = vec![0];
        for &op in &self.forward {
            total += self.graph.bytes_of(&self.graph.ops()[op].outputs);
            if self.candidate[op] {
                ends.push(total);
            }
        }
        // All runs of a small graph; a sample of starts of a large one.
        let stride = ends.len().div_ceil(MOST_SETS);
        let mut sums: Vec<u64> = Vec::new();
        for (i, &start) in ends.iter().enumerate().step_by(stride) {
            sums.extend(ends[i..].iter().map(|&end| end - start));
        }
        sums.sort_unstable();
        sums.dedup();
        let step = sums.len().div_ceil(MOST_SETS).max(1);
        sums.into_iter().step_by(step).chain([total]).collect()
    }

    fn retention(&self, checkpoints: &[OpId]) -> Retention {
        let graph = self.graph;
        let end = graph.ops().len();
        let segment_of = |op: OpId| checkpoints.partition_point(|&checkpoint| checkpoint < op);
        let last_segment = checkpoints.len();
        let is_checkpoint = |op: OpId| checkpoints.binary_search(&op).is_ok();
        let backward_uses = |value: usize| graph.consumers(value).iter().copied().filter(|&op| !self.is_forward(op));
        // Per segment: the first backward op that needs one of its values.
        let mut entered = vec![usize::MAX; checkpoints.len() + 1];
        for &op in self.forward.iter().filter(|&&op| !is_checkpoint(op)) {
            let uses = graph.ops()[op].outputs.iter().flat_map(|&value| backward_uses(value));
            let segment = segment_of(op);
            entered[segment] = uses.min().unwrap_or(usize::MAX).min(entered[segment]);
        }
        let mut retention = Retention::new();
        for (op, node) in graph.ops().iter().enumerate() {
            for &value in &node.outputs {
                let last_use = graph.consumers(value).last().copied().unwrap_or(0);
                if graph.is_result(value) || is_checkpoint(op) {
                    retention.keep(value, op + 1, end);
                } else if !self.is_forward(op) || segment_of(op) == last_segment {
                    retention.keep(value, op + 1, last_use);
                } else {
                    retention.keep(value, op + 1, self.last_forward_use(value).unwrap_or(0));
                    retention.keep(value, entered[segment_of(op)].saturating_add(1), last_use);
                }
            }
        }
        retention
    }

    /// Offers the schedules of `sets`, as far as the request's limits go, and says why it stopped.
    fn offer(&self, incumbent: &mut Incumbent<'_>, sets: Vec<Vec<OpId>>, request: &Request) -> StopReason {
        let most = usize::try_from(request.memory_limit / BYTES_PER_COMPUTATION).unwrap_or(usize::MAX);
        let deadline = request.deadline();
        for sequence in self.schedules_of(sets, most, deadline) {
            incumbent.offer(&sequence);
        }
        if deadline.passed() { StopReason::TimeLimit } else { StopReason::Heuristic }
    }

    /// The schedules of all greedy sets, of at most `most` computations each, for as long as there is time.
    pub fn schedules(&self, most: usize, deadline: Deadline) -> impl Iterator<Item = Vec<OpId>> {
        self.schedules_of(self.greedy_sets(), most, deadline)
    }

    /// The schedules of these sets. If values reach over many segments, a segment may compute nearly all that comes before it again: n ops may
    /// then take n² computations.
    fn schedules_of(&self, sets: Vec<Vec<OpId>>, most: usize, deadline: Deadline) -> impl Iterator<Item = Vec<OpId>> {
        // The first set is always tried: for a small graph that takes less than a tick of the clock.
        let in_time = sets.into_iter().enumerate().take_while(move |&(number, _)| number == 0 || !deadline.passed());
        in_time.filter_map(move |(_, set)| computations_within(self.graph, &self.retention(&set), most, deadline))
    }

    /// The cheapest plan within the budget among `sets` and the store-all plan; of equally cheap ones, the one with
    /// the lowest peak.
    ///
    /// # Errors
    ///
    /// [`PlanError::Infeasible`] with the lowest peak among them and the op at which it occurs.
    pub fn best(&self, name: &'static str, request: &Request, sets: Vec<Vec<OpId>>) -> Result<Outcome, PlanError> {
        let mut incumbent = Incumbent::new(self.graph, request.budget);
        log::debug!("{name}: tries {} sets of checkpoints", sets.len());
        let reason = self.offer(&mut incumbent, sets, request);
        let outcome = incumbent.outcome(name, Status::Feasible, reason, None)?;
        outcome.ok_or_else(|| incumbent.infeasible())
    }

    /// Offers the schedules of all greedy sets.
    #[cfg(feature = "highs")]
    pub(super) fn offer_greedy(&self, incumbent: &mut Incumbent<'_>, request: &Request) {
        self.offer(incumbent, self.greedy_sets(), request);
    }
}
