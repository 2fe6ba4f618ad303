//! The budgets for which a program is planned to see what they cost.

/// How many equal parts lie between the smallest budget and what the step takes without evictions.
const POINTS: usize = 8;

/// Budgets from `least` to `most`, in ascending order.
pub(crate) fn budgets(least: u64, most: u64) -> impl Iterator<Item = u64> {
    let span = u128::from(most.saturating_sub(least));
    (0..=POINTS as u128).map(move |step| least + (span * step / POINTS as u128) as u64)
}
