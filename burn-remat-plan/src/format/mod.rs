//! The JSON formats `remat-graph/1` and `remat-plan/1`. (`remat-chain/1` is read and written by [`Chain`](crate::Chain).)
//!
//! # A graph
//!
//! ```
//! let text = r#"{ "format": "remat-graph/1", "name": "two layers",
//!   "values": [ { "bytes": 40, "name": "x" }, { "bytes": 80, "name": "h" }, { "bytes": 8, "name": "loss" }, { "bytes": 80, "name": "dh" } ],
//!   "ops": [ { "name": "layer", "cost": 10, "inputs": [0], "outputs": [1] },
//!            { "name": "loss", "cost": 1, "inputs": [1], "outputs": [2] },
//!            { "name": "loss backward", "cost": 2, "inputs": [1, 2], "outputs": [3], "phase": "backward", "scratch_bytes": 16 } ],
//!   "results": [3] }"#;
//! let graph = burn_remat_plan::Graph::from_json(text)?;
//! assert_eq!(graph.ops().len(), 3);
//! # Ok::<(), burn_remat_plan::GraphError>(())
//! ```
//!
//! | field | meaning |
//! | --- | --- |
//! | `name` | optional, like every other `name` |
//! | `constant_bytes` | bytes that are always held, in addition to the values; 0 if left out |
//! | `values` | what ops read and write, each with its `bytes`. A value that no op outputs is an input: resident from the start to its last use, and never computed again |
//! | `ops` | the operations in execution order: `cost` (in any unit, the same for all), `inputs` and `outputs` (indices of values, from 0) |
//! | `scratch_bytes` | extra bytes that the op needs while it runs; 0 if left out |
//! | `recomputable` | whether it may run again; `true` if left out |
//! | `phase`, `stage` | both optional: `forward`, `backward` or `update`; the name of the part of the model |
//! | `alternatives` | optional: other ways to compute the same outputs, each with `name`, `cost`, `inputs`, `scratch_bytes` |
//! | `results` | values that are resident at the end; the last op's outputs if left out |
//!
//! # A plan
//!
//! `steps` are computations of ops (`"+3"`, or `"+3:0"` with the op's first alternative) and evictions of values (`"-5"`). The other fields are the planner's
//! name, `status` (`optimal`, `feasible`, `infeasible`, `no_solution`), `stop_reason` (`proved`, `gap`, `time_limit`, `heuristic`), `makespan` and `lower_bound`
//! in the unit of the costs, `overhead` over the store-all makespan, `peak_bytes` and, if no plan fits, `minimum_budget` and `blocking_op`.
//!
//! # Errors
//!
//! Unknown keys, wrong tags and wrong types are errors that name the field; what the types themselves forbid (a
//! cycle, an index out of range) is reported when they are built. Numbers are written and read back exactly.

mod graph;
mod plan;
mod recording;

pub use graph::GRAPH_FORMAT;
pub use plan::{PLAN_FORMAT, PlanFile};
pub use recording::{RECORDING_FORMAT, graph_of_recording};

use serde::de::DeserializeOwned;

/// Text that is not JSON, or JSON with the wrong structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Not JSON, or a field that is missing, unknown or of the wrong type.
    #[error("{}{message}", field_text(field))]
    Json {
        /// Path of the field, such as `ops[3].cost`; `.` is the file as a whole.
        field: String,
        /// What is wrong with it, with line and column.
        message: String,
    },
    /// A file in another format.
    #[error("`format` is `{found}`, not `{expected}`")]
    Tag {
        /// The tag found.
        found: String,
        /// The tag expected.
        expected: &'static str,
    },
    /// A text that is not a step.
    #[error("`steps[{index}]`: {message}")]
    Step {
        /// Index of the step.
        index: usize,
        /// What is wrong with it.
        message: String,
    },
}

fn field_text(field: &str) -> String {
    if field == "." { String::new() } else { format!("`{field}`: ") }
}

/// The `format` tag of a JSON text, whatever else it contains.
///
/// ```
/// assert_eq!(burn_remat_plan::format::tag(r#"{"format": "remat-chain/1", "stages": []}"#).unwrap(), "remat-chain/1");
/// ```
///
/// # Errors
///
/// [`FormatError::Json`] if the text is not a JSON object with a string under `format`.
pub fn tag(text: &str) -> Result<String, FormatError> {
    #[derive(serde::Deserialize)]
    #[serde(expecting = "an object with a string under `format`")]
    struct Tagged {
        format: String,
    }
    if text.trim_start().starts_with('[') {
        parse::<Vec<serde::de::IgnoredAny>>(text)?;
        let message = "this is a list, but a file contains one object, `{ \"format\": .., .. }`".to_owned();
        return Err(FormatError::Json { field: ".".to_owned(), message });
    }
    parse::<Tagged>(text).map(|tagged| tagged.format)
}

/// Reads one JSON value that fills the whole text.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, FormatError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| FormatError::Json { field: field_of(error.path()), message: message_of(error.inner()) })?;
    reader.end().map_err(|error| FormatError::Json { field: ".".to_owned(), message: message_of(&error) })?;
    Ok(value)
}

/// The path of the field at fault, or `.` if the text ended or broke off before a field was known.
fn field_of(path: &serde_path_to_error::Path) -> String {
    let path = path.to_string();
    path.strip_suffix('?').map_or_else(
        || path.clone(),
        |before| match before.trim_end_matches('.') {
            "" => ".".to_owned(),
            before => before.to_owned(),
        },
    )
}

fn message_of(error: &serde_json::Error) -> String {
    if error.is_eof() {
        format!("the text ends in the middle of the JSON, at line {} column {}", error.line(), error.column())
    } else if error.is_syntax() {
        format!("this is not JSON: {error}")
    } else {
        error.to_string()
    }
}

/// Like [`parse`], but checks the tag first: for a file in another format, an error about the tag says more than one about an unknown key.
fn parse_tagged<T: DeserializeOwned>(text: &str, expected: &'static str) -> Result<T, FormatError> {
    let found = tag(text)?;
    if found == expected { parse(text) } else { Err(FormatError::Tag { found, expected }) }
}
