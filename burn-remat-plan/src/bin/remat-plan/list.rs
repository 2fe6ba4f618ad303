//! `remat-plan list`.

use std::fmt::Write;

use burn_remat_plan::registry::planners;

use crate::exit::{Exit, print};

/// Prints the table of planners.
pub fn run() -> Result<(), Exit> {
    let width = planners().iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for entry in planners() {
        let _ = writeln!(text, "{:width$}  {}", entry.name, entry.purpose);
        let _ = writeln!(text, "{:width$}  source: {}", "", entry.source);
        if let Some(feature) = entry.planner().missing_feature() {
            let _ = writeln!(text, "{:width$}  not in this build: it needs the cargo feature `{feature}`", "");
        }
    }
    print(&text)
}
