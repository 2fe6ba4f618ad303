//! Reads a recording. Errors name the line and the field.

use std::path::Path;
use std::sync::Arc;

use burn_remat_core::{Asking, LayoutFollows, Recorder, Recording};
use burn_remat_plan::Graph;
use burn_remat_plan::format::{RECORDING_FORMAT, graph_of_recording};
use serde::de::DeserializeOwned;

use super::{Header, Layout};
use crate::budget::Budget;
use crate::config::{RandomPolicy, RematConfig};

/// Why a file cannot be read as a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// A line is wrong.
    #[error("line {line}, `{field}`: {reason}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The field, as in `operation.inputs[0].id`; `.` for the whole line.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A recording that was written by [`RematExt::remat_record`](crate::RematExt::remat_record).
#[derive(Clone, Debug)]
pub struct RecordedProgram {
    header: Header,
    budget: Budget,
    pub(crate) recording: Arc<Recording>,
    graph: Option<Graph>,
}

impl RecordedProgram {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Errors of the file system, or the first line that is wrong.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, RecordingError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, RecordingError> {
        let mut lines = text.lines().enumerate().map(|(at, text)| (at + 1, text));
        let wrong = |line, field: &str, reason: String| RecordingError::Line { line, field: field.to_owned(), reason };
        let (_, first) = lines.next().ok_or_else(|| wrong(1, ".", "the file is empty".to_owned()))?;
        let header: Header = parsed(1, first)?;
        if header.format != RECORDING_FORMAT {
            let reason = format!("`{}` is not `{RECORDING_FORMAT}`, which this version reads", header.format);
            return Err(wrong(1, "format", reason));
        }
        let budget =
            header.budget.parse().map_err(|error: crate::BudgetError| wrong(1, "budget", error.to_string()))?;
        // The last line may be a graph.
        let graph = graph_of_recording(text).and_then(Result::ok);
        let count = text.lines().count() - usize::from(graph.is_some());
        let mut recorder = Recorder::default();
        for (line, text) in lines.take(count - 1) {
            let asking: Asking = parsed(line, text)?;
            recorder.push(asking).map_err(|misfit| wrong(line, misfit.field, misfit.reason.to_owned()))?;
        }
        let graph = graph.map(Graph::from_json).transpose();
        let graph = graph.map_err(|error| wrong(count + 1, "graph", error.to_string()))?;
        Ok(Self { header, budget, recording: Arc::new(recorder.finish()), graph })
    }

    /// Name of the backend on which the program ran.
    pub fn device(&self) -> &str {
        &self.header.device
    }

    /// The number of requests of the program.
    pub fn calls(&self) -> usize {
        self.recording.asked().len()
    }

    /// The graph that was planned when the recording ended, if there was a plan: costs in ns, sizes in bytes.
    pub fn graph(&self) -> Option<&Graph> {
        self.graph.as_ref()
    }

    /// The configuration of the device, as far as it is recorded: its budget, its random policy and its limits. It uses no cache of plans.
    pub fn config(&self) -> RematConfig {
        let mut config = RematConfig::new(self.budget).without_cache();
        config.random = if self.header.reseed { RandomPolicy::Reseed } else { RandomPolicy::Keep };
        config.strict = self.header.strict;
        config.recompute_limit = self.header.recompute_limit.unwrap_or(f64::INFINITY);
        config.count_workspaces = self.header.count_workspaces;
        config
    }

    pub(super) fn layout(&self) -> LayoutFollows {
        match self.header.layout {
            Layout::Nothing => LayoutFollows::Nothing,
            Layout::Parts => LayoutFollows::Parts,
            Layout::Reuse => LayoutFollows::Reuse,
        }
    }
}

fn parsed<T: DeserializeOwned>(line: usize, text: &str) -> Result<T, RecordingError> {
    let wrong = |field: String, reason: &serde_json::Error| {
        // The parser gets one line at a time, and always calls it line 1.
        let reason = reason.to_string().replace(" at line 1 column ", ", column ");
        RecordingError::Line { line, field, reason }
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let value =
        serde_path_to_error::deserialize(&mut json).map_err(|error| wrong(error.path().to_string(), error.inner()))?;
    json.end().map_err(|error| wrong(".".to_owned(), &error))?;
    Ok(value)
}
