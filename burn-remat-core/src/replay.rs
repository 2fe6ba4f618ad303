//! What a schedule really holds, found by running the machine over the trace.
//!
//! A graph counts an op's inputs, outputs and scratch. The machine holds less if an operation takes over the buffer of an input
//! that nobody needs afterwards, and more or less wherever its rules say so. Here the same machine goes through the step again,
//! commanding a driver that only does the accounting: a result is written over an input where it was when the step was traced, if the
//! machine lets the operation take over that input this time, and nobody else uses the buffer.
//!
//! The driver is also the observer: it counts the bytes of what it is told to make and free, with none of the machine's code. If the two
//! do not agree after every operation, the schedule is not followed.
//!
//! Complexity: O(operations + recomputed operations + uses).

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::accounts::Accounts;
use crate::driver::{Buffer, Compressible, Driver, Followed, Limits, OpKey, Planning, Ran, Run, Source, World};
use crate::facts::{Failure, Input, Kind, Need, Operation, TensorFacts, TensorId};
use crate::machine::{Config, Machine};
use crate::schedule::{Foreseen, Schedule};
use crate::trace::{Between, Number, Place, Position, Trace, TracedForm, TracedOp};

/// The thread that trains.
const TRAINER: u64 = 1;
/// Tensors that stand for what the trace does not name get numbers from here on.
const UNNAMED: TensorId = 1 << 40;

/// What will be held if the step follows `schedule`. `None` if it would not follow it to the end, or if machine and observer disagree.
pub fn replay(schedule: &Arc<Schedule>) -> Option<Foreseen> {
    let trace = Arc::clone(&schedule.trace);
    let reseed = trace.ops.iter().any(|op| op.nature.random && op.recordable);
    let mut machine = Machine::new(Config { rehearsing: true, reseed, ..Config::default() }, Books::new(schedule));
    set_out(&mut machine, &trace);
    machine.mark(TRAINER);
    machine.mark(TRAINER);
    let mut between: Vec<(Position, Between)> = trace.between.clone();
    between.sort_by_key(|(position, _)| *position);
    let mut between = between.into_iter().peekable();
    let mut after = Vec::with_capacity(trace.ops.len());
    for (at, op) in trace.ops.iter().enumerate() {
        while let Some((_, event)) = between.next_if(|(position, _)| *position as usize <= at) {
            happen(&mut machine, &trace, event);
        }
        machine.world_mut().at = at;
        machine.operation(TRAINER, &asked(&trace, op));
        let bytes = machine.holdings().bytes;
        if machine.world().accounts.bytes() != bytes {
            return None;
        }
        after.push(bytes);
    }
    machine.mark(TRAINER);
    let outcome = machine.world_mut().outcome.take()?;
    Some(Foreseen { during: outcome.held, after })
}

fn facts(trace: &Trace, number: Number) -> TensorFacts {
    let tensor = trace.tensors[number as usize];
    TensorFacts { id: number.into(), shape: tensor.shape, bytes: tensor.bytes, buffer_bytes: tensor.buffer_bytes }
}

/// Creates what existed before the step.
fn set_out(machine: &mut Machine<Books>, trace: &Trace) {
    let mut comes: Vec<bool> = alloc::vec![false; trace.tensors.len()];
    for op in &trace.ops {
        (0..op.writes.len()).for_each(|k| comes[op.outputs as usize + k] = true);
    }
    for (_, event) in &trace.between {
        if let Between::Arrives(number) = event {
            comes[*number as usize] = true;
        }
    }
    let mut known = 0;
    for (place, storage) in trace.storages.iter().enumerate() {
        if storage.made_by.is_some() || storage.uploaded {
            continue;
        }
        known += storage.bytes;
        // Other tensors of this storage may exist that the step has not used.
        if storage.died.is_none() {
            machine.world_mut().unnamed = (Some(place as Place), 0);
            let id = UNNAMED + place as TensorId;
            machine.upload(TRAINER, TensorFacts { id, shape: 0, bytes: storage.bytes, buffer_bytes: storage.bytes });
        }
    }
    let rest = trace.held_at_start.saturating_sub(known);
    machine.world_mut().unnamed = (None, rest);
    for number in (0..trace.tensors.len()).filter(|&number| !comes[number]) {
        machine.upload(TRAINER, facts(trace, number as Number));
    }
    machine.upload(TRAINER, TensorFacts { id: UNNAMED - 1, shape: 0, bytes: rest, buffer_bytes: rest });
}

fn happen(machine: &mut Machine<Books>, trace: &Trace, event: Between) {
    match event {
        Between::Arrives(number) => machine.upload(TRAINER, facts(trace, number)),
        Between::Drops(number) => machine.dropped(TRAINER, number.into()),
        Between::Reads(number) => {
            let _ = machine.read(TRAINER, number.into(), false, |_| Ok(()));
        }
    }
}

/// A traced operation as the program requested it.
fn asked(trace: &Trace, op: &TracedOp) -> Operation {
    let weak = op.stub.and_then(|stub| {
        let at = op.reads.iter().position(|&place| place == stub.place)?;
        Some((op.inputs[at].0.into(), stub.need))
    });
    Operation {
        kind: op.kind,
        inputs: op.inputs.iter().map(|&(number, last)| Input { id: number.into(), last, once: true }).collect(),
        outputs: (0..op.writes.len() as u32).map(|k| facts(trace, op.outputs + k)).collect(),
        nature: op.nature,
        weak,
        known: Some((op.rule, op.signature)),
    }
}

/// A driver that holds no data.
struct Books {
    schedule: Arc<Schedule>,
    /// The current operation of the program.
    at: usize,
    accounts: Accounts,
    /// The latest buffer made for each storage.
    places: FxHashMap<Place, u64>,
    /// For a tensor that is created but has no name in the trace: its storage, or its bytes.
    unnamed: (Option<Place>, u64),
    outcome: Option<Followed>,
}

impl Books {
    fn new(schedule: &Arc<Schedule>) -> Self {
        Self {
            schedule: schedule.clone(),
            at: 0,
            accounts: Accounts::default(),
            places: FxHashMap::default(),
            unnamed: (None, 0),
            outcome: None,
        }
    }

    fn place(&self, id: TensorId) -> Option<Place> {
        self.schedule.trace.tensors.get(id as usize).map(|tensor| tensor.place)
    }

    /// The buffer that an operation overwrites for a storage, if it may.
    fn overwritten(&self, op: &TracedOp, place: Place, takes: &[TensorId]) -> Option<u64> {
        let base = self.schedule.trace.storages[place as usize].reuses?;
        let at = op.reads.iter().position(|&read| read == base)?;
        let id = TensorId::from(op.inputs[at].0);
        if takes.contains(&id) { self.accounts.sole(id) } else { None }
    }

    fn form(&self, place: Place) -> Option<Compressible> {
        let TracedForm { alternative, bytes, cost_ns } = self.schedule.trace.storages[place as usize].form?;
        Some(Compressible { alternative, bytes, cost_ns })
    }
}

impl Driver for Books {
    fn run(&mut self, run: &Run<'_>) -> Result<Ran, Failure> {
        let trace = Arc::clone(&self.schedule.trace);
        let (at, takes): (usize, SmallVec<[TensorId; 4]>) = match run.source {
            Source::AtHand { only_read } => {
                let inputs =
                    trace.ops[self.at].inputs.iter().filter(|(_, last)| *last).map(|(number, _)| (*number).into());
                (self.at, inputs.filter(|id| !only_read.contains(id)).collect())
            }
            Source::Kept { op, takes, .. } => (op as usize, takes.into()),
        };
        let op = &trace.ops[at];
        let stand_in = op.stub.filter(|_| run.substitute.is_some()).map_or(0, |stub| stub.stand_in);
        let kept = run.keep.then_some(at as OpKey);
        let mut ran = Ran { ns: op.cost_ns, beside: op.scratch + stand_in, kept, ..Ran::default() };
        for (k, (&id, &place)) in run.outputs.iter().zip(&op.writes).enumerate() {
            let sibling = op.writes[..k].iter().position(|&other| other == place);
            let base = op.reads.iter().position(|&read| read == place);
            let base = base.and_then(|at| self.accounts.identity(op.inputs[at].0.into()));
            let known = match sibling {
                Some(sibling) => self.accounts.identity(run.outputs[sibling]),
                None if trace.storages[place as usize].made_by != Some(at as Position) => base,
                None => self.overwritten(op, place, &takes),
            };
            let identity = known.unwrap_or_else(|| self.accounts.fresh());
            self.places.insert(place, identity);
            let buffer = self.accounts.give(id, identity, trace.storages[place as usize].bytes);
            let form = if run.compressible { self.form(place) } else { None };
            ran.buffers.push((buffer, form));
        }
        takes.into_iter().for_each(|id| self.accounts.take(id));
        Ok(ran)
    }

    fn arrive(&mut self, id: TensorId) -> Result<Buffer, Failure> {
        let Some(place) = self.place(id).or(self.unnamed.0) else {
            let identity = self.accounts.fresh();
            return Ok(self.accounts.give(id, identity, self.unnamed.1));
        };
        let known = self.places.get(&place).copied().filter(|identity| self.accounts.is_held(*identity));
        let identity = known.unwrap_or_else(|| self.accounts.fresh());
        self.places.insert(place, identity);
        Ok(self.accounts.give(id, identity, self.schedule.trace.storages[place as usize].bytes))
    }

    fn alias(&mut self, new: TensorId, source: TensorId) -> Buffer {
        self.accounts.share(new, source)
    }

    fn free(&mut self, id: TensorId) {
        self.accounts.take(id);
    }

    fn forget(&mut self, _op: OpKey) {}

    fn output(&mut self, op: OpKey, k: usize) -> TensorFacts {
        let trace = &self.schedule.trace;
        facts(trace, trace.ops[op as usize].outputs + k as u32)
    }

    fn compress(&mut self, id: TensorId) -> Option<(u64, u64)> {
        let form = self.form(self.place(id)?)?;
        self.accounts.add_small((id, true), form.bytes);
        Some((form.bytes, 0))
    }

    fn decompress(&mut self, id: TensorId) -> Result<(Buffer, u64), Failure> {
        let place = self.place(id).ok_or("internal error: an unknown tensor is compressed")?;
        let identity = self.accounts.fresh();
        self.places.insert(place, identity);
        Ok((self.accounts.give(id, identity, self.schedule.trace.storages[place as usize].bytes), 0))
    }

    fn discard(&mut self, id: TensorId) {
        self.accounts.drop_small((id, true));
    }

    fn leave_substitute(&mut self, id: TensorId, need: Need) -> Option<(u64, u64)> {
        let place = self.place(id)?;
        let stubs = self.schedule.trace.ops.iter().filter_map(|op| op.stub);
        let stub = stubs.into_iter().find(|stub| stub.place == place && stub.need == need)?;
        self.accounts.add_small((id, false), stub.bytes);
        Some((stub.bytes, 0))
    }

    fn drop_substitute(&mut self, id: TensorId) {
        self.accounts.drop_small((id, false));
    }

    fn name(&self, kind: Kind) -> String {
        self.schedule.trace.names.get(&kind).cloned().unwrap_or_default()
    }
}

impl Planning for Books {
    fn is_on(&self) -> bool {
        true
    }

    fn next(&self) -> Option<Arc<Schedule>> {
        self.outcome.is_none().then(|| self.schedule.clone())
    }

    fn followed(&mut self, _schedule: &Schedule, outcome: Followed, _limits: Limits) -> bool {
        self.outcome = Some(outcome);
        false
    }
}

impl World for Books {
    type Planning = Self;

    fn planning(&self) -> &Self {
        self
    }

    fn planning_mut(&mut self) -> &mut Self {
        self
    }
}
