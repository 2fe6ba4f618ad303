//! Text that users write in the configuration of burn-remat: budgets, and names with a typing error.
//!
//! The attribute `#[remat]` checks its settings at compile time, and `RematConfig` at run time. Both use this crate.
//! It has no dependencies, because everything that a procedural macro needs is built before everything else.
//!
//! ```
//! use burn_remat_grammar::{BudgetText, budget};
//!
//! assert_eq!(budget("8 GiB"), Ok(BudgetText::Bytes(8 << 30)));
//! assert_eq!(budget("8 GiBs"), Err("its unit is unknown"));
//! ```

/// The forms of a budget, for error messages.
pub const BUDGET_FORMS: &str = "Use, for example, `8 GiB`, `512MB`, `1000000` (bytes), `60%` (of the first step's peak), \
     `80% free` (of the device's free memory) or `unlimited`";

/// Why zero is not a budget.
pub const ZERO_BYTES: &str = "zero bytes leave no memory at all";

/// A valid budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetText {
    /// `unlimited`: everything is counted, and nothing is limited.
    Unlimited,
    /// Bytes: at least one.
    Bytes(u64),
    /// A share of the first step's peak: above 0 and at most 1.
    Share(f64),
    /// A share of the device's free memory: above 0 and at most 1.
    Free(f64),
}

/// Parses a budget in one of its forms ([`BUDGET_FORMS`]), in upper or lower case, with or without spaces. Fractions of a byte are cut off.
///
/// # Errors
///
/// What is wrong with it, to be appended to "`8 XB` is not a budget: ", such as `its unit is unknown`.
pub fn budget(text: &str) -> Result<BudgetText, &'static str> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err("it is empty");
    }
    if trimmed.eq_ignore_ascii_case("unlimited") {
        return Ok(BudgetText::Unlimited);
    }
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(if trimmed.starts_with('-') {
            "a budget cannot be negative"
        } else {
            "it does not begin with a number"
        });
    }
    let unit = unit.trim();
    if let Some(of) = unit.strip_prefix('%').map(str::trim) {
        let percent: f64 = number.parse().map_err(|_| "its number cannot be read")?;
        let is_free = of.eq_ignore_ascii_case("free");
        return match percent {
            _ if !is_free && !of.is_empty() => Err("the text after `%` is unknown"),
            0.0 => Err("zero percent leaves no memory at all"),
            percent if percent > 100.0 && is_free => Err("it exceeds 100% of the free memory"),
            percent if percent > 100.0 => Err("more than 100% of the peak limits nothing; write `unlimited`"),
            percent if is_free => Ok(BudgetText::Free(percent / 100.0)),
            percent => Ok(BudgetText::Share(percent / 100.0)),
        };
    }
    let factor = unit_factor(unit).ok_or("its unit is unknown")?;
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(factor).ok_or("it exceeds 2^64 bytes")?,
        Err(_) => {
            let number: f64 = number.parse().map_err(|_| "its number cannot be read")?;
            let bytes = number * factor as f64;
            if bytes >= u64::MAX as f64 {
                return Err("it exceeds 2^64 bytes");
            }
            bytes as u64
        }
    };
    if bytes == 0 { Err(ZERO_BYTES) } else { Ok(BudgetText::Bytes(bytes)) }
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

/// The name most similar to `name`, if one is similar enough that it may have been meant: at most a third of its characters differ,
/// or one. Takes time proportional to the product of the lengths, for each of the names.
pub fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace(['_', ' '], "-");
    let wanted = plain(name);
    let (distance, best) = names.iter().map(|known| (edits(&wanted, &plain(known)), *known)).min()?;
    (distance <= 1.max(wanted.chars().count() / 3)).then_some(best)
}

/// Characters to insert, delete or replace to get from `a` to `b` (Levenshtein distance); swapped neighbours count as two.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_name_that_was_meant_and_another_word_finds_none() {
        let known = ["auto", "chain-dp", "chen-sqrt", "search", "store-all"];
        for (name, meant) in [("chaindp", "chain-dp"), ("Auto", "auto"), ("chain_dp", "chain-dp"), ("serach", "search")]
        {
            assert_eq!(nearest(name, &known), Some(meant), "{name}");
        }
        assert_eq!(nearest("gurobi", &known), None);
        assert_eq!(nearest("x", &[]), None);
    }
}
