//! Steps of a chain plan and their text forms.

use std::fmt;
use std::str::FromStr;

use super::StageId;

/// One step; the [module](super) says what each step needs, holds and releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainStep {
    /// `Fall3`: runs the forward operation of stage 3, keeps its input and saves everything that its backward operation needs.
    SaveAll(StageId),
    /// `Fck3`: runs the forward operation of stage 3 and keeps its input as a checkpoint.
    KeepInput(StageId),
    /// `Fn3`: runs the forward operation of stage 3 and releases its input.
    Pass(StageId),
    /// `B3`: runs the backward operation of stage 3.
    Backward(StageId),
    /// `D3`: releases the kept input of stage 3 before its backward use.
    Release(StageId),
}

impl ChainStep {
    /// The stage that the step concerns.
    pub fn stage(self) -> StageId {
        match self {
            Self::SaveAll(i) | Self::KeepInput(i) | Self::Pass(i) | Self::Backward(i) | Self::Release(i) => i,
        }
    }
}

impl fmt::Display for ChainStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letters, stage) = match self {
            Self::SaveAll(i) => ("Fall", i),
            Self::KeepInput(i) => ("Fck", i),
            Self::Pass(i) => ("Fn", i),
            Self::Backward(i) => ("B", i),
            Self::Release(i) => ("D", i),
        };
        write!(f, "{letters}{stage}")
    }
}

/// A text that is not a [`ChainStep`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a step of a chain: write `Fall3`, `Fck3`, `Fn3`, `B3` or `D3` for stage 3")]
pub struct ParseChainStepError(pub String);

impl FromStr for ChainStep {
    type Err = ParseChainStepError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseChainStepError(text.to_owned());
        let digits_at = text.find(|c: char| c.is_ascii_digit()).ok_or_else(error)?;
        let (letters, digits) = text.split_at(digits_at);
        let stage: StageId = digits.parse().map_err(|_| error())?;
        match letters {
            "Fall" => Ok(Self::SaveAll(stage)),
            "Fck" => Ok(Self::KeepInput(stage)),
            "Fn" => Ok(Self::Pass(stage)),
            "B" => Ok(Self::Backward(stage)),
            "D" => Ok(Self::Release(stage)),
            _ => Err(error()),
        }
    }
}

/// A list of steps over a [`Chain`](super::Chain).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ChainPlan {
    /// The steps in order.
    pub steps: Vec<ChainStep>,
}
