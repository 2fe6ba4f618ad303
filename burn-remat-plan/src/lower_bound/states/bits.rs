//! Sets of small numbers, in `W` words.

/// A set of numbers below `64 W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bits<const W: usize>([u64; W]);

impl<const W: usize> Bits<W> {
    pub const EMPTY: Self = Self([0; W]);

    pub fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    pub fn remove(&mut self, number: usize) {
        self.0[number / 64] &= !(1 << (number % 64));
    }

    pub fn contains(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 == 1
    }

    fn zip(&self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|word| combine(self.0[word], other.0[word])))
    }

    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    pub fn common(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    pub fn is_within(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a & !b == 0)
    }

    /// Removes the largest member and returns it.
    pub fn pop(&mut self) -> Option<usize> {
        let word = self.0.iter().rposition(|&word| word != 0)?;
        let number = word * 64 + 63 - self.0[word].leading_zeros() as usize;
        self.remove(number);
        Some(number)
    }

    /// The members, the largest first.
    pub fn members(mut self) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || self.pop())
    }
}

impl<const W: usize> FromIterator<usize> for Bits<W> {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut bits = Self::EMPTY;
        numbers.into_iter().for_each(|number| bits.insert(number));
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_back_from_the_largest() {
        let bits: Bits<2> = [3, 64, 0, 127].into_iter().collect();
        assert_eq!(bits.members().collect::<Vec<_>>(), [127, 64, 3, 0]);
        let other: Bits<2> = [64, 5].into_iter().collect();
        assert_eq!(bits.common(&other).members().collect::<Vec<_>>(), [64]);
        assert_eq!(bits.minus(&other).members().collect::<Vec<_>>(), [127, 3, 0]);
        assert!(bits.common(&other).is_within(&bits) && !other.is_within(&bits));
        assert_eq!(Bits::<2>::EMPTY.members().count(), 0);
    }
}
