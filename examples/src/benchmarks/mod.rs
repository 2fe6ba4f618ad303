//! All tables of BENCHMARKS.md from one state of the code: as JSON, as markdown, and in their places on that page.
//!
//! Each table is a function from `Settings` to a `Table`. The tables are measured one after the other in one process. The processors' busy
//! time before and after each shows how much other programs took.

mod budgets;
mod compression;
mod forecasts;
mod implementations;
mod machine;
pub mod page;
mod planners;
mod published;
mod steps;
mod table;
mod throughput;
mod ways;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::clock::Others;
pub use machine::Machine;
pub use table::Table;

/// How much is measured.
#[derive(Clone, Debug)]
pub enum Effort {
    /// One small case of each table, to check that everything works: the figures mean nothing.
    Quick,
    /// Everything.
    Full,
}

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How much.
    pub effort: Effort,
    /// A folder with published graphs and their known results, `NAME.graph.json` and `NAME.reference.json`, for the tables that need them.
    pub graphs: Option<PathBuf>,
}

impl Settings {
    fn is_quick(&self) -> bool {
        matches!(self.effort, Effort::Quick)
    }
}

/// One table, and where, when and at which state of the code it was measured.
pub struct Measured {
    machine: Machine,
    table: Table,
    /// The share of the machine's processors that other programs took meanwhile, if it is known.
    busy: Option<f64>,
}

/// Measures a table; `None` if it needs graphs that are not there.
pub type Measure = fn(&Settings) -> Outcome<Option<Table>>;

/// All tables, by their names and in the order of the page.
pub const TABLES: [(&str, Measure); 11] = [
    ("ways", |settings| ways::ways(settings).map(Some)),
    ("steps", |settings| steps::steps(settings).map(Some)),
    ("operations", |settings| steps::operations(settings).map(Some)),
    ("budgets", |settings| budgets::budgets(settings).map(Some)),
    ("compression", |settings| compression::compression(settings).map(Some)),
    ("forecasts", |settings| forecasts::forecasts(settings).map(Some)),
    ("throughput", |settings| throughput::throughput(settings).map(Some)),
    ("planners", |settings| planners::planners(settings).map(Some)),
    ("implementations", |settings| implementations::implementations(settings).map(Some)),
    ("published", published::published),
    ("memory", published::memory),
];

/// Measures a table; `None` if it needs graphs that are not there.
///
/// # Errors
///
/// Data and graphs that cannot be read, and what a device or a planner reports.
pub fn measure(table: Measure, settings: &Settings, machine: &Machine) -> Outcome<Option<Measured>> {
    let others = Others::watch();
    Ok(table(settings)?.map(|table| Measured { machine: machine.clone(), table, busy: others.share() }))
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
