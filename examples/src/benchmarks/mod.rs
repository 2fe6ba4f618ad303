//! All figures of BENCHMARKS.md from one state of the code: as JSON, and as markdown with a paragraph for each table.
//!
//! Each table is a function from an `Effort` to a `Table`. They measure one after the other in one process. Before and after each,
//! the processors' busy time says what other programs took.

mod budgets;
mod forecasts;
mod machine;
mod planners;
mod steps;
mod table;

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::cli::Outcome;
use crate::clock::Others;
use machine::Machine;
use table::Table;

/// How much is measured.
#[derive(Clone, Debug)]
pub enum Effort {
    /// One small case of each table, to see that everything works: the figures mean nothing.
    Quick,
    /// Everything.
    Full,
}

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How much.
    pub effort: Effort,
    /// A folder with more graphs for the planners: `remat-graph/1` files.
    pub graphs: Option<PathBuf>,
}

impl Settings {
    fn is_quick(&self) -> bool {
        matches!(self.effort, Effort::Quick)
    }
}

/// All tables of one run.
pub struct Benchmarks {
    machine: Machine,
    /// Each with the share of the machine that other programs took meanwhile, if it is known.
    tables: Vec<(Table, Option<f64>)>,
}

/// Measures all tables, and calls `begun` with the name of each before it is measured.
///
/// # Errors
///
/// Data and graphs that cannot be read, and what a device or a planner reports.
pub fn measure(settings: &Settings, mut begun: impl FnMut(&str)) -> Outcome<Benchmarks> {
    type Measure = fn(&Settings) -> Outcome<Table>;
    let all: [(&str, Measure); 5] = [
        ("time of steps", steps::steps),
        ("time of operations", steps::operations),
        ("training under budgets", budgets::budgets),
        ("forecasts and largest batches", forecasts::forecasts),
        ("planners", planners::planners),
    ];
    let machine = Machine::here();
    let mut tables = Vec::new();
    for (name, measure) in all {
        begun(name);
        let others = Others::watch();
        let table = measure(settings)?;
        tables.push((table, others.share()));
    }
    Ok(Benchmarks { machine, tables })
}

impl Benchmarks {
    /// The page.
    pub fn markdown(&self) -> String {
        let tables = self.tables.iter().map(|(table, busy)| {
            let busy = Others::warning(*busy);
            format!("\n{}\n{}.\n", table.markdown(), busy.trim())
        });
        format!("# Benchmarks\n\n{}\n{}", self.machine.markdown(), tables.collect::<String>())
    }

    /// The same figures by name.
    pub fn json(&self) -> Value {
        let tables = self.tables.iter().map(|(table, busy)| {
            let mut value = table.json();
            value["others_busy"] = json!(busy);
            (table.name.to_owned(), value)
        });
        json!({ "machine": self.machine.json(), "tables": tables.collect::<Map<_, _>>() })
    }
}
