//! Which tensors are parameters, and what succeeds them.
//!
//! The program does not say so. It can be inferred from how a tensor was made and what becomes of it:
//!
//! - A *parameter* was not computed (but drawn, uploaded or loaded), is older than the step, has been read by operations
//!   that can run again, and is *succeeded* by a tensor of its shape. Either an operation takes it over and makes the successor
//!   (Adam, SGD), perhaps through further operations that each take over the result of the one before (Adan); or the successor is computed from it and
//!   the program then releases it (AdamW), or keeps it (a copy of the best model) and reads the successor from then on.
//! - What a step has computed and the next one replaces is *state*: moments, running statistics. It is updated as well, but
//!   reading it begins no step, since optimizers may read it as soon as they have written it (AdaGrad). State that was
//!   loaded looks like a parameter until it is replaced by something computed before anything has read it.
//! - Between two updates of a parameter lies a backward pass. So tensors that layers add to in place, and accumulated gradients, are no parameters.
//! - What is drawn or uploaded for one step is no parameter either, even if it is overwritten: neither it nor what it
//!   succeeds existed in the first step, or is as old as several steps.
//!
//! Each operation takes constant work.

use super::Machine;
use super::call::Update;
use crate::driver::World;
use crate::facts::TensorFacts;
use crate::history::Lineage;
use crate::keys::TensorKey;

/// Until an update has been seen, a parameter must be released within this many operations after its successor was computed.
const RECENT: u64 = 64;

impl<W: World> Machine<W> {
    /// What is updated by an operation that takes over the `consumed` roots and makes `outputs`.
    pub(super) fn update_of(&self, consumed: &[TensorKey], outputs: &[TensorFacts]) -> Option<Update> {
        let mut found = None;
        for &key in consumed {
            let tensor = &self.history.tensors[key];
            if tensor.lineage.read == 0 || !outputs.iter().any(|output| output.shape == tensor.facts.shape) {
                continue;
            }
            if self.is_parameter(key) {
                return Some(Update::Parameter(key));
            }
            let is = &tensor.lineage.is;
            let state = is.state && !is.passing && self.steps.detector.is_older(tensor.lineage.born);
            found = found.or(state.then_some(Update::State));
        }
        found
    }

    /// Whether a tensor that is being succeeded is a parameter.
    pub(super) fn is_parameter(&self, key: TensorKey) -> bool {
        let tensor = &self.history.tensors[key];
        let Lineage { updated, since, born, .. } = tensor.lineage;
        let known = updated > 0 || self.steps.detector.may_be_parameter(since, self.now.clock);
        let last_one = self.steps.passes.last_one();
        let is_trained = last_one > born || updated > last_one || self.steps.detector.goes_by_marks();
        tensor.may_be_parameter() && known && is_trained
    }

    /// Whether the current step ends at an operation that reads these `inputs` and takes over those that are `consumed`: the first
    /// one that reads an updated parameter, or the next one if a new step is due.
    pub(super) fn begins_step(&mut self, inputs: &[TensorKey], consumed: &[TensorKey]) -> bool {
        let detector = &self.steps.detector;
        let (tells, enough) = (detector.goes_by_updates(), detector.has_enough_updates());
        let mut begins = detector.is_due();
        for &input in inputs {
            self.note_kept(input);
            if consumed.contains(&input) {
                continue;
            }
            let lineage = &mut self.history.tensors[input].lineage;
            if core::mem::take(&mut lineage.is.fresh) && self.steps.detector.is_of_this_step(lineage.updated) {
                begins |= tells && (enough || lineage.is.regular);
            }
        }
        // If nothing is recorded, nothing has to be evicted, and state may count as computed.
        begins && (!self.own.records || self.steps.detector.may_begin(self.steps.computed_bytes))
    }

    /// An operation reads a tensor, which may have succeeded a parameter that the program keeps. If so, that parameter would by now
    /// have been updated once more, and the tensor was made at about that time.
    fn note_kept(&mut self, key: TensorKey) {
        let Lineage { heir_of, is, born, .. } = self.history.tensors[key].lineage;
        let Some(parameter) = heir_of.filter(|_| !is.eligible).and_then(|of| self.history.find(of)) else { return };
        let parameter = &self.history.tensors[parameter];
        let Lineage { heir, updated, interval, since, .. } = parameter.lineage;
        let (alive, now) = (parameter.alive, self.now.clock);
        // It may have been updated only once.
        let usual = if interval > 0 { interval } else { self.steps.detector.sure_length() };
        let is_late = updated > 0 && usual > 0 && now - updated > usual + usual / 4 && born > updated + usual / 2;
        let tensor = &mut self.history.tensors[key];
        if alive && is_late && heir == Some(tensor.facts.id) {
            let lineage = &mut tensor.lineage;
            (lineage.is.eligible, lineage.since, lineage.interval, lineage.updated) = (true, since, usual, born);
        }
    }

    /// Notes what succeeds the `inputs` of an operation, some of which are `dying`, before it counts as having read them.
    pub(super) fn note_succession(&mut self, inputs: &[TensorKey], dying: &[TensorKey], outputs: &[TensorKey]) {
        for &output in outputs {
            let shape = self.history.tensors[output].facts.shape;
            for &input in inputs.iter().filter(|&&input| input != output) {
                if self.history.tensors[input].facts.shape == shape {
                    self.note_successor(input, output, dying.contains(&input));
                }
            }
        }
    }

    fn note_successor(&mut self, input: TensorKey, output: TensorKey, is_dying: bool) {
        let tensors = &self.history.tensors;
        let (id, before) = (tensors[output].facts.id, tensors[input].facts.id);
        let may_be_parameter = tensors[input].may_be_parameter();
        let lineage = tensors[input].lineage;
        let parameter = if is_dying {
            if may_be_parameter {
                let is_of_this_step = self.steps.detector.is_of_this_step(lineage.updated);
                let successor = &mut self.history.tensors[output].lineage;
                successor.since = lineage.since;
                if is_of_this_step {
                    (successor.updated, successor.interval) = (lineage.updated, lineage.interval);
                    (successor.is.fresh, successor.is.regular) = (true, lineage.is.regular);
                }
            }
            let parameter = lineage.heir_of.and_then(|of| self.history.find(of));
            parameter.filter(|&parameter| self.history.tensors[parameter].lineage.heir == Some(before))
        } else {
            (lineage.read > 0 && may_be_parameter).then_some(input)
        };
        if let Some(parameter) = parameter {
            self.history.tensors[parameter].lineage.heir = Some(id);
            self.history.tensors[output].lineage.heir_of = Some(self.history.tensors[parameter].facts.id);
        }
    }

    /// Notes what was updated by an operation that made `outputs`.
    pub(super) fn note_updates(&mut self, update: Option<Update>, outputs: &[TensorKey]) {
        match update {
            Some(Update::Parameter(before)) => {
                self.note_update();
                if !self.now.foreign {
                    outputs.iter().for_each(|&output| self.note_parameter(output, before));
                }
            }
            Some(Update::State) if !self.now.foreign => self.steps.passes.update(self.now.clock),
            _ => {}
        }
    }

    /// The current thread has updated a parameter.
    fn note_update(&mut self) {
        if self.steps.detector.goes_by_passes() {
            return;
        }
        if self.threads.update(self.now.thread) {
            self.forget_step();
        }
    }

    /// A tensor succeeds the parameter `before`.
    fn note_parameter(&mut self, key: TensorKey, before: TensorKey) {
        let clock = self.now.clock;
        let Lineage { updated, interval: last, .. } = self.history.tensors[before].lineage;
        self.steps.detector.update(clock, updated == 0);
        let interval = if updated == 0 { 0 } else { clock - updated };
        let regular = self.steps.detector.is_regular(last, interval, clock) && self.steps.passes.last_one() > updated;
        self.note_no_part(key);
        self.steps.passes.update(clock);
        self.steps.passes.optimize(clock);
        if updated > 0 {
            // In the first step, gradients that a backward pass accumulates in place may look like parameters.
            if self.is_in_planned_pass() {
                self.steps.passes.go_on();
            }
            self.steps.passes.update_parameter(clock);
        }
        let lineage = &mut self.history.tensors[key].lineage;
        (lineage.updated, lineage.interval) = (clock, interval);
        (lineage.is.fresh, lineage.is.eligible, lineage.is.regular) = (true, true, regular);
    }

    /// The program releases a tensor: it is succeeded by what was computed from it. Returns whether it is a parameter.
    pub(super) fn note_drop(&mut self, key: TensorKey) -> bool {
        let tensor = &self.history.tensors[key];
        let Some(heir) = tensor.lineage.heir.and_then(|id| self.history.find(id)) else { return false };
        let successor = &self.history.tensors[heir];
        let fresh = successor.alive && !self.steps.detector.is_of_this_step(successor.lineage.updated);
        // An input of a whole pass is released long after its successor was made.
        let recent = self.steps.detector.is_exact() || self.now.clock - successor.lineage.born <= RECENT;
        if !(tensor.alive && fresh && recent && tensor.may_be_parameter()) {
            return false;
        }
        let (since, is_parameter) = (tensor.lineage.since, self.is_parameter(key));
        let lineage = &mut self.history.tensors[heir].lineage;
        (lineage.since, lineage.is.eligible) = (since, true);
        if !is_parameter {
            return false;
        }
        self.note_update();
        if !self.threads.is_foreign(self.now.thread) {
            self.note_parameter(heir, key);
            self.trace_update(heir);
        }
        true
    }
}
