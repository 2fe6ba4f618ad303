//! `chain-dp`: the cheapest persistent schedule of a chain, in which whatever is kept stays kept until its backward use.
//!
//! A chain is planned by the dynamic program of `chain_persistent`; a graph by its views as chains of stages
//! (`chain_on_graph`), among them stages with several saved sets each (`chain_sets`).
//!
//! Complexity: O(n³ · units) time at worst, 4 · n² · units bytes, for n stages and a memory limit of that many units.
//!
//! Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains" (RR-9302),
//! Theorem 1, Algorithms 1 and 2.

use super::chain_table::Choices;
use super::{chain_on_graph, chain_persistent};
use crate::chain::{Chain, ChainOutcome};
use crate::error::PlanError;
use crate::graph::Graph;
use crate::planner::{Outcome, Planner, Request};

pub use super::chain_persistent::minimum_budget;

/// The planner `chain-dp`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChainDp;

impl ChainDp {
    /// The planner's name in the registry.
    pub const NAME: &'static str = "chain-dp";
}

impl Planner for ChainDp {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        chain_on_graph::solve(Self::NAME, Choices::SavedAndInputs, graph, request)
    }

    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        chain_persistent::solve_chain(Self::NAME, Choices::SavedAndInputs, chain, request)
    }
}
