//! Rows of numbers for every sub-chain `s..=t`, computed tile by tile.
//!
//! Problem: the row of `s..=t` is made from the rows of `s..k` and `k..=t` for every `k` between. If rows are computed one
//! by one in order of length, each of these comes from main memory every time, and the processor mostly waits for it.
//!
//! Method: starts and ends are cut into blocks of [`SIDE`]; a *tile* holds the rows of one block of starts and one
//! block of ends. For a block of `k` strictly between, a tile needs two earlier tiles, of which each row is used
//! [`SIDE`] times while both are in the cache. What is left, `k` in the block of the starts or of the ends, depends on
//! rows of the tile itself; so these are computed in order of falling start and rising end. Tiles of equal distance from
//! the diagonal do not depend on each other and are divided among the threads.
//!
//! Complexity: n³ / 6 row operations, n (n + 1) / 2 rows.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::chain::StageId;
use crate::clock::together;
use crate::deadline::Deadline;

/// Number of starts, and of ends, of a tile. Three tiles of 500 units are about the size of a core's second-level cache.
const SIDE: usize = 16;

/// How rows are made. Every row starts with infinities.
pub(super) trait Recipe: Sync {
    /// The row of `s..=s`.
    fn single(&self, s: StageId, row: &mut [f64]);
    /// What the row of `s + 1..=t` contributes to that of `s..=t`.
    fn save(&self, s: StageId, t: StageId, row: &mut [f64], rest: &[f64]);
    /// What the rows of `k..=t` (`behind`) and `s..=k - 1` (`before`) contribute to that of `s..=t`, for `(s, k, t)`.
    fn checkpoint(&self, stages: (StageId, StageId, StageId), row: &mut [f64], behind: &[f64], before: &[f64]);
}

/// The rows.
pub(super) struct Tiles {
    stages: usize,
    width: usize,
    /// By block of starts, then block of ends.
    tiles: Vec<Vec<f64>>,
}

impl Tiles {
    /// Without any rows yet; each will have `width` numbers.
    pub(super) fn new(stages: usize, width: usize) -> Self {
        let blocks = stages.div_ceil(SIDE);
        Self { stages, width, tiles: vec![Vec::new(); blocks * blocks] }
    }

    /// Computes all rows; `None` if `deadline` passes first.
    pub(super) fn fill(
        stages: usize,
        width: usize,
        threads: usize,
        deadline: Deadline,
        recipe: &impl Recipe,
    ) -> Option<Self> {
        let mut rows = Self::new(stages, width);
        let blocks = stages.div_ceil(SIDE);
        for distance in 0..blocks {
            let next = AtomicUsize::new(0);
            let work = || {
                let mut made = Vec::new();
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= blocks - distance {
                        return made;
                    }
                    let Some(tile) = rows.tile(i, i + distance, recipe, deadline) else { return made };
                    made.push((i, tile));
                }
            };
            let made: Vec<_> = together(0..threads.clamp(1, blocks - distance), |_| work()).flatten().collect();
            if made.len() < blocks - distance {
                return None;
            }
            for (i, tile) in made {
                rows.tiles[i * blocks + i + distance] = tile;
            }
        }
        Some(rows)
    }

    /// The row of `s..=t`.
    pub(super) fn row(&self, s: StageId, t: StageId) -> &[f64] {
        let (i, j) = (s / SIDE, t / SIDE);
        let at = self.place(s, t) * self.width;
        &self.tiles[i * self.stages.div_ceil(SIDE) + j][at..at + self.width]
    }

    /// First stage of a block and of the next.
    fn block(&self, i: usize) -> (StageId, StageId) {
        (i * SIDE, ((i + 1) * SIDE).min(self.stages))
    }

    /// The place of a row in its tile: falling start, then rising end.
    fn place(&self, s: StageId, t: StageId) -> usize {
        let ((_, starts), (first, end)) = (self.block(s / SIDE), self.block(t / SIDE));
        let above = starts - 1 - s;
        if s >= first { above * (above + 1) / 2 + t - s } else { above * (end - first) + t - first }
    }

    /// The tile of the `i`-th block of starts and the `j`-th of ends; it needs all tiles between them. `None` if `deadline`
    /// passes first.
    fn tile(&self, i: usize, j: usize, recipe: &impl Recipe, deadline: Deadline) -> Option<Vec<f64>> {
        if deadline.passed() {
            return None;
        }
        let ((first, starts), (from, ends)) = (self.block(i), self.block(j));
        let width = self.width;
        let mut tile = vec![f64::INFINITY; (self.place(first, ends - 1) + 1) * width];
        for block in i + 1..j {
            let (k_first, k_end) = self.block(block);
            for s in (first..starts).rev() {
                if deadline.passed() {
                    return None;
                }
                for t in from..ends {
                    let row = &mut tile[self.place(s, t) * width..][..width];
                    for k in k_first..k_end {
                        recipe.checkpoint((s, k, t), row, self.row(k, t), self.row(s, k - 1));
                    }
                }
            }
        }
        for s in (first..starts).rev() {
            if deadline.passed() {
                return None;
            }
            for t in from.max(s)..ends {
                let (done, rest) = tile.split_at_mut(self.place(s, t) * width);
                let row = &mut rest[..width];
                if s == t {
                    recipe.single(s, row);
                    continue;
                }
                let get = |a: StageId, b: StageId| {
                    if (a / SIDE, b / SIDE) == (i, j) {
                        &done[self.place(a, b) * width..][..width]
                    } else {
                        self.row(a, b)
                    }
                };
                recipe.save(s, t, row, get(s + 1, t));
                let near_end = from.max(starts)..t + 1;
                for k in (s + 1..starts.min(t + 1)).chain(near_end) {
                    recipe.checkpoint((s, k, t), row, get(k, t), get(s, k - 1));
                }
            }
        }
        Some(tile)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Cheapest order of joining neighbours, with costs that depend on all three places.
    struct Join;

    fn price(s: StageId, k: StageId, t: StageId) -> f64 {
        ((s * 31 + k * 17 + t * 7) % 23) as f64
    }

    impl Recipe for Join {
        fn single(&self, s: StageId, row: &mut [f64]) {
            row.fill(s as f64);
        }

        fn save(&self, s: StageId, t: StageId, row: &mut [f64], rest: &[f64]) {
            row[0] = row[0].min(rest[0] + price(s, 0, t) + 20.0);
        }

        fn checkpoint(&self, (s, k, t): (StageId, StageId, StageId), row: &mut [f64], behind: &[f64], before: &[f64]) {
            for ((cell, behind), before) in row.iter_mut().zip(behind).zip(before) {
                *cell = cell.min(price(s, k, t) + behind + before);
            }
        }
    }

    #[test]
    fn tiles_hold_what_the_recursion_gives_row_by_row() {
        for n in [1, 2, SIDE - 1, SIDE, SIDE + 1, 3 * SIDE - 1, 3 * SIDE + 5] {
            let mut plain = vec![vec![vec![f64::INFINITY; 2]; n]; n];
            for s in (0..n).rev() {
                for t in s..n {
                    let mut row = vec![f64::INFINITY; 2];
                    if s == t {
                        Join.single(s, &mut row);
                    } else {
                        Join.save(s, t, &mut row, &plain[s + 1][t]);
                        (s + 1..=t).for_each(|k| Join.checkpoint((s, k, t), &mut row, &plain[k][t], &plain[s][k - 1]));
                    }
                    plain[s][t] = row;
                }
            }
            for threads in [1, 3] {
                let deadline = Deadline::after(Duration::from_secs(3600));
                let tiles = Tiles::fill(n, 2, threads, deadline, &Join).unwrap();
                for (s, rows) in plain.iter().enumerate() {
                    (s..n).for_each(|t| assert_eq!(tiles.row(s, t), rows[t], "{n} stages, {s}..={t}"));
                }
                let cells: usize = tiles.tiles.iter().map(Vec::len).sum();
                assert_eq!(cells, n * (n + 1), "{n} stages");
            }
        }
    }

    #[test]
    fn a_deadline_that_has_passed_leaves_no_table() {
        assert!(Tiles::fill(40, 2, 2, Deadline::after(Duration::ZERO), &Join).is_none());
    }
}
