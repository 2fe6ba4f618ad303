//! A checked plan in terms of the engine: what to do before and after each operation of the step.
//!
//! The plan is first made tight (nothing is kept beyond its last use before it is computed again), so that what the
//! engine frees by itself, because the program let go of it, is never kept by the plan. Complexity: O(steps + uses).

use std::collections::BTreeMap;

use burn_remat_plan::sequence::tightened;
use burn_remat_plan::{CheckedPlan, OpId, Phase, Plan, Step, ValueId, simulate};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::exact;
use super::lower::Lowered;
use super::trace::{Need, Place, Position, Trace, TracedStub, extend};

/// What the engine does between operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Computes storages again and holds them.
    Recompute(SmallVec<[Place; 2]>),
    /// Gives a storage up.
    Evict(Place),
    /// Packs a storage into its other form.
    Pack(Place),
    /// Leaves a stub of a storage, of so many bytes, before it goes.
    Stub(Place, Need, u64),
    /// Drops the stub of a storage.
    DropStub(Place),
    /// Lets a storage go by itself: the next operations are the last that need it.
    Loosen(Place),
    /// Lets all go: parameters are about to be updated, or the step ends.
    ReleaseAll,
    /// So many bytes are held now.
    Check(u64),
}

/// A plan that the engine can follow.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub trace: Trace,
    pub lowered: Lowered,
    /// The plan in the graph's terms, tight.
    pub plan: Plan,
    /// Signature of the step's first operations, by their number.
    pub prefixes: Vec<u64>,
    /// What to do before each operation.
    pub before: Vec<Vec<Action>>,
    /// What to do after each operation.
    pub after: Vec<Vec<Action>>,
    /// Whether a storage is held from when it appears.
    pub holds: Vec<bool>,
    /// Tensors of each storage, as operation and number of its output.
    pub owners: Vec<SmallVec<[(Position, u8); 2]>>,
    /// Bytes that the plan foresees during each operation, an upper bound.
    pub foreseen: Vec<u64>,
    /// Most bytes foreseen.
    pub peak: u64,
    /// Time of one step under the plan, in ns.
    pub makespan: f64,
}

/// A value that a plan gives up.
#[derive(Clone, Copy)]
struct Gone {
    value: ValueId,
    /// Whether it comes back from its other form.
    packs: bool,
    /// What of it is still read.
    stub: Option<TracedStub>,
}

/// A stub that a plan reads.
struct Wanted {
    stub: TracedStub,
    /// The last step that reads it.
    last_read: usize,
    /// The first step that gives the storage up.
    left: Option<usize>,
}

/// Steps of a plan at which stubs come and go.
struct Stubs {
    /// Steps that evict a value and leave a stub of it.
    left: FxHashMap<usize, TracedStub>,
    /// Steps that are the last to read some stubs.
    dropped: FxHashMap<usize, Vec<TracedStub>>,
}

impl Schedule {
    pub fn new(trace: Trace, lowered: Lowered, plan: &CheckedPlan) -> Self {
        let plan = tightened(&lowered.graph, plan.plan());
        let timeline = simulate(&lowered.graph, &plan);
        let mut prefixes = vec![0];
        for op in &trace.ops {
            prefixes.push(extend(prefixes[prefixes.len() - 1], op.signature));
        }
        let mut owners = vec![SmallVec::new(); trace.storages.len()];
        for (at, op) in trace.ops.iter().enumerate() {
            for (k, &place) in op.writes.iter().enumerate() {
                owners[place as usize].push((at as Position, k as u8));
            }
        }
        let holds = (0..trace.storages.len()).map(|at| lowered.small[at] || lowered.values[at].is_some()).collect();
        let count = trace.ops.len();
        let mut schedule = Self {
            prefixes,
            before: vec![Vec::new(); count],
            after: vec![Vec::new(); count],
            holds,
            owners,
            foreseen: vec![0; count],
            peak: timeline.peak_bytes,
            makespan: plan.steps.iter().map(|&step| lowered.cost_of(step)).sum(),
            trace,
            lowered,
            plan,
        };
        schedule.place_actions(&timeline.bytes);
        let Schedule { trace, lowered, holds, before, after, .. } = &schedule;
        match exact::during(trace, lowered, holds, before, after) {
            Some(exact) => {
                schedule.peak = exact.iter().max().copied().unwrap_or(0);
                schedule.foreseen = exact;
            }
            None => {
                // What it really holds cannot be told: no budget is promised for it.
                log::debug!("the operations of a plan do not hold what its ops do");
                schedule.peak = schedule.peak.max(schedule.lowered.peak());
            }
        }
        schedule
    }

    /// Goes through the plan and puts every step where the engine takes it.
    fn place_actions(&mut self, bytes: &[u64]) {
        let graph = &self.lowered.graph;
        let count = self.trace.ops.len();
        let place = |value: ValueId| self.lowered.places[value];
        let mut resident = vec![false; graph.values().len()];
        // Resident values of each storage: two where a policy has it computed again.
        let mut residents = vec![0_u32; self.trace.storages.len()];
        let (packs, Stubs { left, dropped }) = (self.packs(), self.stubs());
        // Whether a storage is packed.
        let mut packed = vec![false; self.trace.storages.len()];
        let form_bytes = |place: Place| self.trace.storages[place as usize].form.map_or(0, |form| form.bytes);
        // An upload is there from when it comes, whatever the graph says.
        let mut coming: Vec<(Position, u64)> = graph
            .inputs()
            .map(|value| (self.trace.storages[place(value) as usize].appeared, graph.bytes(value)))
            .collect();
        coming.sort_unstable();
        let mut coming = coming.into_iter().peekable();
        let mut held: u64 = 0;
        for value in graph.inputs() {
            resident[value] = true;
            residents[place(value) as usize] += 1;
        }
        let mut next = 0;
        let mut pending: Vec<Action> = Vec::new();
        let mut most: u64 = 0;
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
                .filter(|gone| !self.lowered.small_forms.contains(&gone.value))
                .collect();
            // The next ops read no more of these stubs.
            let stale = dropped.get(&at).map_or(&[][..], Vec::as_slice);
            most = most.max(bytes[at]);
            at = end;
            if op == Some(next) {
                let end = self.lowered.ranges[next].end.max(1);
                while let Some((_, bytes)) = coming.next_if(|(appeared, _)| *appeared < end) {
                    held += bytes;
                }
            }
            let packs_next = op.is_some_and(|op| self.lowered.unpacks.contains(&(op + 1)));
            let outputs = op.map_or(&[][..], |op| &graph.ops()[op].outputs);
            let outputs: SmallVec<[ValueId; 2]> =
                outputs.iter().copied().filter(|value| !self.lowered.small_forms.contains(value)).collect();
            for &value in &outputs {
                if !std::mem::replace(&mut resident[value], true) {
                    let at = place(value) as usize;
                    held += if residents[at] == 0 { graph.bytes(value) } else { 0 };
                    residents[at] += 1;
                    if std::mem::replace(&mut packed[at], false) {
                        held -= form_bytes(place(value));
                    }
                }
            }
            for &Gone { value, packs, .. } in &evicted {
                if std::mem::replace(&mut resident[value], false) {
                    let at = place(value) as usize;
                    residents[at] -= 1;
                    held -= if residents[at] == 0 { graph.bytes(value) } else { 0 };
                    if packs {
                        packed[at] = true;
                        held += form_bytes(place(value));
                    }
                }
            }
            let evicted: Vec<Gone> =
                evicted.into_iter().filter(|gone| residents[place(gone.value) as usize] == 0).collect();
            held += evicted.iter().filter_map(|gone| gone.stub).map(|stub| stub.bytes).sum::<u64>();
            held -= stale.iter().map(|stub| stub.bytes).sum::<u64>();
            let drops = stale.iter().map(|stub| Action::DropStub(stub.place));
            let recompute = || -> Option<Action> {
                let is_gone = |value: ValueId| evicted.iter().any(|gone| gone.value == value && !gone.packs);
                let kept: SmallVec<[Place; 2]> =
                    outputs.iter().filter(|&&value| !is_gone(value)).map(|&value| place(value)).collect();
                (!kept.is_empty()).then_some(Action::Recompute(kept))
            };
            let give_up = |gone: &Gone| -> SmallVec<[Action; 2]> {
                let place = place(gone.value);
                let stub = gone.stub.map(|stub| Action::Stub(place, stub.need, stub.bytes));
                stub.into_iter().chain([if gone.packs { Action::Pack(place) } else { Action::Evict(place) }]).collect()
            };
            match op {
                Some(op) if op == next => {
                    next += 1;
                    let range = self.lowered.ranges[op].clone();
                    let (start, end) = (range.start as usize, range.end as usize);
                    // What is there by then stays, whether the plan has a use for it or not.
                    let lets_go = next == graph.ops().len();
                    let updates = graph.ops()[op].phase == Some(Phase::Update);
                    let mut before = std::mem::take(&mut pending);
                    if self.lowered.again[op] {
                        before.extend(recompute());
                    } else if lets_go {
                        before.push(Action::ReleaseAll);
                    } else if updates {
                        let cut = |place: &usize| self.holds[*place] && self.lowered.until[*place] == start;
                        let cut = (0..self.holds.len()).filter(cut);
                        before.extend(cut.map(|place| Action::Loosen(place as Place)));
                    }
                    // An op without operations comes right after the one before it.
                    let list = if start < end { &mut self.before[start] } else { &mut self.after[end.max(1) - 1] };
                    list.extend(before);
                    if !lets_go && !updates && !self.lowered.again[op] && start < end {
                        // At its last reader, which may take it over: those before it may look at it through other views.
                        let goes = |gone: &&Gone| !outputs.contains(&gone.value) && !gone.packs && gone.stub.is_none();
                        for &Gone { value, .. } in evicted.iter().filter(goes) {
                            let reads = |at: &usize| self.trace.ops[*at].reads.contains(&place(value));
                            let last = (start..end).rev().find(reads).unwrap_or(start);
                            self.before[last].push(Action::Loosen(place(value)));
                        }
                    }
                    if !lets_go {
                        let after = &mut self.after[end.max(1) - 1];
                        // What an update cuts goes when the program lets go of it.
                        let stays = |value: ValueId| updates && self.lowered.until[place(value) as usize] <= start;
                        after.extend(drops);
                        after.extend(evicted.iter().filter(|gone| !stays(gone.value)).flat_map(give_up));
                        // What the program drops between two steps may still be there behind the last operation. An op that
                        // makes a form has made the value itself, which is counted with the next op.
                        if end < count && !packs_next {
                            after.push(Action::Check(self.lowered.base[end.max(1) - 1] + held));
                        }
                    }
                    self.foreseen[start.min(count - 1)..end].iter_mut().for_each(|bytes| *bytes = most);
                    most = 0;
                }
                Some(_) => {
                    pending.extend(recompute());
                    pending.extend(drops);
                    // An output that is not wanted may come about on the way to one that is.
                    pending.extend(evicted.iter().flat_map(give_up));
                }
                None => pending.extend(evicted.iter().flat_map(give_up)),
            }
        }
    }

    /// Which steps evict a value that is next unpacked from its form.
    fn packs(&self) -> Vec<bool> {
        let graph = &self.lowered.graph;
        let outputs = |&op: &OpId| graph.ops()[op].outputs.iter().map(move |&value| (value, op));
        let maker: FxHashMap<ValueId, OpId> = self.lowered.unpacks.iter().flat_map(outputs).collect();
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

    /// Where stubs are left and dropped. A storage has one at most, from the first eviction before an op that reads it to the last such
    /// op, whether the storage itself is there meanwhile or not.
    fn stubs(&self) -> Stubs {
        let mut wanted: BTreeMap<Place, Wanted> = BTreeMap::new();
        for (at, &step) in self.plan.steps.iter().enumerate().rev() {
            match step {
                Step::ComputeAlternative(op, k) => {
                    if let Some(&stub) = self.lowered.stubs.get(&(op, k)) {
                        let known = wanted.entry(stub.place).or_insert(Wanted { stub, last_read: at, left: None });
                        if stub.need == Need::Signs {
                            known.stub = stub;
                        }
                    }
                }
                Step::Evict(value) if !self.lowered.small_forms.contains(&value) => {
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

    /// Identifies the step that the plan is for.
    pub fn signature(&self) -> u64 {
        self.prefixes.last().copied().unwrap_or(0)
    }

    /// Which storages the plan holds when the operation at `position` is about to begin.
    pub fn held_before(&self, position: usize) -> Vec<bool> {
        let mut held = vec![false; self.holds.len()];
        let take = |held: &mut Vec<bool>, actions: &[Action]| {
            for action in actions {
                match action {
                    Action::Recompute(places) => places.iter().for_each(|&place| held[place as usize] = true),
                    Action::Evict(place) | Action::Pack(place) | Action::Loosen(place) => held[*place as usize] = false,
                    Action::ReleaseAll => held.fill(false),
                    Action::Check(_) | Action::Stub(..) | Action::DropStub(_) => {}
                }
            }
        };
        for (at, op) in self.trace.ops[..position].iter().enumerate() {
            let outside = |&&place: &&Place| self.trace.storages[place as usize].made_by.is_none();
            op.reads.iter().filter(outside).for_each(|&p| held[p as usize] |= self.holds[p as usize]);
            take(&mut held, &self.before[at]);
            op.writes.iter().for_each(|&place| held[place as usize] |= self.holds[place as usize]);
            take(&mut held, &self.after[at]);
        }
        held
    }

    /// Share of the step's time that the plan adds.
    pub fn overhead(&self) -> f64 {
        if self.lowered.cost_ns == 0 { 0.0 } else { self.makespan / self.lowered.cost_ns as f64 - 1.0 }
    }
}
