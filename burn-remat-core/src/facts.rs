//! What the core knows of tensors and operations: numbers, but no shapes and no data.

use alloc::sync::Arc;

use smallvec::SmallVec;

/// A tensor, by the number that the caller gives it.
pub type TensorId = u64;
/// A number for what an operation does, independent of its tensors and options. 0 stands for none: a read or an upload.
pub type Kind = u64;
/// The thread of the program that something comes from.
pub type ThreadId = u64;
/// Why a tensor holds no data, in words.
pub type Failure = Arc<str>;

/// Facts about a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorFacts {
    /// Its number.
    pub id: TensorId,
    /// A hash of its shape and element type; only compared, never interpreted.
    pub shape: u64,
    /// Bytes of its elements.
    pub bytes: u64,
    /// Bytes of a new buffer for it, rounded as the device's allocator rounds.
    pub buffer_bytes: u64,
}

/// A tensor that an operation reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The tensor.
    pub id: TensorId,
    /// Whether the program releases it with this operation, which may then overwrite it.
    pub last: bool,
    /// Whether the operation reads it in one place only.
    pub once: bool,
}

/// Properties of an operation that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nature {
    /// Its result is a view of its first input's buffer.
    pub view: bool,
    /// It draws random numbers.
    pub random: bool,
    /// It draws a mask, as dropout does. No parameter is initialised with a mask.
    pub mask: bool,
    /// It cannot be relied on to give the same result twice: uninitialised memory, or the user's own code.
    pub opaque: bool,
    /// The device may compute different bits when it runs again.
    pub varies: bool,
    /// It makes a single one, with which autodiff begins a backward pass.
    pub one: bool,
}

/// What an operation needs of an input, where that is less than its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// The signs.
    Signs,
    /// The shape.
    Shape,
}

impl Need {
    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Signs => "signs",
            Self::Shape => "shape",
        }
    }

    /// Upper bound on the bytes of what is left of a tensor of `bytes`: one bit per element, or one element in a buffer of its own.
    pub(crate) fn most_bytes(self, bytes: u64) -> u64 {
        const ONE: u64 = 512;
        match self {
            Self::Signs => ONE.max(bytes / 8),
            Self::Shape => ONE,
        }
    }

    /// The alternative that must be allowed for it.
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
    /// The input of which it needs less than the values.
    pub weak: Option<(TensorId, Need)>,
    /// The policy in force and the signature in its step, if these are known already: for an operation from a trace.
    pub known: Option<(Option<Rule>, u64)>,
}

impl Operation {
    /// Bytes of new buffers for all its outputs.
    #[inline]
    pub(crate) fn produced(&self) -> u64 {
        self.outputs.iter().map(|output| output.buffer_bytes).sum()
    }
}

/// A way to get a tensor back other than keeping it or running its operation again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Alternative {
    /// Masks drawn at random (dropout), with one bit per element.
    MaskBits,
    /// Indices of a max pooling, in the smallest integers that hold them.
    SmallIndices,
    /// Results of comparisons, with one bit per element.
    BoolBits,
    /// Only the signs, for operations that need no more.
    SignBits,
    /// Only the shape, for operations that need no more.
    ShapeOnly,
    /// Any result, in host memory.
    Offload,
    /// Any result, rounded to half the bytes.
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

    /// Its name, for people and configurations.
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
/// It concerns what autodiff saves there for the backward pass. It does not apply to what the stage returns, and what cannot be
/// computed again (random results) is always kept. A stage without a policy has that of the stage around it.
///
/// The budget comes first: policies choose among the plans that keep to it. If no such plan is left, the report says so as
/// it does for any budget that is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointPolicy {
    /// The result is kept for as long as the program holds it.
    MustSave,
    /// Its recomputation counts as four times its time.
    PreferSave,
    /// Its recomputation counts as a quarter of its time.
    PreferRecompute,
    /// Evicted when the stage ends and computed again when the backward pass reads it, even if the budget would allow keeping
    /// it. What is too small to matter (together at most 1% of the peak) may stay.
    MustRecompute,
}

impl CheckpointPolicy {
    /// The factor by which the time of a recomputation is multiplied when plans are compared.
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

/// A policy in force, and the number, within its step, of the stage that set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The policy.
    pub policy: CheckpointPolicy,
    /// The number of the stage.
    pub scope: u32,
}

/// Whether a field can be omitted from a file because it has its default.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
