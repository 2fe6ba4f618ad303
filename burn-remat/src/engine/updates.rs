//! Which tensors are parameters, and what takes their place.
//!
//! Nobody tells the engine. It goes by how a tensor came to be and by what becomes of it:
//!
//! - A *parameter* was not computed (but drawn, uploaded or loaded), is older than the step, has been read by operations
//!   that can run again, and is *succeeded* by a tensor of its shape. Either an operation takes it and gives the successor
//!   (Adam, SGD), perhaps through others that take what the one before gave (Adan); or the successor is computed from it and
//!   then the program lets go of it (AdamW), or keeps it (a copy of the best model) and reads the successor from then on.
//! - What a step has computed and the next one replaces is *state*: moments, running statistics. It is updated as well, but
//!   reading it begins no step, since optimizers may read it as soon as they have written it (AdaGrad). State that was
//!   loaded looks like a parameter until something computed is put into it before anything has read it.
//! - What is drawn or uploaded for one step is no parameter either, even if it is written over: neither it nor what it
//!   succeeds was there in the first step, or is as old as several.
//!
//! Constant work for every operation.

use super::table::{Tensor, TensorKey};
use super::{Engine, Outs};
use crate::backend::RematBackend;

/// Operations within which a parameter is let go of after its successor was computed, as long as no update has been seen.
const RECENT: u64 = 64;

/// What an operation that takes a root does.
#[derive(Clone, Copy)]
pub(super) enum Update {
    /// It replaces this parameter.
    Parameter(TensorKey),
    /// It replaces what an earlier step has computed.
    State,
}

impl<B: RematBackend> Engine<B> {
    /// What an operation that takes the `consumed` roots and gives `outs` updates.
    pub(super) fn update_of(&self, consumed: &[TensorKey], outs: &Outs) -> Option<Update> {
        let mut found = None;
        for &key in consumed {
            let tensor = &self.tensors[key];
            if tensor.read == 0 || !outs.iter().any(|out| out.shape == tensor.shape) {
                continue;
            }
            if self.is_parameter(key) {
                return Some(Update::Parameter(key));
            }
            let state = tensor.state && !tensor.passing && self.detector.is_older(tensor.born);
            found = found.or(state.then_some(Update::State));
        }
        found
    }

    /// Whether a tensor that is succeeded now is a parameter.
    fn is_parameter(&self, key: TensorKey) -> bool {
        let tensor = &self.tensors[key];
        let known = tensor.updated > 0 || self.detector.may_be_parameter(tensor.since, self.clock);
        tensor.may_be_parameter() && known
    }

    /// Whether the step at hand ends where an operation reads these `inputs` and takes those that are `consumed`: the first
    /// one that reads an updated parameter.
    pub(super) fn begins_step(&mut self, inputs: &[TensorKey], consumed: &[TensorKey]) -> bool {
        let (tells, enough) = (self.detector.goes_by_updates(), self.detector.has_enough_updates());
        let mut begins = false;
        inputs.iter().for_each(|&input| self.note_kept(input));
        for input in inputs.iter().filter(|&input| !consumed.contains(input)) {
            let tensor = &mut self.tensors[*input];
            if std::mem::take(&mut tensor.fresh) && self.detector.is_of_this_step(tensor.updated) {
                begins |= tells && (enough || tensor.regular);
            }
        }
        // Where nothing is recorded nothing has to be evicted, and state may count as computed.
        begins && (self.light || self.detector.may_begin(self.computed_bytes))
    }

    /// An operation takes a tensor as input: perhaps it has taken the place of a parameter that the program keeps. That parameter would
    /// have been updated once more by now, and the tensor came to be at about the time of that.
    fn note_kept(&mut self, key: TensorKey) {
        let tensor = &self.tensors[key];
        let Some(parameter) = tensor.heir_of.filter(|_| !tensor.eligible).and_then(|of| self.index.get(&of)) else {
            return;
        };
        let Tensor { alive, heir, updated, interval, since, .. } = self.tensors[*parameter];
        let is_late = interval > 0 && self.clock - updated > interval + interval / 4;
        if alive && is_late && heir == Some(tensor.id) && tensor.born > updated + interval / 2 {
            let tensor = &mut self.tensors[key];
            (tensor.eligible, tensor.since, tensor.interval) = (true, since, interval);
            tensor.updated = tensor.born;
        }
    }

    /// Notes what succeeds the `inputs` of an operation, of which some are `dying`, before it counts as having read them.
    pub(super) fn note_succession(&mut self, inputs: &[TensorKey], dying: &[TensorKey], outputs: &[TensorKey]) {
        for &output in outputs {
            let (id, shape) = (self.tensors[output].id, self.tensors[output].shape);
            for &input in inputs {
                let tensor = &self.tensors[input];
                if tensor.shape != shape {
                    continue;
                }
                let parameter = if dying.contains(&input) {
                    let (before, heir_of) = (tensor.id, tensor.heir_of);
                    if tensor.may_be_parameter() {
                        let Tensor { since, updated, interval, regular, .. } = *tensor;
                        let output = &mut self.tensors[output];
                        output.since = since;
                        if self.detector.is_of_this_step(updated) {
                            (output.updated, output.fresh) = (updated, true);
                            (output.interval, output.regular) = (interval, regular);
                        }
                    }
                    let parameter = heir_of.and_then(|of| self.index.get(&of)).copied();
                    parameter.filter(|&parameter| self.tensors[parameter].heir == Some(before))
                } else {
                    (tensor.read > 0 && tensor.may_be_parameter()).then_some(input)
                };
                if let Some(parameter) = parameter {
                    self.tensors[parameter].heir = Some(id);
                    self.tensors[output].heir_of = Some(self.tensors[parameter].id);
                }
            }
        }
    }

    /// A tensor takes the place of the parameter `before`.
    pub(super) fn note_parameter(&mut self, key: TensorKey, before: TensorKey) {
        let Tensor { made_by, since, bytes, .. } = &self.tensors[key];
        let name = self.names.get(made_by).map_or("", String::as_str);
        log::trace!("operation {} ({name}) has updated a parameter of {bytes} bytes, there since {since}", self.clock);
        let Tensor { updated, interval: last, .. } = self.tensors[before];
        self.detector.update(self.clock, updated == 0);
        let interval = if updated == 0 { 0 } else { self.clock - updated };
        let regular = self.detector.is_regular(last, interval, self.clock);
        let tensor = &mut self.tensors[key];
        (tensor.updated, tensor.fresh, tensor.eligible) = (self.clock, true, true);
        (tensor.interval, tensor.regular) = (interval, regular);
    }

    /// The program lets go of a tensor: what was computed from it takes its place, that of a parameter if it is one.
    pub(super) fn note_drop(&mut self, key: TensorKey) {
        let tensor = &self.tensors[key];
        let Some(&heir) = tensor.heir.and_then(|id| self.index.get(&id)) else { return };
        let Tensor { alive, updated, born, .. } = self.tensors[heir];
        let fresh = alive && !self.detector.is_of_this_step(updated);
        // An input of a whole pass is let go of long after its heir was made.
        let recent = self.detector.is_exact() || self.clock - born <= RECENT;
        if !(tensor.alive && fresh && recent && tensor.may_be_parameter()) {
            return;
        }
        let (since, is_parameter) = (tensor.since, self.is_parameter(key));
        (self.tensors[heir].since, self.tensors[heir].eligible) = (since, true);
        if !is_parameter {
            return;
        }
        self.note_update();
        if !self.aside.is_other_thread() {
            self.note_parameter(heir, key);
            self.trace_update(heir);
        }
    }
}
