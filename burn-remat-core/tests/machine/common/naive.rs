//! A policy that keeps nothing: what a program needs if everything that can be computed again is computed again each time it is needed.
//!
//! It shares no code with the machine and knows only the program. No sensible schedule holds more.

use std::collections::{BTreeMap, BTreeSet};

use burn_remat_core::{Asking, OperationCall, TensorId};

/// How a tensor was made.
struct Made {
    bytes: u64,
    /// The operation's inputs, and the bytes that it makes in addition to them; `None` for what cannot be computed again.
    by: Option<(Vec<TensorId>, u64)>,
    /// The tensor that this one is a view of.
    base: Option<TensorId>,
}

#[derive(Default)]
struct Naive {
    made: BTreeMap<TensorId, Made>,
    alive: BTreeSet<TensorId>,
    most: u64,
}

/// Most bytes that it holds at once, for a program whose random operations are not repeatable.
pub fn most(asked: &[Asking]) -> u64 {
    let mut naive = Naive::default();
    for asking in asked {
        match asking {
            Asking::Upload { tensor, .. } => {
                naive.made.insert(tensor.id, Made { bytes: tensor.bytes, by: None, base: None });
                naive.alive.insert(tensor.id);
                naive.stand(0);
            }
            Asking::Read { tensor, .. } => {
                let needed = naive.to_have(&[*tensor]);
                naive.stand(needed);
            }
            Asking::Drop { tensor, .. } => drop(naive.alive.remove(tensor)),
            Asking::Operation(call) => naive.operation(call),
            _ => {}
        }
    }
    naive.most
}

impl Naive {
    fn operation(&mut self, call: &OperationCall) {
        let inputs: Vec<TensorId> = call.inputs.iter().map(|input| input.id).collect();
        let repeats = !call.nature.opaque && !call.nature.random;
        let beside: u64 = if call.nature.view { 0 } else { call.outputs.iter().map(|out| out.bytes).sum() };
        for out in &call.outputs {
            let by = repeats.then(|| (inputs.clone(), beside));
            let base = inputs.first().copied().filter(|_| call.nature.view);
            self.made.insert(out.id, Made { bytes: out.bytes, by, base });
        }
        self.stand(self.to_run(&inputs, beside));
        for input in call.inputs.iter().filter(|input| input.last) {
            self.alive.remove(&input.id);
        }
        self.alive.extend(call.outputs.iter().map(|out| out.id));
        self.stand(0);
    }

    /// Notes that the roots are held, and `beside` bytes besides them.
    fn stand(&mut self, beside: u64) {
        let mut roots = BTreeSet::new();
        let (mut seen, mut open): (BTreeSet<TensorId>, Vec<TensorId>) =
            (BTreeSet::new(), self.alive.iter().copied().collect());
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            match &self.made[&id].by {
                Some((inputs, _)) => open.extend(inputs),
                None => drop(roots.insert(id)),
            }
        }
        let roots: u64 = roots.iter().map(|id| self.made[id].bytes).sum();
        self.most = self.most.max(roots + beside);
    }

    /// Bytes of tensors that are not roots.
    fn bytes_of(&self, tensors: &[TensorId]) -> u64 {
        let buffers: BTreeSet<TensorId> = tensors.iter().map(|&id| self.buffer(id)).collect();
        buffers.iter().filter(|id| self.made[id].by.is_some()).map(|id| self.made[id].bytes).sum()
    }

    /// The tensor that owns the buffer.
    fn buffer(&self, mut id: TensorId) -> TensorId {
        while let Some(base) = self.made[&id].base.filter(|_| self.made[&id].by.is_some()) {
            id = base;
        }
        id
    }

    /// Most bytes besides the roots until an operation on these inputs has run that makes `beside` bytes.
    fn to_run(&self, inputs: &[TensorId], beside: u64) -> u64 {
        self.to_have(inputs).max(self.bytes_of(inputs) + beside)
    }

    /// Most bytes besides the roots until these tensors are there, whichever comes last.
    fn to_have(&self, tensors: &[TensorId]) -> u64 {
        let mut most = 0;
        for &id in tensors {
            if let Some((inputs, beside)) = &self.made[&id].by {
                let others: Vec<TensorId> = tensors.iter().copied().filter(|&other| other != id).collect();
                most = most.max(self.bytes_of(&others) + self.to_run(inputs, *beside));
            }
        }
        most
    }
}
