//! The JSON formats `remat-graph/1` and `remat-plan/1`. (`remat-chain/1` is read and written by [`Chain`](crate::Chain).)
//!
//! Unknown keys, wrong tags and wrong types are errors that name the field; what the types themselves forbid (a
//! cycle, an index out of range) is found where they are built. Numbers survive writing and reading to the last bit.

mod graph;
mod plan;

pub use graph::GRAPH_FORMAT;
pub use plan::{PLAN_FORMAT, PlanFile};

use serde::de::DeserializeOwned;

/// A text that is no JSON, or JSON of another shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// No JSON, or a field of the wrong type, missing or unknown.
    #[error("{}{message}", field_text(field))]
    Json {
        /// Path of the field, such as `ops[3].cost`; `.` is the file as a whole.
        field: String,
        /// What is wrong with it, with line and column.
        message: String,
    },
    /// Another format.
    #[error("`format` is `{found}`, not `{expected}`")]
    Tag {
        /// The tag found.
        found: String,
        /// The tag that the reader knows.
        expected: &'static str,
    },
    /// A step that is none.
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

/// The `format` tag of a JSON text, whatever else it holds.
///
/// ```
/// assert_eq!(burn_remat_plan::format::tag(r#"{"format": "remat-chain/1", "stages": []}"#).unwrap(), "remat-chain/1");
/// ```
///
/// # Errors
///
/// [`FormatError::Json`] where the text is no JSON object with a text under `format`.
pub fn tag(text: &str) -> Result<String, FormatError> {
    #[derive(serde::Deserialize)]
    struct Tagged {
        format: String,
    }
    parse::<Tagged>(text).map(|tagged| tagged.format)
}

/// Reads one JSON value that fills the whole text.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, FormatError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| FormatError::Json { field: error.path().to_string(), message: message_of(error.inner()) })?;
    reader.end().map_err(|error| FormatError::Json { field: ".".to_owned(), message: message_of(&error) })?;
    Ok(value)
}

fn message_of(error: &serde_json::Error) -> String {
    if error.is_syntax() || error.is_eof() { format!("this is no JSON: {error}") } else { error.to_string() }
}

/// [`parse`], after a look at the tag: a file of another format is better called that than faulted for its keys.
fn parse_tagged<T: DeserializeOwned>(text: &str, expected: &'static str) -> Result<T, FormatError> {
    let found = tag(text)?;
    if found == expected { parse(text) } else { Err(FormatError::Tag { found, expected }) }
}
