//! Translates a plan without other forms into a plan for a graph that has them.
//!
//! The graph of a step without alternatives has the same ops and values, except for the ops that make and read forms and stubs. So every plan for it is
//! also one for the graph with alternatives: a form is made, unpacked and evicted at once, and a stub is evicted as soon as it is made. Planners search a
//! smaller space there, so what they find bounds the cost in the larger one.
//!
//! Complexity: O(ops + steps).

use std::collections::BTreeSet;

use burn_remat_plan::{OpId, Plan, Step};

use super::lowering::Lowered;

/// The ops that stand for one op of the graph without alternatives.
struct Counterpart {
    op: OpId,
    /// The op that unpacks its result, if `op` packs it.
    unpack: Option<OpId>,
    /// The ops after it that make stubs.
    leaves: Vec<OpId>,
}

/// Turns `plan`, made for the graph of the same step without alternatives, into a plan for `lowered`. `None` if it is for another step.
pub(super) fn with_forms(lowered: &Lowered, plan: &Plan) -> Option<Plan> {
    let counterparts = counterparts(lowered);
    let ops = lowered.graph.ops();
    let mut seen = BTreeSet::new();
    let mut steps = Vec::with_capacity(plan.steps.len() * 2);
    for step in &plan.steps {
        let op = match *step {
            Step::Compute(op) => op,
            Step::Evict(value) => {
                steps.push(Step::Evict(value));
                continue;
            }
            Step::ComputeAlternative(..) => return None,
        };
        let Counterpart { op: at, unpack, leaves } = counterparts.get(op)?;
        if !seen.insert(op) {
            // The first alternative of an op that unpacks is the op itself.
            steps.push(unpack.map_or(Step::Compute(*at), |unpack| Step::ComputeAlternative(unpack, 0)));
            continue;
        }
        steps.push(Step::Compute(*at));
        let gone =
            |at: OpId, steps: &mut Vec<Step>| steps.extend(ops[at].outputs.iter().map(|&value| Step::Evict(value)));
        if let Some(unpack) = *unpack {
            steps.push(Step::Compute(unpack));
            gone(*at, &mut steps);
        }
        for &leave in leaves {
            steps.push(Step::Compute(leave));
            gone(leave, &mut steps);
        }
    }
    Some(Plan { steps })
}

fn counterparts(lowered: &Lowered) -> Vec<Counterpart> {
    let mut all: Vec<Counterpart> = Vec::new();
    for (at, op) in lowered.graph.ops().iter().enumerate() {
        let is_small = !op.outputs.is_empty() && op.outputs.iter().all(|value| lowered.forms.small.contains(value));
        let packs = lowered.forms.unpacks.contains(&(at + 1));
        match all.last_mut() {
            Some(last) if lowered.forms.unpacks.contains(&at) => last.unpack = Some(at),
            Some(last) if is_small && !packs => last.leaves.push(at),
            _ => all.push(Counterpart { op: at, unpack: None, leaves: Vec::new() }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use burn_remat_plan::{check, minimum};

    use super::super::examples::chain;
    use super::super::lowering::lower;
    use super::super::schedule::Schedule;
    use super::*;

    #[test]
    fn a_plan_without_forms_holds_and_costs_the_same_among_forms() {
        let rich = chain();
        let poor = rich.clone().with_alternatives(|_| false);
        let (with, without) = (lower(&rich, "chain").unwrap(), lower(&poor, "chain").unwrap());
        assert!(with.forms.unpacks.len() > 8 && !with.forms.stubs.is_empty() && without.forms.small.is_empty());
        let found = minimum(&without.graph);
        let plan = with_forms(&with, &found.plan).unwrap();
        let before = check(&without.graph, &found.plan, found.achieved).unwrap();
        let after = check(&with.graph, &plan, u64::MAX).unwrap();
        assert_eq!(before.makespan(), after.makespan());
        assert!(before.makespan() > without.graph.ops().iter().map(|op| op.cost).sum(), "nothing is computed again");
        let (before, after) = (Schedule::new(poor.into(), without, &before), Schedule::new(rich.into(), with, &after));
        assert_eq!((before.peak, before.makespan), (after.peak, after.makespan));
    }
}
