//! How an evicted tensor comes back.
//!
//! First the evicted closure is found, without recursion, and put in the order in which it was recorded; every input of its recipes is
//! pinned once for each recipe that reads it; then each recipe runs once and releases its pins. So a call runs a recipe at
//! most once and evicts nothing that it still needs, and inputs that only the closure needs are consumed in place.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Machine;
use super::call::Made;
use crate::driver::{Event, OpKey, Ran, Run, Source, World};
use crate::facts::{Failure, Kind, Need, TensorFacts, TensorId};
use crate::history::Again;
use crate::keys::{Keys, RecipeKey, TensorKey};

/// The outputs of a recipe that runs again.
#[derive(Default)]
struct Remade {
    facts: SmallVec<[TensorFacts; 2]>,
    /// Outputs that nobody waits for, with their numbers in the recipe and now.
    extra: SmallVec<[TensorFacts; 2]>,
    renamed: SmallVec<[(TensorId, TensorId); 2]>,
}

impl<W: World> Machine<W> {
    /// Makes a pinned tensor resident.
    pub(super) fn ensure(&mut self, key: TensorKey) -> Result<(), Failure> {
        if self.history.tensors[key].buffer.is_some() {
            return Ok(());
        }
        self.ensure_all(&[key])
    }

    /// Makes pinned tensors resident; what several of them need is computed once.
    pub(super) fn ensure_all(&mut self, keys: &[TensorKey]) -> Result<(), Failure> {
        self.ensure_leaving(keys, &FxHashMap::default())
    }

    /// The same, and leaves these substitutes of what is computed on the way.
    pub(super) fn ensure_leaving(
        &mut self,
        keys: &[TensorKey],
        substitutes: &FxHashMap<TensorKey, Need>,
    ) -> Result<(), Failure> {
        let closure = self.history.closure(keys)?;
        for &recipe in &closure {
            for at in 0..self.history.recipes[recipe].inputs.len() {
                self.pin(self.history.recipes[recipe].inputs[at]);
            }
        }
        let mut result = self.decompress_all(keys);
        for recipe in closure {
            let inputs = self.history.recipes[recipe].inputs.clone();
            if result.is_ok() {
                result = self.decompress_all(&inputs).and_then(|()| self.replay(recipe, &inputs));
                self.leave_of_outputs(recipe, substitutes);
            }
            for input in inputs {
                self.unpin(input);
            }
        }
        result
    }

    /// Leaves these substitutes of what a recipe has made.
    fn leave_of_outputs(&mut self, recipe: RecipeKey, substitutes: &FxHashMap<TensorKey, Need>) {
        if substitutes.is_empty() {
            return;
        }
        for output in self.history.recipes[recipe].outputs.clone().into_iter().flatten() {
            if let Some(&need) = substitutes.get(&output).filter(|_| self.lacks_substitute(output)) {
                self.make_room(need.most_bytes(self.history.tensors[output].facts.bytes));
                self.leave_substitute(output, need);
            }
        }
    }

    /// Makes those of the pinned tensors resident that are compressed.
    fn decompress_all(&mut self, keys: &[TensorKey]) -> Result<(), Failure> {
        for &key in keys {
            if self.history.tensors[key].buffer.is_none() && self.history.tensors[key].is_compressed() {
                self.decompress(key)?;
            }
        }
        Ok(())
    }

    /// Runs one recipe again. All its inputs are pinned, and resident except one for which a substitute is enough.
    fn replay(&mut self, key: RecipeKey, inputs: &[TensorKey]) -> Result<(), Failure> {
        let recipe = &self.history.recipes[key];
        let (op, kind, view) = (recipe.op, recipe.kind, recipe.nature.view);
        let (produced, least_ns, path) = (recipe.produced, recipe.cost_ns, recipe.stage.0);
        let Again { seed, expected } = recipe.again;
        let outputs = recipe.outputs.clone();
        let substitute = self.history.spared(recipe.weak);
        // Inputs that only this run needs may be taken over in place.
        let is_free = |&input: &TensorKey| {
            let tensor = &self.history.tensors[input];
            !tensor.alive && !tensor.held && tensor.recipe.is_some() && tensor.pins == 1
        };
        let consumed: Keys = inputs.iter().copied().filter(is_free).collect();
        let takes: SmallVec<[TensorId; 4]> = consumed.iter().map(|&key| self.history.tensors[key].facts.id).collect();
        let Remade { facts, extra, renamed } = self.remade(op, &outputs);
        let ids: SmallVec<[TensorId; 2]> = facts.iter().map(|facts| facts.id).collect();
        let run = Run {
            source: Source::Kept { op, takes: &takes, renamed: &renamed },
            kind,
            outputs: &ids,
            substitute: substitute.map(|(key, need)| (self.history.tensors[key].facts.id, need)),
            seed,
            keep: false,
            compressible: false,
            position: None,
            timed: self.watch.tracer.is_some(),
            planned_ns: Some(least_ns),
            reuse: self.depends_on_reuse(inputs).then(|| self.reused(expected, inputs)),
        };
        let least = self.world.needs(&run);
        let need = self.new_bytes((kind, true), &facts, produced, inputs, &consumed).max(least);
        let made = || outputs.iter().flatten().copied();
        // What rests on dead ones may end while room is made.
        let dead: Keys = made().filter(|&output| !self.history.tensors[output].alive).collect();
        dead.iter().for_each(|&output| self.pin(output));
        self.make_room(need.saturating_add(self.stand_in(substitute)));
        let evicted: Keys = made().filter(|&output| self.history.tensors[output].is_evicted()).collect();
        for output in made() {
            // A second copy would cost its bytes twice; the run writes the same values again.
            self.release(output);
        }
        self.world.tell(Event::Recomputes(kind));
        let result = match self.world.run(&run) {
            Ok(ran) => {
                self.count_again(key, &ran, path, produced);
                self.settle_again(&outputs, &extra, ran, view, (inputs, &consumed))
            }
            Err(cause) => {
                let failure = self.has_failed(kind, &cause);
                // Those that were there are evicted now: a later read tries again.
                evicted.into_iter().for_each(|output| self.fail(output, failure.clone()));
                consumed.into_iter().for_each(|input| self.release(input));
                Err(failure)
            }
        };
        dead.into_iter().for_each(|output| self.unpin(output));
        result
    }

    /// Reports that an operation has failed.
    pub(super) fn has_failed(&mut self, kind: Kind, cause: &Failure) -> Failure {
        self.room.reuse.skip();
        let failure = self.world.explain(kind, cause, self.circumstances());
        self.remember(&failure);
        failure
    }

    /// Bytes of the tensor that is built from a substitute while an operation runs.
    pub(super) fn stand_in(&self, substitute: Option<(TensorKey, Need)>) -> u64 {
        let of_signs = substitute.filter(|(_, need)| *need == Need::Signs);
        of_signs.map_or(0, |(key, _)| self.history.tensors[key].facts.buffer_bytes)
    }

    /// What a recipe makes again. Outputs that it is no longer responsible for (now roots, or gone) get another number.
    fn remade(&mut self, op: OpKey, outputs: &[Option<TensorKey>]) -> Remade {
        let mut remade = Remade::default();
        for (k, output) in outputs.iter().enumerate() {
            let facts = match output {
                Some(key) => self.history.tensors[*key].facts,
                None => {
                    let facts = self.world.output(op, k);
                    let id = self.own_id();
                    remade.renamed.push((facts.id, id));
                    remade.extra.push(TensorFacts { id, ..facts });
                    TensorFacts { id, ..facts }
                }
            };
            remade.facts.push(facts);
        }
        remade
    }

    fn count_again(&mut self, key: RecipeKey, ran: &Ran, path: u32, produced: u64) {
        let recipe = &mut self.history.recipes[key];
        recipe.cost_ns = recipe.cost_ns.min(ran.ns);
        self.steps.totals.repeated_ns += recipe.cost_ns;
        self.steps.totals.recompute_ns += ran.ns;
        self.counters.recomputed += 1;
        self.counters.times.recompute += ran.ns;
        self.count_again_in_stage(path, ran.ns, produced);
    }

    /// Counts what a recipe has made again.
    fn settle_again(
        &mut self,
        outputs: &[Option<TensorKey>],
        extra: &[TensorFacts],
        ran: Ran,
        view: bool,
        (inputs, consumed): (&[TensorKey], &[TensorKey]),
    ) -> Result<(), Failure> {
        let mut unheld: SmallVec<[TensorKey; 2]> = SmallVec::new();
        let mut extra = extra.iter();
        let mut keys: SmallVec<[TensorKey; 2]> = SmallVec::new();
        for output in outputs {
            if let Some(key) = output {
                keys.push(*key);
            } else if let Some(facts) = extra.next() {
                // It exists until it can be dropped.
                let key = self.insert(*facts, None);
                self.history.end(key);
                self.pin(key);
                unheld.push(key);
                keys.push(key);
            }
        }
        let made = Made::of(&ran, &keys, view);
        let result = self.settle(&made, inputs, consumed);
        unheld.into_iter().for_each(|key| self.unpin(key));
        result
    }
}
