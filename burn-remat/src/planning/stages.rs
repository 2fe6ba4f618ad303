//! The stages of a traced step.
//!
//! Forward operations know their stages. Because of autodiff, backward operations run when all stages have been left: one that reads a forward result
//! belongs to the stage of the latest such result, and one that reads none belongs to the stage of the operation before it. So the gradient of a stage
//! belongs to that stage, except for operations at its edges. Operations before the backward pass, and those from the first parameter update on, are left
//! as they are.

use std::ops::Range;
use std::sync::Arc;

use burn_remat_core::{Position, Trace, Visit};

use super::lowering::turning_point;

/// What a trace says about its stages.
pub(crate) trait Staged {
    /// Gives backward operations the stages of what they differentiate.
    fn attribute_stages(&mut self);
    /// Whether the stage of the visit `inner` is inside that of `outer`.
    fn is_within(&self, inner: Visit, outer: Visit) -> bool;
    /// The path of a visit.
    fn path(&self, visit: Visit) -> Option<&Arc<str>>;
    /// The visit to which most of the time of some operations belongs.
    fn visit_of(&self, range: Range<Position>) -> Visit;
    /// Runs of operations of one passage each, with the innermost stage's name, for labels.
    #[cfg(any(test, feature = "show"))]
    fn passages(&self) -> Vec<(Range<Position>, String)>;
    /// The name of a visit in a graph: its path, with a number if the step goes through it more than once.
    fn stage_name(&self, visit: Visit) -> Option<String>;
}

impl Staged for Trace {
    fn attribute_stages(&mut self) {
        if self.visits.is_empty() {
            return;
        }
        let turn = turning_point(self, &self.store_all());
        let mut before = 0;
        for at in turn..self.ops.len() {
            if self.ops[at].updates {
                break;
            }
            let made = |place: &u32| self.storages[*place as usize].made_by.filter(|made| (*made as usize) < turn);
            let latest = self.ops[at].reads.iter().filter_map(made).max();
            before = latest.map_or(before, |made| self.ops[made as usize].visit);
            if self.is_within(before, self.ops[at].visit) {
                self.ops[at].visit = before;
            }
        }
    }

    fn is_within(&self, inner: Visit, outer: Visit) -> bool {
        match (self.path(inner), self.path(outer)) {
            (Some(inner), Some(outer)) => inner.strip_prefix(&**outer).is_some_and(|rest| rest.starts_with('/')),
            (_, outer) => outer.is_none(),
        }
    }

    fn path(&self, visit: Visit) -> Option<&Arc<str>> {
        self.visits.get((visit as usize).checked_sub(1)?)
    }

    fn visit_of(&self, range: Range<Position>) -> Visit {
        let mut times: Vec<(Visit, u64)> = Vec::new();
        for op in self.ops.get(range.start as usize..range.end as usize).unwrap_or_default() {
            match times.iter_mut().find(|(visit, _)| *visit == op.visit) {
                Some((_, ns)) => *ns += op.cost_ns,
                None => times.push((op.visit, op.cost_ns)),
            }
        }
        times.into_iter().rev().max_by_key(|(_, ns)| *ns).map_or(0, |(visit, _)| visit)
    }

    #[cfg(any(test, feature = "show"))]
    fn passages(&self) -> Vec<(Range<Position>, String)> {
        let mut passages: Vec<(Range<Position>, Visit)> = Vec::new();
        for (at, op) in (0..).zip(&self.ops) {
            match passages.last_mut() {
                Some((range, visit)) if *visit == op.visit => range.end = at + 1,
                _ => passages.push((at..at + 1, op.visit)),
            }
        }
        let name = |visit| {
            let path = self.path(visit)?;
            let name = path.rsplit('/').next().unwrap_or(path);
            Some(name.strip_suffix("::forward").unwrap_or(name).to_owned())
        };
        passages.into_iter().filter_map(|(range, visit)| Some((range, name(visit)?))).collect()
    }

    fn stage_name(&self, visit: Visit) -> Option<String> {
        let path = self.path(visit)?;
        let same = |visits: &[Arc<str>]| visits.iter().filter(|other| *other == path).count();
        let number = same(&self.visits[..visit as usize]);
        Some(if same(&self.visits) > 1 { format!("{path}#{number}") } else { path.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use burn_remat_core::{TracedOp, TracedStorage};

    /// A forward pass through stages `a`, `b/c` and `b`, then two backward operations for each, and an update.
    fn trace() -> Trace {
        let mut trace = Trace { visits: vec!["a".into(), "b/c".into(), "b".into()], ..Trace::default() };
        let mut op = |reads: &[u32], visit, updates, died: Option<u32>| {
            let position = trace.ops.len() as u32;
            trace.ops.push(TracedOp {
                signature: 0,
                kind: 0,
                nature: Default::default(),
                inputs: smallvec![],
                outputs: position,
                reads: reads.into(),
                writes: smallvec![position],
                cost_ns: 1,
                scratch: 0,
                recordable: true,
                updates,
                visit,
                rule: None,
                stub: None,
            });
            trace.storages.push(TracedStorage {
                bytes: 10,
                made_by: Some(position),
                uploaded: false,
                appeared: position,
                died,
                reuses: None,
                form: None,
            });
        };
        op(&[], 1, false, Some(7));
        op(&[0], 2, false, Some(5));
        op(&[1], 3, false, Some(3));
        op(&[2], 0, false, Some(4));
        op(&[3], 0, false, Some(5));
        op(&[4, 1], 0, false, Some(6));
        op(&[5], 0, false, Some(7));
        op(&[6, 0], 0, false, Some(8));
        op(&[7], 0, true, None);
        trace
    }

    #[test]
    fn backward_operations_belong_to_the_stage_whose_results_they_read() {
        let mut trace = trace();
        trace.attribute_stages();
        let visits: Vec<Visit> = trace.ops.iter().map(|op| op.visit).collect();
        assert_eq!(visits, [1, 2, 3, 3, 3, 2, 2, 1, 0]);
    }

    #[test]
    fn an_open_stage_gives_way_only_to_stages_inside_it() {
        let mut trace = trace();
        trace.ops[5].visit = 3;
        trace.ops[7].visit = 3;
        trace.attribute_stages();
        assert_eq!((trace.ops[5].visit, trace.ops[7].visit), (2, 3));
    }

    #[test]
    fn passages_through_one_stage_are_numbered() {
        let mut trace = trace();
        trace.visits[2] = "a".into();
        let names: Vec<_> = (0..4).map(|visit| trace.stage_name(visit)).collect();
        assert_eq!(names, [None, Some("a#1".into()), Some("b/c".into()), Some("a#2".into())]);
        assert_eq!(trace.passages(), [(0..1, "a".to_owned()), (1..2, "c".to_owned()), (2..3, "a".to_owned())]);
        assert_eq!(trace.visit_of(0..3), 1);
        assert_eq!(trace.visit_of(9..9), 0);
    }
}
