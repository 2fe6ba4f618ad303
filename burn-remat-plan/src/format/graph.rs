//! The format `remat-graph/1`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::parse_tagged;
use crate::error::GraphError;
use crate::graph::{Alternative, Graph, GraphBuilder, Op, Phase};

/// The tag of a graph file.
pub const GRAPH_FORMAT: &str = "remat-graph/1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `values` and `ops`")]
struct File {
    #[serde(rename = "format")]
    _format: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    constant_bytes: u64,
    values: Vec<FileValue>,
    ops: Vec<FileOp>,
    results: Option<Vec<usize>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a value: an object with `bytes`")]
struct FileValue {
    bytes: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an op: an object with `cost`, `inputs` and `outputs`")]
struct FileOp {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    cost: f64,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    #[serde(default, skip_serializing_if = "is_zero")]
    scratch_bytes: u64,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    recomputable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase: Option<Phase>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stage: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<FileAlternative>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an alternative: an object with `cost` and `inputs`")]
struct FileAlternative {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    cost: f64,
    inputs: Vec<usize>,
    #[serde(default, skip_serializing_if = "is_zero")]
    scratch_bytes: u64,
}

fn yes() -> bool {
    true
}

fn is_yes(flag: &bool) -> bool {
    *flag
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl From<FileOp> for Op {
    fn from(op: FileOp) -> Self {
        let alternatives = op.alternatives.into_iter().map(|other| Alternative {
            name: other.name,
            cost: other.cost,
            inputs: other.inputs,
            scratch_bytes: other.scratch_bytes,
        });
        Self {
            name: op.name,
            cost: op.cost,
            inputs: op.inputs,
            outputs: op.outputs,
            scratch_bytes: op.scratch_bytes,
            recomputable: op.recomputable,
            phase: op.phase,
            stage: op.stage,
            alternatives: alternatives.collect(),
        }
    }
}

impl From<&Op> for FileOp {
    fn from(op: &Op) -> Self {
        let alternatives = op.alternatives.iter().map(|other| FileAlternative {
            name: other.name.clone(),
            cost: other.cost,
            inputs: other.inputs.clone(),
            scratch_bytes: other.scratch_bytes,
        });
        Self {
            name: op.name.clone(),
            cost: op.cost,
            inputs: op.inputs.clone(),
            outputs: op.outputs.clone(),
            scratch_bytes: op.scratch_bytes,
            recomputable: op.recomputable,
            phase: op.phase,
            stage: op.stage.clone(),
            alternatives: alternatives.collect(),
        }
    }
}

impl Graph {
    /// Reads a graph in the format `remat-graph/1`.
    ///
    /// ```
    /// let text = r#"{"format": "remat-graph/1", "values": [{"bytes": 4}, {"bytes": 8}],
    ///                "ops": [{"cost": 1.5, "inputs": [0], "outputs": [1]}]}"#;
    /// let graph = burn_remat_plan::Graph::from_json(text)?;
    /// assert_eq!(graph.ops()[0].cost, 1.5);
    /// # Ok::<(), burn_remat_plan::GraphError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`GraphError`], which names the field at fault.
    pub fn from_json(text: &str) -> Result<Self, GraphError> {
        let file: File = parse_tagged(text, GRAPH_FORMAT)?;
        let mut builder = GraphBuilder::new(file.name);
        builder.constant_bytes(file.constant_bytes);
        for value in file.values {
            builder.value(value.bytes, value.name);
        }
        for op in file.ops {
            builder.op(op.into());
        }
        if let Some(results) = file.results {
            builder.results(results);
        }
        builder.build()
    }

    /// Writes the graph in the format `remat-graph/1`, one value or op per line.
    pub fn to_json(&self) -> String {
        let values = self.values().iter().map(|v| FileValue { bytes: v.bytes, name: v.name.clone() });
        format!(
            "{{\"format\":{},\"name\":{},\"constant_bytes\":{},\n\"values\":[\n{}],\n\"ops\":[\n{}],\n\"results\":{}}}\n",
            json(&GRAPH_FORMAT),
            json(&self.name()),
            self.constant_bytes(),
            lines(values),
            lines(self.ops().iter().map(FileOp::from)),
            json(&self.results()),
        )
    }

    /// Reads a file in the format `remat-graph/1`.
    ///
    /// # Errors
    ///
    /// [`GraphError::Io`] if the file cannot be read as text, otherwise the errors of [`from_json`](Self::from_json).
    pub fn read(path: impl AsRef<Path>) -> Result<Self, GraphError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| io(path, &error))?;
        Self::from_json(&text)
    }

    /// Writes a file in the format `remat-graph/1`.
    ///
    /// # Errors
    ///
    /// [`GraphError::Io`] if the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), GraphError> {
        let path = path.as_ref();
        std::fs::write(path, self.to_json()).map_err(|error| io(path, &error))
    }
}

fn io(path: &Path, error: &std::io::Error) -> GraphError {
    GraphError::Io { path: path.display().to_string(), message: error.to_string() }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("texts, integers and finite numbers always serialize")
}

fn lines<T: Serialize>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| json(&item)).collect::<Vec<_>>().join(",\n")
}
