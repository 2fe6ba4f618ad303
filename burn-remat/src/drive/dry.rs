//! Operations without data: only the shapes and buffers of tensors are kept.
//!
//! Some of what a backend does cannot be seen from outside: which results are written in place, and which are larger than their shape. A guide knows
//! this: it is the trace of a real step with the same operations, perhaps on other shapes. Without a guide, it follows from the kind of operation what is
//! written over (`overwrites.rs`) and what Burn cuts from larger results (`cut.rs`).

use std::sync::Arc;

use burn_backend::{DType, Shape};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::FxHashMap;

use super::cut::cut_from;
use super::lies::Lies;
use super::operation::{facts, is_flip, is_reshape, is_view};
use super::overwrites::{Inputs, overwrites, overwrites_on_host};
use crate::backend::{BufferId, Padding};
use crate::guide::{Guide, like};

#[derive(Clone)]
struct Buffer {
    key: u64,
    bytes: u64,
    lies: Lies,
}

/// Where an operation writes a result.
enum Outcome {
    /// The result is a view of the input with this number.
    View(usize),
    /// Into the buffer of a consumed input.
    InPlace(TensorId),
    New,
}

/// How many operations in a row must be the next ones of the guide before it is trusted. The first step of a program, which initialises its parameters,
/// has some of the guide's kinds of operation by chance.
const IN_STEP: usize = 4;

/// Tensors without data.
#[derive(Default)]
pub(super) struct Dry {
    buffers: FxHashMap<TensorId, Buffer>,
    owners: FxHashMap<u64, u32>,
    next: u64,
    guide: Option<Arc<Guide>>,
    /// The operation of the guide that should come next, and the one that matches the current operation.
    expected: usize,
    guiding: Option<usize>,
    /// How many operations in a row have been the next ones of the guide.
    in_step: usize,
    padding: Padding,
    /// Whether the backend runs on the host. It then has no kernels of its own for the gradients of convolutions.
    on_host: bool,
}

impl Dry {
    pub fn new(guide: Option<Arc<Guide>>, padding: Padding, on_host: bool) -> Self {
        Self { guide, padding, on_host, ..Self::default() }
    }

    /// Announces the kind of the next operation, and its `position` in the step. A first step has operations that the guide, a later step, does not have.
    pub fn at(&mut self, position: usize, kind: u64) {
        if position == 0 {
            (self.expected, self.in_step) = (0, IN_STEP);
        }
        let Some(guide) = &self.guide else { return };
        self.guiding = like(&guide.trace, self.expected, kind);
        let is_next = self.guiding == Some(self.expected);
        self.in_step = if is_next { self.in_step + 1 } else { 0 };
        if let Some(at) = self.guiding {
            self.expected = at + 1;
        }
    }

    /// The guide, and its operation that matches the current one.
    fn at_hand(&self) -> Option<(&Guide, usize)> {
        self.guide.as_deref().zip(self.guiding)
    }

    /// Time of the current operation on tensors of this many bytes, by the guide. Without a guide, the number of bytes is used.
    pub fn cost(&self, bytes: u64) -> u64 {
        match self.at_hand() {
            Some((guide, at)) => guide.cost(at, bytes),
            None => bytes.max(1),
        }
    }

    pub fn buffer(&self, id: TensorId) -> BufferId {
        let known = |buffer: &Buffer| BufferId::Known { key: buffer.key, bytes: buffer.bytes };
        self.buffers.get(&id).map_or(BufferId::Unknown, known)
    }

    pub fn is_in_order(&self, tensor: &TensorIr) -> bool {
        self.buffers.get(&tensor.id).is_some_and(|buffer| buffer.lies.is_in_order(&tensor.shape))
    }

    /// Adds a tensor that comes from the host.
    pub fn arrive(&mut self, id: TensorId, shape: &Shape, dtype: DType) {
        self.add(id, self.padding.tensor(shape, dtype), Lies::in_order(shape));
    }

    /// Adds a tensor with a buffer of this many bytes.
    fn add(&mut self, id: TensorId, bytes: u64, lies: Lies) {
        self.next += 1;
        self.buffers.insert(id, Buffer { key: self.next, bytes, lies });
        self.owners.insert(self.next, 1);
    }

    pub fn share(&mut self, new: TensorId, source: TensorId) {
        if let Some(buffer) = self.buffers.get(&source).cloned() {
            *self.owners.entry(buffer.key).or_default() += 1;
            self.buffers.insert(new, buffer);
        }
    }

    fn drop_tensor(&mut self, id: TensorId) {
        let Some(buffer) = self.buffers.remove(&id) else { return };
        if let Some(owners) = self.owners.get_mut(&buffer.key) {
            *owners -= 1;
            if *owners == 0 {
                self.owners.remove(&buffer.key);
            }
        }
    }

    /// What the current operation of the guide did for its output `k`, of this many bytes; `None` if the guide does not say.
    fn guided(&self, k: usize, bytes: u64, free: &[TensorId]) -> Option<Outcome> {
        let (Guide { trace, .. }, at) = self.at_hand().filter(|_| self.in_step >= IN_STEP)?;
        let op = &trace.ops[at];
        let place = *op.writes.get(k)?;
        let storage = &trace.storages[place as usize];
        Some(if storage.made_by != Some(at as u32) {
            Outcome::View(op.reads.iter().position(|&read| read == place)?)
        } else if storage.reuses.is_some() {
            let holds = |id: &&TensorId| self.buffers.get(id).is_some_and(|buffer| buffer.bytes == bytes);
            free.iter().find(holds).map_or(Outcome::New, |&id| Outcome::InPlace(id))
        } else {
            Outcome::New
        })
    }

    /// The shape of the tensor that the result of an operation is cut from.
    fn cut_from(&self, op: &OperationIr) -> Option<Shape> {
        self.on_host.then(|| cut_from(op)).flatten()
    }

    /// Size of a new buffer for output `k`, in bytes: for its shape, or for the tensor that it is cut from.
    fn new_bytes(&self, op: &OperationIr, k: usize, output: &TensorIr) -> u64 {
        let own = facts(output, self.padding);
        if let Some((Guide { trace, .. }, at)) = self.at_hand()
            && let Some(&place) = trace.ops[at].writes.get(k)
        {
            let storage = &trace.storages[place as usize];
            let tensor = &trace.tensors[trace.ops[at].outputs as usize + k];
            let is_larger = storage.made_by == Some(at as u32) && storage.bytes > tensor.buffer_bytes;
            return match is_larger {
                true if tensor.shape == own.shape => storage.bytes,
                true => {
                    let scaled = u128::from(own.buffer_bytes) * u128::from(storage.bytes);
                    scaled.div_ceil(u128::from(tensor.buffer_bytes.max(1))).try_into().unwrap_or(u64::MAX)
                }
                false => own.buffer_bytes,
            };
        }
        let larger = self.cut_from(op).map_or(0, |shape| self.padding.tensor(&shape, output.dtype));
        own.buffer_bytes.max(larger)
    }

    pub fn run(&mut self, op: &OperationIr) {
        if let OperationIr::Drop(tensor) = op {
            self.drop_tensor(tensor.id);
            return;
        }
        let mut inputs: Vec<Read> = Vec::new();
        for input in op.inputs() {
            let taken = input.status == TensorStatus::ReadWrite;
            match inputs.iter_mut().find(|known| known.id == input.id) {
                Some(known) => (known.taken, known.once) = (known.taken || taken, false),
                None => inputs.push(Read { id: input.id, taken, once: true }),
            }
        }
        let mut free: Vec<TensorId> = inputs
            .iter()
            .filter(|input| input.taken)
            .filter(|input| self.buffers.get(&input.id).is_some_and(|b| self.owners.get(&b.key) == Some(&1)))
            .map(|input| input.id)
            .collect();
        for (k, output) in op.outputs().enumerate() {
            let bytes = self.new_bytes(op, k, output);
            match self.guided(k, bytes, &free).unwrap_or_else(|| self.foreseen(op, bytes, &inputs, &free)) {
                Outcome::View(input) if input < inputs.len() => {
                    self.share(output.id, inputs[input].id);
                    self.lay(output, |lies| lies.seen_through(op));
                }
                Outcome::InPlace(input) => {
                    free.retain(|&id| id != input);
                    self.share(output.id, input);
                    self.lay(output, |_| None);
                }
                _ => {
                    let cut = self.cut_from(op).map(|shape| Lies::in_order(&shape).swapped(0, 1));
                    self.add(output.id, bytes, cut.unwrap_or_else(|| Lies::in_order(&output.shape)));
                }
            }
        }
        for input in inputs.iter().filter(|input| input.taken) {
            self.drop_tensor(input.id);
        }
    }

    /// Sets the layout of a tensor in a shared buffer: the one that `lies` gives, otherwise that of the tensor with which it shares the buffer. If
    /// neither has as many axes as the tensor, its elements are in order.
    fn lay(&mut self, tensor: &TensorIr, lies: impl FnOnce(&Lies) -> Option<Lies>) {
        if let Some(buffer) = self.buffers.get_mut(&tensor.id) {
            let lies = lies(&buffer.lies).unwrap_or_else(|| buffer.lies.clone());
            buffer.lies = if lies.suits(&tensor.shape) { lies } else { Lies::in_order(&tensor.shape) };
        }
    }

    /// Where an operation of this kind writes a result of this many bytes.
    fn foreseen(&self, op: &OperationIr, bytes: u64, inputs: &[Read], free: &[TensorId]) -> Outcome {
        let buffer = |id| self.buffers.get(&id);
        if is_reshape(op) && op.inputs().next().is_some_and(|base| !self.is_in_order(base)) {
            return Outcome::New;
        }
        // On the CPU, a reversed tensor is a view, and operations on several tensors copy it.
        if is_view(op) || self.on_host && is_flip(op) {
            return Outcome::View(0);
        }
        let overwritten = match op {
            op if self.on_host => overwrites_on_host(op),
            // On a GPU, other operations may be several kernels, which have results of their own.
            OperationIr::NumericFloat(..) | OperationIr::NumericInt(..) => {
                overwrites(op).map_or_else(Inputs::new, |overwrites| overwrites.inputs)
            }
            _ => Inputs::new(),
        };
        if inputs.len() > 1
            && inputs.iter().any(|input| buffer(input.id).is_some_and(|buffer| buffer.lies.is_flipped()))
        {
            return Outcome::New;
        }
        let is_once = |id| inputs.iter().any(|input| input.id == id && input.once);
        // The CPU also writes over a tensor that begins at the start of a larger buffer.
        let is_whole = |it: &Buffer| if self.on_host { it.lies.at_start } else { it.bytes == bytes };
        let holds = |input: &TensorIr| buffer(input.id).is_some_and(is_whole) && self.is_in_order(input);
        let is_free = |input: &&&TensorIr| free.contains(&input.id) && is_once(input.id) && holds(input);
        overwritten.iter().find(is_free).map_or(Outcome::New, |input| Outcome::InPlace(input.id))
    }
}

/// An input of an operation.
struct Read {
    id: TensorId,
    /// Whether the operation may consume it.
    taken: bool,
    /// Whether the operation reads it only once. An operation that reads it twice holds it twice, and consumes neither.
    once: bool,
}
