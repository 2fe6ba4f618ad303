//! The moment by which work has to end.

use std::time::Duration;

use crate::clock::Moment;

/// A moment, or no limit at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Moment>);

impl Deadline {
    /// No limit.
    pub const NEVER: Self = Self(None);

    /// `limit` from now; there is no limit if the clock cannot represent that moment.
    pub fn after(limit: Duration) -> Self {
        Self(Moment::now().checked_add(limit))
    }

    /// This deadline, or `limit` from now if that comes first.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self(self.0.into_iter().chain(Moment::now().checked_add(limit)).min())
    }

    /// Whether the deadline has passed.
    pub fn passed(self) -> bool {
        self.0.is_some_and(Moment::passed)
    }

    /// The time that is left, at most a year.
    pub fn left(self) -> Duration {
        const YEAR: Duration = Duration::from_secs(365 * 86_400);
        self.0.map_or(YEAR, |end| end.saturating_duration_since(Moment::now()).min(YEAR))
    }
}

/// Reads the clock only once in many calls, for loops whose steps are shorter than reading the clock.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    deadline: Deadline,
    steps: u32,
    passed: bool,
}

/// Steps between two readings of the clock.
const STEPS: u32 = 64;

impl Patience {
    pub fn until(deadline: Deadline) -> Self {
        Self { deadline, steps: 0, passed: false }
    }

    /// Counts a step of `weight` basic operations; the clock is read about every 2000 of them. Returns whether time is up.
    pub fn is_over(&mut self, weight: usize) -> bool {
        let weight = 1 + u32::try_from(weight / 32).unwrap_or(STEPS);
        self.steps = self.steps.saturating_add(weight);
        if self.steps >= STEPS && !self.passed {
            self.steps = 0;
            self.passed = self.deadline.passed();
        }
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_beyond_the_clock_is_none_and_the_sooner_limit_counts() {
        assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
        assert!(!Deadline::NEVER.passed());
        assert!(Deadline::NEVER.within(Duration::ZERO).passed());
        assert!(Deadline::after(Duration::ZERO).within(Duration::MAX).passed());
    }

    #[test]
    fn patience_looks_at_the_clock_now_and_then() {
        let mut patience = Patience::until(Deadline::after(Duration::ZERO));
        assert!(!patience.is_over(0));
        assert!((0..STEPS).any(|_| patience.is_over(0)));
        assert!(Patience::until(Deadline::after(Duration::ZERO)).is_over(usize::MAX));
        assert!(!Patience::until(Deadline::NEVER).is_over(usize::MAX));
    }
}
