//! Which tensors of the program share a buffer, and therefore what an operation would overwrite without this machine.
//!
//! Where results depend on that (because it decides their layout in memory, and so the order in which later kernels add), the driver reproduces it.

use alloc::sync::Arc;

use super::Machine;
use crate::driver::{LayoutFollows, Reused, World};
use crate::facts::Operation;
use crate::keys::{BufferKey, TensorKey};

impl<W: World> Machine<W> {
    /// What an operation of the program would overwrite, if results depend on that.
    pub(super) fn expected(&self, op: &Operation, inputs: &[TensorKey]) -> Option<u8> {
        if !self.depends_on_reuse(inputs) {
            return None;
        }
        let mut expected = 0;
        for (at, (input, &key)) in op.inputs.iter().zip(inputs).enumerate().take(u8::BITS as usize) {
            let alias = self.history.tensors[key].alias.as_ref();
            let is_only = alias.is_none_or(|alias| Arc::strong_count(alias) == 1);
            expected |= u8::from(input.last && input.once && is_only) << at;
        }
        Some(expected)
    }

    pub(super) fn depends_on_reuse(&self, inputs: &[TensorKey]) -> bool {
        match self.config.layout {
            LayoutFollows::Nothing => false,
            LayoutFollows::Reuse => true,
            LayoutFollows::Parts => inputs.iter().any(|&input| self.is_smaller(input)),
        }
    }

    /// Whether a tensor has fewer bytes than its buffer; padding of the buffer counts here.
    fn is_smaller(&self, input: TensorKey) -> bool {
        let tensor = &self.history.tensors[input];
        tensor.buffer.is_some_and(|buffer| self.ledger.get(buffer).bytes > tensor.facts.bytes)
    }

    /// What the driver needs to know about this for an operation that is about to run.
    pub(super) fn reused(&self, expected: u8, inputs: &[TensorKey]) -> Reused {
        let mut alone = 0;
        for (at, &key) in inputs.iter().enumerate().take(u8::BITS as usize) {
            let buffer = self.history.tensors[key].buffer;
            alone |= u8::from(buffer.is_some_and(|buffer| self.ledger.get(buffer).owners.len() == 1)) << at;
        }
        Reused { expected, alone, records: self.own.records }
    }

    /// Notes which outputs of an operation of the program share the buffers of its inputs. `base` is the buffer that the first input had
    /// before, if the operation is a view of it.
    pub(super) fn share_aliases(&mut self, inputs: &[TensorKey], base: Option<BufferKey>, outputs: &[TensorKey]) {
        if self.config.layout == LayoutFollows::Nothing {
            return;
        }
        for &output in outputs {
            let buffer = self.history.tensors[output].buffer;
            if buffer.is_none() {
                continue;
            }
            // A consumed input no longer has a buffer: a result that was written over it is not a view of it.
            let viewed = inputs.first().filter(|_| base == buffer);
            let shares = |input: &&TensorKey| self.history.tensors[**input].buffer == buffer;
            if let Some(&input) = viewed.or_else(|| inputs.iter().find(shares)) {
                self.history.tensors[output].alias =
                    Some(self.history.tensors[input].alias.get_or_insert_default().clone());
            }
        }
    }
}
