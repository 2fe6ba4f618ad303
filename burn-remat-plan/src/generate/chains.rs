//! Random chains for tests.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::chain::{Chain, ChainStage};

/// A chain of 1 to `most` stages with small whole numbers everywhere, including zeros. In one chain out of five, a saved
/// set may be smaller than its activation. The same arguments give the same chain. (For the chain of a network see
/// [`ChainView`](crate::views::chain_of::ChainView).)
///
/// ```
/// use burn_remat_plan::generate::random_chain;
///
/// assert_eq!(random_chain(7, 5), random_chain(7, 5));
/// assert!((1..=5).contains(&random_chain(8, 5).stages().len()));
/// ```
pub fn random_chain(seed: u64, most: usize) -> Chain {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let largest: u64 = rng.random_range(1..=9);
    let odd = rng.random_bool(0.2);
    let count = rng.random_range(1..=most.max(1));
    let mut stage = || {
        let activation_bytes = rng.random_range(0..=largest);
        let least = if odd { 0 } else { activation_bytes };
        ChainStage {
            forward_cost: f64::from(rng.random_range(0..=10_u32)),
            backward_cost: f64::from(rng.random_range(0..=20_u32)),
            activation_bytes,
            saved_bytes: rng.random_range(least..=least + 2 * largest),
            gradient_bytes: rng.random_range(0..=largest),
            forward_scratch_bytes: rng.random_range(0..=largest / 2),
            backward_scratch_bytes: rng.random_range(0..=largest / 2),
        }
    };
    let stages = (0..count).map(|_| stage()).collect();
    let (input, gradient) = (rng.random_range(0..=largest), rng.random_range(0..=largest));
    Chain::new(format!("random-{seed}"), input, gradient, stages).expect("at least one stage, and small whole numbers")
}
