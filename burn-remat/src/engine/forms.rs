//! Small forms: what a tensor has in place of its buffer, where that is cheaper than to compute it again.
//!
//! Results of some operations have a [`Form`]. A tensor with one is evicted by *packing*: its numbers are read and written
//! down in fewer bytes, or elsewhere, and the buffer goes. When it is needed it is *unpacked* into a new one. So even a
//! root (a random mask, which could not be computed again at all) can be evicted. Who decides is the plan, which weighs
//! packing against recomputation value by value, or the online policy, which takes the cheaper of the two.
//!
//! Only a tensor whose elements lie in order and fill its buffer is packed: operations see the layout of what comes back, and
//! may add in another order for another layout.
//!
//! What packing and unpacking take is measured, in ns per byte: on the first tensor of every kind, a few times, and whenever it is done.
//! The program waits for what is offloaded: a read that is left under way on wgpu keeps memory mapped that the next one needs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn_backend::{DType, Shape};
use burn_ir::{FloatOperationIr, ModuleOperationIr, OperationIr, TensorIr, TensorStatus};
use burn_std::reader::try_read_sync;
use smallvec::SmallVec;

use super::code::{Code, relative_error};
use super::failures::panic_message;
use super::operation::is_view;
use super::table::{StorageKey, TensorKey};
use super::{Engine, Failure};
use crate::alternatives::Alternative;
use crate::backend::{RematBackend, tensor_bytes};
use crate::planning::TracedForm;
use crate::report::FormReport;

/// Tensors of fewer bytes are not packed.
const SMALLEST: u64 = 16 << 10;

/// At most one part in so many of the budget is left free to pack into.
const MOST_RESERVED: u64 = 64;

/// How often a tensor is packed to see what that takes.
const MEASURED: u32 = 4;

/// Time to pack and to unpack one byte, in ns, until it has been measured.
const GUESS: f64 = 0.5;

/// Another form of a tensor.
pub(super) struct Form {
    pub alternative: Alternative,
    code: Code,
    shape: Shape,
    /// Bytes of the device that it takes.
    bytes: u64,
    /// The tensor in this form, while it has no buffer.
    packed: Option<Vec<u8>>,
}

impl Form {
    pub fn is_packed(&self) -> bool {
        self.packed.is_some()
    }
}

/// A storage that can be packed.
pub(super) struct Packable {
    /// The tensor that is packed.
    pub owner: TensorKey,
    /// Bytes of the device that its form takes.
    pub bytes: u64,
    /// Time to pack and to unpack it, in ns.
    pub cost_ns: u64,
}

/// What packing and unpacking of one kind have taken.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bytes: u64,
    ns: u64,
}

/// What is known of all forms.
#[derive(Default)]
pub(super) struct Forms {
    /// By code: packing, and unpacking.
    rates: Vec<(Code, [Rate; 2])>,
    /// Bytes that the online policy leaves free to pack into: those of the largest form that is small beside the budget.
    pub reserve: u64,
    /// For the report, by alternative.
    pub used: [FormStats; Alternative::ALL.len()],
}

/// What has been done with one kind of form.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FormStats {
    tensors: u64,
    from: u64,
    to: u64,
    ns: u64,
    error: f64,
}

impl Forms {
    fn is_measured(&self, code: Code) -> bool {
        self.rates.iter().any(|(known, _)| *known == code)
    }

    /// Packing (0) or unpacking (1) so many bytes took so long.
    fn learn(&mut self, code: Code, way: usize, bytes: u64, time: Duration) {
        let rate = &mut self.rate(code)[way];
        *rate = Rate { bytes: rate.bytes + bytes, ns: rate.ns + time.as_nanos() as u64 };
    }

    fn rate(&mut self, code: Code) -> &mut [Rate; 2] {
        let at = self.rates.iter().position(|(known, _)| *known == code).unwrap_or_else(|| {
            self.rates.push((code, Default::default()));
            self.rates.len() - 1
        });
        &mut self.rates[at].1
    }

    /// Time to pack so many bytes and to unpack them, in ns.
    pub fn cost_ns(&self, code: Code, bytes: u64) -> u64 {
        let known = self.rates.iter().find(|(known, _)| *known == code);
        let per_byte = |rate: &Rate| if rate.bytes == 0 { GUESS / 2.0 } else { rate.ns as f64 / rate.bytes as f64 };
        let both = known.map_or(GUESS, |(_, rates)| rates.iter().map(per_byte).sum());
        (both * bytes as f64) as u64 + 1
    }

    pub fn report(&self) -> Vec<FormReport> {
        let one = |alternative: &Alternative| {
            let FormStats { tensors, from, to, ns, error } = self.used[*alternative as usize];
            let name = alternative.name().to_owned();
            let largest_error = (*alternative == Alternative::Bf16).then_some(error);
            FormReport { name, tensors, from_bytes: from, to_bytes: to, ns, largest_error }
        };
        Alternative::ALL.iter().map(one).filter(|report| report.tensors > 0).collect()
    }
}

impl<B: RematBackend> Engine<B> {
    /// The forms that the results of an operation may take, in their order; empty where none may.
    pub(super) fn forms_of(&self, op: &OperationIr) -> SmallVec<[Option<Box<Form>>; 2]> {
        let limited = self.budget.is_some() || self.stages.any_forced || self.config.rehearsal.is_some();
        if self.light || !limited || is_view(op) {
            return SmallVec::new();
        }
        let allowed = self.config.alternatives;
        let form = |(k, output): (usize, &TensorIr)| {
            let count = output.shape.num_elements();
            let (alternative, code) = special_form(op, k)
                .filter(|(alternative, _)| B::IS_HOST && allowed.allows(*alternative))
                .or_else(|| allowed.allows(Alternative::Offload).then_some((Alternative::Offload, Code::Whole)))
                .or_else(|| {
                    let rounds = B::IS_HOST && output.dtype == DType::F32 && allowed.allows(Alternative::Bf16);
                    rounds.then_some((Alternative::Bf16, Code::Bf16))
                })?;
            // What is quantized has scales beside its numbers.
            if matches!(output.dtype, DType::QFloat(_)) || tensor_bytes(&output.shape, output.dtype) < SMALLEST {
                return None;
            }
            let bytes = code.on_device(code.bytes(count, output.dtype));
            Some(Box::new(Form { alternative, code, shape: output.shape.clone(), bytes, packed: None }))
        };
        op.outputs().enumerate().map(form).collect()
    }

    /// Takes a form away from a tensor that was just made where it cannot be packed, and sees what packing takes where nobody
    /// knows.
    pub(super) fn settle_form(&mut self, key: TensorKey) {
        let tensor = &self.tensors[key];
        let Some(form) = &tensor.form else { return };
        let (code, ir) = (form.code, TensorIr { shape: form.shape.clone(), ..tensor.bare(TensorStatus::ReadOnly) });
        if self.budget.is_some_and(|budget| form.bytes <= budget / MOST_RESERVED) {
            self.forms.reserve = self.forms.reserve.max(form.bytes);
        }
        if !self.may_be_packed(key, &ir) {
            self.fix(key);
        } else if self.is_to_be_measured(code) {
            self.measure_form(key, code, &ir);
        }
    }

    /// Whether nobody knows yet what packing takes, and it can be seen here.
    pub(super) fn is_to_be_measured(&self, code: Code) -> bool {
        !self.executor.is_dry() && !self.forms.is_measured(code)
    }

    /// Packs and unpacks the numbers of a resident tensor, and drops the result. The first time, which waits for memory, does
    /// not count.
    pub(super) fn measure_form(&mut self, key: TensorKey, code: Code, ir: &TensorIr) {
        let bytes = self.tensors[key].bytes;
        for round in 0..MEASURED {
            let start = Instant::now();
            let Some((packed, _)) = self.packed(ir.clone(), code) else { return };
            let packing = start.elapsed();
            drop(code.unpack(&packed, ir.shape.clone(), ir.dtype));
            if round > 0 {
                self.forms.learn(code, 0, bytes, packing);
                self.forms.learn(code, 1, bytes, start.elapsed().saturating_sub(packing));
            }
        }
    }

    /// Whether a tensor is resident and not too small, and its elements lie in order and fill its buffer, as they would a new one.
    pub(super) fn may_be_packed(&mut self, key: TensorKey, ir: &TensorIr) -> bool {
        let has_no_gaps = self.allocated(ir) == self.padding.buffer(self.tensors[key].bytes);
        has_no_gaps && self.fills_its_buffer(key) && self.executor.is_in_order(ir)
    }

    /// Whether a tensor is resident and not too small, and its buffer no larger than its elements.
    pub(super) fn fills_its_buffer(&self, key: TensorKey) -> bool {
        let tensor = &self.tensors[key];
        let storage = tensor.storage.filter(|_| tensor.bytes >= SMALLEST);
        storage.is_some_and(|storage| self.padding.buffer(tensor.bytes) == self.storages.get(storage).bytes)
    }

    /// The form of a tensor and what it takes, for the trace.
    pub(super) fn traced_form(&self, key: TensorKey) -> Option<TracedForm> {
        let tensor = &self.tensors[key];
        let form = tensor.form.as_deref()?;
        let cost_ns = self.forms.cost_ns(form.code, tensor.bytes);
        Some(TracedForm { alternative: form.alternative, bytes: form.bytes, cost_ns })
    }

    /// How a storage can be packed, if it can.
    pub(super) fn packable(&self, storage: StorageKey) -> Option<Packable> {
        let owners = &self.storages.get(storage).owners;
        let formed = |&&owner: &&TensorKey| self.tensors[owner].form.is_some();
        let &owner = owners.iter().find(formed)?;
        let tensor = &self.tensors[owner];
        let form = tensor.form.as_deref()?;
        Some(Packable { owner, bytes: form.bytes, cost_ns: self.forms.cost_ns(form.code, tensor.bytes) })
    }

    /// Evicts a storage by packing the tensor that owns it, and whatever looks at it otherwise with it. `false`, with no
    /// change, where the device does not let it be read: then it has no such form.
    pub(super) fn pack_storage(&mut self, storage: StorageKey, owner: TensorKey) -> bool {
        let mut others = self.storages.get(storage).owners.clone();
        others.retain(|other| *other != owner);
        // Another name of the same buffer could not be had again.
        let packed = others.iter().all(|&other| self.tensors[other].recipe.is_some()) && self.pack(owner);
        if packed {
            others.into_iter().for_each(|other| self.release(other));
            self.stats.evictions += 1;
        }
        packed
    }

    fn pack(&mut self, key: TensorKey) -> bool {
        let tensor = &self.tensors[key];
        let Some(form) = tensor.form.as_deref().filter(|_| tensor.storage.is_some()) else { return false };
        let ir = TensorIr { shape: form.shape.clone(), ..tensor.bare(TensorStatus::ReadOnly) };
        let (code, bytes) = (form.code, tensor.bytes);
        if !B::IS_HOST {
            // What the device still has to do is not a part of it.
            let _ = self.executor.sync();
        }
        let start = Instant::now();
        let Some((packed, error)) = self.packed(ir, code) else {
            self.fix(key);
            return false;
        };
        let to = code.on_device(packed.len());
        let Some(form) = self.tensors[key].form.as_deref_mut() else { return false };
        (form.bytes, form.packed) = (to, Some(packed));
        let alternative = form.alternative;
        self.storages.add_small(to);
        // For a moment there are both. What is over budget then was so before.
        let _ = self.account(self.storages.rooted, self.serving);
        // What was there when the step began does not seem to come later because it has been brought back.
        self.place_of(key);
        self.release_buffer(key);
        self.count_packed(alternative, bytes, to);
        let used = &mut self.forms.used[alternative as usize];
        used.error = used.error.max(error);
        self.count_packing(alternative, code, 0, bytes, start);
        true
    }

    /// Counts a tensor that now takes fewer bytes.
    pub(super) fn count_packed(&mut self, alternative: Alternative, from: u64, to: u64) {
        let used = &mut self.forms.used[alternative as usize];
        used.tensors += 1;
        used.from += from;
        used.to += to;
    }

    /// A tensor's numbers in another form, and the largest relative error of these.
    pub(super) fn packed(&mut self, ir: TensorIr, code: Code) -> Option<(Vec<u8>, f64)> {
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
        if let Some(handle) = self.executor.handle(&ir)
            && let Some(bytes) = B::host_bytes(&handle)
        {
            return pack(bytes);
        }
        let executor = &mut self.executor;
        let data = catch_unwind(AssertUnwindSafe(|| try_read_sync(executor.read(ir)))).ok()??.ok()?;
        pack(data.as_bytes())
    }

    /// Gives a packed tensor a buffer again.
    pub(super) fn unpack(&mut self, key: TensorKey) -> Result<(), Failure> {
        let bytes = self.tensors[key].bytes;
        let need = self.padding.buffer(bytes);
        self.make_room(need);
        let tensor = &mut self.tensors[key];
        let (id, dtype) = (tensor.id, tensor.dtype);
        let Some(form) = tensor.form.as_deref_mut() else { return Ok(()) };
        let Some(packed) = form.packed.take() else { return Ok(()) };
        let (alternative, code, to) = (form.alternative, form.code, form.bytes);
        let start = Instant::now();
        let data = code.unpack(&packed, form.shape.clone(), dtype).ok_or_else(|| {
            format!("internal error: a tensor could not be brought back from its form `{}`", alternative.name()).into()
        });
        drop(packed);
        let done = data.and_then(|data| {
            let executor = &mut self.executor;
            catch_unwind(AssertUnwindSafe(|| executor.upload(id, data)))
                .map_err(|payload| self.circumstances().explain(alternative.name(), panic_message(&*payload)).into())
        });
        let done = done.and_then(|()| self.settle(&[key], &[], &[], false, self.serving));
        self.storages.take_small(to);
        self.count_packing(alternative, code, 1, bytes, start);
        done
    }

    /// Counts the time since `start` as that of packing (0) or unpacking (1) so many bytes.
    pub(super) fn count_packing(
        &mut self,
        alternative: Alternative,
        code: Code,
        way: usize,
        bytes: u64,
        start: Instant,
    ) {
        let time = start.elapsed();
        self.forms.learn(code, way, bytes, time);
        let ns = time.as_nanos() as u64;
        self.forms.used[alternative as usize].ns += ns;
        self.stats.recompute_ns += ns;
        self.step.recompute_ns += ns;
        self.step.repeated_ns += ns;
    }

    /// Drops the packed numbers of a tensor that is gone.
    pub(super) fn drop_packed(&mut self, key: TensorKey) {
        if let Some(form) = self.tensors[key].form.as_deref_mut()
            && form.packed.take().is_some()
        {
            let bytes = form.bytes;
            self.storages.take_small(bytes);
        }
    }

    /// Takes a resident tensor's form away: it is kept as it is, or computed again.
    pub(super) fn fix(&mut self, key: TensorKey) {
        let tensor = &mut self.tensors[key];
        if tensor.form.take().is_some()
            && tensor.recipe.is_none()
            && let Some(storage) = tensor.storage
        {
            self.storages.add_root(storage);
        }
    }
}

/// The alternative and the code of output `k` of an operation that has one of its own.
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

/// The form of indices into the places of `x`, `[batch, channels, ..places]`.
fn small_indices(x: &TensorIr, indices: &TensorIr) -> Option<(Alternative, Code)> {
    let is_wide = matches!(indices.dtype, DType::I64 | DType::I32);
    let places = x.shape.iter().skip(2).product();
    Code::below(places).filter(|_| is_wide).map(|code| (Alternative::SmallIndices, code))
}
