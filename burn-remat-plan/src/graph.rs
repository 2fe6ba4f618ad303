//! The graph of one training step: operations in execution order and the values they pass on.
//!
//! A [`Graph`] cannot be built invalid: every index is in range, every value has at most one producer, an op uses
//! only values that are inputs of the graph or outputs of an earlier op, costs are finite and not negative (and so is
//! their sum times the number of ops), and the sum of all sizes fits in 63 bits, so that no planner needs to guard
//! against overflow. Every graph is built by [`GraphBuilder`]; the JSON reader uses it too.
//!
//! A value stands for a *storage*: views that share a buffer are one value.

use crate::error::GraphError;

pub use crate::ids::{OpId, ValueId};

/// Which part of a training step an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Computes activations and the loss.
    Forward,
    /// Computes gradients.
    Backward,
    /// Changes parameters and optimizer state.
    Update,
}

/// A result of an operation, or an input of the graph: one storage.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Value {
    /// Size in bytes while resident.
    pub bytes: u64,
    /// A name for people; may be empty.
    pub name: String,
}

/// Another implementation of an op, with the same outputs (MONeT's operator choice).
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// A name for people; may be empty.
    pub name: String,
    /// Cost of one execution, in the unit of the graph.
    pub cost: f64,
    /// Values that must be resident, ascending and without repeats.
    pub inputs: Vec<ValueId>,
    /// Bytes held only while the op runs.
    pub scratch_bytes: u64,
}

/// One recorded operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// A name for people; may be empty.
    pub name: String,
    /// Cost of one execution, in the unit of the graph (ns if measured).
    pub cost: f64,
    /// Values that must be resident when the op runs, ascending and without repeats.
    pub inputs: Vec<ValueId>,
    /// Values that the op makes resident.
    pub outputs: Vec<ValueId>,
    /// Bytes held only while the op runs.
    pub scratch_bytes: u64,
    /// Whether the op may run more than once.
    pub recomputable: bool,
    /// The part of the step, if known.
    pub phase: Option<Phase>,
    /// The stage of the model, if named.
    pub stage: Option<String>,
    /// Other implementations with the same outputs.
    pub alternatives: Vec<Alternative>,
}

impl Op {
    /// A recomputable op without scratch, phase, stage or alternatives.
    pub fn new(name: impl Into<String>, cost: f64, inputs: Vec<ValueId>, outputs: Vec<ValueId>) -> Self {
        Self {
            name: name.into(),
            cost,
            inputs,
            outputs,
            scratch_bytes: 0,
            recomputable: true,
            phase: None,
            stage: None,
            alternatives: Vec::new(),
        }
    }
}

/// A valid graph: see the [module](self) for what that guarantees.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    name: String,
    constant_bytes: u64,
    values: Vec<Value>,
    ops: Vec<Op>,
    results: Vec<ValueId>,
    producer: Vec<Option<OpId>>,
    consumers: Vec<Vec<OpId>>,
}

impl Graph {
    /// Name of the graph; may be empty.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that are resident throughout, in addition to the values (parameters, optimizer state).
    pub fn constant_bytes(&self) -> u64 {
        self.constant_bytes
    }

    /// All values.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// All operations, in execution order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Values that must be resident at the end, ascending and without repeats.
    pub fn results(&self) -> &[ValueId] {
        &self.results
    }

    /// The op that computes `value`, or `None` for an input of the graph.
    pub fn producer(&self, value: ValueId) -> Option<OpId> {
        self.producer[value]
    }

    /// The ops that use `value` in their default implementation, ascending.
    pub fn consumers(&self, value: ValueId) -> &[OpId] {
        &self.consumers[value]
    }

    /// Values that no op computes: resident from the start, never recomputable.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> + '_ {
        (0..self.values.len()).filter(|&value| self.producer[value].is_none())
    }

    /// Whether `value` cannot be computed again: an input of the graph, or made by an op that may run only once.
    pub fn is_root(&self, value: ValueId) -> bool {
        self.producer[value].is_none_or(|op| !self.ops[op].recomputable)
    }

    /// Whether `value` must be resident at the end.
    pub fn is_result(&self, value: ValueId) -> bool {
        self.results.binary_search(&value).is_ok()
    }

    /// Size of `value` in bytes.
    pub fn bytes(&self, value: ValueId) -> u64 {
        self.values[value].bytes
    }

    /// Sum of the sizes of `values` in bytes.
    pub fn bytes_of(&self, values: &[ValueId]) -> u64 {
        values.iter().map(|&value| self.bytes(value)).sum()
    }

    /// The same values with other operations: `change` returns the replacement of each. O(values + uses).
    pub(crate) fn with_ops(&self, change: impl FnMut((OpId, &Op)) -> Op) -> Result<Self, GraphError> {
        let Self { name, constant_bytes, values, results, .. } = self.clone();
        let ops = self.ops.iter().enumerate().map(change).collect();
        GraphBuilder { name, constant_bytes, values, ops, results: Some(results) }.build()
    }
}

/// Collects values and operations and validates them into a [`Graph`].
///
/// ```
/// use burn_remat_plan::{GraphBuilder, Op};
///
/// let mut builder = GraphBuilder::new("two ops");
/// let x = builder.value(100, "x");
/// let y = builder.value(200, "y");
/// let z = builder.value(4, "z");
/// builder.op(Op::new("f", 1.0, vec![x], vec![y]));
/// builder.op(Op::new("g", 2.0, vec![y], vec![z]));
/// let graph = builder.build()?;
/// assert_eq!(graph.results(), [z]);
/// # Ok::<(), burn_remat_plan::GraphError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    name: String,
    constant_bytes: u64,
    values: Vec<Value>,
    ops: Vec<Op>,
    results: Option<Vec<ValueId>>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Sets the bytes that are resident throughout.
    pub fn constant_bytes(&mut self, bytes: u64) -> &mut Self {
        self.constant_bytes = bytes;
        self
    }

    /// Adds a value and returns its index.
    pub fn value(&mut self, bytes: u64, name: impl Into<String>) -> ValueId {
        self.values.push(Value { bytes, name: name.into() });
        self.values.len() - 1
    }

    /// Adds an operation after the existing ones and returns its index.
    pub fn op(&mut self, op: Op) -> OpId {
        self.ops.push(op);
        self.ops.len() - 1
    }

    /// Sets the values resident at the end. Default: the outputs of the last op.
    pub fn results(&mut self, results: Vec<ValueId>) -> &mut Self {
        self.results = Some(results);
        self
    }

    /// Validates and builds the graph. Complexity: O(values + uses).
    ///
    /// # Errors
    ///
    /// The first problem, with the field that contains it: see [`GraphError`].
    pub fn build(self) -> Result<Graph, GraphError> {
        let Self { name, constant_bytes, values, mut ops, results } = self;
        if ops.is_empty() {
            return Err(GraphError::Empty);
        }
        let count = values.len();
        let producer = producers(&ops, count)?;
        for (id, op) in ops.iter_mut().enumerate() {
            validate_op(id, op, count)?;
        }
        validate_order(&ops, &producer)?;
        let last = ops.len() - 1;
        let mut results = results.unwrap_or_else(|| ops[last].outputs.clone());
        validate_indices("results", &results, count)?;
        normalize(&mut results);
        validate_total(constant_bytes, &values, &ops)?;
        validate_costs(&ops)?;
        let mut consumers = vec![Vec::new(); count];
        for (id, op) in ops.iter().enumerate() {
            for &value in &op.inputs {
                consumers[value].push(id);
            }
        }
        Ok(Graph { name, constant_bytes, values, ops, results, producer, consumers })
    }
}

fn normalize(indices: &mut Vec<usize>) {
    indices.sort_unstable();
    indices.dedup();
}

fn validate_indices(field: &str, indices: &[usize], count: usize) -> Result<(), GraphError> {
    match indices.iter().find(|&&index| index >= count) {
        Some(&index) => Err(GraphError::IndexOutOfRange { field: field.to_owned(), index, count }),
        None => Ok(()),
    }
}

fn validate_cost(field: String, cost: f64) -> Result<(), GraphError> {
    if cost.is_finite() && cost >= 0.0 { Ok(()) } else { Err(GraphError::BadNumber { field, number: cost }) }
}

fn validate_op(id: OpId, op: &mut Op, count: usize) -> Result<(), GraphError> {
    validate_cost(format!("ops[{id}].cost"), op.cost)?;
    validate_indices(&format!("ops[{id}].inputs"), &op.inputs, count)?;
    normalize(&mut op.inputs);
    for (k, alternative) in op.alternatives.iter_mut().enumerate() {
        validate_cost(format!("ops[{id}].alternatives[{k}].cost"), alternative.cost)?;
        validate_indices(&format!("ops[{id}].alternatives[{k}].inputs"), &alternative.inputs, count)?;
        normalize(&mut alternative.inputs);
    }
    Ok(())
}

fn producers(ops: &[Op], count: usize) -> Result<Vec<Option<OpId>>, GraphError> {
    let mut producer = vec![None; count];
    for (id, op) in ops.iter().enumerate() {
        validate_indices(&format!("ops[{id}].outputs"), &op.outputs, count)?;
        for &value in &op.outputs {
            if let Some(first) = producer[value].replace(id) {
                return Err(GraphError::TwoProducers { value, first, second: id });
            }
        }
    }
    Ok(producer)
}

/// Every use must come after its producer. A violation is a cycle if the producer in turn needs the user's outputs,
/// otherwise just a wrong order.
fn validate_order(ops: &[Op], producer: &[Option<OpId>]) -> Result<(), GraphError> {
    let uses = |op: &Op| -> Vec<ValueId> {
        op.inputs.iter().chain(op.alternatives.iter().flat_map(|a| &a.inputs)).copied().collect()
    };
    // The field that contains a use, given its position among all uses of the op.
    let field_of = |id: OpId, mut at: usize| -> String {
        let lists = ops[id].alternatives.iter().map(|other| &other.inputs);
        for (k, inputs) in std::iter::once(&ops[id].inputs).chain(lists).enumerate() {
            match (at.checked_sub(inputs.len()), k) {
                (Some(rest), _) => at = rest,
                (None, 0) => break,
                (None, k) => return format!("ops[{id}].alternatives[{}].inputs", k - 1),
            }
        }
        format!("ops[{id}].inputs")
    };
    for (id, op) in ops.iter().enumerate() {
        for (at, value) in uses(op).into_iter().enumerate() {
            let Some(source) = producer[value] else { continue };
            if source < id {
                continue;
            }
            // Does `source` depend on `id`? Walk upstream from `source`.
            let mut seen = vec![false; ops.len()];
            let mut stack = vec![source];
            let field = field_of(id, at);
            while let Some(above) = stack.pop() {
                if above == id {
                    return Err(GraphError::Cycle { op: id, value, field });
                }
                if !std::mem::replace(&mut seen[above], true) {
                    stack.extend(uses(&ops[above]).iter().filter_map(|&value| producer[value]));
                }
            }
            return Err(GraphError::OutOfOrder { op: id, value, producer: source, field });
        }
    }
    Ok(())
}

fn validate_total(constant: u64, values: &[Value], ops: &[Op]) -> Result<(), GraphError> {
    let scratch = ops
        .iter()
        .flat_map(|op| std::iter::once(op.scratch_bytes).chain(op.alternatives.iter().map(|a| a.scratch_bytes)))
        .max()
        .unwrap_or(0);
    let total: u128 =
        values.iter().map(|v| u128::from(v.bytes)).sum::<u128>() + u128::from(constant) + u128::from(scratch);
    if total > i64::MAX as u128 { Err(GraphError::TooLarge { total }) } else { Ok(()) }
}

fn validate_costs(ops: &[Op]) -> Result<(), GraphError> {
    let costs = |op: &Op| op.cost + op.alternatives.iter().map(|other| other.cost).sum::<f64>();
    let total: f64 = ops.iter().map(costs).sum();
    if (total * (ops.len() + 1) as f64).is_finite() { Ok(()) } else { Err(GraphError::CostOverflow { total }) }
}
