//! Operations without data: only the shapes and buffers of tensors are kept.
//!
//! What a backend does cannot all be seen from outside: which results are written in place, and which are larger than their shape.
//! A guide, the trace of a real step that does the same operations, perhaps on other shapes, tells it. Without one, arithmetic on tensors
//! that lie in order is taken to be in place, and the results that Burn cuts from larger ones are known by name, so that an estimate
//! errs to the safe side.

use std::sync::Arc;

use burn_backend::{DType, Shape};
use burn_ir::{ModuleOperationIr, OperationIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::FxHashMap;

use super::operation::{facts, is_reshape, is_view};
use crate::backend::{BufferId, Padding};
use crate::guide::{Guide, like};

#[derive(Clone, Copy)]
struct Buffer {
    key: u64,
    bytes: u64,
    /// Whether the tensor's elements lie in order: reshaping another copies it.
    in_order: bool,
}

/// Where an operation writes a result.
enum Outcome {
    /// It looks at the buffer of the input with this number in another way.
    View(usize),
    /// Into the buffer of a consumed input.
    InPlace,
    New,
}

/// So many operations in a row must be the guide's next ones for it to be believed: the first step of a program, which initialises its
/// parameters, meets some of the guide's kinds of operation by chance.
const IN_STEP: usize = 4;

/// Tensors without data.
#[derive(Default)]
pub(super) struct Dry {
    buffers: FxHashMap<TensorId, Buffer>,
    owners: FxHashMap<u64, u32>,
    next: u64,
    guide: Option<Arc<Guide>>,
    /// The guide's operation that the next one should be, and the one that the operation at hand is.
    expected: usize,
    guiding: Option<usize>,
    /// How many operations in a row have been the guide's next ones.
    in_step: usize,
    padding: Padding,
    /// Whether the backend is one for the host, which has no kernels of its own for the gradients of convolutions.
    on_host: bool,
}

impl Dry {
    pub fn new(guide: Option<Arc<Guide>>, padding: Padding, on_host: bool) -> Self {
        Self { guide, padding, on_host, ..Self::default() }
    }

    /// The operation that runs next is of this kind, and the one at `position` of its step. A first step has operations that
    /// the guide, which is a later one, has not.
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

    /// The guide, and its operation that is the one at hand.
    fn at_hand(&self) -> Option<(&Guide, usize)> {
        self.guide.as_deref().zip(self.guiding)
    }

    /// Time that this operation takes on tensors of so many bytes, as the guide tells; without one the bytes themselves stand for it.
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

    pub fn is_in_order(&self, id: TensorId) -> bool {
        self.buffers.get(&id).is_some_and(|buffer| buffer.in_order)
    }

    /// A tensor comes from the host.
    pub fn arrive(&mut self, id: TensorId, shape: &Shape, dtype: DType) {
        self.add(id, self.padding.tensor(shape, dtype));
    }

    /// A buffer of so many bytes.
    fn add(&mut self, id: TensorId, bytes: u64) {
        self.next += 1;
        self.buffers.insert(id, Buffer { key: self.next, bytes, in_order: true });
        self.owners.insert(self.next, 1);
    }

    pub fn share(&mut self, new: TensorId, source: TensorId) {
        if let Some(&buffer) = self.buffers.get(&source) {
            self.buffers.insert(new, buffer);
            *self.owners.entry(buffer.key).or_default() += 1;
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

    /// What the guide's operation here did for its output `k`; `None` if it does not know.
    fn guided(&self, k: usize) -> Option<Outcome> {
        let (Guide { trace, .. }, at) = self.at_hand().filter(|_| self.in_step >= IN_STEP)?;
        let op = &trace.ops[at];
        let place = *op.writes.get(k)?;
        let storage = &trace.storages[place as usize];
        Some(if storage.made_by != Some(at as u32) {
            Outcome::View(op.reads.iter().position(|&read| read == place)?)
        } else if storage.reuses.is_some() {
            Outcome::InPlace
        } else {
            Outcome::New
        })
    }

    /// The shape of what the result of an operation is cut from.
    fn cut_from(&self, op: &OperationIr) -> Option<Shape> {
        self.on_host.then(|| cut_from(op)).flatten()
    }

    /// Bytes of a new buffer for output `k`: of its shape, or of what it is cut from.
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
        let mut inputs: Vec<TensorIr> = Vec::new();
        for input in op.inputs() {
            match inputs.iter_mut().find(|known| known.id == input.id) {
                Some(known) if input.status == TensorStatus::ReadWrite => known.status = input.status,
                Some(_) => {}
                None => inputs.push(input.clone()),
            }
        }
        let mut free: Vec<TensorId> = inputs
            .iter()
            .filter(|input| input.status == TensorStatus::ReadWrite)
            .filter(|input| self.buffers.get(&input.id).is_some_and(|b| self.owners.get(&b.key) == Some(&1)))
            .map(|input| input.id)
            .collect();
        for (k, output) in op.outputs().enumerate() {
            let bytes = self.new_bytes(op, k, output);
            let guided = self.guided(k);
            let base = inputs.first().and_then(|base| self.buffers.get(&base.id)).is_none_or(|base| base.in_order);
            let guess = match op {
                op if is_reshape(op) && !base => Outcome::New,
                op if is_view(op) => Outcome::View(0),
                OperationIr::NumericFloat(..) | OperationIr::NumericInt(..) => Outcome::InPlace,
                _ => Outcome::New,
            };
            let holds = |buffer: &Buffer| buffer.bytes == bytes && (guided.is_some() || buffer.in_order);
            let fits = free.iter().position(|id| self.buffers.get(id).is_some_and(holds));
            match (guided.unwrap_or(guess), fits) {
                (Outcome::View(input), _) if input < inputs.len() => {
                    self.share(output.id, inputs[input].id);
                    if let (false, Some(buffer)) = (is_reshape(op), self.buffers.get_mut(&output.id)) {
                        buffer.in_order = false;
                    }
                }
                (Outcome::InPlace, Some(at)) => self.share(output.id, free.swap_remove(at)),
                _ => {
                    self.add(output.id, bytes);
                    let is_cut = self.cut_from(op).is_some();
                    self.buffers.entry(output.id).and_modify(|buffer| buffer.in_order = !is_cut);
                }
            }
        }
        for input in inputs.iter().filter(|input| input.status == TensorStatus::ReadWrite) {
            self.drop_tensor(input.id);
        }
    }
}

/// The shape of what the result of an operation is cut from, where a backend has no kernel of its own for it: Burn computes the gradient of a
/// convolution's weight by a convolution with stride and dilation exchanged, which goes on where the stride leaves a rest.
fn cut_from(op: &OperationIr) -> Option<Shape> {
    let OperationIr::Module(op) = op else { return None };
    let both = |padding: &[(usize, usize)]| padding.iter().map(|(before, after)| before + after).collect::<Vec<_>>();
    let twice = |padding: &[usize]| padding.iter().map(|padding| 2 * padding).collect::<Vec<_>>();
    let (x, grad, stride, padding, dilation, groups): (&TensorIr, &TensorIr, &[usize], _, &[usize], _) = match op {
        ModuleOperationIr::Conv1dWeightBackward(op) => {
            let options = &op.options;
            let padding = both(&options.padding);
            (&op.x, &op.output_grad, &options.stride, padding, &options.dilation, options.groups)
        }
        ModuleOperationIr::Conv2dWeightBackward(op) => {
            let options = &op.options;
            let padding = both(&options.padding);
            (&op.x, &op.output_grad, &options.stride, padding, &options.dilation, options.groups)
        }
        ModuleOperationIr::Conv3dWeightBackward(op) => {
            let options = &op.options;
            let padding = twice(&options.padding);
            (&op.x, &op.output_grad, &options.stride, padding, &options.dilation, options.groups)
        }
        _ => return None,
    };
    let size = |axis: usize| {
        let padded = x.shape[axis + 2] + padding[axis];
        let covered = stride[axis] * (grad.shape[axis + 2].max(1) - 1) + 1;
        padded.saturating_sub(covered) / dilation[axis].max(1) + 1
    };
    let channels = [grad.shape[1], x.shape[1]];
    (groups == 1).then(|| channels.into_iter().chain((0..stride.len()).map(size)).collect::<Vec<_>>().into())
}
