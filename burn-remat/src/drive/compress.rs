//! How tensors are compressed and restored.
//!
//! Results of some operations have a [`Form`]: their numbers in fewer bytes, or in other memory. The core decides when a tensor is compressed.
//!
//! Only a tensor whose elements are in order and fill its buffer is compressed. Operations see the layout of the restored tensor, and with another layout
//! they may add in another order.
//!
//! The time to pack and unpack is measured in ns per byte: a few times on the first tensor of every kind, and whenever a tensor is packed or unpacked.
//! The program waits while a tensor is offloaded: on wgpu, a read that is still under way keeps memory mapped that the next read needs.

use std::time::{Duration, Instant};

use burn_backend::{DType, Shape};
use burn_ir::{FloatOperationIr, ModuleOperationIr, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_remat_core::{Alternative, Compressible, Failure};
use burn_std::reader::try_read_sync;
use rustc_hash::FxHashMap;

use super::code::{Code, relative_error};
use super::executor::Executor;
use crate::backend::{BufferId, RematBackend, tensor_bytes};
use crate::compression::Compression;
use crate::panics::caught;

/// Smaller tensors are not packed.
const SMALLEST: u64 = 16 << 10;

/// How often a tensor is packed only to measure the time.
const MEASURED: u32 = 4;

/// Time to pack and to unpack one byte, in ns, until it has been measured.
const GUESS: f64 = 0.5;

/// How a tensor can be compressed.
#[derive(Clone, Debug)]
pub(super) struct Form {
    alternative: Alternative,
    code: Code,
    shape: Shape,
    dtype: DType,
    /// The tensor in this form, while it is compressed.
    packed: Option<Vec<u8>>,
}

/// The time that packing or unpacking with one code has taken so far.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bytes: u64,
    ns: u64,
}

/// The forms of all tensors, and the times of all codes.
#[derive(Default)]
pub(super) struct Compressor {
    /// By tensor.
    forms: FxHashMap<u64, Form>,
    /// By code: packing, and unpacking.
    rates: Vec<(Code, [Rate; 2])>,
    /// The largest relative error of numbers that were rounded.
    pub error: f64,
}

impl Compressor {
    fn is_measured(&self, code: Code) -> bool {
        self.rates.iter().any(|(known, _)| *known == code)
    }

    /// Records how long packing (0) or unpacking (1) this many bytes took.
    pub fn learn(&mut self, code: Code, way: usize, bytes: u64, time: Duration) {
        let at = self.rates.iter().position(|(known, _)| *known == code).unwrap_or_else(|| {
            self.rates.push((code, Default::default()));
            self.rates.len() - 1
        });
        let rate = &mut self.rates[at].1[way];
        *rate = Rate { bytes: rate.bytes + bytes, ns: rate.ns + time.as_nanos() as u64 };
    }

    /// Time to pack and unpack this many bytes, in ns.
    pub fn cost_ns(&self, code: Code, bytes: u64) -> u64 {
        let known = self.rates.iter().find(|(known, _)| *known == code);
        let per_byte = |rate: &Rate| if rate.bytes == 0 { GUESS / 2.0 } else { rate.ns as f64 / rate.bytes as f64 };
        let both = known.map_or(GUESS, |(_, rates)| rates.iter().map(per_byte).sum());
        (both * bytes as f64) as u64 + 1
    }

    /// Drops the compressed data of a tensor.
    pub fn discard(&mut self, id: u64) {
        if let Some(form) = self.forms.get_mut(&id) {
            form.packed = None;
        }
    }

    /// Forgets a tensor that is gone.
    pub fn forget(&mut self, id: u64) {
        self.forms.remove(&id);
    }

    /// Whether a tensor that was just made can be compressed in this form, and what that costs. If the cost is unknown, it is measured here.
    pub fn settle<B: RematBackend>(
        &mut self,
        executor: &mut Executor<B>,
        id: u64,
        form: &Form,
        buffer: BufferId,
    ) -> Option<Compressible> {
        let ir = ir_of(id, form);
        if !lies_in_order(executor, &ir, buffer) {
            return None;
        }
        self.measure(executor, form.code, &ir);
        let packed = form.code.on_device(form.code.bytes(form.shape.num_elements(), form.dtype));
        let cost_ns = self.cost_ns(form.code, tensor_bytes(&ir.shape, ir.dtype));
        self.forms.insert(id, form.clone());
        Some(Compressible { alternative: form.alternative, bytes: packed, cost_ns })
    }

    /// Measures packing and unpacking on a resident tensor, unless their times are known, and drops the result. The first round does not count, because
    /// it waits for memory.
    pub fn measure<B: RematBackend>(&mut self, executor: &mut Executor<B>, code: Code, ir: &TensorIr) {
        if executor.is_dry() || self.is_measured(code) {
            return;
        }
        let bytes = tensor_bytes(&ir.shape, ir.dtype);
        for round in 0..MEASURED {
            let start = Instant::now();
            let Some((packed, _)) = packed(executor, ir.clone(), code) else { return };
            let packing = start.elapsed();
            drop(code.unpack(&packed, ir.shape.clone(), ir.dtype));
            if round > 0 {
                self.learn(code, 0, bytes, packing);
                self.learn(code, 1, bytes, start.elapsed().saturating_sub(packing));
            }
        }
    }

    /// Compresses a tensor. Returns the bytes of the device's memory that it then takes, and the time.
    pub fn compress<B: RematBackend>(&mut self, executor: &mut Executor<B>, id: u64) -> Option<(u64, u64)> {
        let form = self.forms.get(&id)?;
        let (code, ir) = (form.code, ir_of(id, form));
        if !B::IS_HOST {
            // Earlier work of the device must not count.
            let _ = caught(|| executor.sync());
        }
        let (start, bytes) = (Instant::now(), tensor_bytes(&ir.shape, ir.dtype));
        let (packed, error) = packed(executor, ir, code)?;
        let to = code.on_device(packed.len());
        let time = start.elapsed();
        self.learn(code, 0, bytes, time);
        self.error = self.error.max(error);
        self.forms.get_mut(&id)?.packed = Some(packed);
        Some((to, time.as_nanos() as u64))
    }

    /// Restores a compressed tensor into a buffer. The compressed data stays until it is dropped.
    pub fn decompress<B: RematBackend>(
        &mut self,
        executor: &mut Executor<B>,
        id: u64,
    ) -> Result<(BufferId, u64), Failure> {
        let start = Instant::now();
        let lost = "internal error: a compressed tensor could not be restored";
        let form = self.forms.get(&id).ok_or(lost)?;
        let (code, packed) = (form.code, form.packed.as_deref().ok_or(lost)?);
        let data = code.unpack(packed, form.shape.clone(), form.dtype).ok_or(lost)?;
        let bytes = data.as_bytes().len() as u64;
        caught(|| executor.upload(TensorId::new(id), data))?;
        let time = start.elapsed();
        self.learn(code, 1, bytes, time);
        Ok((executor.buffer_of_new(id)?, time.as_nanos() as u64))
    }
}

/// The forms that the results of an operation may have, each with the number of the result.
pub(super) fn forms_of<B: RematBackend>(op: &OperationIr, allowed: Compression) -> Vec<(usize, Form)> {
    let form = |(k, output): (usize, &TensorIr)| {
        // A quantized tensor has scales beside its values.
        if matches!(output.dtype, DType::QFloat(_)) || tensor_bytes(&output.shape, output.dtype) < SMALLEST {
            return None;
        }
        let (alternative, code) = special_form(op, k)
            .filter(|(alternative, _)| B::IS_HOST && allowed.allows(*alternative))
            .or_else(|| allowed.allows(Alternative::Offload).then_some((Alternative::Offload, Code::Whole)))
            .or_else(|| {
                let rounds = B::IS_HOST && output.dtype == DType::F32 && allowed.allows(Alternative::Bf16);
                rounds.then_some((Alternative::Bf16, Code::Bf16))
            })?;
        Some((k, Form { alternative, code, shape: output.shape.clone(), dtype: output.dtype, packed: None }))
    };
    op.outputs().enumerate().filter_map(form).collect()
}

/// Whether a resident tensor is large enough, in order, and fills its buffer, as a new one would.
pub(super) fn may_be_packed<B: RematBackend>(executor: &mut Executor<B>, ir: &TensorIr) -> bool {
    let Ok(buffer) = executor.buffer(ir.id.value()) else { return false };
    tensor_bytes(&ir.shape, ir.dtype) >= SMALLEST && lies_in_order(executor, ir, buffer)
}

/// Whether a tensor in `buffer` is in order and fills the buffer, as a new one would.
fn lies_in_order<B: RematBackend>(executor: &mut Executor<B>, ir: &TensorIr, buffer: BufferId) -> bool {
    let facts = executor.facts(ir);
    let bytes = match buffer {
        BufferId::Known { bytes, .. } => bytes,
        BufferId::Unknown => facts.buffer_bytes,
    };
    let fills = facts.buffer_bytes == executor.padding.buffer(facts.bytes) && bytes == facts.buffer_bytes;
    fills && executor.is_in_order(ir).unwrap_or(false)
}

/// Packs a tensor's numbers. Also returns their largest relative error.
fn packed<B: RematBackend>(executor: &mut Executor<B>, ir: TensorIr, code: Code) -> Option<(Vec<u8>, f64)> {
    let dtype = ir.dtype;
    let pack = |bytes: &[u8]| {
        let packed = code.pack(bytes, dtype);
        let error = match code {
            Code::Bf16 => {
                let count = bytes.len() / dtype.size();
                relative_error(bytes, code.unpack(&packed, [count].into(), dtype)?.as_bytes())
            }
            _ => 0.0,
        };
        Some((packed, error))
    };
    if let Ok(handle) = executor.handle(&ir)
        && let Some(bytes) = B::host_bytes(&handle)
    {
        return pack(bytes);
    }
    let data = caught(|| try_read_sync(executor.read(ir))).ok()??.ok()?;
    pack(data.as_bytes())
}

fn ir_of(id: u64, form: &Form) -> TensorIr {
    TensorIr { id: TensorId::new(id), shape: form.shape.clone(), status: TensorStatus::ReadOnly, dtype: form.dtype }
}

/// The alternative and the code for output `k`, if the operation has a special one.
fn special_form(op: &OperationIr, k: usize) -> Option<(Alternative, Code)> {
    use burn_backend::Distribution::Bernoulli;
    match op {
        OperationIr::Float(_, FloatOperationIr::Random(random)) => {
            let is_mask = matches!(random.distribution, Bernoulli(_)) && random.out.dtype == DType::F32;
            is_mask.then_some((Alternative::MaskBits, Code::Bits))
        }
        OperationIr::Module(ModuleOperationIr::MaxPool2dWithIndices(pool)) if k == 1 => {
            small_indices(&pool.x, &pool.out_indices)
        }
        OperationIr::Module(ModuleOperationIr::MaxPool3dWithIndices(pool)) if k == 1 => {
            small_indices(&pool.x, &pool.out_indices)
        }
        _ => {
            let is_bool = op.outputs().nth(k).is_some_and(|output| output.dtype.is_bool() && output.dtype.size() == 1);
            is_bool.then_some((Alternative::BoolBits, Code::Bits))
        }
    }
}

/// The form of indices into the positions of `x`, `[batch, channels, ..positions]`.
fn small_indices(x: &TensorIr, indices: &TensorIr) -> Option<(Alternative, Code)> {
    let is_wide = matches!(indices.dtype, DType::I64 | DType::I32);
    let places = x.shape.iter().skip(2).product();
    Code::below(places).filter(|_| is_wide).map(|code| (Alternative::SmallIndices, code))
}
