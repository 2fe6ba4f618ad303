//! What one training step did: its operations in order, the buffers they made, and when the program released them.
//!
//! A trace names *storages* (buffers) and tensors, each numbered in the order in which they appear, and *positions*, the
//! number of an operation within its step. It describes what the program asked for, as if nothing had been evicted: the
//! recomputations that took place while it was made are not in it. It contains everything that a [machine](crate::Machine) needs to go
//! through the step again without the program: see [`replay`](crate::replay).
//!
//! Larger than the rule: `TracedOp`, because it is a record, written once and read by name.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use core::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::facts::{Alternative, Kind, Nature, Need, Rule, is_default};

/// Number of an operation within its step.
pub type Position = u32;
/// Number of a storage within its step.
pub type Place = u32;
/// Number of a tensor within its step.
pub type Number = u32;
/// Number of one visit of a stage within its step, from 1; 0 for none.
pub type Visit = u32;

/// The origin of a tensor that no operation of its step made.
pub(crate) const EXTERNAL: u32 = u32::MAX;

/// The origin of output `k` of the operation at `position`.
pub(crate) fn origin(position: Position, k: usize) -> u32 {
    (position << 8) | (k as u32).min(0xff)
}

/// One operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracedOp {
    /// Hash of its kind, its outputs' shapes and where its inputs come from; equal in all steps that do the same.
    #[serde(skip)]
    pub signature: u64,
    /// Its kind, to be looked up in [`Trace::names`].
    pub kind: Kind,
    /// Its properties.
    #[serde(skip_serializing_if = "is_default")]
    pub nature: Nature,
    /// The storage of each input tensor; each tensor occurs once.
    pub reads: SmallVec<[Place; 4]>,
    /// The storage of each output tensor. That of a view existed before.
    pub writes: SmallVec<[Place; 2]>,
    /// The input tensors, and whether this operation is the last to use them.
    pub inputs: SmallVec<[(Number, bool); 4]>,
    /// The first of its output tensors; the others follow it.
    pub outputs: Number,
    /// Time it took, in ns.
    pub cost_ns: u64,
    /// Bytes that it used beyond its tensors, if they can be measured.
    #[serde(skip_serializing_if = "is_default")]
    pub scratch: u64,
    /// Whether it can run again.
    pub recordable: bool,
    /// Whether it replaces a parameter.
    #[serde(skip_serializing_if = "is_default")]
    pub updates: bool,
    /// The visit of a stage that it belongs to; 0 for none. Not part of the signature.
    #[serde(skip_serializing_if = "is_default")]
    pub visit: Visit,
    /// The policy of its stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// What is enough in place of one of its inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stub: Option<TracedStub>,
}

/// What is enough in place of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedStub {
    /// The input.
    pub place: Place,
    /// What is needed of it.
    pub need: Need,
    /// Bytes of the device that a substitute of it takes.
    pub bytes: u64,
    /// Bytes of the tensor built from it while the operation runs.
    pub stand_in: u64,
    /// Time to make both, in ns.
    pub cost_ns: u64,
}

/// One buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedStorage {
    /// Its size.
    pub bytes: u64,
    /// The operation that made it; `None` if it existed before the step or was uploaded.
    pub made_by: Option<Position>,
    /// Whether it came from the host after the step began.
    pub uploaded: bool,
    /// Position of the next operation when it appeared; 0 if it existed before the step.
    pub appeared: Position,
    /// The operation by whose end the program had released all its tensors; `None` if it outlives the step.
    /// What is dropped between two operations dies with the second.
    pub died: Option<Position>,
    /// The storage whose buffer it took over in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuses: Option<Place>,
    /// How it can be compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<TracedForm>,
}

/// How a storage can be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedForm {
    /// The method.
    pub alternative: Alternative,
    /// Bytes of the device that it takes while compressed.
    pub bytes: u64,
    /// Time to compress and decompress it once, in ns.
    pub cost_ns: u64,
}

/// One tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedTensor {
    /// Its storage.
    pub place: Place,
    /// A hash of its shape and element type.
    pub shape: u64,
    /// Bytes of its elements.
    pub bytes: u64,
    /// Bytes of a new buffer for it.
    pub buffer_bytes: u64,
}

/// What happened between two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Between {
    /// A tensor came from the host, or is another name of an existing one.
    Arrives(Number),
    /// The program released a tensor.
    Drops(Number),
    /// The program read a tensor.
    Reads(Number),
}

impl Between {
    /// The tensor.
    pub(crate) fn number(self) -> Number {
        match self {
            Self::Arrives(number) | Self::Drops(number) | Self::Reads(number) => number,
        }
    }
}

/// A whole step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// The operations, in order.
    pub ops: Vec<TracedOp>,
    /// The buffers, in the order in which they appear.
    pub storages: Vec<TracedStorage>,
    /// The tensors, in the order in which they appear.
    pub tensors: Vec<TracedTensor>,
    /// What happened between operations, each with the position of the operation that followed it.
    pub between: Vec<(Position, Between)>,
    /// Storages that the program read, each with the operation that came before the read.
    pub reads: Vec<(Position, Place)>,
    /// Bytes held when the step began, all of them out of the planner's control.
    pub held_at_start: u64,
    /// Bytes that earlier passes had saved when the step began, and that are evicted if it needs the room. They are not included in `held_at_start`.
    pub yielding: u64,
    /// Whether this is a pass, which begins with its first operation wherever that comes; otherwise a step, which begins at a step boundary.
    pub is_pass: bool,
    /// The operation that begins the backward pass, if this is a stretch of operations that ends with a pass.
    pub seed: Option<Position>,
    /// Where that pass was over, if that was recognised only later.
    pub over: Option<Position>,
    /// Names of operations by kind.
    pub names: FxHashMap<Kind, String>,
    /// The path of each visit of a stage, in the order of their first operations: visit 1 first.
    pub visits: Vec<Arc<str>>,
}

impl Trace {
    /// Name of an operation.
    pub fn name(&self, position: Position) -> &str {
        self.ops.get(position as usize).and_then(|op| self.names.get(&op.kind)).map_or("an operation", String::as_str)
    }

    /// Identifies the step exactly: equal for steps that do the same. See [`Spine`](crate::Spine).
    pub fn signature(&self) -> u64 {
        self.ops.iter().fold(0, |prefix, op| extend(prefix, op.signature))
    }

    /// Bytes that would be held during each operation if nothing were ever evicted, workspaces included if they count.
    pub fn store_all(&self) -> Vec<u64> {
        let mut deaths = vec![0_u64; self.ops.len()];
        let mut appears = vec![0_u64; self.ops.len() + 1];
        let mut taken = vec![false; self.storages.len()];
        for storage in &self.storages {
            match storage.reuses {
                Some(base) => taken[base as usize] = true,
                None if storage.made_by.is_some() || storage.uploaded => {
                    appears[(storage.appeared as usize).min(self.ops.len())] += storage.bytes;
                }
                None => {}
            }
        }
        for (storage, taken) in self.storages.iter().zip(taken) {
            if let (Some(died), false) = (storage.died, taken) {
                deaths[(died as usize).min(self.ops.len() - 1)] += storage.bytes;
            }
        }
        let mut held = self.held_at_start;
        self.ops
            .iter()
            .zip(deaths.iter().zip(&appears))
            .map(|(op, (death, appear))| {
                held += appear;
                let during = held + op.scratch;
                held = held.saturating_sub(*death);
                during
            })
            .collect()
    }

    /// Most bytes that the step would hold if nothing were ever evicted.
    pub fn peak(&self) -> u64 {
        self.store_all().into_iter().max().unwrap_or(0)
    }

    /// The same plus what earlier passes had saved.
    pub fn most_held(&self) -> u64 {
        self.peak() + self.yielding
    }

    /// The alternatives that this step could use.
    pub fn alternatives(&self) -> impl Iterator<Item = Alternative> + '_ {
        let forms = self.storages.iter().filter_map(|storage| storage.form.map(|form| form.alternative));
        forms.chain(self.ops.iter().filter_map(|op| op.stub.map(|stub| stub.need.alternative())))
    }

    /// The step with only the `allowed` alternatives. A storage that may not be compressed in its own way may still be offloaded, at the speed
    /// measured for the storages of this step that are offloaded.
    pub fn with_alternatives(mut self, allowed: impl Fn(Alternative) -> bool) -> Self {
        let offloads = |storage: &&TracedStorage| {
            storage.bytes > 0 && storage.form.is_some_and(|form| form.alternative == Alternative::Offload)
        };
        let offload = self.storages.iter().find(offloads).and_then(|storage| {
            let ns_per_byte = storage.form?.cost_ns as f64 / storage.bytes as f64;
            allowed(Alternative::Offload).then_some(move |bytes: u64| TracedForm {
                alternative: Alternative::Offload,
                bytes: 0,
                cost_ns: (bytes as f64 * ns_per_byte) as u64,
            })
        });
        for storage in &mut self.storages {
            let Some(form) = storage.form.filter(|form| !allowed(form.alternative)) else { continue };
            let may_move = form.alternative != Alternative::Offload;
            storage.form = offload.filter(|_| may_move).map(|offload| offload(storage.bytes));
        }
        for op in &mut self.ops {
            op.stub = op.stub.filter(|stub| allowed(stub.need.alternative()));
        }
        self
    }

    /// Unmarks updates whose result does not last. It must outlive the step, or become in place something that does and succeed what existed before the
    /// backward pass, which gradients do not. This is needed in the first step, where nothing else distinguishes a parameter from a dropout mask or a gradient.
    pub fn with_lasting_updates(mut self) -> Self {
        let stays: Vec<bool> = self.storages.iter().map(|storage| storage.died.is_none()).collect();
        let mut lasts = stays.clone();
        for place in (0..self.storages.len()).rev() {
            if let (true, Some(base)) = (lasts[place], self.storages[place].reuses) {
                lasts[base as usize] = true;
            }
        }
        let mut turn = None;
        for (at, op) in (0..).zip(&mut self.ops) {
            let storage = |place: &Place| &self.storages[*place as usize];
            if op.nature.one {
                turn = Some(at);
            }
            let succeeds = |made: &Place| {
                let is_old = |read: &Place| turn.is_none_or(|turn| storage(read).appeared < turn);
                op.reads.iter().any(|read| storage(read).bytes == storage(made).bytes && is_old(read))
            };
            let is_kept = |place: &Place| stays[*place as usize] || lasts[*place as usize] && succeeds(place);
            op.updates = op.updates && op.writes.iter().any(is_kept);
        }
        self
    }

    /// For each tensor, the operation that makes it and the index of the output; [`u32::MAX`] if it comes from outside.
    pub fn origins(&self) -> Vec<u32> {
        let mut origins = vec![EXTERNAL; self.tensors.len()];
        for (at, op) in self.ops.iter().enumerate() {
            for k in 0..op.writes.len() {
                origins[op.outputs as usize + k] = origin(at as Position, k);
            }
        }
        origins
    }

    /// Gives each operation the signature that it has at its position in this trace.
    pub(crate) fn sign(&mut self) {
        let (origins, tensors) = (self.origins(), &self.tensors);
        for op in &mut self.ops {
            let shape = |number: Number| tensors[number as usize].shape;
            let outputs = (op.outputs..).take(op.writes.len()).map(shape);
            let inputs = op.inputs.iter().map(|&(number, last)| (origins[number as usize], shape(number), last));
            op.signature = signature(op.kind, op.rule, outputs, inputs);
        }
    }

    /// Takes over costs and scratch bytes measured over several steps of this kind.
    pub fn with_measures(mut self, measures: impl IntoIterator<Item = (u64, u64)>) -> Self {
        for (op, measure) in self.ops.iter_mut().zip(measures) {
            (op.cost_ns, op.scratch) = measure;
        }
        self
    }
}

/// The signature of an operation, equal wherever the same is done: what it makes, by shape, and from what. An input is identified by
/// its origin in the step, by its shape, and by whether this is its last use.
pub(crate) fn signature(
    kind: Kind,
    rule: Option<Rule>,
    outputs: impl Iterator<Item = u64>,
    inputs: impl Iterator<Item = (u32, u64, bool)>,
) -> u64 {
    let mut hasher = FxHasher::default();
    kind.hash(&mut hasher);
    if let Some(rule) = rule {
        rule.hash(&mut hasher);
    }
    outputs.for_each(|shape| shape.hash(&mut hasher));
    for (origin, shape, last) in inputs {
        if origin == EXTERNAL {
            (shape, EXTERNAL).hash(&mut hasher);
        } else {
            origin.hash(&mut hasher);
        }
        last.hash(&mut hasher);
    }
    hasher.finish()
}

/// Signature of a step's first operations, from the signature of all but the last of them.
pub fn extend(prefix: u64, signature: u64) -> u64 {
    (prefix.rotate_left(5) ^ signature).wrapping_mul(0x517c_c1b7_2722_0a95)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation that reads some storages and makes one, which may take over a buffer, and may die.
    struct Made {
        bytes: u64,
        reads: &'static [Place],
        reuses: Option<Place>,
        died: Option<Position>,
    }

    fn made(bytes: u64, reads: &'static [Place], reuses: Option<Place>, died: Option<Position>) -> Made {
        Made { bytes, reads, reuses, died }
    }

    /// Those operations that are updates. All of them look like updates except the first. A single one has four bytes.
    fn updates(ops: &[Made]) -> Vec<usize> {
        let mut trace = Trace::default();
        for (at, &Made { bytes, reads, reuses, died }) in (0..).zip(ops) {
            let (made_by, appeared) = (Some(at), at);
            trace.storages.push(TracedStorage { bytes, made_by, uploaded: false, appeared, died, reuses, form: None });
            let nature = Nature { one: bytes == 4, ..Nature::default() };
            let (reads, writes) = (reads.iter().copied().collect(), [at].into_iter().collect());
            trace.ops.push(TracedOp { updates: at > 0, nature, reads, writes, ..TracedOp::default() });
        }
        let trace = trace.with_lasting_updates();
        trace.ops.iter().enumerate().filter(|(_, op)| op.updates).map(|(at, _)| at).collect()
    }

    #[test]
    fn gradients_into_whose_buffer_an_optimizer_writes_are_no_updates() {
        let step = [
            // A parameter, the gradient of the loss, and the gradient of the parameter, which looks like an update.
            made(128, &[], None, Some(5)),
            made(4, &[], None, Some(2)),
            made(128, &[1], None, Some(3)),
            made(128, &[2], None, Some(4)),
            // In place it becomes state, and the parameter is rewritten in two parts.
            made(128, &[3], Some(3), None),
            made(128, &[0, 4], Some(0), Some(6)),
            made(128, &[4, 5], Some(5), None),
        ];
        assert_eq!(updates(&step), [4, 5, 6]);
        // Without a backward pass they cannot be distinguished.
        let step = [made(128, &[], None, Some(5)), made(128, &[0], None, Some(2)), made(128, &[1], Some(1), None)];
        assert_eq!(updates(&step), [1, 2]);
    }
}
