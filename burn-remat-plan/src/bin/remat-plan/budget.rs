//! Budgets as typed on the command line: bytes, or a share of the store-all peak.

use std::str::FromStr;

use burn_remat_grammar::BudgetText;

/// The largest size that a graph can have.
const MOST_BYTES: u64 = 1 << 63;

/// A budget as the user typed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// A number of bytes.
    Bytes(u64),
    /// `numerator / denominator` of the store-all peak.
    Share { numerator: u64, denominator: u64 },
}

impl Budget {
    /// The budget in bytes, rounded down.
    pub fn bytes(self, store_all_peak: u64) -> Result<u64, String> {
        let bytes = match self {
            Self::Bytes(bytes) => u128::from(bytes),
            Self::Share { numerator, denominator } => {
                u128::from(store_all_peak) * u128::from(numerator) / u128::from(denominator)
            }
        };
        match u64::try_from(bytes) {
            Ok(bytes) if bytes <= MOST_BYTES => Ok(bytes),
            _ => Err(format!("a budget of {bytes} bytes is over the limit of 2^63")),
        }
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |what: &str| {
            Err(format!("{what}: write bytes (`8 GiB`, `8589934592`) or a share of the store-all peak (`60%`)"))
        };
        let text = text.trim();
        if text.is_empty() {
            return wrong("the budget is empty");
        }
        if text.starts_with('-') {
            return wrong("a budget cannot be negative");
        }
        if text.ends_with(|last: char| last.is_ascii_alphabetic()) {
            return match burn_remat_grammar::budget(text) {
                Ok(BudgetText::Bytes(bytes)) if bytes <= MOST_BYTES => Ok(Self::Bytes(bytes)),
                Ok(BudgetText::Bytes(_)) => wrong("the budget is over 2^63 bytes"),
                Ok(_) => wrong("this form of budget does not apply to a graph"),
                Err(reason) => wrong(reason),
            };
        }
        let (number, is_share) = text.strip_suffix('%').map_or((text, false), |number| (number.trim_end(), true));
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_share && number.contains('.') || whole.is_empty() || !digits(whole) || !digits(decimals) {
            return wrong("this is not a budget");
        }
        if is_share && (whole.len() > 6 || decimals.len() > 6) {
            return wrong("a share has at most six digits on either side of the point");
        }
        // A number that does not fit in 64 bits is also over 2^63.
        let number = format!("{whole}{decimals}").parse().unwrap_or(u64::MAX);
        match number {
            0 => wrong("the budget must be more than 0"),
            _ if is_share => {
                Ok(Self::Share { numerator: number, denominator: 100 * 10_u64.pow(decimals.len() as u32) })
            }
            _ if number > MOST_BYTES => wrong("the budget is over 2^63 bytes"),
            _ => Ok(Self::Bytes(number)),
        }
    }
}

/// Bytes in a unit that is easy to read.
pub fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < units.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{size:.2} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_and_round_down() {
        let bytes = |text: &str, peak| text.parse::<Budget>().unwrap().bytes(peak).unwrap();
        assert_eq!(bytes("60%", 101), 60);
        assert_eq!(bytes("12.5 %", 100), 12);
        assert_eq!(bytes("100%", i64::MAX as u64), i64::MAX as u64);
        assert_eq!(bytes("150%", 10), 15);
        assert_eq!(bytes("12345", 1), 12345);
        assert_eq!(bytes("8 GiB", 1), 8 << 30);
        assert_eq!(bytes("1.5kB", 1), 1500);
    }

    #[test]
    fn what_is_no_budget_is_refused() {
        for text in [
            "",
            " ",
            "%",
            "0",
            "0%",
            "-1",
            "-5%",
            "abc",
            "1.5",
            "1e9",
            "8 GiBs",
            "80% free",
            "unlimited",
            "9000000 TiB",
            "9223372036854775809",
            "1e400",
            "99999999999999999999",
            "é%",
        ] {
            assert!(text.parse::<Budget>().is_err(), "{text}");
        }
        assert!("999999%".parse::<Budget>().unwrap().bytes(i64::MAX as u64).is_err());
    }

    #[test]
    fn units_are_binary() {
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.50 KiB");
    }
}
