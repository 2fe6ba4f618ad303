//! The service: takes what the engine has seen, and gives it plans.
//!
//! A step is planned once it has been seen often enough for its costs to be known (`observed.rs`), or at once if the cache has its plan (`cache.rs`).
//! Planning runs in the background (`background.rs`). The engine takes a plan up at the next step boundary, and is told which plan the next step will
//! probably follow (`known.rs`).

use std::sync::Arc;
use std::time::Instant;

use burn_remat_core::{Followed, Kind, Left, Limits, Planning, Schedule as Running, Spine, Trace, TracedOp};
use burn_remat_plan::Status;
use burn_remat_plan::planners::Auto;

use super::background::{Background, Message, Task, Wait};
use super::cache::{CacheFile, Stored};
use super::handed::handed_over;
use super::known::Known;
use super::observed::{self, Kinds};
use super::settings::PlanSettings;
use super::state::{Origin, PlanState, Ready};
use crate::planning::fit::{BEYOND, LEAST};
use crate::planning::lowering::{Lowered, lower};
use crate::planning::schedule::Schedule;
use crate::planning::stages::Staged;

/// A step with a stored plan is planned anew if the time limit is more than this many times the one with which the plan was made.
const MORE_TIME: u32 = 2;

/// If other kinds of step have plans already, which serve a similar kind too, planning it may take one part in this many of the time.
const SHARE: u32 = 4;

/// A pass gets a plan of its own, which then serves still larger ones, if it holds more than similar planned passes by one part in this many.
const LARGER: u64 = 4;

/// A step that was seen in a rehearsal, and how often.
#[derive(Clone)]
pub(crate) struct Met {
    pub trace: Trace,
    pub times: usize,
}

/// Whether two steps do the same, on tensors of any sizes.
pub(crate) fn does_like(one: &Trace, other: &Trace) -> bool {
    one.ops.iter().map(|op| op.kind).eq(other.ops.iter().map(|op| op.kind))
}

/// See the [module](self).
pub(crate) struct Plans {
    settings: PlanSettings,
    /// The name of the device, under which its plans are known.
    device: String,
    kinds: Kinds,
    known: Known,
    background: Background,
    /// Kinds of step whose plans were made without measurements.
    unmeasured: Vec<u64>,
    /// Plans that were put aside, because the online policy does better as long as it keeps to the budget, and the budgets that they were made for.
    dear: Vec<(Ready, u64)>,
    /// The steps that were recorded, if they are recorded instead of planned.
    rehearsed: Option<Vec<Met>>,
    pub state: PlanState,
}

impl Plans {
    pub fn new(mut settings: PlanSettings, device: String, rehearsing: bool) -> Self {
        let ready = std::mem::take(&mut settings.ready);
        let mut plans = Self {
            settings,
            device,
            kinds: Kinds::default(),
            known: Known::default(),
            background: Background::default(),
            unmeasured: ready.iter().map(|(schedule, _)| schedule.structure()).collect(),
            dear: Vec::new(),
            rehearsed: rehearsing.then(Vec::new),
            state: PlanState::default(),
        };
        if plans.settings.planner.is_none() || !ready.is_empty() {
            plans.background.done();
        }
        plans.known.expect(&plans.unmeasured);
        for (schedule, origin) in ready {
            plans.take_up(schedule, origin);
        }
        plans
    }

    /// The steps that were recorded, each kind once, in order.
    pub fn rehearsed(&self) -> &[Met] {
        self.rehearsed.as_deref().unwrap_or_default()
    }

    /// Whether steps are planned or recorded, apart from plans that were there from the start.
    fn looks_for_plans(&self) -> bool {
        self.settings.planner.is_some() || self.rehearsed.is_some()
    }

    /// A handle to wait until no planner is at work.
    pub fn wait(&self) -> Wait {
        self.background.wait()
    }

    /// Since when a planner has been at work.
    pub fn planning_since(&self) -> Option<Instant> {
        self.background.since()
    }

    /// Whether any kind of step has a plan that does something.
    pub fn has_plans(&self) -> bool {
        self.known.has_plans()
    }

    /// Why there is no plan, and what to do about it, if anything. `None` if there is a plan, or if a planner is at work or has said why.
    pub fn why_none(&self) -> Option<String> {
        let explains_itself = self.state.schedule.is_some() || self.state.problem.is_some();
        if explains_itself || self.planning_since().is_some() || !self.is_on() {
            return None;
        }
        Some(match self.kinds.count() {
            0 => "no whole training step was seen yet: neither a scalar loss with its backward pass nor two marks"
                .to_owned(),
            _ if self.kinds.are_settled() => {
                "none is needed: every step stays within the budget without one".to_owned()
            }
            kinds => {
                let (most, needed) = (self.kinds.most_seen(), observed::SEEN);
                format!(
                    "a step is planned once it has occurred {needed} times (most frequent so far: {most}x; different steps: {kinds})"
                )
            }
        })
    }
}

impl Planning for Plans {
    fn is_on(&self) -> bool {
        self.looks_for_plans() || self.known.has_plans()
    }

    /// All kinds of step have been seen often enough, and none needs a plan.
    fn is_settled(&self) -> bool {
        !self.is_on() || (self.rehearsed.is_none() && !self.known.has_plans() && self.kinds.are_settled())
    }

    fn observe(&mut self, mut trace: Trace, structure: u64, limits: Limits) -> bool {
        trace.attribute_stages();
        self.known.finished(structure);
        self.measured(trace, structure, limits.budget)
    }

    /// A plan over the budget is of use only if the online policy holds about as much (`online` bytes). If the budget is exceeded anyway, the smallest plan
    /// may take many times as long as one that exceeds it a little more.
    fn poll(&mut self, limits: Limits) {
        if limits.online_overhead.is_none() {
            for ((schedule, origin), planned) in std::mem::take(&mut self.dear) {
                if self.known.plan_for(schedule.structure()).is_none() {
                    self.consider(schedule, origin, planned, limits);
                }
            }
        }
        while let Some(message) = self.background.next() {
            match message {
                Message::Plan(schedule, origin, planned) => self.consider(schedule, origin, planned, limits),
                Message::Floor(floor) => self.state.holds_least(floor),
                Message::Problem(problem) => self.state.problem = Some(problem),
            }
        }
    }

    fn next(&self) -> Option<Arc<Running>> {
        self.known.next()
    }

    fn is_sure(&self) -> bool {
        self.known.is_sure()
    }

    fn beginning_with(&self, count: usize, prefix: u64) -> Option<Arc<Running>> {
        self.known.beginning_with(count, prefix)
    }

    fn like(&self, done: &[TracedOp], kind: Kind, bytes: u64) -> Option<Arc<Running>> {
        self.known.like(done, kind, bytes)
    }

    fn is_unmeasured(&self, schedule: &Running) -> bool {
        let structure = schedule.structure();
        let is_settled = self.kinds.is_settled(structure);
        let is_to_be_planned = self.settings.planner.is_some() && self.unmeasured.contains(&structure) && !is_settled;
        is_to_be_planned || self.rehearsed.is_some()
    }

    fn followed(&mut self, schedule: &Running, outcome: Followed, limits: Limits) -> bool {
        let Followed { deviation, held, carried, mended, trace } = outcome;
        let own = trace.as_ref().filter(|_| carried).map(|trace| Spine::of(trace).structure());
        if let Some(own) = own {
            self.kinds.are_alike(own, schedule.structure());
        }
        let structure = own.unwrap_or(schedule.structure());
        // A step that was patched is of no known kind.
        if mended.is_none() {
            self.known.finished(structure);
        }
        if carried {
            self.state.guided(mended);
        } else {
            self.state.followed(structure, deviation, held);
        }
        trace.is_some_and(|trace| self.measured(trace, structure, limits.budget))
    }

    fn left(&mut self, why: Left) {
        self.state.left(&why);
    }

    /// Such a step is planned anew a few times at most.
    fn outgrown(&mut self, structure: u64) {
        if self.background.since().is_none() {
            self.kinds.outgrown(structure);
        }
    }

    fn plan_anew(&mut self) {
        self.known.forget_all();
        self.dear.clear();
        self.background.disown();
        self.kinds.reopen();
    }

    fn unsettle(&mut self) {
        self.kinds.unsettle();
    }

    fn forget_observed(&mut self) {
        self.plan_anew();
        self.kinds = Kinds::default();
        self.rehearsed.iter_mut().for_each(Vec::clear);
    }

    fn taken_up(&self) -> u64 {
        self.state.made + self.state.from_cache
    }
}

impl Plans {
    /// Takes the costs of a step, and plans it once they are known well enough.
    fn measured(&mut self, mut trace: Trace, structure: u64, budget: Option<u64>) -> bool {
        if let Some(rehearsed) = &mut self.rehearsed {
            write_down(rehearsed, &trace);
            if budget.is_none() {
                return false;
            }
        }
        self.kinds.of(structure).measure(&mut trace);
        self.take_handed_over(structure, budget);
        let known = self.kinds.of(structure);
        // Even a plan that evicts nothing is of use: it says that what earlier passes saved is evicted, and nothing else.
        let Some(budget) = budget.filter(|budget| trace.most_held() > *budget) else {
            self.fits(trace, structure);
            return false;
        };
        let (is_settled, is_due) = (known.settled, known.is_known() || known.is_back());
        let is_guided = self.kinds.like(structure).any(|like| self.known.knows(like));
        if trace.is_pass && !is_guided && self.kinds.are_enough() {
            self.known.know(trace.clone());
        }
        let is_busy = self.background.since().is_some() || self.settings.planner.is_none();
        if is_settled || is_busy || is_guided && !is_due && !self.serves_others(&trace, structure) {
            return false;
        }
        let trace = Arc::new(self.kinds.of(structure).with_times(trace));
        self.plan(trace, structure, budget)
    }

    /// Takes up what a dry run has found for a program with such steps, once any step has come back, or if none seems to come back.
    fn take_handed_over(&mut self, structure: u64, budget: Option<u64>) {
        let is_time = self.kinds.are_back() || self.kinds.are_all_new();
        let is_of_use = self.looks_for_plans() && self.known.plan_for(structure).is_none();
        let Some(budget) = budget.filter(|_| is_time && is_of_use) else { return };
        let known = self.kinds.of(structure);
        let is_new = known.looked_for.replace(budget) != Some(budget);
        let disk = is_new.then(|| self.settings.dry_runs(&self.device)).flatten();
        for (schedule, origin) in handed_over(&self.device, structure, budget, disk.as_ref()) {
            if self.known.plan_for(schedule.structure()).is_none() {
                self.state.from_cache += u64::from(origin.cached);
                self.unmeasured.push(schedule.structure());
                self.take_up(schedule, origin);
            }
        }
    }

    /// Records that a step keeps to the budget without a plan.
    fn fits(&mut self, trace: Trace, structure: u64) {
        let others_are_planned = self.known.has_plans() && self.known.plan_for(structure).is_none();
        let known = self.kinds.of(structure);
        if !known.is_known() {
            return;
        }
        known.settled = true;
        if others_are_planned {
            self.known.know(trace);
        } else if self.background.since().is_none() {
            self.background.done();
        }
    }

    /// Whether a pass is planned although it has not been seen often enough itself: passes like it have been, and none was planned, with or without
    /// success, or only passes that hold less.
    fn serves_others(&self, trace: &Trace, structure: u64) -> bool {
        let planned = self.kinds.like(structure).filter_map(|like| self.known.plan_for(like));
        let most = planned.map(|plan| plan.run().trace.peak()).max().unwrap_or(0).max(self.kinds.most_tried(structure));
        self.kinds.is_family_known(structure) && trace.peak() > most + most / LARGER
    }

    /// Takes the plan from the cache, or has one made if the costs are known. Returns whether it did either.
    fn plan(&mut self, trace: Arc<Trace>, structure: u64, budget: u64) -> bool {
        let Some(lowered) = self.lowered(&trace) else {
            self.kinds.of(structure).settled = true;
            return false;
        };
        let cache = self.cache_file(structure, budget);
        if self.stored(cache.as_ref(), &trace, &lowered, structure) {
            return true;
        }
        if !self.kinds.of(structure).is_known() && !self.serves_others(&trace, structure) {
            return false;
        }
        let known = self.kinds.of(structure);
        (known.settled, known.tried) = (true, Some(trace.peak()));
        let known = self.known.plan_for(structure);
        let is_another = known.is_none() && self.known.has_plans();
        let limit = if is_another { self.settings.time_limit / SHARE } else { self.settings.time_limit };
        let maker = self.state.origin.as_ref().map(|origin| origin.planner.clone());
        let task = Task {
            trace,
            lowered,
            budget,
            planner: self.settings.any_planner(),
            limit,
            known: known.cloned().zip(maker),
            cache,
        };
        match self.background.start(task) {
            Ok(()) => true,
            Err(error) => {
                self.state.problem = Some(format!("the planner's thread could not start: {error}"));
                false
            }
        }
    }

    /// The graph of a step, if it has one.
    fn lowered(&mut self, trace: &Trace) -> Option<Lowered> {
        let start = Instant::now();
        let lowered = match lower(trace, &self.device) {
            Ok(lowered) => lowered,
            Err(error) => {
                self.state.problem = Some(error.to_string());
                return None;
            }
        };
        self.state.lowering_seconds = start.elapsed().as_secs_f64();
        log::info!(
            "a step of {} operations was reduced to {} ops and {} values; {} operations update parameters",
            trace.ops.len(),
            lowered.graph.ops().len(),
            lowered.graph.values().len(),
            trace.ops.iter().filter(|op| op.updates).count()
        );
        Some(lowered)
    }

    /// Where the plan for a kind of step is kept.
    fn cache_file(&mut self, structure: u64, budget: u64) -> Option<CacheFile> {
        let signature = self.kinds.of(structure).signature();
        self.settings.cache_file(&self.device, signature, budget)
    }

    /// Takes the plan from the cache, once. Returns whether there is one.
    fn stored(&mut self, cache: Option<&CacheFile>, trace: &Arc<Trace>, lowered: &Lowered, structure: u64) -> bool {
        let known = self.kinds.of(structure);
        let Some(cache) = cache.filter(|_| !known.cached) else { return false };
        let Some(Stored { schedule, file, time_limit }) = cache.load(trace, lowered) else { return false };
        known.cached = true;
        // A plan that was made in little time is followed, and made anew once the step has been measured.
        let is_final = file.status == Some(Status::Optimal) || self.settings.time_limit <= MORE_TIME * time_limit;
        (known.settled, known.tried) = (is_final, is_final.then(|| trace.peak()));
        if !is_final {
            self.unmeasured.push(structure);
        }
        self.background.done();
        self.state.from_cache += 1;
        log::info!("the plan for this step comes from the cache");
        let origin = Origin::cached(file, schedule.makespan);
        self.take_up(Arc::new(schedule), origin);
        true
    }

    /// Takes up a plan that was made for a budget of `planned` bytes, if it is better than what there is.
    fn consider(&mut self, schedule: Arc<Schedule>, origin: Origin, planned: u64, limits: Limits) {
        let Limits { budget, online, online_overhead } = limits;
        let structure = schedule.structure();
        let exceeds = |peak: u64| budget.is_some_and(|budget| peak > budget);
        let known = self.known.plan_for(structure).map(|known| known.peak);
        if exceeds(schedule.peak) && known.is_some_and(|peak| !exceeds(peak)) {
            return;
        }
        // If the user chooses a planner, its plans are used.
        let is_ours = origin.planner == LEAST || self.settings.any_planner().name() == Auto::NAME;
        if known.is_none() && is_ours && is_too_dear(schedule.overhead(), online_overhead) {
            self.state.is_too_dear(schedule.overhead());
            self.dear.retain(|((known, _), _)| known.structure() != structure);
            observed::add(&mut self.dear, structure, ((schedule, origin), planned));
            return;
        }
        let fits = !exceeds(schedule.peak) || schedule.peak <= online.saturating_add(online / BEYOND);
        // If others hold more than when planning began, the plan is followed as far as there is room.
        let kept_its_budget = known.is_none() && schedule.peak <= planned;
        if kept_its_budget && !fits {
            self.kinds.outgrown(structure);
        }
        if fits || kept_its_budget {
            self.state.made += 1;
            self.take_up(schedule, origin);
        } else if known.is_none() {
            self.state.exceeds(schedule.peak);
        }
    }

    fn take_up(&mut self, schedule: Arc<Schedule>, origin: Origin) {
        log::info!(
            "a plan of `{}` for steps of {} operations: {:.1}% recomputation, {} bytes",
            origin.planner,
            schedule.run().trace.ops.len(),
            100.0 * schedule.overhead(),
            schedule.peak
        );
        self.known.take_up(schedule.clone());
        self.state.take_up(schedule, origin);
    }
}

/// Whether a plan is too expensive to follow, as the smallest one may be: it more than doubles the step, and takes more than twice as long as the online
/// policy for the same budget (given in thousandths of the step, if it is known).
fn is_too_dear(overhead: f64, online: Option<u64>) -> bool {
    overhead > 1.0 && online.is_some_and(|online| overhead > 2.0 * online as f64 / 1000.0)
}

/// Records a step that was rehearsed, each kind once.
fn write_down(rehearsed: &mut Vec<Met>, trace: &Trace) {
    match rehearsed.iter_mut().find(|known| known.trace.signature() == trace.signature()) {
        Some(Met { trace: known, times }) => {
            *times += 1;
            known.held_at_start = known.held_at_start.max(trace.held_at_start);
            // The least time seen is the one least disturbed.
            known.ops.iter_mut().zip(&trace.ops).for_each(|(known, op)| {
                known.cost_ns = known.cost_ns.min(op.cost_ns);
            });
        }
        None => rehearsed.push(Met { trace: trace.clone(), times: 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::is_too_dear;

    #[test]
    fn a_plan_that_the_online_policy_outdoes_is_none_to_go_by() {
        assert!(is_too_dear(4.7, Some(900)), "five times the step, for what takes twice the step without a plan");
        assert!(!is_too_dear(4.7, Some(3000)), "no way is cheap");
        assert!(!is_too_dear(4.7, None), "without a plan the budget is not kept");
        assert!(!is_too_dear(0.9, Some(100)), "bearable, and foreseen");
    }
}
