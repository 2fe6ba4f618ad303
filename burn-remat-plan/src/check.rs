//! Decides whether a plan is valid and within a budget. Shares no code with `simulate` or with any planner.
//!
//! # Definition
//!
//! Let a graph have ops `0..n`, values `V` with sizes `w`, constant bytes `c` and results `Z ⊆ V`; value `v` has at
//! most one producer. A plan is a sequence of `Compute(o)`, `ComputeAlternative(o, k)` and `Evict(v)`. Its states are
//! the sets `R_0, R_1, ..` of resident values, `R_0` being the values without a producer. Step `t` leads from `R_t` to
//! `R_t+1`:
//!
//! | step                       | requires            | `R_t+1`             | memory `M_t`                             |
//! | -------------------------- | ------------------- | ------------------- | ---------------------------------------- |
//! | `Compute(o)`               | `inputs(o) ⊆ R_t`   | `R_t ∪ outputs(o)`  | `c + w(R_t ∪ outputs(o)) + scratch(o)`   |
//! | `ComputeAlternative(o, k)` | `inputs(o,k) ⊆ R_t` | `R_t ∪ outputs(o)`  | `c + w(R_t ∪ outputs(o)) + scratch(o,k)` |
//! | `Evict(v)`                 | `v ∈ R_t`           | `R_t \ {v}`         | `c + w(R_t+1)`                           |
//!
//! Let `t(o)` be the first step that computes `o` in any implementation. The plan is *valid at budget `B`* if
//!
//! 1. every index is in range and every requirement in the table is met;
//! 2. `t(o)` exists for every op, and `t(0) < t(1) < .. < t(n-1)`;
//! 3. an op that is not recomputable is computed once;
//! 4. `Z ⊆ R` at the end;
//! 5. `c + w(R_0) <= B`, and `M_t <= B` for every step `t`.
//!
//! Its peak is the largest of `c + w(R_0)` and all `M_t`, its makespan the sum of the costs of what it computes.
//!
//! # Method
//!
//! One pass, O(steps + uses): values that become resident are added to the memory held, evicted ones are subtracted. A
//! step that violates a rule still takes effect as far as it can, so that one fault does not hide the next; a step with
//! an index out of range is skipped. *All* violations are returned.

use crate::graph::{Graph, OpId, ValueId};
use crate::plan::{Plan, Step};

/// One way in which a plan is wrong. Steps count from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// An op that the graph does not have.
    #[error("step {step}: computes op {op}, but the graph has only {count} ops")]
    NoSuchOp {
        /// Index of the step.
        step: usize,
        /// The op.
        op: OpId,
        /// How many ops there are.
        count: usize,
    },
    /// An alternative that the op does not have.
    #[error("step {step}: computes op {op} with alternative {alternative}, but the op has only {count}")]
    NoSuchAlternative {
        /// Index of the step.
        step: usize,
        /// The op.
        op: OpId,
        /// The alternative.
        alternative: usize,
        /// How many alternatives the op has.
        count: usize,
    },
    /// A value that the graph does not have.
    #[error("step {step}: evicts value {value}, but the graph has only {count} values")]
    NoSuchValue {
        /// Index of the step.
        step: usize,
        /// The value.
        value: ValueId,
        /// How many values there are.
        count: usize,
    },
    /// An input that is not resident.
    #[error("step {step}: computes op {op}, whose input value {value} is not resident")]
    InputMissing {
        /// Index of the step.
        step: usize,
        /// The op.
        op: OpId,
        /// The value that it lacks.
        value: ValueId,
    },
    /// An eviction of nothing.
    #[error("step {step}: evicts value {value}, which is not resident")]
    EvictsNothing {
        /// Index of the step.
        step: usize,
        /// The value.
        value: ValueId,
    },
    /// A first computation that comes too late.
    #[error(
        "step {step}: computes op {op} for the first time, but after op {after}: first computations must come in execution order"
    )]
    OutOfOrder {
        /// Index of the step.
        step: usize,
        /// The op.
        op: OpId,
        /// The last op in execution order that came before it.
        after: OpId,
    },
    /// A second run of an op that may run only once.
    #[error("step {step}: computes op {op} again (first in step {first}), but the op is not recomputable")]
    RunsAgain {
        /// Index of the step.
        step: usize,
        /// The op.
        op: OpId,
        /// The step of its first computation.
        first: usize,
    },
    /// More memory than allowed.
    #[error("step {step}: holds {bytes} bytes, {} more than the budget of {budget}", bytes - budget)]
    OverBudget {
        /// Index of the step.
        step: usize,
        /// Bytes held.
        bytes: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// More memory than allowed before the first step.
    #[error("at the start: constant bytes and inputs of the graph are {bytes} bytes, {} more than the budget of {budget}", bytes - budget)]
    OverBudgetAtStart {
        /// Bytes held.
        bytes: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// An op that no step computes.
    #[error("at the end: op {op} was never computed")]
    NeverComputed {
        /// The op.
        op: OpId,
    },
    /// A result that is not resident at the end.
    #[error("at the end: result value {value} is not resident")]
    ResultMissing {
        /// The value.
        value: ValueId,
    },
}

impl Violation {
    /// The step at fault; `None` for a violation at the start or at the end.
    pub fn step(&self) -> Option<usize> {
        match *self {
            Self::NoSuchOp { step, .. }
            | Self::NoSuchAlternative { step, .. }
            | Self::NoSuchValue { step, .. }
            | Self::InputMissing { step, .. }
            | Self::EvictsNothing { step, .. }
            | Self::OutOfOrder { step, .. }
            | Self::RunsAgain { step, .. }
            | Self::OverBudget { step, .. } => Some(step),
            Self::OverBudgetAtStart { .. } | Self::NeverComputed { .. } | Self::ResultMissing { .. } => None,
        }
    }
}

/// All violations of a plan; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan is not valid: {} violations, the first of which is: {}", .0.len(), .0[0])]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// The violations in the order of their steps; those at the end come last.
    pub fn all(&self) -> &[Violation] {
        &self.0
    }
}

/// A plan that [`check`] accepted. Only `check` creates one.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedPlan {
    plan: Plan,
    budget: u64,
    peak_bytes: u64,
    makespan: f64,
}

impl CheckedPlan {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The budget against which it was checked.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Most bytes held at once, as the checker counts them.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Sum of the costs of what the plan computes, as the checker adds them up.
    pub fn makespan(&self) -> f64 {
        self.makespan
    }

    /// Returns the plan.
    pub fn into_plan(self) -> Plan {
        self.plan
    }
}

/// Checks `plan` for `graph` at `budget` bytes. See the [module](self) for the definition.
/// Complexity: O(steps + uses).
///
/// # Errors
///
/// All violations.
pub fn check(graph: &Graph, plan: &Plan, budget: u64) -> Result<CheckedPlan, Violations> {
    let mut run = Checker::start(graph, budget);
    for (step, &what) in plan.steps.iter().enumerate() {
        run.step(step, what);
    }
    run.end();
    if run.violations.is_empty() {
        Ok(CheckedPlan { plan: plan.clone(), budget, peak_bytes: run.peak, makespan: run.makespan })
    } else {
        Err(Violations(run.violations))
    }
}

struct Checker<'a> {
    graph: &'a Graph,
    budget: u64,
    resident: Vec<bool>,
    /// Constant bytes and all resident values.
    held: u64,
    /// The last op in execution order that was computed.
    furthest: Option<OpId>,
    /// The step of the first computation of each op.
    first: Vec<Option<usize>>,
    peak: u64,
    makespan: f64,
    violations: Vec<Violation>,
}

impl<'a> Checker<'a> {
    fn start(graph: &'a Graph, budget: u64) -> Self {
        let mut resident = vec![true; graph.values().len()];
        for op in graph.ops() {
            for &value in &op.outputs {
                resident[value] = false;
            }
        }
        let values = graph.values().iter().zip(&resident);
        let held =
            graph.constant_bytes() + values.filter(|&(_, &here)| here).map(|(value, _)| value.bytes).sum::<u64>();
        let first = vec![None; graph.ops().len()];
        let violations =
            if held > budget { vec![Violation::OverBudgetAtStart { bytes: held, budget }] } else { Vec::new() };
        Self { graph, budget, resident, held, furthest: None, first, peak: held, makespan: 0.0, violations }
    }

    /// Counts what is held during a step.
    fn memory(&mut self, step: usize, bytes: u64) {
        self.peak = self.peak.max(bytes);
        if bytes > self.budget {
            self.violations.push(Violation::OverBudget { step, bytes, budget: self.budget });
        }
    }

    fn step(&mut self, step: usize, what: Step) {
        match what {
            Step::Evict(value) => self.evict(step, value),
            Step::Compute(op) => self.compute(step, op, None),
            Step::ComputeAlternative(op, alternative) => self.compute(step, op, Some(alternative)),
        }
    }

    fn evict(&mut self, step: usize, value: ValueId) {
        let count = self.resident.len();
        if value >= count {
            self.violations.push(Violation::NoSuchValue { step, value, count });
            return;
        }
        if !self.resident[value] {
            self.violations.push(Violation::EvictsNothing { step, value });
        }
        if std::mem::replace(&mut self.resident[value], false) {
            self.held -= self.graph.values()[value].bytes;
        }
        self.memory(step, self.held);
    }

    fn compute(&mut self, step: usize, id: OpId, alternative: Option<usize>) {
        let Some(op) = self.graph.ops().get(id) else {
            self.violations.push(Violation::NoSuchOp { step, op: id, count: self.graph.ops().len() });
            return;
        };
        let (cost, inputs, scratch) = match alternative {
            None => (op.cost, &op.inputs, op.scratch_bytes),
            Some(k) => match op.alternatives.get(k) {
                Some(other) => (other.cost, &other.inputs, other.scratch_bytes),
                None => {
                    let count = op.alternatives.len();
                    self.violations.push(Violation::NoSuchAlternative { step, op: id, alternative: k, count });
                    return;
                }
            },
        };
        self.order(step, id);
        for &value in inputs.iter().filter(|&&value| !self.resident[value]) {
            self.violations.push(Violation::InputMissing { step, op: id, value });
        }
        for &value in &op.outputs {
            if !std::mem::replace(&mut self.resident[value], true) {
                self.held += self.graph.values()[value].bytes;
            }
        }
        self.makespan += cost;
        self.memory(step, self.held + scratch);
    }

    /// Rules 2 and 3.
    fn order(&mut self, step: usize, id: OpId) {
        match self.first[id] {
            Some(first) if !self.graph.ops()[id].recomputable => {
                self.violations.push(Violation::RunsAgain { step, op: id, first });
            }
            Some(_) => {}
            None => {
                if let Some(after) = self.furthest.filter(|&op| op > id) {
                    self.violations.push(Violation::OutOfOrder { step, op: id, after });
                }
                self.furthest = self.furthest.max(Some(id));
                self.first[id] = Some(step);
            }
        }
    }

    fn end(&mut self) {
        for op in (0..self.first.len()).filter(|&op| self.first[op].is_none()) {
            self.violations.push(Violation::NeverComputed { op });
        }
        for &value in self.graph.results().iter().filter(|&&value| !self.resident[value]) {
            self.violations.push(Violation::ResultMissing { value });
        }
    }
}
