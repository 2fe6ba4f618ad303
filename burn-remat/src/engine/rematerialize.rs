//! Bringing an evicted tensor back.
//!
//! The evicted closure is planned first, without recursion, and put in the order of its recording; every input of the planned recipes is
//! pinned once per recipe that reads it; then each recipe runs once and gives its pins back. So a call runs a recipe at
//! most once and evicts nothing that it still needs, and inputs that only the plan wanted are consumed in place.

use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::layout::Taken;
use super::operation::{is_view, operation_kind};
use super::table::{Description, RecipeKey, TensorKey};
use super::{Engine, Failure, Keys, fresh_id};
use crate::backend::RematBackend;

impl<B: RematBackend> Engine<B> {
    /// Makes a pinned tensor resident.
    pub(super) fn ensure(&mut self, key: TensorKey) -> Result<(), Failure> {
        if self.tensors[key].storage.is_some() {
            return Ok(());
        }
        self.ensure_all(&[key])
    }

    /// Makes pinned tensors resident; what several of them need is computed once.
    pub(super) fn ensure_all(&mut self, keys: &[TensorKey]) -> Result<(), Failure> {
        let plan = self.plan_closure(keys)?;
        for &recipe in &plan {
            for &input in &self.recipes[recipe].inputs {
                self.tensors[input].pins += 1;
            }
        }
        let mut result = self.unpack_all(keys);
        for recipe in plan {
            let inputs = self.recipes[recipe].inputs.clone();
            if result.is_ok() {
                result = self.unpack_all(&inputs).and_then(|()| self.replay(recipe));
            }
            for input in inputs {
                self.unpin(input);
            }
        }
        result
    }

    /// Makes those of some pinned tensors resident that are packed.
    fn unpack_all(&mut self, keys: &[TensorKey]) -> Result<(), Failure> {
        for &key in keys {
            if self.tensors[key].is_packed() {
                self.unpack(key)?;
            }
        }
        Ok(())
    }

    /// The recipes that must run to bring `keys` back, in the order in which they were recorded.
    fn plan_closure(&mut self, keys: &[TensorKey]) -> Result<Vec<RecipeKey>, Failure> {
        let lost = |id: TensorId| -> Failure {
            format!("internal error: tensor {id} is gone and cannot be recomputed").into()
        };
        self.walk += 1;
        let mut plan = Vec::new();
        let mut stack: Vec<TensorKey> = keys.to_vec();
        while let Some(key) = stack.pop() {
            let tensor = &self.tensors[key];
            if !tensor.is_evicted() {
                continue;
            }
            if let Some(failure) = &tensor.failure {
                return Err(failure.clone());
            }
            let at = tensor.recipe.ok_or_else(|| lost(tensor.id))?;
            let recipe = &mut self.recipes[at];
            if std::mem::replace(&mut recipe.seen, self.walk) == self.walk {
                continue;
            }
            plan.push((recipe.born, at));
            let recipe = &self.recipes[at];
            let spared = self.spared(&recipe.op);
            stack.extend(recipe.inputs.iter().filter(|&&input| spared != Some(input)));
        }
        // What a recipe reads was recorded before it.
        plan.sort_unstable();
        let plan = plan.into_iter().map(|(_, at)| at).collect();
        Ok(plan)
    }

    /// Puts in what stands for inputs of an operation about to run; it is pinned until the operation is done.
    pub(super) fn lend_all(
        &mut self,
        op: &mut OperationIr,
        inputs: &[TensorKey],
        taken: Taken,
        consumed: &mut Keys,
        lent: &mut Keys,
    ) -> Result<(), Failure> {
        if let Some(spared) = self.spared(op) {
            lent.push(self.lend(op, spared, consumed)?);
        }
        self.set_apart(op, inputs, taken, consumed, lent)
    }

    /// Runs one recipe again. All its inputs are pinned, and resident but for one of which a stub is enough.
    fn replay(&mut self, key: RecipeKey) -> Result<(), Failure> {
        let recipe = &self.recipes[key];
        let seed = recipe.seed;
        let inputs = recipe.inputs.clone();
        let outputs = recipe.outputs.clone();
        // Inputs that nothing but this run needs may be taken in place.
        let mut consumed: Keys = inputs
            .iter()
            .copied()
            .filter(|&input| {
                let tensor = &self.tensors[input];
                !tensor.alive && tensor.recipe.is_some() && tensor.pins == 1
            })
            .collect();
        let mut op = (*recipe.op).clone();
        let kind = operation_kind(&op);
        let mut uses = FxHashMap::default();
        for input in op.inputs() {
            *uses.entry(input.id).or_insert(0) += 1;
        }
        uses.retain(|id, _| consumed.iter().any(|&input| self.tensors[input].id == *id));
        // Outputs that this recipe no longer answers for (a root by now, or gone) go under another id.
        let extra: SmallVec<[TensorIr; 2]> =
            op.outputs().zip(&outputs).filter(|(_, output)| output.is_none()).map(|(ir, _)| ir.clone()).collect();
        let renamed: SmallVec<[(TensorId, TensorId); 2]> = extra.iter().map(|ir| (ir.id, fresh_id())).collect();
        op.visit_mut(&mut Rewrite { remaining: uses, renamed: &renamed });

        self.keep_parts(&mut op, &inputs, &mut consumed);
        let produced = op.outputs().map(|out| self.allocated(out)).sum();
        let need = self.new_bytes(&op, produced, &inputs, &consumed);
        self.make_room(need);
        for &output in outputs.iter().flatten() {
            // A second copy would cost its bytes twice; the run writes the same values again.
            self.release(output);
        }
        let views = is_view(&op);
        let taken = self.recipes[key].taken;
        let layout = self.layout(&op, &inputs, taken, &consumed);
        let mut lent = Keys::new();
        let ready = self.lend_all(&mut op, &inputs, taken, &mut consumed, &mut lent);
        let cost_ns = match ready.and_then(|()| self.run(&mut Some(op), seed, kind, None, layout)) {
            Ok(cost_ns) => cost_ns,
            Err(failure) => {
                lent.into_iter().for_each(|stand_in| self.unpin(stand_in));
                for output in outputs.into_iter().flatten() {
                    self.fail(output, failure.clone());
                }
                return Err(failure);
            }
        };
        let recipe = &mut self.recipes[key];
        recipe.cost_ns = recipe.cost_ns.min(cost_ns);
        self.step.repeated_ns += recipe.cost_ns;
        // How it was joined this time nobody tells.
        let cost_ns = if B::FUSES { recipe.cost_ns } else { cost_ns };
        self.count_again_in_stage(self.recipes[key].stage, cost_ns, produced);
        self.stats.recomputed += 1;
        self.stats.recompute_ns += cost_ns;
        self.step.recompute_ns += cost_ns;
        let mut outputs: SmallVec<[TensorKey; 2]> = outputs.into_iter().flatten().collect();
        for (ir, (_, id)) in extra.iter().zip(renamed) {
            // It is there until it can be dropped.
            let key = self.insert_unheld(Description { id, ..Description::of(ir) }, kind);
            outputs.push(key);
            lent.push(key);
        }
        let settled = self.settle(&outputs, &inputs, &consumed, views, kind);
        outputs.truncate(outputs.len() - extra.len());
        lent.into_iter().for_each(|stand_in| self.unpin(stand_in));
        for output in outputs {
            let tensor = &mut self.tensors[output];
            tensor.used = self.clock;
            if !tensor.alive && tensor.pins == 0 {
                self.release(output);
            }
        }
        settled
    }
}

/// Adapts an operation for a replay: inputs are read-only, but for the last use of a consumed tensor, and outputs that
/// nobody waits for get another id.
struct Rewrite<'a> {
    /// Uses left per consumed tensor.
    remaining: FxHashMap<TensorId, u32>,
    renamed: &'a [(TensorId, TensorId)],
}

impl IrVisitorMut for Rewrite<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if tensor.status == TensorStatus::NotInit {
            if let Some((_, id)) = self.renamed.iter().find(|(from, _)| *from == tensor.id) {
                tensor.id = *id;
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
