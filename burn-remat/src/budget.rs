//! Memory budgets, and how they are written.

use std::fmt;
use std::str::FromStr;

use burn_remat_grammar::{self as grammar, BudgetText};

/// How much memory the tensors of a device may hold at once, parameters and optimizer state included.
///
/// As text: a number of bytes, alone or with a decimal (`kB`, `MB`, `GB`, `TB`) or binary unit (`KiB`, `MiB`, `GiB`, `TiB`); a share of the peak of the
/// first step (`60%`); a share of the memory that is free on the device (`80% free`); or `unlimited`. Case does not matter.
///
/// ```
/// use burn_remat::Budget;
///
/// assert_eq!("8 GiB".parse(), Ok(Budget::Bytes(8 << 30)));
/// assert_eq!("512MB".parse(), Ok(Budget::Bytes(512_000_000)));
/// assert_eq!("60%".parse(), Ok(Budget::Share(0.6)));
/// assert_eq!("80% free".parse(), Ok(Budget::Free(0.8)));
/// assert!("150%".parse::<Budget>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Budget {
    /// No limit: nothing is evicted.
    #[default]
    Unlimited,
    /// A number of bytes.
    Bytes(u64),
    /// A share, above 0 and at most 1, of the peak of the first step, which runs without a limit.
    Share(f64),
    /// A share, above 0 and at most 1, of the memory that is free on the device when the remat device is made. It becomes a number of bytes at that
    /// moment. CUDA and the CPU report their free memory; wgpu reports it only for an integrated GPU or a software driver that is requested by kind.
    Free(f64),
}

/// A string that cannot be parsed as a [`Budget`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a budget: {reason}. {forms}", forms = grammar::BUDGET_FORMS)]
pub struct BudgetError {
    /// The string.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        match grammar::budget(text) {
            Ok(BudgetText::Unlimited) => Ok(Self::Unlimited),
            Ok(BudgetText::Bytes(bytes)) => Ok(Self::Bytes(bytes)),
            Ok(BudgetText::Share(share)) => Ok(Self::Share(share)),
            Ok(BudgetText::Free(share)) => Ok(Self::Free(share)),
            Err(reason) => Err(BudgetError { text: text.to_owned(), reason }),
        }
    }
}

impl TryFrom<&str> for Budget {
    type Error = BudgetError;

    fn try_from(text: &str) -> Result<Self, BudgetError> {
        text.parse()
    }
}

impl TryFrom<u64> for Budget {
    type Error = BudgetError;

    fn try_from(bytes: u64) -> Result<Self, BudgetError> {
        if bytes == 0 {
            return Err(BudgetError { text: "0".to_owned(), reason: grammar::ZERO_BYTES });
        }
        Ok(Self::Bytes(bytes))
    }
}

impl Budget {
    /// What is wrong with a budget that was not read from a text.
    pub(crate) fn defect(self) -> Option<BudgetError> {
        let reason = match self {
            Self::Bytes(0) => grammar::ZERO_BYTES,
            Self::Share(share) | Self::Free(share) if !(share > 0.0 && share <= 1.0) => {
                "a share must be above 0 and at most 1"
            }
            _ => return None,
        };
        Some(BudgetError { text: self.to_string(), reason })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 0.29 is 28.999999999999996%.
        let percent = |share: f64| (share * 1e11).round() / 1e9;
        match *self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Bytes(bytes) => write!(f, "{}", DisplayBytes(bytes)),
            Self::Share(share) => write!(f, "{}%", percent(share)),
            Self::Free(share) => write!(f, "{}% free", percent(share)),
        }
    }
}

/// Shows bytes with a binary unit: `512 B`, `1.50 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisplayBytes(pub u64);

impl fmt::Display for DisplayBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        // Values that two decimals would show as 1024.00 go to the next unit.
        while value >= 1023.995 && unit + 1 < UNITS.len() && self.0 >= 1024 {
            value /= 1024.0;
            unit += 1;
        }
        let text = if unit == 0 { format!("{} B", self.0) } else { format!("{value:.2} {}", UNITS[unit]) };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_as_they_are_read() {
        for percent in 1..=100 {
            let text = format!("{percent}%");
            assert_eq!(text.parse::<Budget>().unwrap().to_string(), text);
        }
        assert_eq!("12.5% free".parse::<Budget>().unwrap().to_string(), "12.5% free");
    }

    #[test]
    fn a_budget_that_is_not_read_from_a_text_has_the_same_limits() {
        let wrong =
            [Budget::Bytes(0), Budget::Share(0.0), Budget::Share(f64::NAN), Budget::Share(1.01), Budget::Free(-0.1)];
        for budget in wrong {
            let refused = crate::RematConfig::new(budget).validated();
            assert!(matches!(refused, Err(crate::RematError::Budget(_))), "{budget}");
        }
        for budget in [Budget::Unlimited, Budget::Bytes(1), Budget::Share(1.0), Budget::Free(0.5)] {
            assert!(crate::RematConfig::new(budget).validated().is_ok(), "{budget}");
        }
    }

    #[test]
    fn decimal_and_binary_units_are_told_apart() {
        for (text, bytes) in [
            ("1", 1),
            ("1000 bytes", 1000),
            ("2kB", 2000),
            ("2 KiB", 2048),
            ("512MB", 512_000_000),
            ("512 MiB", 512 << 20),
            ("8 GiB", 8 << 30),
            ("8gb", 8_000_000_000),
            ("1.5 GiB", 3 << 29),
            (" 7 TiB ", 7 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Budget::Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_budget_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "empty"),
            ("0", "zero"),
            ("0.2", "zero"),
            ("-1", "negative"),
            ("8 XB", "unit"),
            ("150%", "100%"),
            ("0%", "zero"),
            ("GiB", "number"),
            ("1.2.3 GiB", "number"),
            ("99999999999999 GiB", "2^64"),
            ("nan%", "number"),
            ("0% free", "zero"),
            ("101% free", "100%"),
            ("60% of it", "text after `%`"),
        ] {
            let error = text.parse::<Budget>().expect_err(text).to_string();
            assert!(error.contains(reason) && error.contains("8 GiB"), "{text}: {error}");
        }
    }

    #[test]
    fn a_budget_is_shown_as_it_is_written() {
        for text in ["60%", "80% free", "unlimited", "1.50 MiB", "12 B"] {
            let budget: Budget = text.parse().unwrap();
            assert_eq!(budget.to_string(), text);
        }
    }
}
