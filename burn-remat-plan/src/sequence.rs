//! A plan as the bare order of its computations.
//!
//! Given only *what is computed when*, the best evictions follow: a value is released right after its last use before
//! it is computed again (or before the end, if it is not a result). Planners that decide on computations alone share
//! this file; it guarantees that nothing stays resident longer than it is of use.

use crate::choice::Choice;
use crate::graph::{Graph, OpId};
use crate::plan::{Plan, Step};

/// The plan that computes `order` and evicts every value as soon as it is useless.
///
/// `order` must be executable: every op after the producers of its inputs. Complexity: O(order + uses).
///
/// ```
/// use burn_remat_plan::{GraphBuilder, Op, sequence::plan_from_order};
///
/// let mut builder = GraphBuilder::new("chain");
/// let (x, y) = (builder.value(8, "x"), builder.value(4, "y"));
/// builder.op(Op::new("f", 1.0, vec![], vec![x]));
/// builder.op(Op::new("g", 1.0, vec![x], vec![y]));
/// let graph = builder.build()?;
/// let steps: Vec<String> = plan_from_order(&graph, &[0, 1]).steps.iter().map(ToString::to_string).collect();
/// assert_eq!(steps, ["+0", "+1", "-0"]);
/// # Ok::<(), burn_remat_plan::GraphError>(())
/// ```
pub fn plan_from_order(graph: &Graph, order: &[OpId]) -> Plan {
    evict_early(graph, order.iter().map(|&op| Choice::default_of(op)))
}

/// As [`plan_from_order`], where every op runs in the implementation chosen for it.
pub(crate) fn plan_of_choices(graph: &Graph, choices: &[Choice]) -> Plan {
    evict_early(graph, choices.iter().copied())
}

fn evict_early(graph: &Graph, computations: impl DoubleEndedIterator<Item = Choice> + ExactSizeIterator) -> Plan {
    // Backwards: `live[v]` says whether v is still to be used before it is computed again.
    let mut live = vec![false; graph.values().len()];
    for &value in graph.results() {
        live[value] = true;
    }
    let mut steps = Vec::with_capacity(computations.len() * 2);
    for choice in computations.rev() {
        for &value in graph.ops()[choice.op].outputs.iter().rev() {
            if !std::mem::replace(&mut live[value], false) {
                steps.push(Step::Evict(value));
            }
        }
        for &value in choice.inputs(graph).iter().rev() {
            if !std::mem::replace(&mut live[value], true) {
                steps.push(Step::Evict(value));
            }
        }
        steps.push(choice.step());
    }
    steps.extend(graph.inputs().filter(|&value| !live[value]).map(Step::Evict));
    steps.reverse();
    Plan { steps }
}

/// The computations of `plan`, in the implementations that it chooses, with every value evicted as soon as it is useless.
pub fn tightened(graph: &Graph, plan: &Plan) -> Plan {
    plan_of_choices(graph, &choices_of(plan))
}

/// The order of computations of `plan`; its choice of alternatives is lost.
pub fn compute_order(plan: &Plan) -> Vec<OpId> {
    plan.steps.iter().filter_map(|step| step.op()).collect()
}

/// The computations of `plan` with their implementations.
pub(crate) fn choices_of(plan: &Plan) -> Vec<Choice> {
    plan.steps.iter().filter_map(|&step| Choice::of_step(step)).collect()
}
