//! What the core is told of tensors and operations: numbers, no shapes, no data.

use alloc::sync::Arc;

use smallvec::SmallVec;

/// A tensor, by the number that the program's side gives it.
pub type TensorId = u64;
/// A number for what an operation does, whatever its tensors and options. 0 stands for none: a read or an upload.
pub type Kind = u64;
/// Which thread of the program something comes from.
pub type ThreadId = u64;
/// Why a tensor holds no data, in words.
pub type Failure = Arc<str>;

/// What is known of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorFacts {
    /// Its number.
    pub id: TensorId,
    /// A hash of its shape and element type, which are only compared.
    pub shape: u64,
    /// Bytes of its elements.
    pub bytes: u64,
    /// Bytes of a new buffer for it, as the device's allocator rounds them.
    pub buffer_bytes: u64,
}

/// A tensor that an operation reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The tensor.
    pub id: TensorId,
    /// Whether the program lets go of it with this operation, which may then write over it.
    pub last: bool,
    /// Whether the operation reads it in one place only.
    pub once: bool,
}

/// What matters about the way in which an operation works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nature {
    /// Its result only looks at its first input's buffer in another way.
    pub view: bool,
    /// It draws random numbers.
    pub random: bool,
    /// It draws a mask, as dropout does. No parameter begins as one.
    pub mask: bool,
    /// It cannot be trusted to give the same result twice: uninitialised memory, the user's own code.
    pub opaque: bool,
    /// The device may compute other bits when it runs again.
    pub varies: bool,
    /// It makes a single one, as the backward pass of an autodiff begins with.
    pub one: bool,
}

/// What an operation needs of an input, where that is less than its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// The signs.
    Signs,
    /// The shape.
    Shape,
}

impl Need {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Signs => "signs",
            Self::Shape => "shape",
        }
    }

    /// Most bytes that what is left of a tensor of `bytes` takes: a bit for each element, or an element in a buffer of its own.
    pub(crate) fn most_bytes(self, bytes: u64) -> u64 {
        const ONE: u64 = 512;
        match self {
            Self::Signs => ONE.max(bytes / 8),
            Self::Shape => ONE,
        }
    }

    /// What has to be allowed for it.
    pub fn alternative(self) -> Alternative {
        match self {
            Self::Signs => Alternative::SignBits,
            Self::Shape => Alternative::ShapeOnly,
        }
    }
}

/// One operation of the program.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    /// What it does.
    pub kind: Kind,
    /// Tensors that it reads, each once.
    pub inputs: SmallVec<[Input; 4]>,
    /// Tensors that it makes.
    pub outputs: SmallVec<[TensorFacts; 2]>,
    /// How it works.
    pub nature: Nature,
    /// The input of which it needs less than the numbers.
    pub weak: Option<(TensorId, Need)>,
    /// The policy in force and the signature in its step, where these are known already: of an operation that was traced before.
    pub known: Option<(Option<Rule>, u64)>,
}

impl Operation {
    /// Bytes of new buffers for all that it makes.
    #[inline]
    pub(crate) fn produced(&self) -> u64 {
        self.outputs.iter().map(|output| output.buffer_bytes).sum()
    }
}

/// Another way to have a tensor again than to keep it or to run its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Alternative {
    /// Masks drawn at random (dropout) as one bit for each element.
    MaskBits,
    /// Indices of a max pooling in the smallest integers that hold them.
    SmallIndices,
    /// Results of comparisons as one bit for each element.
    BoolBits,
    /// Signs alone, for operations that need no more.
    SignBits,
    /// The shape alone, for operations that need no more.
    ShapeOnly,
    /// Any result in the memory of the host.
    Offload,
    /// Any result in half the bytes, rounded.
    Bf16,
}

impl Alternative {
    /// In the order of their bits.
    pub const ALL: [Self; 7] = [
        Self::MaskBits,
        Self::SmallIndices,
        Self::BoolBits,
        Self::SignBits,
        Self::ShapeOnly,
        Self::Offload,
        Self::Bf16,
    ];

    /// For people and configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaskBits => "mask-bits",
            Self::SmallIndices => "small-indices",
            Self::BoolBits => "bool-bits",
            Self::SignBits => "sign-bits",
            Self::ShapeOnly => "shape-only",
            Self::Offload => "offload",
            Self::Bf16 => "bf16",
        }
    }
}

/// What may happen to the results of the operations in a stage.
///
/// It is about what autodiff saves there for the backward pass. What the stage returns is not bound by it, and what cannot be
/// computed again (random results) is always kept. A stage without a policy has that of the stage around it.
///
/// A budget is still a promise: the policies choose among plans that keep to it. Where they leave none, the report says so as
/// for any budget that is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointPolicy {
    /// Kept for as long as the program holds it.
    MustSave,
    /// Recomputing it counts four times what it takes.
    PreferSave,
    /// Recomputing it counts a quarter of what it takes.
    PreferRecompute,
    /// Given up when the stage ends and computed again when the backward pass reads it, even where the budget would allow to
    /// keep it. What is too small to matter (together at most 1% of the peak) may stay.
    MustRecompute,
}

impl CheckpointPolicy {
    /// By how much the time of a recomputation is multiplied where plans are compared.
    pub fn weight(self) -> f64 {
        match self {
            Self::MustSave | Self::MustRecompute => 1.0,
            Self::PreferSave => 4.0,
            Self::PreferRecompute => 0.25,
        }
    }

    /// Whether it leaves no choice.
    pub fn is_forced(self) -> bool {
        matches!(self, Self::MustSave | Self::MustRecompute)
    }
}

/// A policy in force, and the number of the stage that set it within its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The policy.
    pub policy: CheckpointPolicy,
    /// The number of the stage.
    pub scope: u32,
}

/// Whether a field need not be written down.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
