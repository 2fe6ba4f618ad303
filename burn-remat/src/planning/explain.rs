//! What a plan does with each activation, and why.

use std::fmt;
use std::time::Duration;

use burn_remat_core::CheckpointPolicy;
use burn_remat_plan::decisions::{Decision, activations, decisions, form_of, substitute_of};
use burn_remat_plan::{Step, ValueId};
use serde::Serialize;

use super::schedule::Schedule;
use super::times::times;
use crate::budget::DisplayBytes;

/// The activations of a planned step, largest first. Small ones, about which no plan decides, are left out; together they are at most one percent of the
/// peak.
///
/// `Display` gives a line for each; serde gives JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The activations.
    pub activations: Vec<ActivationPlan>,
}

/// What a plan does with one activation. Times are in ns, as they were measured for planning.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ActivationPlan {
    /// The operation that computes it, with its number in the step.
    pub name: String,
    /// The stage of that operation.
    pub stage: Option<String>,
    /// Its size, in bytes.
    pub bytes: u64,
    /// How often it is computed again.
    pub recomputed: u32,
    /// How often it is brought back from a compressed form.
    pub restored: u32,
    /// The name of that form, as in [`Compression`](crate::Compression): `offload`, `mask-bits` and so on.
    pub form: Option<String>,
    /// The part of it that is kept for operations that need no more: `signs` or `shape`.
    pub substitute: Option<String>,
    /// Time to compute it again once from its inputs; `None` if that is not possible.
    pub recompute_ns: Option<f64>,
    /// Time that the plan spends bringing it back.
    pub added_ns: f64,
    /// The longest time during the planned step in which no operation needs it.
    pub idle_ns: f64,
    /// The policy that its stage sets for it.
    pub policy: Option<CheckpointPolicy>,
}

impl Explanation {
    /// What `schedule` does.
    pub(super) fn of(schedule: &Schedule) -> Self {
        let graph = &schedule.lowered.graph;
        let times = times(schedule, &schedule.plan);
        let found = decisions(graph, &schedule.plan, &times);
        let is_activation = activations(graph);
        let mut values: Vec<ValueId> = (0..found.len()).filter(|&value| is_activation[value]).collect();
        values.retain(|value| !schedule.lowered.forms.small.contains(value));
        values.sort_by_key(|&value| (std::cmp::Reverse(graph.bytes(value)), value));
        let activations = values.into_iter().filter_map(|value| activation(schedule, value, &found[value])).collect();
        Self { activations }
    }

    /// The activations of the stages whose names contain `stage`.
    #[must_use]
    pub fn in_stage(mut self, stage: &str) -> Self {
        self.activations.retain(|activation| activation.stage.as_deref().is_some_and(|name| name.contains(stage)));
        self
    }
}

fn activation(schedule: &Schedule, value: ValueId, decision: &Decision) -> Option<ActivationPlan> {
    let lowered = &schedule.lowered;
    let graph = &lowered.graph;
    let maker = graph.producer(value)?;
    let op = &graph.ops()[maker];
    let form = form_of(graph, op).map(|(_, form)| form.to_owned());
    // An op that restores it from a form can also compute it by its operations: that is its first alternative.
    let recompute = match (&form, op.alternatives.first()) {
        (Some(_), Some(_)) => Some(Step::ComputeAlternative(maker, 0)),
        (None, _) if op.recomputable => Some(Step::Compute(maker)),
        _ => None,
    };
    let range = &lowered.ranges[if form.is_some() { maker - 1 } else { maker }];
    let rule = schedule.trace.ops[range.start as usize..range.end as usize].iter().find_map(|op| op.rule);
    Some(ActivationPlan {
        name: graph.values()[value].name.clone(),
        stage: op.stage.clone(),
        bytes: graph.bytes(value),
        recomputed: decision.recomputed,
        restored: decision.restored,
        form: form.filter(|_| decision.restored > 0),
        substitute: decision.spared_by.and_then(|by| substitute_of(graph, by)).map(str::to_owned),
        recompute_ns: recompute.map(|step| lowered.cost_of(step)),
        added_ns: decision.time,
        idle_ns: decision.idle,
        policy: rule.map(|rule| rule.policy),
    })
}

impl ActivationPlan {
    /// What the plan does with it, in words.
    fn decision(&self) -> String {
        let times = |count: u32| if count == 1 { "once".to_owned() } else { format!("{count} times") };
        let mut said = Vec::new();
        if let Some(form) = &self.form {
            let verb = if form == "offload" { "offloaded".to_owned() } else { format!("restored from {form}") };
            said.push(format!("{verb} {}", times(self.restored)));
        }
        if self.recomputed > 0 {
            said.push(format!("recomputed {}", times(self.recomputed)));
        }
        if let Some(substitute) = &self.substitute {
            said.push(format!("only {substitute} kept"));
        }
        if said.is_empty() { "kept".to_owned() } else { said.join(", ") }
    }

    /// The reasons, in words.
    fn why(&self) -> String {
        let time = |ns: f64| format!("{:.1?}", Duration::from_nanos(ns as u64));
        let policy = self.policy.map(|policy| match policy {
            CheckpointPolicy::MustSave => "its stage must save",
            CheckpointPolicy::PreferSave => "its stage prefers to save",
            CheckpointPolicy::PreferRecompute => "its stage prefers to recompute",
            CheckpointPolicy::MustRecompute => "its stage must recompute",
        });
        let cost = match self.recompute_ns {
            Some(ns) => format!("{} to compute again", time(ns)),
            None => "cannot be computed again".to_owned(),
        };
        let added = (self.added_ns > 0.0).then(|| format!("adds {}", time(self.added_ns)));
        let idle = format!("not needed for {}", time(self.idle_ns));
        [policy.map(str::to_owned), Some(cost), Some(idle), added].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decisions: Vec<String> = self.activations.iter().map(ActivationPlan::decision).collect();
        let names: Vec<String> = self
            .activations
            .iter()
            .map(|activation| match &activation.stage {
                Some(stage) => format!("{} in {stage}", activation.name),
                None => activation.name.clone(),
            })
            .collect();
        let width = |texts: &[String]| texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        let (wide, long) = (width(&decisions), width(&names));
        for ((activation, decision), name) in self.activations.iter().zip(&decisions).zip(&names) {
            let bytes = DisplayBytes(activation.bytes);
            writeln!(f, "{bytes:>11}  {decision:wide$}  {name:long$}  {}", activation.why())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn_remat_core::{Alternative, Rule, Trace};

    use super::*;
    use crate::planning::chosen::ChosenPlanner;
    use crate::planning::examples::chain;
    use crate::planning::fit::Fit;
    use crate::planning::lowering::lower;

    /// What the plan for the smallest budget does.
    fn explained(trace: Trace) -> Explanation {
        let trace = Arc::new(trace);
        let lowered = lower(&trace, "test").unwrap();
        let fit = Fit::new(trace, lowered, Some(1), 0).unwrap();
        let (schedule, _) = fit.best(&ChosenPlanner::auto(), fit.floor().0, Duration::from_millis(300)).unwrap();
        Explanation::of(&schedule)
    }

    #[test]
    fn each_activation_has_a_line_with_what_becomes_of_it_and_why() {
        let found = explained(chain());
        assert!(found.activations.is_sorted_by(|a, b| a.bytes >= b.bytes));
        let gone: Vec<_> = found.activations.iter().filter(|one| one.recomputed + one.restored > 0).collect();
        assert!(!gone.is_empty() && gone.iter().all(|one| one.added_ns > 0.0 && one.idle_ns > 0.0), "{found}");
        let text = found.to_string();
        assert_eq!(text.lines().count(), found.activations.len());
        assert!(text.contains("offloaded once") && text.contains("to compute again, not needed for"), "{text}");
        assert!(serde_json::to_string(&found).unwrap().contains("\"form\":\"offload\""));
    }

    #[test]
    fn stages_filter_and_their_policies_are_reasons() {
        let mut trace = chain().with_alternatives(|one| one != Alternative::Offload);
        trace.visits = vec!["model/encoder".into(), "model/decoder".into()];
        for op in &mut trace.ops[..8] {
            op.visit = 2;
        }
        for op in &mut trace.ops[..3] {
            (op.visit, op.rule) = (1, Some(Rule { policy: CheckpointPolicy::MustSave, scope: 1 }));
        }
        let found = explained(trace);
        let encoder = found.clone().in_stage("encoder");
        assert!(!encoder.activations.is_empty() && encoder.activations.len() < found.activations.len(), "{found}");
        for one in &encoder.activations {
            assert_eq!((one.recomputed, one.restored, one.recompute_ns), (0, 0, None));
        }
        let text = encoder.to_string();
        let lines = text.lines().filter(|line| line.contains("kept") && line.contains("its stage must save"));
        assert_eq!(lines.count(), encoder.activations.len(), "{text}");
        assert!(found.in_stage("decoder").activations.iter().any(|one| one.recomputed > 0));
    }
}
