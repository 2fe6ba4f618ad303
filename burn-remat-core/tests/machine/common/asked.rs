//! Operations of a world without tensors.

use std::hash::{DefaultHasher, Hash, Hasher};

use burn_remat_core::{Input, Kind, Nature, Need, Operation, TensorFacts, TensorId};

/// The contents of a tensor.
pub type Content = u64;

/// The kind of operation with which autodiff begins a backward pass.
pub const ONE: Kind = 77;

pub fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// How an operation works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Works {
    /// It makes new results.
    New,
    /// It overwrites an input that it may take over.
    InPlace,
    /// It makes a view of its input.
    View,
    /// It draws random numbers.
    Random,
    /// Unknown.
    Opaque,
}

#[derive(Clone, Debug)]
pub struct Asked {
    pub kind: Kind,
    pub works: Works,
    pub inputs: Vec<TensorId>,
    /// The input of which it needs less than the contents.
    pub weak: Option<TensorId>,
    /// Inputs that the program releases.
    pub last: Vec<TensorId>,
    /// Outputs and their bytes.
    pub outputs: Vec<(TensorId, u64)>,
}

impl Asked {
    pub fn operation(&self) -> Operation {
        let facts = |&(id, bytes)| TensorFacts { id, shape: bytes, bytes, buffer_bytes: bytes };
        Operation {
            kind: self.kind,
            inputs: self.inputs.iter().map(|&id| Input { id, last: self.last.contains(&id), once: true }).collect(),
            outputs: self.outputs.iter().map(facts).collect(),
            nature: Nature {
                view: self.works == Works::View,
                random: self.works == Works::Random,
                mask: self.works == Works::Random,
                opaque: self.works == Works::Opaque,
                varies: false,
                one: self.kind == ONE,
            },
            weak: self.weak.map(|id| (id, Need::Signs)),
            known: None,
        }
    }

    /// The contents of output `k`.
    pub fn content(&self, k: usize, inputs: &[Content], drawn: u64) -> Content {
        let drawn = if matches!(self.works, Works::Random | Works::Opaque) { drawn } else { 0 };
        hash((self.kind, k, inputs, drawn))
    }
}
