//! All figures of BENCHMARKS.md from one state of the code: as JSON, and as markdown with a paragraph for each table.
//!
//! Each table is a function from `Settings` to a `Table`. They measure one after the other in one process. Before and after each,
//! the processors' busy time says what other programs took.

mod budgets;
mod forecasts;
mod ladder;
mod machine;
mod planners;
mod steps;
mod table;
mod ways;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::clock::Others;
use machine::Machine;
pub use table::Table;

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

/// One table, and where, when and on which state of the code it was measured.
pub struct Measured {
    machine: Machine,
    table: Table,
    /// Share of the machine that other programs took meanwhile, if it is known.
    busy: Option<f64>,
}

/// Measures a table.
pub type Measure = fn(&Settings) -> Outcome<Table>;

/// All tables, by their names.
pub const TABLES: [(&str, Measure); 7] = [
    ("steps", steps::steps),
    ("operations", steps::operations),
    ("ways", ways::ways),
    ("budgets", budgets::budgets),
    ("ladder", ladder::ladder),
    ("forecasts", forecasts::forecasts),
    ("planners", planners::planners),
];

/// Measures a table.
///
/// # Errors
///
/// Data and graphs that cannot be read, and what a device or a planner reports.
pub fn measure(table: Measure, settings: &Settings) -> Outcome<Measured> {
    let (machine, others) = (Machine::here(), Others::watch());
    let table = table(settings)?;
    Ok(Measured { machine, table, busy: others.share() })
}

impl Measured {
    /// The table below its heading, with a paragraph.
    pub fn markdown(&self) -> String {
        let busy = Others::warning(self.busy);
        format!("{}\n{}\n{}.\n", self.table.markdown(), self.machine.markdown(), busy.trim())
    }

    /// The same figures by name.
    pub fn json(&self) -> Value {
        let mut value = self.table.json();
        value["machine"] = self.machine.json();
        value["others_busy"] = json!(self.busy);
        value
    }
}
