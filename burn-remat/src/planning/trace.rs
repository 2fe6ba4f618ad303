//! What one training step did: its operations in order, the buffers they made, and when the program let go of them.
//!
//! A trace speaks of *storages* (buffers), numbered in the order in which they appear, and of *positions*, the number of
//! an operation within its step. It describes what the program asked for, as if nothing had been evicted: the
//! recomputations that went on while it was recorded are not in it.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::stages::Visit;
use crate::alternatives::{Alternative, Alternatives};
use crate::checkpoint::Rule;

/// Number of an operation within its step.
pub(crate) type Position = u32;
/// Number of a storage within its step.
pub(crate) type Place = u32;

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TracedOp {
    /// Hash of its kind, its outputs' shapes and where its inputs come from; the same in every step that does the same.
    pub signature: u64,
    /// Kind, to be looked up in [`Trace::names`].
    pub kind: u64,
    /// The storage of each input tensor, each tensor once.
    pub reads: SmallVec<[Place; 4]>,
    /// The storage of each output tensor. A view's is one that was there before.
    pub writes: SmallVec<[Place; 2]>,
    /// Time it took, in ns.
    pub cost_ns: u64,
    /// Bytes that it used beside its tensors, where they can be seen.
    pub scratch: u64,
    /// Whether it can run again.
    pub recordable: bool,
    /// Whether it replaces a parameter.
    pub updates: bool,
    /// The passage through a stage to which it belongs; 0 for none. No part of the signature.
    pub visit: Visit,
    /// The policy of its stage.
    pub rule: Option<Rule>,
    /// What would do in place of one of its inputs.
    pub stub: Option<TracedStub>,
}

/// What an operation needs of an input, where that is less than its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    Signs,
    Shape,
}

impl Need {
    pub fn name(self) -> &'static str {
        match self {
            Self::Signs => "signs",
            Self::Shape => "shape",
        }
    }

    pub fn alternative(self) -> Alternative {
        match self {
            Self::Signs => Alternative::SignBits,
            Self::Shape => Alternative::ShapeOnly,
        }
    }
}

/// What would do in place of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TracedStub {
    /// The input.
    pub place: Place,
    pub need: Need,
    /// Bytes of the device that a stub of it takes.
    pub bytes: u64,
    /// Bytes of a stand-in, while the operation runs.
    pub stand_in: u64,
    /// Time to make both, in ns.
    pub cost_ns: u64,
}

/// One buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TracedStorage {
    pub bytes: u64,
    /// The operation that made it; `None` if it was there before the step or was uploaded.
    pub made_by: Option<Position>,
    /// Whether it came from the host after the step began.
    pub uploaded: bool,
    /// Position of the next operation when it appeared; 0 if it was there before the step.
    pub appeared: Position,
    /// The operation at the end of which the program held none of its tensors any more; `None` if it outlives the step.
    /// What is dropped between two operations dies with the second.
    pub died: Option<Position>,
    /// The storage whose buffer it took over in place.
    pub reuses: Option<Place>,
    /// Another form that it may take.
    pub form: Option<TracedForm>,
}

/// Another form of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TracedForm {
    pub alternative: Alternative,
    /// Bytes of the device that it takes.
    pub bytes: u64,
    /// Time to pack it and to unpack it once, in ns.
    pub cost_ns: u64,
}

/// A whole step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Trace {
    pub ops: Vec<TracedOp>,
    pub storages: Vec<TracedStorage>,
    /// Storages that the program read, each with the operation after which it did.
    pub reads: Vec<(Position, Place)>,
    /// Bytes held when the step began, all of them out of the planner's reach.
    pub held_at_start: u64,
    /// Names of operations by kind.
    pub names: FxHashMap<u64, String>,
    /// The path of each passage through a stage, in the order of their first operations: visit 1 first.
    pub visits: Vec<Arc<str>>,
}

impl Trace {
    /// Name of an operation.
    pub fn name(&self, position: Position) -> &str {
        self.ops.get(position as usize).and_then(|op| self.names.get(&op.kind)).map_or("an operation", String::as_str)
    }

    /// Identifies the step: equal for steps that do the same.
    pub fn signature(&self) -> u64 {
        self.ops.iter().fold(0, |prefix, op| extend(prefix, op.signature))
    }

    /// Bytes that would be held during each operation if nothing were ever evicted, workspaces included where they count.
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

    /// The alternatives of which this step could make use.
    pub fn alternatives(&self) -> impl Iterator<Item = Alternative> + '_ {
        let forms = self.storages.iter().filter_map(|storage| storage.form.map(|form| form.alternative));
        forms.chain(self.ops.iter().filter_map(|op| op.stub.map(|stub| stub.need.alternative())))
    }

    /// The step if no more than these alternatives were allowed. What may not take its own form may still be offloaded, at the rate
    /// of what is offloaded here.
    pub fn with_alternatives(mut self, allowed: Alternatives) -> Self {
        let offloads = |storage: &&TracedStorage| {
            storage.bytes > 0 && storage.form.is_some_and(|form| form.alternative == Alternative::Offload)
        };
        let offload = self.storages.iter().find(offloads).and_then(|storage| {
            let ns_per_byte = storage.form?.cost_ns as f64 / storage.bytes as f64;
            allowed.allows(Alternative::Offload).then_some(move |bytes: u64| TracedForm {
                alternative: Alternative::Offload,
                bytes: 0,
                cost_ns: (bytes as f64 * ns_per_byte) as u64,
            })
        });
        for storage in &mut self.storages {
            let Some(form) = storage.form.filter(|form| !allowed.allows(form.alternative)) else { continue };
            let may_move = form.alternative != Alternative::Offload;
            storage.form = offload.filter(|_| may_move).map(|offload| offload(storage.bytes));
        }
        for op in &mut self.ops {
            op.stub = op.stub.filter(|stub| allowed.allows(stub.need.alternative()));
        }
        self
    }

    /// An update is one only if what it makes outlives the step: in the first step, where nothing tells a parameter from
    /// a dropout mask, this does.
    pub fn keep_lasting_updates(&mut self) {
        let mut lasts: Vec<bool> = self.storages.iter().map(|storage| storage.died.is_none()).collect();
        for place in (0..self.storages.len()).rev() {
            if let (true, Some(base)) = (lasts[place], self.storages[place].reuses) {
                lasts[base as usize] = true;
            }
        }
        for op in self.ops.iter_mut().filter(|op| op.updates) {
            op.updates = op.writes.iter().any(|&place| lasts[place as usize]);
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

/// Signature of a step's first operations, from that of one fewer.
pub(crate) fn extend(prefix: u64, signature: u64) -> u64 {
    (prefix.rotate_left(5) ^ signature).wrapping_mul(0x517c_c1b7_2722_0a95)
}

#[cfg(test)]
pub(super) mod examples {
    use super::*;

    const BYTES: u64 = 1 << 20;
    const DEPTH: u32 = 8;

    /// Forward and backward through a chain. All activations have a form, and backward needs only the signs of every other.
    pub fn chain() -> Trace {
        let mut trace = Trace { held_at_start: BYTES, ..Trace::default() };
        let storage = |made_by: Option<u32>, died| TracedStorage {
            bytes: BYTES,
            made_by,
            uploaded: false,
            appeared: made_by.unwrap_or(0),
            died,
            reuses: None,
            form: made_by.map(|_| TracedForm { alternative: Alternative::Offload, bytes: 0, cost_ns: 500 }),
        };
        let op = |at: u32, reads: &[u32]| TracedOp {
            signature: u64::from(at),
            kind: u64::from(at),
            reads: reads.iter().copied().collect(),
            writes: [at + 1].into_iter().collect(),
            cost_ns: 1000 + u64::from(at),
            scratch: 0,
            recordable: true,
            updates: false,
            visit: 0,
            rule: None,
            stub: None,
        };
        trace.storages.push(storage(None, None));
        for at in 0..DEPTH {
            trace.ops.push(op(at, &[at]));
            trace.storages.push(storage(Some(at), Some(2 * DEPTH - 1 - at)));
        }
        for at in DEPTH..2 * DEPTH {
            let activation = 2 * DEPTH - at;
            let mut op = op(at, &[at, activation]);
            let stub =
                TracedStub { place: activation, need: Need::Signs, bytes: BYTES / 32, stand_in: BYTES, cost_ns: 90 };
            op.stub = (at % 2 == 0).then_some(stub);
            trace.ops.push(op);
            trace.storages.push(storage(Some(at), Some((at + 1).min(2 * DEPTH - 1))));
        }
        trace
    }
}
