//! Plays a [`Recording`] on a machine that commands nothing.
//!
//! The driver here only does the accounting: sizes, times and buffers are those that were recorded when an operation first ran. With the
//! configuration of the recording the machine decides as it did then, as far as its decisions do not depend on how long recomputations really
//! took. With another budget it decides differently, and the recording still serves. The traces are the same either way, because they
//! describe what the program asked for.
//!
//! Complexity: O(calls + recomputed operations).

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use rustc_hash::FxHashMap;

use crate::accounts::Accounts;
use crate::driver::{Buffer, Compressible, Driver, OpKey, Planning, Ran, Run, Source, Substitute, World};
use crate::facts::{Failure, Kind, Need, Operation, TensorFacts, TensorId};
use crate::machine::{Config, Machine};
use crate::recording::{Asking, Made, OperationCall, Recording};
use crate::stages::Entered;

/// Goes through a recording with a machine of this configuration. `planning` receives the steps and decides which plans they follow. `meanwhile` is called
/// before each call of the recording, and can influence planning or observe.
pub fn play<P: Planning>(
    recording: &Arc<Recording>,
    config: Config,
    planning: P,
    mut meanwhile: impl FnMut(&mut Machine<Player<P>>),
) -> Machine<Player<P>> {
    let mut machine = Machine::new(config, Player::new(recording.clone(), planning));
    for (at, asking) in recording.asked().iter().enumerate() {
        meanwhile(&mut machine);
        machine.world_mut().at = at;
        ask(&mut machine, asking);
    }
    machine
}

fn ask<P: Planning>(machine: &mut Machine<Player<P>>, asking: &Asking) {
    match asking {
        Asking::Operation(call) => {
            machine.world_mut().learn(call);
            machine.operation(call.thread, &asked(call));
        }
        Asking::Upload { thread, tensor, .. } => machine.upload(*thread, *tensor),
        Asking::Alias { thread, new, source } => machine.alias(*thread, *new, *source),
        Asking::Read { thread, tensor, last } => {
            // A failure is in the counters.
            let _ = machine.read(*thread, *tensor, *last, |_| Ok(()));
        }
        Asking::Drop { thread, tensor } => machine.dropped(*thread, *tensor),
        Asking::Mark { thread } => machine.mark(*thread),
        Asking::Enter { thread, name, number, policy } => {
            let name = machine.world_mut().stage(name);
            machine.enter_stage(*thread, Entered { name, number: *number, policy: *policy });
        }
        Asking::Leave { number } => machine.leave_stage(*number),
        Asking::Seed { seed } => machine.seed(*seed),
    }
}

/// An operation as the program requested it.
fn asked(call: &OperationCall) -> Operation {
    Operation {
        kind: call.kind,
        inputs: call.inputs.iter().copied().collect(),
        outputs: call.outputs.iter().copied().collect(),
        nature: call.nature,
        weak: call.weak,
        known: None,
    }
}

/// The operation that runs, and the index of its call.
fn operation<'a>(recording: &'a Recording, at_hand: usize, source: &Source<'_>) -> Option<(usize, &'a OperationCall)> {
    let at = match source {
        Source::AtHand { .. } => at_hand,
        Source::Kept { op, .. } => *op as usize,
    };
    match recording.asked().get(at) {
        Some(Asking::Operation(call)) => Some((at, call)),
        _ => None,
    }
}

/// A driver that holds no data, and something that makes plans.
pub struct Player<P> {
    recording: Arc<Recording>,
    /// The current call.
    at: usize,
    accounts: Accounts,
    /// How tensors can be compressed, and the bytes of their buffers.
    forms: FxHashMap<TensorId, (Compressible, u64)>,
    /// What can be kept instead of tensors, wherever that was asked: a plan may leave a substitute before the operation comes that asks for it.
    substitutes: FxHashMap<(TensorId, Need), Substitute>,
    names: FxHashMap<Kind, String>,
    stages: Vec<Arc<str>>,
    /// Receives the steps.
    pub planning: P,
}

impl<P> Player<P> {
    fn new(recording: Arc<Recording>, planning: P) -> Self {
        let known = |asking: &Asking| match asking {
            Asking::Operation(call) => call.weak.zip(call.substitute),
            _ => None,
        };
        let substitutes = recording.asked().iter().filter_map(known).collect();
        Self {
            recording,
            at: 0,
            accounts: Accounts::default(),
            forms: FxHashMap::default(),
            substitutes,
            names: FxHashMap::default(),
            stages: Vec::new(),
            planning,
        }
    }

    /// Bytes held, as this driver counts them.
    pub fn bytes(&self) -> u64 {
        self.accounts.bytes()
    }

    /// Remembers the name of an operation's kind.
    fn learn(&mut self, call: &OperationCall) {
        if let Some(name) = &call.name {
            self.names.insert(call.kind, name.clone());
        }
    }

    /// The number of a stage's name.
    fn stage(&mut self, name: &str) -> u32 {
        let known = self.stages.iter().position(|known| **known == *name);
        known.unwrap_or_else(|| {
            self.stages.push(name.into());
            self.stages.len() - 1
        }) as u32
    }

    /// The operation that the program requests.
    fn at_hand(&self) -> Option<&OperationCall> {
        match self.recording.asked().get(self.at) {
            Some(Asking::Operation(call)) => Some(call),
            _ => None,
        }
    }

    fn give(&mut self, id: TensorId, identity: Option<u64>, bytes: u64) -> Buffer {
        let identity = identity.unwrap_or_else(|| self.accounts.fresh());
        self.accounts.give(id, identity, bytes)
    }

    /// Gives a result its buffer.
    fn make(&mut self, call: &OperationCall, run: &Run<'_>, k: usize, takes: &[TensorId]) -> Buffer {
        let id = run.outputs[k];
        let input = |at: usize| call.inputs[at].id;
        match call.made.get(k).copied().unwrap_or(Made::New(call.outputs[k].buffer_bytes)) {
            Made::New(bytes) => self.give(id, None, bytes),
            // The tensor that it is a view of may be represented only by a substitute.
            Made::View(at) => self.give(id, self.accounts.identity(input(at)), call.outputs[k].buffer_bytes),
            Made::Over(at, bytes) => {
                let base = if takes.contains(&input(at)) { self.accounts.sole(input(at)) } else { None };
                self.give(id, base, bytes)
            }
            Made::With(sibling) => {
                self.give(id, self.accounts.identity(run.outputs[sibling]), call.outputs[k].buffer_bytes)
            }
            Made::Unknown => Buffer::Unknown,
        }
    }
}

impl<P> Driver for Player<P> {
    fn needs(&mut self, run: &Run<'_>) -> u64 {
        match run.source {
            Source::AtHand { .. } => self.at_hand().map_or(0, |call| call.needs),
            Source::Kept { .. } => 0,
        }
    }

    fn arrangement(&mut self) -> u64 {
        self.at_hand().map_or(0, |call| call.arrangement)
    }

    fn run(&mut self, run: &Run<'_>) -> Result<Ran, Failure> {
        let recording = self.recording.clone();
        let (at, call) = operation(&recording, self.at, &run.source).ok_or("internal error: an operation was lost")?;
        let (is_first, takes): (bool, Vec<TensorId>) = match run.source {
            Source::AtHand { only_read } => {
                let last = call.inputs.iter().filter(|input| input.last).map(|input| input.id);
                (true, last.filter(|id| !only_read.contains(id) && !call.left.contains(id)).collect())
            }
            Source::Kept { takes, .. } => (false, takes.to_vec()),
        };
        if let (true, Some(failure)) = (is_first, &call.failure) {
            takes.into_iter().for_each(|id| self.accounts.take(id));
            return Err(failure.as_str().into());
        }
        let stand_in = run.substitute.and_then(|of| self.substitutes.get(&of)).map_or(0, |known| known.stand_in);
        let mut ran = Ran {
            ns: call.ns,
            rise: call.rise,
            beside: if is_first { call.beside.max(stand_in) } else { stand_in },
            kept: run.keep.then_some(at as OpKey),
            ..Ran::default()
        };
        if is_first {
            ran.left = call.left.iter().copied().collect();
        }
        for k in 0..run.outputs.len() {
            let buffer = self.make(call, run, k, &takes);
            let form = call.compressible.get(k).copied().flatten().filter(|_| run.compressible);
            if let (Some(form), Buffer::Known { bytes, .. }) = (form, buffer) {
                self.forms.insert(run.outputs[k], (form, bytes));
            }
            ran.buffers.push((buffer, form));
        }
        takes.into_iter().for_each(|id| self.accounts.take(id));
        Ok(ran)
    }

    fn arrive(&mut self, id: TensorId) -> Result<Buffer, Failure> {
        let made = match self.recording.asked().get(self.at) {
            Some(Asking::Upload { made: Made::New(bytes), .. }) => Some(*bytes),
            _ => None,
        };
        Ok(made.map_or(Buffer::Unknown, |bytes| self.give(id, None, bytes)))
    }

    fn alias(&mut self, new: TensorId, source: TensorId) -> Buffer {
        match self.accounts.identity(source) {
            Some(identity) => self.give(new, Some(identity), 0),
            None => Buffer::Unknown,
        }
    }

    fn free(&mut self, id: TensorId) {
        self.accounts.take(id);
    }

    fn forget(&mut self, _op: OpKey) {}

    fn output(&mut self, op: OpKey, k: usize) -> TensorFacts {
        let nothing = TensorFacts { id: 0, shape: 0, bytes: 0, buffer_bytes: 0 };
        match self.recording.asked().get(op as usize) {
            Some(Asking::Operation(call)) => call.outputs.get(k).copied().unwrap_or(nothing),
            _ => nothing,
        }
    }

    fn compress(&mut self, id: TensorId) -> Option<(u64, u64)> {
        let (form, _) = *self.forms.get(&id)?;
        self.accounts.add_small((id, true), form.bytes);
        Some((form.bytes, 0))
    }

    fn decompress(&mut self, id: TensorId) -> Result<(Buffer, u64), Failure> {
        let (_, bytes) = *self.forms.get(&id).ok_or("internal error: an unknown tensor is compressed")?;
        Ok((self.give(id, None, bytes), 0))
    }

    fn gone(&mut self, id: TensorId) {
        self.forms.remove(&id);
    }

    fn discard(&mut self, id: TensorId) {
        self.accounts.drop_small((id, true));
    }

    fn substitute(&mut self, id: TensorId, need: Need) -> Option<Substitute> {
        self.substitutes.get(&(id, need)).copied()
    }

    fn leave_substitute(&mut self, id: TensorId, need: Need) -> Option<(u64, u64)> {
        let bytes = self.substitutes.get(&(id, need))?.bytes;
        self.accounts.add_small((id, false), bytes);
        Some((bytes, 0))
    }

    fn drop_substitute(&mut self, id: TensorId) {
        self.accounts.drop_small((id, false));
    }

    fn name(&self, kind: Kind) -> String {
        self.names.get(&kind).cloned().unwrap_or_else(|| "an operation".into())
    }

    fn stage_name(&self, name: u32) -> Option<Arc<str>> {
        self.stages.get(name as usize).cloned()
    }
}

impl<P: Planning> World for Player<P> {
    type Planning = P;

    fn planning(&self) -> &P {
        &self.planning
    }

    fn planning_mut(&mut self) -> &mut P {
        &mut self.planning
    }
}
