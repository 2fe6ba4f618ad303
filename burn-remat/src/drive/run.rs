//! How one operation runs: it is prepared, some of its inputs are replaced, it is timed, and panics are caught.

use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_remat_core::{Driver, Failure, OpKey, Ran, Reused, Run, Source};
use quanta::Instant;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::compress::{Form, forms_of};
use super::executor::Executor;
use super::layout::layout;
use super::operation::{is_random, mark_read_only};
use super::parts::{keep_parts, set_apart};
use super::prepared::Prepared;
use super::substitutes::lend_copy;
use super::{Drive, GENERATOR, Hand};
use crate::backend::{RematBackend, tensor_bytes};
use crate::panics::{caught, lock};

impl<B: RematBackend> Drive<B> {
    /// Prepares an operation. Returns the bytes that it needs for that.
    #[inline]
    pub(super) fn prepare(&mut self, run: &Run<'_>) -> u64 {
        self.prepared = self.taken_up(run).map(|op| Prepared {
            op,
            layout: None,
            copies: SmallVec::new(),
            left: SmallVec::new(),
            spared: run.substitute.map(|(id, _)| TensorId::new(id)),
            failure: None,
        });
        let (Some(prepared), Some(reused)) = (&mut self.prepared, run.reuse) else { return 0 };
        keep_layout(&mut self.executor, prepared, reused).unwrap_or_else(|failure| {
            prepared.failure = Some(failure);
            0
        })
    }

    /// Which of the inputs that it may consume are in order: kernels write over those only.
    pub(super) fn arrangement_of_taken(&mut self) -> u64 {
        let Some(Prepared { op, spared, .. }) = &self.prepared else { return 0 };
        let is_taken = |input: &&TensorIr| input.status == TensorStatus::ReadWrite && *spared != Some(input.id);
        let executor = &mut self.executor;
        let taken = op.inputs().filter(is_taken);
        taken.fold(1, |bits, input| bits << 1 | u64::from(executor.is_in_order(input).unwrap_or(false)))
    }

    /// The operation itself.
    #[inline]
    fn taken_up(&mut self, run: &Run<'_>) -> Option<Box<OperationIr>> {
        match run.source {
            Source::AtHand { only_read } => {
                let Hand::Operation(mut op) = std::mem::replace(&mut self.hand, Hand::Nothing) else { return None };
                if !only_read.is_empty() {
                    mark_read_only(&mut op, |id| only_read.contains(&id.value()));
                }
                Some(op)
            }
            Source::Kept { op, takes, renamed } => {
                let mut op = self.ops.boxes.fill(&mut OperationIr::clone(self.ops.kept.get(op as usize)?));
                let mut uses = FxHashMap::default();
                for input in op.inputs().filter(|input| takes.contains(&input.id.value())) {
                    *uses.entry(input.id).or_insert(0) += 1;
                }
                op.visit_mut(&mut Rewrite { remaining: uses, renamed });
                Some(op)
            }
        }
    }

    /// Runs the operation that was prepared.
    pub(super) fn run_prepared(&mut self, run: &Run<'_>) -> Result<Ran, Failure> {
        let Some(mut prepared) = self.prepared.take() else {
            return Err("internal error: an operation was lost".into());
        };
        let kept = run.keep.then(|| self.keep(&prepared.op));
        let left = std::mem::take(&mut prepared.left);
        let mut ran = Ran { ns: 0, rise: None, beside: 0, kept, buffers: SmallVec::new(), left };
        let done = match prepared.failure.take() {
            Some(failure) => Err(failure),
            None => self.carry_out(run, prepared, &mut ran),
        };
        if let Err(failure) = done {
            ran.left.into_iter().for_each(|id| self.executor.free(id));
            if let Some(kept) = ran.kept {
                self.forget(kept);
            }
            return Err(failure);
        }
        Ok(ran)
    }

    /// Finds the buffers of the results, and how they could be compressed. If the backend fails to say, the results are freed.
    fn look_at(&mut self, run: &Run<'_>, forms: &[(usize, Form)], ran: &mut Ran) -> Result<(), Failure> {
        for (k, &id) in run.outputs.iter().enumerate() {
            let buffer = self.executor.buffer(id).inspect_err(|_| {
                for &output in run.outputs {
                    self.executor.free(output);
                    self.compression.forget(output);
                }
            })?;
            let form = forms.iter().find(|(at, _)| *at == k);
            let compressible = form.and_then(|(_, form)| self.compression.settle(&mut self.executor, id, form, buffer));
            ran.buffers.push((buffer.into(), compressible));
        }
        Ok(())
    }

    /// Keeps a copy of an operation. When it runs again, it may consume what the driver lets it only read now.
    fn keep(&mut self, op: &OperationIr) -> OpKey {
        self.ops.kept.insert(self.ops.boxes.fill(&mut op.clone())) as OpKey
    }

    /// Gives the operation what it needs and runs it. The outcome is put into `ran`.
    fn carry_out(&mut self, run: &Run<'_>, prepared: Prepared, ran: &mut Ran) -> Result<(), Failure> {
        let Prepared { mut op, layout, copies, .. } = prepared;
        let mut lent = SmallVec::new();
        let given = self.give(run, &mut op, &copies, &mut lent);
        ran.beside = given.inspect_err(|_| self.free_lent(&lent))?;
        let allowed = self.settings.alternatives;
        let forms = if run.compressible { forms_of::<B>(&op, allowed) } else { Vec::new() };
        let dry = self.dry_cost(&op, run);
        let timed = self.clock.begin(&self.executor, &op, run);
        let _alone = is_random(&op).then(|| lock(&GENERATOR));
        let probe = self.settings.probe.as_deref();
        let before = probe.and_then(|probe| {
            let begin = || {
                probe.reset_peak();
                probe.current()
            };
            caught(begin).ok()
        });
        let (executor, seed) = (&mut self.executor, run.seed);
        let start = Instant::now();
        let result = caught(|| {
            if let Some(seed) = seed {
                executor.seed(seed);
            }
            executor.run(&mut op);
            if let Some(layout) = layout {
                executor.lay(&layout);
            }
        });
        let elapsed = start.elapsed().as_nanos() as u64;
        ran.rise =
            probe.zip(before).and_then(|(probe, before)| Some(caught(|| probe.peak()).ok()?.saturating_sub(before)));
        self.ops.boxes.keep(op);
        let known = self.clock.end(&self.executor, timed, result.is_ok(), run);
        ran.ns = dry.or(known).unwrap_or(elapsed).max(1);
        result.inspect_err(|_| self.free_lent(&lent))?;
        self.look_at(run, &forms, ran)
    }

    /// Replaces inputs of an operation by tensors that it consumes. Returns their size, and adds them to `lent`.
    fn give(
        &mut self,
        run: &Run<'_>,
        op: &mut OperationIr,
        copies: &[TensorId],
        lent: &mut SmallVec<[TensorId; 2]>,
    ) -> Result<u64, Failure> {
        let (executor, mut bytes) = (&mut self.executor, 0);
        let mut note = |(id, more): (TensorId, u64)| {
            lent.push(id);
            bytes += more;
        };
        if let Some(replaced) = run.substitute {
            note(self.substitutes.stand_in(executor, &mut self.compression, op, replaced)?);
        }
        for &id in copies {
            note(lend_copy(executor, op, id)?);
        }
        Ok(bytes)
    }

    /// Frees what an operation was given: if it failed, it may not have consumed it.
    fn free_lent(&mut self, lent: &[TensorId]) {
        lent.iter().for_each(|id| self.executor.free(id.value()));
    }

    /// The time that an operation would take, on a dry device. This also tells the device the position of the operation in its step.
    fn dry_cost(&mut self, op: &OperationIr, run: &Run<'_>) -> Option<u64> {
        let position = run.position.unwrap_or_default() as usize;
        let dry = self.executor.as_dry()?;
        dry.at(position, run.kind);
        let mut tensors: SmallVec<[&TensorIr; 8]> = op.inputs().chain(op.outputs()).collect();
        tensors.sort_unstable_by_key(|tensor| tensor.id);
        tensors.dedup_by_key(|tensor| tensor.id);
        Some(dry.cost(tensors.into_iter().map(|tensor| tensor_bytes(&tensor.shape, tensor.dtype)).sum()))
    }
}

/// Prepares results that depend on what an operation writes over. Returns the bytes that this needs.
fn keep_layout<B: RematBackend>(
    executor: &mut Executor<B>,
    prepared: &mut Prepared,
    reused: Reused,
) -> Result<u64, Failure> {
    keep_parts(executor, prepared, reused)?;
    let layout = layout(executor, prepared, reused)?;
    let (copies, bytes) = set_apart(executor, prepared, reused)?;
    prepared.copies = copies;
    let laying = layout.as_ref().map_or(0, |(_, bytes)| *bytes);
    prepared.layout = layout.map(|(layout, _)| layout.into());
    Ok(bytes.max(laying))
}

/// Adapts an operation for a replay: inputs are read-only, except for the last use of a consumed tensor, and outputs that nobody needs get another
/// number.
struct Rewrite<'a> {
    /// Uses left per consumed tensor.
    remaining: FxHashMap<TensorId, u32>,
    renamed: &'a [(u64, u64)],
}

impl IrVisitorMut for Rewrite<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if tensor.status == TensorStatus::NotInit {
            if let Some((_, id)) = self.renamed.iter().find(|(from, _)| *from == tensor.id.value()) {
                tensor.id = TensorId::new(*id);
            }
            return;
        }
        tensor.status = TensorStatus::ReadOnly;
        if let Some(left) = self.remaining.get_mut(&tensor.id) {
            *left -= 1;
            if *left == 0 {
                tensor.status = TensorStatus::ReadWrite;
            }
        }
    }
}
