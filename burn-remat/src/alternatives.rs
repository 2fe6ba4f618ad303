//! Which other forms a tensor may be kept in.

use std::fmt;
use std::str::FromStr;

/// Another way to have a tensor again than to keep it or to run its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alternative {
    /// Masks drawn at random (dropout) as one bit for each element.
    MaskBits,
    /// Indices of a max pooling in the smallest integers that hold them.
    SmallIndices,
}

impl Alternative {
    const ALL: [Self; 2] = [Self::MaskBits, Self::SmallIndices];

    fn name(self) -> &'static str {
        match self {
            Self::MaskBits => "mask-bits",
            Self::SmallIndices => "small-indices",
        }
    }
}

/// Which alternatives a device may use: `none`, `exact`, `all`, or names joined by commas.
///
/// | name | what it does |
/// | --- | --- |
/// | `mask-bits` | random masks of zeros and ones (dropout) can be evicted: one bit per element stays |
/// | `small-indices` | indices of max poolings can come back from the smallest integers that hold them |
///
/// All of these are exact: the tensor comes back bit for bit. They cost the time to write and read the small form, and are used
/// on the embedded CPU backend only, on steps under a budget.
///
/// ```
/// use burn_remat::Alternatives;
///
/// let some: Alternatives = "mask-bits".parse()?;
/// assert_eq!(some.to_string(), "mask-bits");
/// assert_eq!("exact".parse::<Alternatives>()?, Alternatives::EXACT);
/// assert!("mask-bytes".parse::<Alternatives>().is_err());
/// # Ok::<(), burn_remat::AlternativesError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternatives(u8);

impl Alternatives {
    /// Tensors are kept as they are, or computed again.
    pub const NONE: Self = Self(0);
    /// Those that change no bit of any result.
    pub const EXACT: Self = Self(0b11);
    /// All there are; today these are the exact ones.
    pub const ALL: Self = Self::EXACT;

    pub(crate) fn allows(self, alternative: Alternative) -> bool {
        self.0 & (1 << alternative as u8) != 0
    }
}

impl Default for Alternatives {
    fn default() -> Self {
        Self::EXACT
    }
}

/// A name that is no alternative's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no alternative `{name}`: write `none`, `exact`, `all`, or some of `mask-bits`, `small-indices`, joined by commas"
)]
pub struct AlternativesError {
    /// The name.
    pub name: String,
}

impl FromStr for Alternatives {
    type Err = AlternativesError;

    fn from_str(text: &str) -> Result<Self, AlternativesError> {
        match text.trim() {
            "none" => return Ok(Self::NONE),
            "exact" => return Ok(Self::EXACT),
            "all" => return Ok(Self::ALL),
            _ => {}
        }
        let bit = |name: &str| match Alternative::ALL.iter().find(|known| known.name() == name) {
            Some(&known) => Ok(1 << known as u8),
            None => Err(AlternativesError { name: name.to_owned() }),
        };
        text.split(',').map(str::trim).try_fold(Self::NONE, |all, name| Ok(Self(all.0 | bit(name)?)))
    }
}

impl fmt::Display for Alternatives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            Alternative::ALL.into_iter().filter(|&one| self.allows(one)).map(Alternative::name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for alternatives in [Alternatives::NONE, Alternatives::EXACT, Alternatives(1), Alternatives(2)] {
            assert_eq!(alternatives.to_string().parse(), Ok(alternatives));
        }
        assert_eq!(" small-indices , mask-bits".parse(), Ok(Alternatives::EXACT));
        assert_eq!("mask-bits,".parse::<Alternatives>(), Err(AlternativesError { name: String::new() }));
        assert!(Alternative::ALL.into_iter().all(|one| Alternatives::ALL.allows(one)));
    }
}
