//! The graph in a recording (`remat-recording/1`). A recording is a file with one JSON object per line, written by burn-remat. Its last line may be the
//! graph that was planned.

use super::{FormatError, tag};

/// The tag of a recording, on its first line.
pub const RECORDING_FORMAT: &str = "remat-recording/1";

/// The text of the graph in a recording; `None` if the text is not a recording.
///
/// ```
/// use burn_remat_plan::format::graph_of_recording;
///
/// let text = "{\"format\":\"remat-recording/1\"}\n{\"mark\":{\"thread\":1}}\n{\"graph\":{\"format\":\"remat-graph/1\"}}\n";
/// assert_eq!(graph_of_recording(text), Some(Ok("{\"format\":\"remat-graph/1\"}")));
/// assert_eq!(graph_of_recording("{\"format\":\"remat-graph/1\"}"), None);
/// ```
///
/// # Errors
///
/// [`FormatError::Json`] if the recording has no graph: nothing had been planned when it ended.
pub fn graph_of_recording(text: &str) -> Option<Result<&str, FormatError>> {
    let is_recording = tag(text.lines().next()?).is_ok_and(|tag| tag == RECORDING_FORMAT);
    let last = text.lines().next_back().filter(|_| is_recording)?;
    let graph = last.strip_prefix("{\"graph\":").and_then(|rest| rest.strip_suffix('}'));
    let message = "the recording has no graph: nothing had been planned when it ended".to_owned();
    Some(graph.ok_or(FormatError::Json { field: ".".to_owned(), message }))
}
