//! What a value can be evicted to, and what can be read in its place.

use std::collections::BTreeMap;

use burn_remat_core::{Place, Trace, TracedForm, TracedOp, TracedStub};
use burn_remat_plan::{Alternative, Op, ValueId};

use super::units::Unit;

/// The form of the only value that an op makes, if it has one and no policy forbids it.
pub(super) fn form_of(
    trace: &Trace,
    unit: &Unit,
    op: &Op,
    place_of: impl Fn(ValueId) -> Place,
) -> Option<(Place, TracedForm)> {
    let &[value] = op.outputs.as_slice() else { return None };
    let forced = unit.rule.is_some_and(|rule| rule.policy.is_forced());
    let place = place_of(value);
    trace.storages[place as usize].form.filter(|_| !forced).map(|form| (place, form))
}

/// Splits an op in two: one makes the form of its result, the other makes the result, from the form or as `op` does. A preference has multiplied costs by
/// `weight`.
pub(super) fn split(op: Op, small: ValueId, form: &TracedForm, bytes: u64, weight: f64) -> (Op, Op) {
    let unpacking = form.cost_ns as f64 * weight;
    let mut unpack =
        Op::new(format!("{} from {}", op.name, form.alternative.name()), unpacking, vec![small], Vec::new());
    unpack.outputs.clone_from(&op.outputs);
    (unpack.stage, unpack.phase) = (op.stage.clone(), op.phase);
    if op.recomputable {
        let (name, inputs) = (op.name.clone(), op.inputs.clone());
        unpack.alternatives.push(Alternative { name, cost: op.cost, inputs, scratch_bytes: op.scratch_bytes });
        unpack.alternatives.extend(op.alternatives.iter().cloned());
    }
    let mut pack = op;
    pack.outputs = vec![small];
    pack.cost -= unpacking;
    pack.scratch_bytes += bytes;
    pack.recomputable = false;
    for other in &mut pack.alternatives {
        other.cost -= unpacking;
        other.scratch_bytes += bytes;
    }
    (pack, unpack)
}

/// For each unit, the storages of which it needs only the signs or the shape, whichever of its operations reads them.
pub(super) fn stub_uses(
    trace: &Trace,
    units: &[Unit],
    is_value: impl Fn(Place) -> bool,
) -> BTreeMap<usize, Vec<TracedStub>> {
    let mut uses: BTreeMap<usize, Vec<TracedStub>> = BTreeMap::new();
    for (index, unit) in units.iter().enumerate() {
        if unit.rule.is_some_and(|rule| rule.policy.is_forced()) {
            continue;
        }
        let ops = &trace.ops[unit.range.clone()];
        for stub in ops.iter().filter_map(|op| op.stub).filter(|stub| unit.inputs.contains(&stub.place)) {
            let needs_more = |op: &TracedOp| {
                op.reads.contains(&stub.place)
                    && op.stub.is_none_or(|other| other.place != stub.place || other.need != stub.need)
            };
            if is_value(stub.place) && !ops.iter().any(needs_more) {
                let known = uses.entry(index).or_default();
                if known.iter().all(|other| other.place != stub.place) {
                    known.push(stub);
                }
            }
        }
    }
    uses
}

/// An alternative of an op that reads a stub of one of its inputs.
pub(super) fn reading_stub(op: &Op, value: ValueId, small: ValueId, stub: &TracedStub, weight: f64) -> Alternative {
    let mut inputs: Vec<ValueId> = op.inputs.iter().copied().filter(|&input| input != value).chain([small]).collect();
    inputs.sort_unstable();
    Alternative {
        name: format!("{} from {}", op.name, stub.need.name()),
        cost: op.cost + stub.cost_ns as f64 * weight,
        inputs,
        scratch_bytes: op.scratch_bytes + stub.stand_in,
    }
}
