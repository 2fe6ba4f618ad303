//! The input of a subcommand: a graph or a chain, distinguished by the `format` tag.

use std::io::Read;
use std::path::Path;

use burn_remat_plan::chain::{self, Chain, ChainPlan, ChainStep};
use burn_remat_plan::format::{FormatError, PLAN_FORMAT, PlanFile, graph_of_recording, tag};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Graph, PlanError, Planner, Request, check, solve, solve_chain};

use crate::exit::Exit;

/// A graph or a chain.
pub enum Input {
    /// `remat-graph/1`.
    Graph(Graph),
    /// `remat-chain/1`.
    Chain(Chain),
}

/// Peak and makespan of a plan, as the checker counts them.
pub struct Measured {
    /// Most bytes held at once.
    pub peak_bytes: u64,
    /// Sum of the costs.
    pub makespan: f64,
}

/// Reads a text file; `-` is standard input.
pub fn read_text(path: &Path) -> Result<String, Exit> {
    let wrong = |error: std::io::Error| Exit::usage(format!("{}: {error}", path.display()));
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(wrong)?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(wrong)
}

/// Reads a plan file.
pub fn read_plan(path: &Path) -> Result<PlanFile, Exit> {
    PlanFile::from_json(&read_text(path)?).map_err(|error| Exit::usage(format!("{}: {error}", path.display())))
}

impl Input {
    /// Reads a graph, the graph in a recording, or a chain.
    pub fn read(path: &Path) -> Result<Self, Exit> {
        let text = read_text(path)?;
        let named = |message: String| Exit::usage(format!("{}: {message}", path.display()));
        let graph = graph_of_recording(&text).transpose().map_err(|error| named(error.to_string()))?;
        let text = graph.map(str::to_owned).unwrap_or(text);
        match tag(&text).map_err(|error| named(error.to_string()))?.as_str() {
            "remat-chain/1" => Chain::from_json(&text).map(Self::Chain).map_err(|error| named(error.to_string())),
            PLAN_FORMAT => Err(named("this is a plan; give the graph or chain that it was made for".to_owned())),
            "remat-graph/1" => Graph::from_json(&text).map(Self::Graph).map_err(|error| named(error.to_string())),
            other => Err(named(format!("`format` is `{other}`, neither `remat-graph/1` nor `remat-chain/1`"))),
        }
    }

    /// Peak without recomputation.
    pub fn store_all_peak(&self) -> u64 {
        match self {
            Self::Graph(graph) => StoreAll::peak(graph),
            Self::Chain(chain) => chain.store_all_peak(),
        }
    }

    /// Makespan without recomputation.
    pub fn store_all_makespan(&self) -> f64 {
        match self {
            Self::Graph(graph) => StoreAll::makespan(graph),
            Self::Chain(chain) => chain.store_all_makespan(),
        }
    }

    /// Makes a plan and checks it.
    pub fn solve(&self, planner: &dyn Planner, request: &Request) -> Result<PlanFile, PlanError> {
        let store_all = self.store_all_makespan();
        match self {
            Self::Graph(graph) => {
                solve(planner, graph, request).map(|solved| PlanFile::of_outcome(&solved.outcome, store_all))
            }
            Self::Chain(chain) => {
                solve_chain(planner, chain, request).map(|outcome| PlanFile::of_outcome(&outcome, store_all))
            }
        }
    }

    /// The violations of a plan as messages, or its peak and makespan.
    pub fn check(&self, file: &PlanFile, budget: u64) -> Result<Result<Measured, Vec<String>>, FormatError> {
        Ok(match self {
            Self::Graph(graph) => match check(graph, &file.plan()?, budget) {
                Ok(checked) => Ok(Measured { peak_bytes: checked.peak_bytes(), makespan: checked.makespan() }),
                Err(found) => Err(found.all().iter().map(ToString::to_string).collect()),
            },
            Self::Chain(chain) => {
                let plan = ChainPlan { steps: file.steps::<ChainStep>()? };
                let found = chain::check(chain, &plan, budget);
                if found.is_empty() {
                    let timeline = chain::simulate(chain, &plan);
                    Ok(Measured { peak_bytes: timeline.peak_bytes, makespan: timeline.makespan })
                } else {
                    Err(found.iter().map(ToString::to_string).collect())
                }
            }
        })
    }

    /// The name of op (or stage) `index`, with its index.
    pub fn op_text(&self, index: usize) -> String {
        match self {
            Self::Graph(graph) => match graph.ops().get(index) {
                Some(op) if !op.name.is_empty() => format!("op {index} `{}`", op.name),
                _ => format!("op {index}"),
            },
            Self::Chain(_) => format!("stage {index}"),
        }
    }
}
