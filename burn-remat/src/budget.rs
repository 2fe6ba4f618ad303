//! Budgets as people write them.

use std::fmt;
use std::str::FromStr;

/// How much memory the tensors of a device may hold at once, parameters and optimizer state included.
///
/// Text forms: a number of bytes, a number with a decimal (`kB`, `MB`, `GB`, `TB`) or binary unit (`KiB`, `MiB`, `GiB`,
/// `TiB`), a share of the store-all peak (`60%`), or `unlimited`. Units are told apart whatever their case.
///
/// ```
/// use burn_remat::Budget;
///
/// assert_eq!("8 GiB".parse(), Ok(Budget::Bytes(8 << 30)));
/// assert_eq!("512MB".parse(), Ok(Budget::Bytes(512_000_000)));
/// assert_eq!("60%".parse(), Ok(Budget::Share(0.6)));
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
}

/// A text that is no [`Budget`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no budget: {reason}. Write for example `8 GiB`, `512MB`, `1000000` (bytes), `60%` (of the first step's peak) or `unlimited`"
)]
pub struct BudgetError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let error = |reason| BudgetError { text: text.to_owned(), reason };
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(error("it is empty"));
        }
        if trimmed.eq_ignore_ascii_case("unlimited") {
            return Ok(Self::Unlimited);
        }
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        if number.is_empty() {
            let reason = if trimmed.starts_with('-') {
                "a budget cannot be negative"
            } else {
                "it does not begin with a number"
            };
            return Err(error(reason));
        }
        let unit = unit.trim();
        if unit == "%" {
            let percent: f64 = number.parse().map_err(|_| error("its number cannot be read"))?;
            return match percent {
                0.0 => Err(error("zero percent leaves no memory at all")),
                percent if percent > 100.0 => Err(error("more than 100% of the peak limits nothing; say `unlimited`")),
                percent => Ok(Self::Share(percent / 100.0)),
            };
        }
        let factor = unit_factor(unit).ok_or_else(|| error("its unit is unknown"))?;
        let bytes = match number.parse::<u64>() {
            Ok(number) => number.checked_mul(factor).ok_or_else(|| error("it exceeds 2^64 bytes"))?,
            Err(_) => {
                let number: f64 = number.parse().map_err(|_| error("its number cannot be read"))?;
                let bytes = number * factor as f64;
                if bytes >= u64::MAX as f64 {
                    return Err(error("it exceeds 2^64 bytes"));
                }
                bytes as u64
            }
        };
        if bytes == 0 { Err(error("zero bytes leave no memory at all")) } else { Ok(Self::Bytes(bytes)) }
    }
}

fn unit_factor(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" | "byte" | "bytes" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    })
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
            return Err(BudgetError { text: "0".to_owned(), reason: "zero bytes leave no memory at all" });
        }
        Ok(Self::Bytes(bytes))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Bytes(bytes) => write!(f, "{}", DisplayBytes(*bytes)),
            Self::Share(share) => write!(f, "{}%", share * 100.0),
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
        while value >= 1024.0 && unit + 1 < UNITS.len() {
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
        ] {
            let error = text.parse::<Budget>().expect_err(text).to_string();
            assert!(error.contains(reason) && error.contains("8 GiB"), "{text}: {error}");
        }
    }

    #[test]
    fn a_budget_is_shown_as_it_is_written() {
        for text in ["60%", "unlimited", "1.50 MiB", "12 B"] {
            let budget: Budget = text.parse().unwrap();
            assert_eq!(budget.to_string(), text);
        }
    }
}
