//! How much a schedule holds during every operation, told operation by operation.
//!
//! A planner counts an op's inputs, outputs and scratch. The engine holds less in two cases that a graph has no words
//! for: an operation that takes over the buffer of an input which nobody needs afterwards, and constant bytes that are
//! not there all the time. Here the schedule's actions are played on the trace with the engine's own rules, so that a
//! plan may use what a graph's figure leaves free. Where the rules leave a doubt, it is counted as held: the result is
//! an upper bound, and between operations it must be what the actions themselves foresee ([`Action::Check`]).
//!
//! Complexity: O(operations + recomputed operations + uses).

use std::collections::BTreeSet;

use burn_remat_plan::Phase;

use super::lower::Lowered;
use super::schedule::Action;
use super::trace::{Place, Position, Trace, TracedOp};

/// Most bytes held from the end of the operation before to the end of each operation; `None` where the actions do not
/// fit the trace.
pub(super) fn during(
    trace: &Trace,
    lowered: &Lowered,
    holds: &[bool],
    before: &[Vec<Action>],
    after: &[Vec<Action>],
) -> Option<Vec<u64>> {
    let mut uploads: Vec<Vec<Place>> = vec![Vec::new(); trace.ops.len() + 1];
    let mut deaths: Vec<Vec<Place>> = vec![Vec::new(); trace.ops.len()];
    for (place, storage) in trace.storages.iter().enumerate() {
        if storage.uploaded {
            uploads[(storage.appeared as usize).min(trace.ops.len())].push(place as Place);
        }
        if let Some(died) = storage.died {
            deaths[(died as usize).min(trace.ops.len() - 1)].push(place as Place);
        }
    }
    let mut play = Play {
        trace,
        resident: trace.storages.iter().map(|storage| storage.made_by.is_none() && !storage.uploaded).collect(),
        alive: trace.storages.iter().map(|storage| storage.made_by.is_none() && !storage.uploaded).collect(),
        held: vec![false; holds.len()],
        packed: vec![false; holds.len()],
        stubs: vec![None; holds.len()],
        readers: vec![0; holds.len()],
        live: trace.held_at_start,
        most: trace.held_at_start,
    };
    let managed = |place: Place| lowered.small[place as usize] || lowered.values[place as usize].is_some();
    let updating = in_update(trace, lowered);
    let mut most = Vec::with_capacity(trace.ops.len());
    for (at, op) in trace.ops.iter().enumerate() {
        for &place in &uploads[at] {
            play.appear(place);
        }
        for &place in op.reads.iter().filter(|&&place| trace.storages[place as usize].made_by.is_none()) {
            play.held[place as usize] |= holds[place as usize];
        }
        play.take(&before[at], op.reads.as_slice())?;
        let spared = play.spared(op);
        let mut reads = op.reads.clone();
        reads.retain(|place| spared != Some(*place));
        play.bring_back(&reads);
        let stand_in = play.stand_in(op);
        play.live += stand_in;
        for place in fresh(trace, at) {
            let base = trace.storages[place as usize].reuses.filter(|&base| {
                let free = !play.held[base as usize] && play.resident[base as usize];
                free && (play.can_be_made(base) || !managed(base) || updating[at])
            });
            play.make(place, base);
            play.alive[place as usize] = true;
            play.held[place as usize] |= holds[place as usize];
        }
        play.most = play.most.max(play.live + op.scratch);
        play.live -= stand_in;
        most.push(std::mem::replace(&mut play.most, play.live));
        for &place in &deaths[at] {
            play.alive[place as usize] = false;
            play.settle(place);
        }
        for &place in &op.reads {
            play.settle(place);
        }
        play.take(&after[at], &[])?;
    }
    Some(most)
}

/// Which operations belong to an update phase.
fn in_update(trace: &Trace, lowered: &Lowered) -> Vec<bool> {
    let mut updating = vec![false; trace.ops.len()];
    for (op, range) in lowered.graph.ops().iter().zip(&lowered.ranges) {
        if op.phase == Some(Phase::Update) {
            updating[range.start as usize..range.end as usize].fill(true);
        }
    }
    updating
}

/// Storages that the operation at `position` makes, each once.
fn fresh(trace: &Trace, position: usize) -> impl Iterator<Item = Place> {
    let writes = &trace.ops[position].writes;
    writes.iter().enumerate().filter_map(move |(k, &place)| {
        let made_here = trace.storages[place as usize].made_by == Some(position as Position);
        (made_here && !writes[..k].contains(&place)).then_some(place)
    })
}

/// What is held while a step is played.
struct Play<'a> {
    trace: &'a Trace,
    resident: Vec<bool>,
    /// Whether the program holds a tensor of the storage.
    alive: Vec<bool>,
    /// Whether the plan holds it.
    held: Vec<bool>,
    /// Whether it is in its other form.
    packed: Vec<bool>,
    /// Bytes of its stub, where it has left one.
    stubs: Vec<Option<u64>>,
    /// Recomputations under way that will still read it.
    readers: Vec<u32>,
    live: u64,
    most: u64,
}

impl Play<'_> {
    fn bytes(&self, place: Place) -> u64 {
        self.trace.storages[place as usize].bytes
    }

    fn form_bytes(&self, place: Place) -> u64 {
        self.trace.storages[place as usize].form.map_or(0, |form| form.bytes)
    }

    /// Whether an operation of the step can make the storage again.
    fn can_be_made(&self, place: Place) -> bool {
        let made_by = self.trace.storages[place as usize].made_by;
        made_by.is_some_and(|made| self.trace.ops[made as usize].recordable)
    }

    fn appear(&mut self, place: Place) {
        self.make(place, None);
        self.alive[place as usize] = true;
        self.most = self.most.max(self.live);
    }

    /// Makes a storage, in the buffer of `base` where there is one.
    fn make(&mut self, place: Place, base: Option<Place>) {
        if std::mem::replace(&mut self.resident[place as usize], true) {
            return;
        }
        self.live += self.bytes(place);
        if let Some(base) = base {
            self.free(base);
        }
    }

    /// The storage of which a stub takes the place where `op` reads it.
    fn spared(&self, op: &TracedOp) -> Option<Place> {
        let place = op.stub?.place;
        let at = place as usize;
        (!self.resident[at] && !self.packed[at] && self.stubs[at].is_some()).then_some(place)
    }

    /// Bytes of what stands in for a stub while `op` runs.
    fn stand_in(&self, op: &TracedOp) -> u64 {
        op.stub.filter(|_| self.spared(op).is_some()).map_or(0, |stub| stub.stand_in)
    }

    /// Makes those storages that are packed from their other form.
    fn unpack(&mut self, places: &[Place]) {
        for &place in places {
            if std::mem::take(&mut self.packed[place as usize]) {
                self.make(place, None);
                self.most = self.most.max(self.live);
                self.live -= self.form_bytes(place);
            }
        }
    }

    fn free(&mut self, place: Place) {
        if std::mem::replace(&mut self.resident[place as usize], false) {
            self.live -= self.bytes(place);
        }
    }

    /// Frees a storage that nobody needs.
    fn settle(&mut self, place: Place) {
        let at = place as usize;
        if !self.alive[at] && !self.held[at] && self.readers[at] == 0 {
            self.free(place);
        }
    }

    /// Takes a schedule's actions. What `reads` names is needed by the operation that comes next.
    fn take(&mut self, actions: &[Action], reads: &[Place]) -> Option<()> {
        for action in actions {
            match action {
                Action::Recompute(places) => {
                    for &place in places {
                        self.held[place as usize] = true;
                    }
                    self.bring_back(places);
                }
                Action::Evict(place) => {
                    self.held[*place as usize] = false;
                    if self.can_be_made(*place) && !reads.contains(place) {
                        self.free(*place);
                    }
                    self.settle(*place);
                }
                Action::Pack(place) => {
                    if self.resident[*place as usize] && !reads.contains(place) {
                        self.live += self.form_bytes(*place);
                        self.most = self.most.max(self.live);
                        self.free(*place);
                        self.packed[*place as usize] = true;
                    }
                    self.held[*place as usize] = false;
                }
                Action::Stub(place, _, bytes) => {
                    let stub = &mut self.stubs[*place as usize];
                    if self.resident[*place as usize] && stub.is_none() {
                        *stub = Some(*bytes);
                        self.live += bytes;
                        self.most = self.most.max(self.live);
                    }
                }
                Action::DropStub(place) => self.live -= self.stubs[*place as usize].take().unwrap_or(0),
                Action::Loosen(place) => {
                    self.held[*place as usize] = false;
                    if !reads.contains(place) {
                        self.settle(*place);
                    }
                }
                Action::ReleaseAll => {
                    for place in 0..self.held.len() {
                        if std::mem::replace(&mut self.held[place], false) && !reads.contains(&(place as Place)) {
                            self.settle(place as Place);
                        }
                    }
                }
                Action::Check(bytes) if *bytes == self.live => {}
                Action::Check(bytes) => {
                    log::debug!("a plan foresees {bytes} bytes where its operations hold {}", self.live);
                    return None;
                }
            }
        }
        Some(())
    }

    /// Computes storages again that are not there, with what that takes.
    fn bring_back(&mut self, places: &[Place]) {
        let missing = |play: &Self, place: Place| {
            !play.resident[place as usize] && !play.packed[place as usize] && play.can_be_made(place)
        };
        let mut stack: Vec<Place> = places.iter().copied().filter(|&place| missing(self, place)).collect();
        let mut positions = BTreeSet::new();
        while let Some(place) = stack.pop() {
            let Some(made) = self.trace.storages[place as usize].made_by else { continue };
            if positions.insert(made) {
                let op = &self.trace.ops[made as usize];
                let spared = self.spared(op);
                stack.extend(op.reads.iter().copied().filter(|&read| spared != Some(read) && missing(self, read)));
            }
        }
        let trace = self.trace;
        let reads_of = |position: Position| &trace.ops[position as usize].reads;
        for &position in &positions {
            reads_of(position).iter().for_each(|&read| self.readers[read as usize] += 1);
        }
        self.unpack(places);
        for &position in &positions {
            self.unpack(reads_of(position));
            let stand_in = self.stand_in(&trace.ops[position as usize]);
            self.live += stand_in;
            for place in fresh(trace, position as usize) {
                let base = trace.storages[place as usize].reuses.filter(|&base| {
                    let at = base as usize;
                    let last = !self.alive[at] && !self.held[at] && self.readers[at] == 1;
                    last && self.resident[at] && self.can_be_made(base)
                });
                self.make(place, base);
            }
            self.most = self.most.max(self.live + trace.ops[position as usize].scratch);
            self.live -= stand_in;
            for &read in reads_of(position) {
                self.readers[read as usize] -= 1;
                self.settle(read);
            }
            for place in fresh(trace, position as usize) {
                self.settle(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn_remat_plan::{Plan, Step, check, simulate};

    use super::super::lower::lower;
    use super::super::schedule::Schedule;
    use super::super::trace::examples::chain;
    use super::*;
    use crate::alternatives::Alternatives;

    #[test]
    fn what_reads_a_stub_runs_again_from_it() {
        let trace = chain().with_alternatives("sign-bits".parse::<Alternatives>().unwrap());
        let lowered = lower(&trace, "chain").unwrap();
        let graph = &lowered.graph;
        let (&(reader, way), stub) = lowered.stubs.iter().next().unwrap();
        let position = lowered.ranges[reader].start as usize;
        assert_eq!(trace.storages[stub.place as usize].died, Some(position as Position));
        let value = lowered.values[stub.place as usize].unwrap();
        let &[result] = graph.ops()[reader].outputs.as_slice() else { panic!("one result") };
        // Everything is kept but the value with the stub and, for a moment, what is made from it. By then the program has let go of it.
        let last = graph.consumers(value).iter().copied().rfind(|&op| op < reader).unwrap();
        let from_stub = Step::ComputeAlternative(reader, way);
        let mut steps = Vec::new();
        for op in 0..graph.ops().len() {
            match op {
                op if op == reader => steps.extend([from_stub, Step::Evict(result), from_stub]),
                op => steps.push(Step::Compute(op)),
            }
            if op == last {
                steps.push(Step::Evict(value));
            }
        }
        let plan = check(graph, &Plan { steps }, u64::MAX).unwrap();
        let timeline = simulate(graph, plan.plan());
        let schedule = Schedule::new(trace.clone(), lowered.clone(), &plan);
        let Schedule { holds, before, after, .. } = &schedule;
        assert!(before[position + 1].contains(&Action::DropStub(stub.place)), "{before:?}");
        let held = during(&trace, &lowered, holds, before, after).unwrap();
        let again = plan.plan().steps.iter().rposition(|&step| step == from_stub).unwrap();
        // The result again, its input, the stub and the stand-in, but not the value.
        assert!(held[position + 1] <= timeline.bytes[again..].iter().copied().max().unwrap());
        assert_eq!(held[position], held[position + 1]);
    }
}
