//! A recording of what a program asked a machine for: operations, tensors by size, drops, reads, marks, stages, and what the driver answered. It has no data.
//!
//! A recording begins with an engine that holds nothing. The [player](crate::play) goes through it again without the program and without a backend, so
//! that what went wrong in another person's program can be examined, and kept as a test.
//!
//! Each [`Asking`] is one call of a [`Machine`](crate::Machine). The driver's answers are stored with the operations that they belong to, as
//! relations ("over input 0"), not as identities of buffers: a player that evicts other tensors can still use them.
//!
//! Larger than the rule: `OperationCall`, because it is a record, written once and read by name.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use crate::driver::{Compressible, Substitute};
use crate::facts::{CheckpointPolicy, Input, Kind, Nature, Need, TensorFacts, TensorId, ThreadId, is_default};

/// What a program asked for, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    asked: Vec<Asking>,
}

/// One request of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "most are operations, and a box for each would take as much")]
pub enum Asking {
    /// An operation.
    Operation(OperationCall),
    /// A tensor comes from the host or another device.
    Upload {
        /// The thread that uploads it.
        thread: ThreadId,
        /// The tensor.
        tensor: TensorFacts,
        /// Its buffer.
        made: Made,
    },
    /// A second name for a tensor.
    Alias {
        /// The thread that makes it.
        thread: ThreadId,
        /// The new number.
        new: TensorId,
        /// The tensor that it names.
        source: TensorId,
    },
    /// A tensor is read.
    Read {
        /// The thread that reads it.
        thread: ThreadId,
        /// The tensor.
        tensor: TensorId,
        /// Whether the program releases it with that.
        last: bool,
    },
    /// The program releases a tensor.
    Drop {
        /// The thread that releases it.
        thread: ThreadId,
        /// The tensor.
        tensor: TensorId,
    },
    /// A training step begins.
    Mark {
        /// The thread that trains.
        thread: ThreadId,
    },
    /// A stage begins.
    Enter {
        /// The thread that enters it.
        thread: ThreadId,
        /// Its name.
        name: String,
        /// A number that identifies this visit of the stage.
        number: i64,
        /// Its policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<CheckpointPolicy>,
    },
    /// A stage ends.
    Leave {
        /// The number of the visit.
        number: i64,
    },
    /// The generator of random numbers is seeded.
    Seed {
        /// The seed.
        seed: u64,
    },
}

/// An operation, and its outcome when it first ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationCall {
    /// The thread that asks for it.
    pub thread: ThreadId,
    /// What it does.
    pub kind: Kind,
    /// The name of its kind, at its first occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tensors that it reads, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// Tensors that it makes.
    pub outputs: Vec<TensorFacts>,
    /// How it works.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nature: Nature,
    /// The input of which it needs less than the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weak: Option<(TensorId, Need)>,
    /// The buffers of its outputs, one for each; empty if it failed.
    pub made: Vec<Made>,
    /// Time that it took, in ns.
    pub ns: u64,
    /// Most bytes that it allocated beyond what it holds now, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rise: Option<u64>,
    /// Bytes of the device that it announced it would need while it runs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub needs: u64,
    /// Bytes of the device that it needed, beyond its inputs and outputs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub beside: u64,
    /// The layout of its inputs, if that was asked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub arrangement: u64,
    /// Tensors that it was allowed to take over but only read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<TensorId>,
    /// How its outputs can be compressed, if any can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compressible: Vec<Option<Compressible>>,
    /// What can be kept instead of the input of which it needs less, if that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub substitute: Option<Substitute>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The buffer of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Made {
    /// A new one of this many bytes.
    New(u64),
    /// That of this input, of which it is a view.
    View(usize),
    /// That of this input, which it overwrote; a new one of this many bytes if it may not.
    Over(usize, u64),
    /// That of an earlier output.
    With(usize),
    /// The backend does not say.
    Unknown,
}

impl Made {
    /// Bytes of a new buffer.
    fn bytes(&self) -> u64 {
        match *self {
            Self::New(bytes) | Self::Over(_, bytes) => bytes,
            Self::View(_) | Self::With(_) | Self::Unknown => 0,
        }
    }
}

/// Something that does not fit into a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The field, such as `operation.made[0]`.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.field, self.reason)
    }
}

impl core::error::Error for Misfit {}

/// Most bytes that all calls together may name, and most ns: 8 PiB, or about a hundred days. So no sum of them overflows in a machine.
pub(crate) const MOST: u64 = 1 << 53;

/// Puts a recording together, and checks that each call is consistent with those before it.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    recording: Recording,
    known: FxHashSet<TensorId>,
    /// Bytes and ns that the calls so far name.
    bytes: u64,
    ns: u64,
}

impl Recording {
    /// The requests, in order.
    pub fn asked(&self) -> &[Asking] {
        &self.asked
    }

    /// Builds a recording from calls.
    ///
    /// # Errors
    ///
    /// The index of the first call that does not fit, from 0, and what is wrong with it.
    pub fn of(asked: impl IntoIterator<Item = Asking>) -> Result<Self, (usize, Misfit)> {
        let mut recorder = Recorder::default();
        for (at, asking) in asked.into_iter().enumerate() {
            recorder.push(asking).map_err(|misfit| (at, misfit))?;
        }
        Ok(recorder.finish())
    }
}

impl Recorder {
    /// Adds a call.
    ///
    /// # Errors
    ///
    /// What does not fit: a tensor that does not exist, or is made twice; or buffers of inputs or outputs that do not exist.
    pub fn push(&mut self, asking: Asking) -> Result<(), Misfit> {
        let misfit = |field, reason| Err(Misfit { field, reason });
        match &asking {
            Asking::Operation(call) => self.operation(call)?,
            Asking::Upload { tensor, made, .. } => {
                if !matches!(made, Made::New(_) | Made::Unknown) {
                    return misfit("upload.made", "is the buffer of an operation's result");
                }
                if !self.known.insert(tensor.id) {
                    return misfit("upload.tensor.id", "is a tensor that already exists");
                }
                self.add("upload", [tensor.bytes, tensor.buffer_bytes, made.bytes()], [])?;
            }
            Asking::Alias { new, source, .. } => {
                if !self.known.contains(source) {
                    return misfit("alias.source", "is not an existing tensor");
                }
                if !self.known.insert(*new) {
                    return misfit("alias.new", "is a tensor that already exists");
                }
            }
            Asking::Read { tensor, last, .. } => {
                if !self.known.contains(tensor) {
                    return misfit("read.tensor", "is not an existing tensor");
                }
                if *last {
                    self.known.remove(tensor);
                }
            }
            Asking::Drop { tensor, .. } => {
                if !self.known.remove(tensor) {
                    return misfit("drop.tensor", "is not an existing tensor");
                }
            }
            Asking::Mark { .. } | Asking::Enter { .. } | Asking::Leave { .. } | Asking::Seed { .. } => {}
        }
        self.recording.asked.push(asking);
        Ok(())
    }

    fn operation(&mut self, call: &OperationCall) -> Result<(), Misfit> {
        let misfit = |field, reason| Err(Misfit { field, reason });
        if call.inputs.iter().any(|input| !self.known.contains(&input.id)) {
            return misfit("operation.inputs", "contains a tensor that does not exist");
        }
        if call.weak.is_some_and(|(id, _)| call.inputs.iter().all(|input| input.id != id)) {
            return misfit("operation.weak", "is not one of the inputs");
        }
        if call.made.len() != call.outputs.len() && call.failure.is_none() {
            return misfit("operation.made", "must have one buffer for each output");
        }
        if ![0, call.outputs.len()].contains(&call.compressible.len()) {
            return misfit("operation.compressible", "must have one entry for each output");
        }
        let is_there = |(at, made): (usize, &Made)| match *made {
            Made::View(input) | Made::Over(input, _) => input < call.inputs.len(),
            Made::With(output) => output < at,
            Made::New(_) | Made::Unknown => true,
        };
        if !call.made.iter().enumerate().all(is_there) {
            return misfit("operation.made", "names an input or output that does not exist");
        }
        if call.inputs.iter().enumerate().any(|(at, input)| call.inputs[..at].iter().any(|other| other.id == input.id))
        {
            return misfit("operation.inputs", "contains a tensor twice");
        }
        let forms = || call.compressible.iter().flatten();
        let facts = call.outputs.iter().flat_map(|output| [output.bytes, output.buffer_bytes]);
        let bytes = facts.chain(call.made.iter().map(Made::bytes)).chain(forms().map(|form| form.bytes));
        let beside = [call.needs, call.beside, call.rise.unwrap_or(0)];
        let substitute = call.substitute.iter().flat_map(|found| [found.bytes, found.stand_in]);
        let costs = forms().map(|form| form.cost_ns).chain(call.substitute.iter().map(|found| found.cost_ns));
        self.add("operation", bytes.chain(beside).chain(substitute), costs.chain([call.ns]))?;
        for input in call.inputs.iter().filter(|input| input.last) {
            self.known.remove(&input.id);
        }
        if !call.outputs.iter().all(|output| self.known.insert(output.id)) {
            return misfit("operation.outputs", "contains a tensor that already exists");
        }
        Ok(())
    }

    /// Counts the bytes and ns that a call names, and rejects sums that a machine cannot count.
    fn add(
        &mut self,
        field: &'static str,
        bytes: impl IntoIterator<Item = u64>,
        ns: impl IntoIterator<Item = u64>,
    ) -> Result<(), Misfit> {
        self.bytes = bytes.into_iter().fold(self.bytes, u64::saturating_add);
        self.ns = ns.into_iter().fold(self.ns, u64::saturating_add);
        match (self.bytes > MOST, self.ns > MOST) {
            (true, _) => Err(Misfit { field, reason: "names more bytes than any machine has (2^53 in all)" }),
            (_, true) => Err(Misfit { field, reason: "takes longer than any program (2^53 ns in all)" }),
            _ => Ok(()),
        }
    }

    /// The finished recording.
    pub fn finish(self) -> Recording {
        self.recording
    }
}
