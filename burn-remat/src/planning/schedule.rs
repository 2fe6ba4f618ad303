//! A checked plan in the engine's terms: what to do before and after each operation of the step.
//!
//! The plan is first tightened (nothing is kept after its last use before it is computed again), so that it never keeps what the engine frees by itself
//! because the program has dropped it. Complexity: O(steps + uses).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use burn_remat_core::{Action, Need, Place, Schedule as Followed, Trace, TracedStub, replay};
use burn_remat_plan::sequence::tightened;
use burn_remat_plan::{CheckedPlan, OpId, Phase, Plan, Step, ValueId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::lowering::Lowered;

/// A plan that the engine can follow.
pub(crate) struct Schedule {
    /// What the engine follows.
    run: Arc<Followed>,
    pub lowered: Lowered,
    /// The tightened plan, in the graph's terms.
    pub plan: Plan,
    /// Time of one step under the plan, in ns.
    pub makespan: f64,
}

/// A summary, because a configuration that has plans must be printable.
impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ops, peak) = (self.trace.ops.len(), self.peak);
        f.debug_struct("Schedule").field("ops", &ops).field("peak", &peak).finish_non_exhaustive()
    }
}

impl Deref for Schedule {
    type Target = Followed;

    fn deref(&self) -> &Followed {
        &self.run
    }
}

/// A value that a plan gives up.
#[derive(Clone, Copy)]
struct Gone {
    value: ValueId,
    /// Whether it is restored from its other form.
    packs: bool,
    /// The stub of it that is still read.
    stub: Option<TracedStub>,
}

/// One step of a plan: what it makes, what it gives up, and the stubs that it is the last to read.
struct Visited<'a> {
    outputs: SmallVec<[ValueId; 2]>,
    evicted: Vec<Gone>,
    stale: &'a [TracedStub],
}

impl Visited<'_> {
    fn drops(&self) -> impl Iterator<Item = Action> {
        self.stale.iter().map(|stub| Action::DropSubstitute(stub.place))
    }
}

/// A stub that a plan reads.
struct Wanted {
    stub: TracedStub,
    /// The last step that reads it.
    last_read: usize,
    /// The first step that gives the storage up.
    left: Option<usize>,
}

/// The steps of a plan at which stubs come and go.
struct Stubs {
    /// Steps that evict a value and leave a stub of it.
    left: FxHashMap<usize, TracedStub>,
    /// Steps that are the last to read some stubs.
    dropped: FxHashMap<usize, Vec<TracedStub>>,
}

impl Schedule {
    /// The engine's own machine predicts what it holds, and an observer that only counts confirms this.
    pub fn new(trace: Arc<Trace>, lowered: Lowered, plan: &CheckedPlan) -> Self {
        let plan = tightened(&lowered.graph, plan.plan());
        let decides: Vec<bool> = lowered.values.iter().map(Option::is_some).collect();
        let holds = decides.iter().zip(&lowered.small).map(|(&decides, &small)| decides || small).collect();
        let makespan = plan.steps.iter().map(|&step| lowered.cost_of(step)).sum();
        let placing = Placing { lowered: &lowered, plan: &plan, run: Followed::new(trace, holds, decides) };
        let run = Arc::new(placing.placed());
        let foreseen = replay(&run);
        let run = Arc::unwrap_or_clone(run);
        let run = match foreseen {
            Some(foreseen) => run.with_foreseen(foreseen),
            None => {
                // It is not known what it really holds, so it fits no budget.
                log::debug!("it could not be predicted what a plan holds");
                Followed { peak: u64::MAX, ..run.storing_all() }
            }
        };
        Self { run: Arc::new(run), lowered, plan, makespan }
    }

    /// What the engine follows.
    pub fn run(&self) -> &Arc<Followed> {
        &self.run
    }

    /// Share of the step's time that the plan adds.
    pub fn overhead(&self) -> f64 {
        if self.lowered.cost_ns == 0 { 0.0 } else { self.makespan / self.lowered.cost_ns as f64 - 1.0 }
    }
}

/// Assigns the steps of a plan to the places where the engine carries them out.
struct Placing<'a> {
    lowered: &'a Lowered,
    plan: &'a Plan,
    run: Followed,
}

impl Placing<'_> {
    fn placed(mut self) -> Followed {
        self.place_actions();
        self.run
    }

    /// Goes through the plan and assigns every step to its place.
    fn place_actions(&mut self) {
        let lowered = self.lowered;
        let graph = &lowered.graph;
        let place = |value: ValueId| lowered.places[value];
        let mut resident = vec![false; graph.values().len()];
        // The number of resident values of each storage: two if a policy has it computed again.
        let mut residents = vec![0_u32; self.run.trace.storages.len()];
        let (packs, Stubs { left, dropped }) = (self.packs(), self.stubs());
        for value in graph.inputs() {
            resident[value] = true;
            residents[place(value) as usize] += 1;
        }
        let mut next = 0;
        let mut pending: Vec<Action> = Vec::new();
        let steps = &self.plan.steps;
        let mut at = 0;
        while at < steps.len() {
            let op = steps[at].op();
            let first = at + usize::from(op.is_some());
            let end =
                steps[first..].iter().position(|step| step.op().is_some()).map_or(steps.len(), |count| first + count);
            let evicted: Vec<Gone> = (first..end)
                .filter_map(|at| match steps[at] {
                    Step::Evict(value) => Some(Gone { value, packs: packs[at], stub: left.get(&at).copied() }),
                    _ => None,
                })
                .filter(|gone| !lowered.forms.small.contains(&gone.value))
                .collect();
            // No later op reads these stubs.
            let stale = dropped.get(&at).map_or(&[][..], Vec::as_slice);
            at = end;
            let outputs = op.map_or(&[][..], |op| &graph.ops()[op].outputs);
            let outputs: SmallVec<[ValueId; 2]> =
                outputs.iter().copied().filter(|value| !lowered.forms.small.contains(value)).collect();
            for &value in &outputs {
                residents[place(value) as usize] += u32::from(!std::mem::replace(&mut resident[value], true));
            }
            for &Gone { value, .. } in &evicted {
                residents[place(value) as usize] -= u32::from(std::mem::replace(&mut resident[value], false));
            }
            let evicted: Vec<Gone> =
                evicted.into_iter().filter(|gone| residents[place(gone.value) as usize] == 0).collect();
            let visit = Visited { outputs, evicted, stale };
            match op {
                Some(op) if op == next => {
                    next += 1;
                    self.place_first(op, next == graph.ops().len(), &visit, std::mem::take(&mut pending));
                }
                Some(_) => {
                    pending.extend(self.recompute(&visit));
                    pending.extend(visit.drops());
                    // An output that is not needed may be made on the way to one that is.
                    pending.extend(visit.evicted.iter().flat_map(|gone| self.give_up(gone)));
                }
                None => pending.extend(visit.evicted.iter().flat_map(|gone| self.give_up(gone))),
            }
        }
    }

    /// Computes again what a step makes, except what it gives up at once.
    fn recompute(&self, visit: &Visited<'_>) -> Option<Action> {
        let is_gone = |value: ValueId| visit.evicted.iter().any(|gone| gone.value == value && !gone.packs);
        let kept = visit.outputs.iter().filter(|&&value| !is_gone(value));
        let kept: SmallVec<[Place; 2]> = kept.map(|&value| self.lowered.places[value]).collect();
        (!kept.is_empty()).then_some(Action::Recompute(kept))
    }

    fn give_up(&self, gone: &Gone) -> SmallVec<[Action; 2]> {
        let place = self.lowered.places[gone.value];
        let stub = gone.stub.map(|stub| Action::LeaveSubstitute(place, stub.need, stub.bytes));
        stub.into_iter().chain([if gone.packs { Action::Compress(place) } else { Action::Evict(place) }]).collect()
    }

    /// An op first runs when its operations do. `lets_go` says whether it is the last op: what is there by then stays, whether the plan needs it or not.
    fn place_first(&mut self, op: OpId, lets_go: bool, visit: &Visited<'_>, mut before: Vec<Action>) {
        let lowered = self.lowered;
        let range = lowered.ranges[op].clone();
        let (start, end) = (range.start as usize, range.end as usize);
        let updates = lowered.graph.ops()[op].phase == Some(Phase::Update);
        if lowered.again[op] {
            before.extend(self.recompute(visit));
        } else if lets_go {
            before.push(Action::ReleaseAll);
        } else if updates {
            let cut = |place: &usize| self.run.holds[*place] && lowered.until[*place] == start;
            before.extend((0..self.run.holds.len()).filter(cut).map(|place| Action::Loosen(place as Place)));
        }
        // An op without operations comes right after the one before it.
        let list = if start < end { &mut self.run.before[start] } else { &mut self.run.after[end.max(1) - 1] };
        list.extend(before);
        if lets_go {
            return;
        }
        if !updates && !lowered.again[op] && start < end {
            // At its last reader, which may consume it. Earlier readers may still use it through other views.
            let goes = |gone: &&Gone| !visit.outputs.contains(&gone.value) && !gone.packs && gone.stub.is_none();
            for gone in visit.evicted.iter().filter(goes) {
                let place = lowered.places[gone.value];
                let reads = |at: &usize| self.run.trace.ops[*at].reads.contains(&place);
                let last = (start..end).rev().find(reads).unwrap_or(start);
                self.run.before[last].push(Action::Loosen(place));
            }
        }
        // What an update cuts is released when the program drops it.
        let stays = |value: ValueId| updates && lowered.until[lowered.places[value] as usize] <= start;
        let mut after: Vec<Action> = visit.drops().collect();
        after.extend(visit.evicted.iter().filter(|gone| !stays(gone.value)).flat_map(|gone| self.give_up(gone)));
        // What is read after an operation, also by the host, stays until the next operation begins.
        match self.run.before.get_mut(end).filter(|_| start == end) {
            Some(before_next) => before_next.extend(after),
            None => self.run.after[end.max(1) - 1].extend(after),
        }
    }

    /// Which steps evict a value that is next unpacked from its form.
    fn packs(&self) -> Vec<bool> {
        let graph = &self.lowered.graph;
        let outputs = |&op: &OpId| graph.ops()[op].outputs.iter().map(move |&value| (value, op));
        let maker: FxHashMap<ValueId, OpId> = self.lowered.forms.unpacks.iter().flat_map(outputs).collect();
        let mut unpacked_next = vec![false; self.lowered.graph.ops().len()];
        let mut packs = vec![false; self.plan.steps.len()];
        for (at, &step) in self.plan.steps.iter().enumerate().rev() {
            match step {
                Step::Compute(op) => unpacked_next[op] = true,
                Step::ComputeAlternative(op, _) => unpacked_next[op] = false,
                Step::Evict(value) => packs[at] = maker.get(&value).is_some_and(|&op| unpacked_next[op]),
            }
        }
        packs
    }

    /// Where stubs are left and dropped. A storage has at most one, from the first eviction before an op that reads it to the last such op, whether the
    /// storage itself is there in between or not.
    fn stubs(&self) -> Stubs {
        let mut wanted: BTreeMap<Place, Wanted> = BTreeMap::new();
        for (at, &step) in self.plan.steps.iter().enumerate().rev() {
            match step {
                Step::ComputeAlternative(op, k) => {
                    if let Some(&stub) = self.lowered.forms.stubs.get(&(op, k)) {
                        let known = wanted.entry(stub.place).or_insert(Wanted { stub, last_read: at, left: None });
                        if stub.need == Need::Signs {
                            known.stub = stub;
                        }
                    }
                }
                Step::Evict(value) if !self.lowered.forms.small.contains(&value) => {
                    if let Some(known) = wanted.get_mut(&self.lowered.places[value]) {
                        known.left = Some(at);
                    }
                }
                Step::Compute(_) | Step::Evict(_) => {}
            }
        }
        let mut stubs = Stubs { left: FxHashMap::default(), dropped: FxHashMap::default() };
        for Wanted { stub, last_read, left } in wanted.into_values() {
            if let Some(left) = left {
                stubs.left.insert(left, stub);
                stubs.dropped.entry(last_read).or_default().push(stub);
            }
        }
        stubs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::examples::chain;
    use crate::planning::lowering::lower;
    use burn_remat_plan::check;

    /// The host reads the first activation of the chain after this operation. Nothing reads it later.
    fn read_behind(position: u32) -> Schedule {
        let mut trace = chain().with_alternatives(|_| false);
        let (place, last) = (1, trace.ops.len() as u32 - 1);
        for op in trace.ops.iter_mut().skip(2) {
            op.reads.retain(|read| *read != place);
            op.inputs.retain(|(number, _)| *number != place);
        }
        trace.storages[place as usize].died = Some(last);
        trace.reads.push((position, place));
        let lowered = lower(&trace, "read").unwrap();
        let value = lowered.values[place as usize].unwrap();
        let graph = &lowered.graph;
        let reader = (0..graph.ops().len()).rev().find(|&op| graph.ops()[op].inputs.contains(&value)).unwrap();
        let steps = (0..graph.ops().len()).flat_map(|op| {
            let evict = (op == reader).then_some(Step::Evict(value));
            [Step::Compute(op)].into_iter().chain(evict)
        });
        let plan = Plan { steps: steps.collect() };
        let checked = check(graph, &plan, u64::MAX).unwrap();
        Schedule::new(Arc::new(trace), lowered.clone(), &checked)
    }

    #[test]
    fn what_the_host_reads_behind_an_operation_is_there_until_the_next() {
        let schedule = read_behind(4);
        let gives_up = |list: &Vec<Action>| list.contains(&Action::Evict(1));
        let run = schedule.run();
        assert_eq!(run.before.iter().position(gives_up), Some(5));
        assert!(!run.after.iter().any(gives_up));
    }

    #[test]
    fn what_the_host_reads_when_a_step_is_over_is_there_then() {
        let schedule = read_behind(15);
        let gives_up = |list: &Vec<Action>| list.contains(&Action::Evict(1));
        let run = schedule.run();
        assert!(!run.before.iter().chain(&run.after).any(gives_up));
        let value = schedule.lowered.values[1].unwrap();
        assert_eq!(schedule.lowered.graph.ops().last().unwrap().inputs, [value]);
    }
}
