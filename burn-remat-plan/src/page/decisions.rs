//! What a plan does with each value.
//!
//! A value that is gone and made again has come back once the first op has read it since; what is made again beside what was wanted,
//! and given up unread, has not. It comes back from another form where the op that makes it *unpacks* one. Ops in which a
//! value is not there, because an alternative does without it, spare it.

use crate::graph::{Graph, Op, OpId, ValueId};
use crate::plan::{Plan, Step};

/// How often a value came back, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Returns {
    /// Computed again.
    pub again: u32,
    /// From another form.
    pub forms: u32,
    /// Ops that did without it.
    pub spared: u32,
    /// The last of these, and the alternative by which it ran.
    pub spared_by: Option<(OpId, usize)>,
    /// Time for all that.
    pub time: f64,
}

/// What an op makes from another form, and which: it reads nothing but `<name> packed` and is called `<name> from <form>`, as the
/// graphs of measured steps have it.
pub(super) fn form_of<'a>(graph: &Graph, op: &'a Op) -> Option<(&'a str, &'a str)> {
    let &[packed] = op.inputs.as_slice() else { return None };
    let (name, form) = op.name.rsplit_once(" from ")?;
    let is_of = |packed: &str| packed.strip_suffix(" packed") == Some(name);
    is_of(&graph.values()[packed].name).then_some((name, form))
}

/// What an op reads in place of a value where it runs by an alternative: `signs` where that is called `<name> from signs`. An alternative that
/// is called otherwise says nothing.
pub(super) fn substitute_of(graph: &Graph, (op, k): (OpId, usize)) -> Option<&str> {
    let name = &graph.ops()[op].alternatives[k].name;
    name.strip_prefix(&*graph.ops()[op].name)?.strip_prefix(" from ")
}

/// How a value that is there again was made.
#[derive(Clone, Copy)]
enum Made {
    Again(f64),
    FromForm(f64),
}

/// For each value.
pub(super) fn returns(graph: &Graph, plan: &Plan, times: &[f64]) -> Vec<Returns> {
    let count = graph.values().len();
    let mut found = vec![Returns::default(); count];
    let mut resident: Vec<bool> = (0..count).map(|value| graph.producer(value).is_none()).collect();
    let mut unread: Vec<Option<Made>> = vec![None; count];
    let mut seen = vec![false; graph.ops().len()];
    let settle = |value: ValueId, made: Option<Made>, found: &mut Vec<Returns>| match made {
        Some(Made::Again(time)) => {
            (found[value].again, found[value].time) = (found[value].again + 1, found[value].time + time)
        }
        Some(Made::FromForm(time)) => {
            (found[value].forms, found[value].time) = (found[value].forms + 1, found[value].time + time);
        }
        None => {}
    };
    for (&step, &time) in plan.steps.iter().zip(times) {
        let (op, alternative) = match step {
            Step::Evict(value) => {
                (resident[value], unread[value]) = (false, None);
                continue;
            }
            Step::Compute(op) => (op, None),
            Step::ComputeAlternative(op, k) => (op, Some(k)),
        };
        let default = &graph.ops()[op].inputs;
        let inputs = alternative.map_or(default, |k| &graph.ops()[op].alternatives[k].inputs);
        for &value in inputs {
            settle(value, unread[value].take(), &mut found);
        }
        for &value in default {
            if !resident[value] && inputs.binary_search(&value).is_err() {
                found[value].spared += 1;
                found[value].spared_by = alternative.map(|k| (op, k));
            }
        }
        let runs_again = std::mem::replace(&mut seen[op], true);
        let is_form = alternative.is_none() && form_of(graph, &graph.ops()[op]).is_some();
        for &value in &graph.ops()[op].outputs {
            if !std::mem::replace(&mut resident[value], true) && runs_again {
                unread[value] = Some(if is_form { Made::FromForm(time) } else { Made::Again(time) });
            }
        }
    }
    for &value in graph.results() {
        settle(value, unread[value].take(), &mut found);
    }
    found
}
