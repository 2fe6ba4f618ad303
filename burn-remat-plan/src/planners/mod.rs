//! The planners for graphs: one file per algorithm, each with its paper. [`crate::registry`] lists them by name.
//!
//! # From a planner to its paper
//!
//! | planner | module | paper, and where in it |
//! | --- | --- | --- |
//! | `store-all` | [`store_all`] | Checkmate, "checkpoint all" |
//! | `chen-sqrt`, `chen-greedy` | [`chen`] | Chen et al. 2016; Checkmate 6.1 |
//! | `ap-sqrt`, `ap-greedy` | [`articulation`] | Checkmate 6.1, B.1 |
//! | `linear-sqrt`, `linear-greedy` | [`linearized`] | Checkmate 6.1, B.2 |
//! | `revolve` | [`revolve`] | Griewank and Walther 2000; for heterogeneous chains RR-9302, 5.3 |
//! | `chain-dp` | [`chain_dp`] | RR-9302, Theorem 1, Algorithms 1 and 2 |
//! | `feng-huang` | [`feng_huang`] | Feng and Huang 2018, Algorithms 1 to 6 |
//! | `checkmate` | `checkmate` | Checkmate, (9) |
//! | `lp-rounding` | `lp_rounding` | Checkmate, section 5, Algorithm 2 |
//! | `monet` | `monet` | MONeT, sections 3 and 4, appendices B and C |
//! | `search` | [`search`] | this project; its module says what it builds on |
//! | `online` | [`online`] | Kirisame et al. 2021 (DTR), with another score |
//! | `min-cut` | [`min_cut`] | PyTorch, `torch._functorch.partitioners` |
//! | `hlo-remat` | [`hlo_remat`] | XLA, `HloRematerialization` |
//! | `every-nth-block` | [`every_nth_block`] | selective checkpointing by hand |
//! | `auto` | [`auto`] | this project |
//!
//! # From a paper to the code
//!
//! *Checkmate*: Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", 2020.
//!
//! | there | here |
//! | --- | --- |
//! | 4.2, R and S; 4.6, (8a) to (8c) | [`crate::frontier`]: stages, [`Retention`](crate::frontier::Retention) |
//! | (1a) to (1f) | `checkmate::model`: objective, rows of residency |
//! | (2), (3), U; (4), (5), FREE | `checkmate::model`: `add_memory`, `add_residency` |
//! | (6), (7a) to (7c), Lemmas 4.1 and 4.2 | replaced by one row per hazard: see the header of `checkmate::model` |
//! | (9) | `checkmate`, with the solver in `checkmate::solver` |
//! | 4.8, what optimality implies | `checkmate::model`: variables fixed in advance |
//! | 4.9, Algorithm 1 | [`crate::sequence::plan_from_order`]: evictions as early as possible |
//! | 4.10, costs | [`crate::generate`] for FLOPs; a profile gives measured ones |
//! | 5.1, relaxation | `checkmate::solver`, `RelaxationSolver` |
//! | 5.2, Algorithm 2 | [`crate::frontier::computations`] (phase two), `lp_rounding` (phase one) |
//! | 5.3, allowance | `lp_rounding`: `ALLOWANCES` |
//! | 6.1, appendix B | [`chen`], [`articulation`], [`linearized`] |
//! | (10), (11), largest batch | not planned here: it changes the graph, not the plan |
//! | appendix A, integrality gap | not used; the bound is the solver's |
//! | appendix D, random rounding | `lp_rounding`: `round` |
//!
//! *RR-9302*: Beaumont et al., "Optimal checkpointing for heterogeneous chains", Inria 2019.
//!
//! | there | here |
//! | --- | --- |
//! | Table 1, the operations and their memory | [`crate::chain`]: simulation and checker; `chain::terms` |
//! | 4.1, figure 2, schedules that are not persistent | `chain_exchange`, used by `search` |
//! | 4.2, the needs of a run and of saving | `chain::terms`: `departure` and `transit`; `save_need` |
//! | Theorem 1, Algorithm 1 | `chain_table`: `Table`; its order of work in `chain_tiles` |
//! | Algorithm 2 | `chain_table`: `walk` |
//! | 5.2, discretised sizes | `chain_persistent`: `SLOTS`, `chain::terms`: `in_units` |
//! | 5.3, sequential, revolve | [`chen`], [`revolve`] |
//! | several saved sets per stage, equal blocks once (Rockmate, Zhao et al. 2023) | `chain_sets`, `views::stage_options` |
//!
//! *Feng and Huang*: "Optimal gradient checkpoint search for arbitrary computation graphs", 2018.
//!
//! | there | here |
//! | --- | --- |
//! | Algorithm 1, linear graphs; 5, division tree; 6, ACG solver | `feng_huang::solver` |
//! | 5.1, independent segments; Algorithms 2 to 4, divisions | `feng_huang::division` |
//!
//! *MONeT*: Shah et al., "Memory optimization for deep networks", 2020.
//!
//! | there | here |
//! | --- | --- |
//! | section 3, (1) to (4), memory of a schedule | `monet::stages`, [`crate::simulate()`] |
//! | (5) to (8), (10) to (14), constraints | `monet::model`: `add_stage`, `add_memory` |
//! | (9), objective | `monet::model`: `entries_of` |
//! | appendix B, bound on local tensors | replaced by exact residency: see the header of `monet::model` |
//! | C.3, (15), (16), in-place operators | alternatives of the op before: see the header of `monet` |
//! | C.4, products | `monet::model`: `residency`, `larger` |
//! | choice of implementations with general schedules, at any size | [`search`]: `problem` has the ways, `anneal` the moves |
//! | operators, for graphs of many ops | stages of the model: [`crate::views::stages_of`], `monet::on_stages` |

pub mod articulation;
mod ask;
pub mod auto;
pub mod chain_dp;
pub(crate) mod chain_exact;
mod chain_exchange;
pub(crate) mod chain_on_graph;
pub(crate) mod chain_persistent;
pub(crate) mod chain_search;
mod chain_sets;
mod chain_table;
mod chain_tiles;
#[cfg(feature = "highs")]
pub mod checkmate;
pub mod chen;
pub mod every_nth_block;
pub mod feng_huang;
pub mod hlo_remat;
mod incumbent;
mod limited;
pub mod linearized;
#[cfg(feature = "highs")]
pub mod lp_rounding;
mod max_flow;
pub mod min_cut;
#[cfg(not(feature = "highs"))]
mod missing_feature;
#[cfg(feature = "highs")]
pub mod monet;
pub mod online;
pub mod revolve;
mod saved_values;
pub mod search;
pub(crate) mod segments;
pub mod store_all;

pub use articulation::{ApGreedy, ApSqrt};
pub use auto::Auto;
pub use chain_dp::ChainDp;
#[cfg(feature = "highs")]
pub use checkmate::Checkmate;
pub use chen::{ChenGreedy, ChenSqrt};
pub use every_nth_block::EveryNthBlock;
pub use feng_huang::FengHuang;
pub use hlo_remat::HloRemat;
pub(crate) use limited::Guarded;
pub use linearized::{LinearGreedy, LinearSqrt};
#[cfg(feature = "highs")]
pub use lp_rounding::LpRounding;
pub use min_cut::MinCut;
#[cfg(not(feature = "highs"))]
pub use missing_feature::MissingFeature;
#[cfg(feature = "highs")]
pub use monet::Monet;
pub use online::Online;
pub use revolve::Revolve;
pub use search::Search;
pub use store_all::StoreAll;
