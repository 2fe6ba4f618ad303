//! Following a plan on the live stream.
//!
//! The plan tells which storages to hold, to give up and to compute again between the operations of the step; see
//! [`Action`]. It is never trusted for correctness: a tensor that is read is computed again whatever the plan says. The
//! first operation that differs from the planned step ends the following for this step: all holds are let go, the online
//! policy takes over, and the trace goes on from there, so that the new step can be planned too.

use std::sync::Arc;

use burn_ir::{OperationIr, TensorId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::table::TensorKey;
use super::tracing::{ARRIVED, EXTERNAL, origin};
use super::{Engine, Failure};
use crate::backend::RematBackend;
use crate::planning::{Action, Followed, Place, Schedule, Trace};

type Named = (TensorKey, TensorId);

/// A plan being followed.
pub(super) struct Follow {
    schedule: Arc<Schedule>,
    /// Tensors made by each operation so far.
    made: Vec<SmallVec<[Named; 1]>>,
    /// Tensors from outside the step by storage.
    externals: FxHashMap<Place, Named>,
    held: Vec<Named>,
    /// Largest difference so far between bytes held and bytes foreseen.
    deviation: u64,
    /// Most bytes held during each operation.
    measured: Vec<u64>,
    /// Time and scratch bytes of each operation, where the plan was made without them.
    measures: Option<Vec<(u64, u64)>>,
}

impl Follow {
    /// `measures` is whether time and scratch bytes of the operations are wanted.
    pub fn new(schedule: Arc<Schedule>, measures: bool) -> Self {
        let made = Vec::with_capacity(schedule.trace.ops.len());
        Self {
            schedule,
            made,
            externals: FxHashMap::default(),
            held: Vec::new(),
            deviation: 0,
            measured: Vec::new(),
            measures: measures.then(Vec::new),
        }
    }

    /// Whether the whole step went by the plan.
    pub fn is_complete(&self) -> bool {
        self.made.len() == self.schedule.trace.ops.len()
    }

    /// Whether its operations are measured.
    pub fn is_measured(&self) -> bool {
        self.measures.is_some()
    }

    pub fn schedule(&self) -> &Arc<Schedule> {
        &self.schedule
    }

    pub fn outcome(self) -> Followed {
        let Self { schedule, deviation, measured: held, measures, .. } = self;
        Followed { deviation, held, trace: measures.map(|measures| schedule.trace.clone().with_measures(measures)) }
    }

    /// Whether the operation at `position` is the planned one.
    fn expects(&self, position: usize, signature: u64) -> bool {
        self.schedule.trace.ops.get(position).is_some_and(|op| op.signature == signature)
    }
}

impl<B: RematBackend> Engine<B> {
    /// Compares the operation at hand with the plan and takes the plan's steps before it.
    pub(super) fn follow_before(&mut self, op: &OperationIr, (kind, signature): (u64, u64), inputs: &[TensorKey]) {
        let at = self.last_position() as usize;
        let Some(follow) = &mut self.follow else { return };
        if !follow.expects(at, signature) {
            return self.switch_plan(at, op, (kind, signature), inputs);
        }
        let schedule = follow.schedule.clone();
        for (&input, &place) in inputs.iter().zip(&schedule.trace.ops[at].reads) {
            let tensor = &mut self.tensors[input];
            if let Some(storage) = tensor.storage {
                self.storages.leave_aside(storage);
            }
            if tensor.step != self.step_number || tensor.place == ARRIVED {
                (tensor.step, tensor.place, tensor.origin) = (self.step_number, place, EXTERNAL);
            }
            let Some(follow) = &mut self.follow else { break };
            let name = (input, tensor.id);
            let new = tensor.origin == EXTERNAL && !follow.externals.contains_key(&place);
            if new {
                follow.externals.insert(place, name);
            }
            if new && schedule.holds[place as usize] {
                self.hold(name);
            }
        }
        // What is let go of here is still read by the operation, through a view of it perhaps, which must be there first.
        let actions = &schedule.before[at];
        let lets_go = |action: &Action| matches!(action, Action::Loosen(_) | Action::ReleaseAll);
        let (first, last) = actions.split_at(actions.iter().position(lets_go).unwrap_or(actions.len()));
        let taken = self.take(first).and_then(|()| {
            if !last.is_empty() {
                let spared = self.spared(op);
                inputs.iter().filter(|&&input| spared != Some(input)).try_for_each(|&input| self.ensure(input))?;
            }
            self.take(last)
        });
        if let Err(failure) = taken {
            // The plan's own work failed: the operation may do without it.
            self.abandon_plan(at, &failure);
        }
    }

    /// Notes the outputs of an operation that has run, holds them where the plan says so, and takes the plan's steps
    /// after it.
    pub(super) fn follow_outputs(&mut self, outputs: &[TensorKey], cost_ns: u64) {
        let at = self.last_position();
        let Some(follow) = &mut self.follow else { return };
        let schedule = follow.schedule.clone();
        let Some(op) = schedule.trace.ops.get(at as usize) else { return };
        follow.measured.push(std::mem::replace(&mut self.most_held, self.storages.live));
        if let Some(measures) = &mut follow.measures {
            measures.push((cost_ns, self.scratch));
        }
        follow.made.push(outputs.iter().map(|&key| (key, self.tensors[key].id)).collect());
        for (k, (&output, &place)) in outputs.iter().zip(&op.writes).enumerate() {
            let tensor = &mut self.tensors[output];
            (tensor.step, tensor.place, tensor.origin) = (self.step_number, place, origin(at, k));
            let first = schedule.owners[place as usize].first() == Some(&(at, k as u8));
            if schedule.holds[place as usize] && first {
                let name = (output, tensor.id);
                self.hold(name);
            }
        }
    }

    /// Takes the plan's steps after the operation that ran last.
    pub(super) fn follow_after(&mut self) {
        let at = self.last_position() as usize;
        let Some(follow) = &self.follow else { return };
        let schedule = follow.schedule.clone();
        if let Some(actions) = schedule.after.get(at)
            && let Err(failure) = self.take(actions)
        {
            self.remember(&failure);
        }
    }

    fn take(&mut self, actions: &[Action]) -> Result<(), Failure> {
        for action in actions {
            log::trace!("at operation {} with {} bytes held: {action:?}", self.last_position(), self.storages.live);
            match action {
                Action::Recompute(places) => self.bring_back(places)?,
                Action::Evict(place) => self.give_up(*place),
                Action::Pack(place) => self.pack_away(*place),
                Action::Stub(place, need, _) => self.leave_stub(*place, *need),
                Action::DropStub(place) => {
                    for (key, _) in self.owners_of(*place) {
                        self.drop_stub(key);
                    }
                }
                Action::Loosen(place) => {
                    for name in self.owners_of(*place) {
                        self.let_go(name);
                    }
                }
                Action::ReleaseAll => self.release_holds(),
                Action::Check(bytes) => {
                    let live = self.storages.live - self.storages.aside;
                    if live != *bytes {
                        let at = self.last_position();
                        log::debug!("after operation {at} {live} bytes are held where the plan foresaw {bytes}");
                        self.explain_deviation();
                    }
                    if let Some(follow) = &mut self.follow {
                        follow.deviation = follow.deviation.max(live.abs_diff(*bytes));
                    }
                }
            }
        }
        Ok(())
    }

    /// Logs which storages are there and should not be, or the other way round.
    pub(super) fn explain_deviation(&self) {
        let Some(follow) = self.follow.as_ref().filter(|_| log::log_enabled!(log::Level::Trace)) else { return };
        let schedule = &follow.schedule;
        if let Some(op) = schedule.trace.ops.get(self.last_position() as usize) {
            for &place in op.reads.iter().chain(&op.writes) {
                let storage = &schedule.trace.storages[place as usize];
                log::trace!("the operation reads {:?} and writes {:?}; {place}: {storage:?}", op.reads, op.writes);
            }
        }
        let planned = schedule.held_before(self.position as usize);
        for (place, planned) in planned.into_iter().enumerate() {
            let owners = self.owners_of(place as Place);
            let storage = &schedule.trace.storages[place];
            let held = owners.iter().find_map(|name| self.tensors[name.0].storage);
            let resident = held.is_some();
            if let Some(held) = held.map(|held| self.storages.get(held).bytes).filter(|&held| held != storage.bytes) {
                log::trace!("place {place}: {held} bytes are held; {storage:?}");
            }
            if resident != planned {
                let states: Vec<(bool, bool, bool)> = owners
                    .iter()
                    .map(|name| &self.tensors[name.0])
                    .map(|tensor| (tensor.alive, tensor.held, tensor.recipe.is_some()))
                    .collect();
                log::trace!("place {place}: resident {resident}, planned {planned}; {storage:?} {states:?}");
            }
        }
    }

    /// Tensors of a storage that are still known.
    pub(super) fn owners_of(&self, place: Place) -> SmallVec<[Named; 2]> {
        let Some(follow) = &self.follow else { return SmallVec::new() };
        let made = follow.schedule.owners[place as usize]
            .iter()
            .filter_map(|&(position, k)| follow.made.get(position as usize)?.get(k as usize).copied());
        follow.externals.get(&place).copied().into_iter().chain(made).filter(|&name| self.knows(name)).collect()
    }

    fn knows(&self, (key, id): Named) -> bool {
        self.tensors.get(key).is_some_and(|tensor| tensor.id == id)
    }

    fn hold(&mut self, name: Named) {
        let tensor = &mut self.tensors[name.0];
        if !std::mem::replace(&mut tensor.held, true) {
            tensor.pins += 1;
            if let Some(follow) = &mut self.follow {
                follow.held.push(name);
            }
        }
    }

    fn let_go(&mut self, name: Named) {
        if self.knows(name) && std::mem::replace(&mut self.tensors[name.0].held, false) {
            self.unpin(name.0);
        }
    }

    fn give_up(&mut self, place: Place) {
        let owners = self.owners_of(place);
        for &name in &owners {
            self.let_go(name);
        }
        for name in owners {
            if !self.knows(name) {
                continue;
            }
            let tensor = &self.tensors[name.0];
            let Some(storage) = tensor.storage else { continue };
            if tensor.recipe.is_none() && !tensor.alive && tensor.pins == 0 {
                // A small root is kept for what it might be needed for; the plan knows that it is not.
                self.cut(name.0, false);
                continue;
            }
            let can_go = |&owner: &TensorKey| self.tensors[owner].pins == 0 && self.tensors[owner].recipe.is_some();
            if self.storages.get(storage).owners.iter().all(can_go) {
                self.evict(storage);
            }
        }
    }

    /// Packs a storage; gives it up where that cannot be.
    fn pack_away(&mut self, place: Place) {
        let owners = self.owners_of(place);
        // The first owner made the buffer, and is held; whoever else looks at it must not be in use.
        let (Some(&first), others) = (owners.first(), owners.get(1..).unwrap_or_default()) else { return };
        let tensor = &self.tensors[first.0];
        let is_free =
            tensor.pins == u32::from(tensor.held) && others.iter().all(|other| self.tensors[other.0].pins == 0);
        if let Some(storage) = tensor.storage.filter(|_| is_free) {
            self.pack_storage(storage, first.0);
        }
        self.give_up(place);
    }

    /// Brings storages back, all in one go, and holds them.
    fn bring_back(&mut self, places: &[Place]) -> Result<(), Failure> {
        let mut names: SmallVec<[Named; 2]> = SmallVec::new();
        for &place in places {
            // The first owner made the buffer; views of it follow when they are read.
            names.extend(self.owners_of(place).first().copied());
        }
        for &name in &names {
            self.hold(name);
        }
        let keys: SmallVec<[TensorKey; 2]> = names.iter().map(|name| name.0).collect();
        self.ensure_all(&keys)
    }

    /// Lets everything go that the plan holds.
    pub(super) fn release_holds(&mut self) {
        let Some(follow) = &mut self.follow else { return };
        for name in std::mem::take(&mut follow.held) {
            self.let_go(name);
        }
    }

    /// The step is another one than planned: goes over to a plan that begins with the same operations, or to the online
    /// policy.
    fn switch_plan(&mut self, at: usize, op: &OperationIr, (kind, signature): (u64, u64), inputs: &[TensorKey]) {
        self.release_holds();
        let Some(follow) = self.follow.take() else { return };
        let old = follow.schedule.clone();
        let prefix = crate::planning::extend(old.prefixes[at], signature);
        let Some(schedule) = self.plans.beginning_with(at + 1, prefix) else {
            let name = self.names.get(&kind).map_or("an operation", String::as_str);
            self.plans.differs(at, name, old.trace.name(at as u32));
            self.resume_trace(&old.trace, at as u32);
            return;
        };
        let places = self.renumber(&old.trace, &schedule.trace, at);
        let renumbered = |(place, &name): (&Place, &Named)| Some((*places.get(place)?, name));
        let externals = follow.externals.iter().filter_map(renumbered).collect();
        // What was measured so far speaks of this step too.
        let measures = if self.plans.is_unmeasured(&schedule) { follow.measures } else { None };
        self.follow = Some(Follow { schedule: schedule.clone(), measures, externals, ..follow });
        for (place, held) in schedule.held_before(at).into_iter().enumerate() {
            let owners = self.owners_of(place as Place);
            match owners.first() {
                Some(&name) if held && self.tensors[name.0].storage.is_some() => self.hold(name),
                Some(_) if !held && schedule.lowered.values[place].is_some() => self.give_up(place as Place),
                _ => {}
            }
        }
        self.follow_before(op, (kind, signature), inputs);
    }

    /// The first `at` operations of two steps are the same; their storages may have other numbers, since what comes from the host and is not
    /// read yet has one too. Gives this step's tensors the numbers of `new`.
    fn renumber(&mut self, old: &Trace, new: &Trace, at: usize) -> FxHashMap<Place, Place> {
        let mut places = FxHashMap::default();
        for (old, new) in old.ops[..at].iter().zip(&new.ops[..at]) {
            let pairs = old.reads.iter().zip(&new.reads).chain(old.writes.iter().zip(&new.writes));
            places.extend(pairs.map(|(&old, &new)| (old, new)));
        }
        let step = self.step_number;
        for (_, tensor) in self.tensors.iter_mut().filter(|(_, tensor)| tensor.step == step && tensor.place != ARRIVED)
        {
            match places.get(&tensor.place) {
                Some(&place) => tensor.place = place,
                // It counts as having been there.
                None => tensor.step = step.wrapping_sub(1),
            }
        }
        places
    }

    /// Gives the plan up for this step: it does not fit what happens.
    ///
    /// `done` operations of the step have run.
    pub(super) fn abandon_plan(&mut self, done: usize, why: &str) {
        self.release_holds();
        if let Some(follow) = self.follow.take() {
            self.plans.abandoned(why);
            let done = done.min(follow.schedule.trace.ops.len());
            self.resume_trace(&follow.schedule.trace, done as u32);
        }
    }
}
