//! How evicted tensors may be compressed or offloaded.

use std::fmt;
use std::str::FromStr;

use burn_remat_core::Alternative;

/// How evicted tensors may be compressed or offloaded instead of being computed again: `none`, `exact`, `all`, or names joined by commas.
///
/// | name | what comes back, and from what |
/// | --- | --- |
/// | `mask-bits` | random masks of zeros and ones (dropout), from one bit per element |
/// | `small-indices` | indices of max poolings, from the smallest integers that hold them |
/// | `bool-bits` | results of comparisons, from one bit per element |
/// | `sign-bits` | the signs of a ReLU's input, which are all that its backward pass needs, from one bit per element |
/// | `shape-only` | the shape of the input of a pooling or an interpolation, which is all that its backward pass needs |
/// | `offload` | any result, from a copy in host memory |
/// | `bf16` | any result of 32-bit floating point, from 16 bits: **rounded**, by at most one part in 256 |
///
/// `exact` stands for the first five. They restore every bit, and they save memory.
/// `all` adds `offload`, which also restores every bit, but moves bytes to the host rather than saving them. On the CPU backend, whose device is the
/// host, it only simulates the cost. `bf16` changes results. It is used only if it is named, as in `"all,bf16"`, and the report says how large the error
/// is.
///
/// A tensor is compressed only when it is evicted, and only if that is cheaper than computing it again. Both plans and the online policy compare the two
/// costs. The online policy does not use `sign-bits` and `shape-only`, because only a plan knows which operations will still read a tensor. All but
/// `offload` work on the CPU backend only.
///
/// ```
/// use burn_remat::Compression;
///
/// let some: Compression = "mask-bits".parse()?;
/// assert_eq!(some.to_string(), "mask-bits");
/// assert_eq!("exact".parse::<Compression>()?, Compression::EXACT);
/// assert_eq!("exact,offload".parse::<Compression>()?, Compression::ALL);
/// assert!("mask-bytes".parse::<Compression>().is_err());
/// # Ok::<(), burn_remat::CompressionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression(u8);

impl Compression {
    /// None: tensors are kept, or evicted and computed again.
    pub const NONE: Self = Self(0);
    /// All forms that save memory and do not change a bit of any result.
    pub const EXACT: Self = Self(0b1_1111);
    /// All forms that do not change a bit of any result, including offloading.
    pub const ALL: Self = Self(0b11_1111);
    /// All forms, including the one that rounds.
    pub(crate) const EVERY: Self = Self(0b111_1111);

    pub(crate) fn allows(self, alternative: Alternative) -> bool {
        self.0 & (1 << alternative as u8) != 0
    }

    /// These forms and one more.
    pub(crate) fn with(self, alternative: Alternative) -> Self {
        Self(self.0 | 1 << alternative as u8)
    }
}

impl Default for Compression {
    fn default() -> Self {
        Self::EXACT
    }
}

/// The name of a form of compression is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no compression `{name}`: write `none`, `exact`, `all`, or some of `mask-bits`, `small-indices`, `bool-bits`, \
     `sign-bits`, `shape-only`, `offload`, `bf16`, joined by commas"
)]
pub struct CompressionError {
    /// The name.
    pub name: String,
}

impl FromStr for Compression {
    type Err = CompressionError;

    fn from_str(text: &str) -> Result<Self, CompressionError> {
        if text.trim() == "none" {
            return Ok(Self::NONE);
        }
        let set = |name: &str| match (name, Alternative::ALL.iter().find(|known| known.name() == name)) {
            ("exact", _) => Ok(Self::EXACT.0),
            ("all", _) => Ok(Self::ALL.0),
            (_, Some(&known)) => Ok(Self::NONE.with(known).0),
            (_, None) => Err(CompressionError { name: name.to_owned() }),
        };
        text.split(',').map(str::trim).try_fold(Self::NONE, |all, name| Ok(Self(all.0 | set(name)?)))
    }
}

impl fmt::Display for Compression {
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
        for alternatives in (0..128).map(Compression) {
            assert_eq!(alternatives.to_string().parse(), Ok(alternatives));
        }
        assert_eq!(" small-indices , mask-bits,bool-bits,shape-only,sign-bits".parse(), Ok(Compression::EXACT));
        assert_eq!("mask-bits,".parse::<Compression>(), Err(CompressionError { name: String::new() }));
        assert!("none,offload".parse::<Compression>().is_err());
        assert!(!Compression::ALL.allows(Alternative::Bf16), "a form that changes results must be asked for by name");
    }
}
