//! Which steps are known, which plan comes next, and the planner's thread.
//!
//! A step is planned once it has been seen [`SEEN`] times (its costs are then medians), or at once if the cache has its
//! plan. Planning runs in the background, first for a moment, so that a plan is there soon, then for the time that the
//! user allows; the engine takes a plan up at the next step boundary. Several kinds of step (the last batch of an epoch,
//! sequences of different lengths) each have a plan of their own; what followed a kind of step last time is expected to
//! follow it again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn_remat_core::{Followed, Left, Limits, Schedule as Running, Trace};
use burn_remat_plan::format::PlanFile;
use burn_remat_plan::{Outcome, Progress, Status, StopReason};
use rustc_hash::FxHashMap;

use super::cache::{self, CacheKey, Stored};
use super::chosen::ChosenPlanner;
use super::fit::{Fit, Found, Terms};
use super::lower::{Lowered, lower};
use super::schedule::Schedule;
use super::stages::Staged;
use crate::drive::panic_message;

/// How often a step is seen before it is planned.
const SEEN: usize = 3;
/// How often a kind of step is planned anew because more is there when it begins than before.
const MOST_REPLANS: u32 = 4;
/// Kinds of step that are remembered, and plans that are kept.
const MOST_KINDS: usize = 128;
/// Niceness of the planner's thread: it gets a tenth of a processor that the program wants as well, and what is left of it else.
#[cfg(target_os = "linux")]
const PLANNER_NICENESS: i32 = 10;
/// How much more time a planner must have than a stored plan took for the step to be planned anew.
const MORE_TIME: u32 = 2;

/// How plans are made.
#[derive(Clone, Debug)]
pub(crate) struct PlanSettings {
    /// `None` to plan nothing.
    pub planner: Option<ChosenPlanner>,
    pub time_limit: Duration,
    pub cache: Option<PathBuf>,
    /// Plans to begin with, in the order of the steps for which they are. Their costs are guesses: once they have been
    /// followed a few times, their steps are planned anew with what was measured.
    pub ready: Vec<(Arc<Schedule>, Origin)>,
}

impl PlanSettings {
    /// The planner for those who plan in any case.
    pub fn any_planner(&self) -> ChosenPlanner {
        self.planner.clone().unwrap_or_default()
    }
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            planner: Some(ChosenPlanner::auto()),
            time_limit: Duration::from_secs(10),
            cache: cache::default_folder(),
            ready: Vec::new(),
        }
    }
}

/// A plan's account of itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin {
    pub planner: String,
    pub status: Option<Status>,
    pub stop_reason: Option<StopReason>,
    pub lower_bound: Option<f64>,
    pub seconds: f64,
    pub cached: bool,
}

impl Origin {
    pub fn of(outcome: &Outcome, seconds: f64) -> Self {
        Self {
            planner: outcome.planner.clone(),
            status: Some(outcome.status),
            stop_reason: Some(outcome.stop_reason),
            lower_bound: outcome.lower_bound,
            seconds,
            cached: false,
        }
    }
}

/// What planning has come to, for the report.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanState {
    /// The plan last taken up.
    pub schedule: Option<Arc<Schedule>>,
    pub origin: Option<Origin>,
    /// Time that the last reduction to a graph took.
    pub lowering_seconds: f64,
    /// Plans made, those from the cache not counted.
    pub made: u64,
    pub from_cache: u64,
    /// The planner at work, and since when.
    pub running: Option<Instant>,
    pub progress: Progress,
    /// Steps that went by their plan from beginning to end.
    pub followed: u64,
    /// Largest difference between bytes held and bytes foreseen in any of them.
    pub deviation: u64,
    /// Most bytes held during each operation of the last of them.
    pub measured: Arc<Vec<u64>>,
    /// Steps that left their plan, and where the last did.
    pub left: u64,
    pub difference: Option<String>,
    /// Why there is no plan.
    pub problem: Option<String>,
    /// Smallest budget that the planned step can do with, and the op that sets it.
    pub floor: Option<(u64, String)>,
}

struct Observed {
    structure: u64,
    /// Of the last such step to the letter, with all its glue.
    signature: u64,
    /// Times of each of its operations, and least scratch seen of it: whatever else the process allocated meanwhile is in the others.
    costs: Vec<Vec<u64>>,
    scratch: Vec<u64>,
    seen: usize,
    /// Most bytes that were there when it began.
    held_at_start: u64,
    /// Whether planning was tried, or is of no use.
    settled: bool,
    /// Whether it was tried: once is enough, whatever came of it.
    tried: bool,
    /// Whether its plan comes from the cache.
    cached: bool,
    /// How often its plan was [outgrown](Plans::outgrown).
    replans: u32,
}

enum Message {
    Plan(Box<(Arc<Schedule>, Origin)>),
    Floor(u64, String),
    Problem(String),
    Done,
}

struct Job {
    messages: Receiver<Message>,
    /// Its plans are no longer wanted.
    is_stale: bool,
    progress: Arc<Mutex<Progress>>,
}

/// How far planning is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No step has been seen often enough.
    #[default]
    Watching,
    /// A planner is at work.
    Planning,
    /// There is a plan, or it is known that there will be none.
    Done,
}

/// Lets another thread wait for a plan.
#[derive(Clone, Default)]
pub(crate) struct Wait(Arc<(Mutex<Stage>, Condvar)>);

impl Wait {
    fn set(&self, stage: Stage) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
        self.0.1.notify_all();
    }

    /// Waits for as long as a planner is at work; `false` if the time was up first, or planning has not begun.
    pub fn wait(&self, limit: Duration) -> bool {
        let stage = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(stage, limit, |stage| *stage == Stage::Planning);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == Stage::Done
    }
}

/// See the [module](self).
pub(crate) struct Plans {
    settings: PlanSettings,
    device: String,
    observed: Vec<Observed>,
    schedules: Vec<Arc<Schedule>>,
    /// Kinds of step that keep to the budget by themselves, where others do not: so that those are told from these.
    ample: Vec<Arc<Running>>,
    /// Kinds of step whose plans were made without measuring.
    unmeasured: Vec<u64>,
    job: Option<Job>,
    wait: Wait,
    /// Kind of the last finished step, and what followed each kind last time.
    last: Option<u64>,
    /// Kind of the first step, where a plan for it was there from the start.
    first: Option<u64>,
    /// On a dry device.
    rehearsed: Option<Vec<Trace>>,
    successor: FxHashMap<u64, u64>,
    pub state: PlanState,
}

impl Plans {
    pub fn new(mut settings: PlanSettings, device: String, rehearsing: bool) -> Self {
        let ready = std::mem::take(&mut settings.ready);
        let mut plans = Self {
            rehearsed: rehearsing.then(Vec::new),
            settings,
            device,
            observed: Vec::new(),
            schedules: Vec::new(),
            ample: Vec::new(),
            unmeasured: ready.iter().map(|(schedule, _)| schedule.structure()).collect(),
            job: None,
            wait: Wait::default(),
            last: None,
            first: None,
            successor: FxHashMap::default(),
            state: PlanState::default(),
        };
        if plans.settings.planner.is_none() || !ready.is_empty() {
            plans.wait.set(Stage::Done);
        }
        let mut before = None;
        for (schedule, origin) in ready {
            let structure = schedule.structure();
            plans.first.get_or_insert(structure);
            if let Some(before) = before.replace(structure) {
                plans.successor.insert(before, structure);
            }
            plans.successor.entry(structure).or_insert(structure);
            plans.take_up(schedule, origin);
        }
        plans
    }

    /// On a dry device: the steps that it has seen, each kind once, in order.
    pub fn rehearsed(&self) -> &[Trace] {
        self.rehearsed.as_deref().unwrap_or_default()
    }

    /// Whether steps are planned, or written down, at all.
    pub fn is_on(&self) -> bool {
        self.settings.planner.is_some() || self.rehearsed.is_some()
    }

    pub fn wait(&self) -> Wait {
        self.wait.clone()
    }

    /// The plan with which the next step probably goes.
    pub fn next(&self) -> Option<Arc<Running>> {
        let expected = match self.last {
            Some(last) => self.successor.get(&last),
            None => self.first.as_ref(),
        };
        let is_expected = |known: &&Arc<Running>| expected == Some(&known.structure());
        // Where none is there yet for what is expected, the step may be another one after all: the first operation tells.
        self.runs().find(is_expected).or_else(|| self.schedules.last().map(|known| known.run())).cloned()
    }

    /// Another plan whose first `count` operations have this signature.
    pub fn beginning_with(&self, count: usize, prefix: u64) -> Option<Arc<Running>> {
        self.runs().rev().find(|known| known.prefixes.get(count) == Some(&prefix)).cloned()
    }

    fn runs(&self) -> impl DoubleEndedIterator<Item = &Arc<Running>> {
        self.ample.iter().chain(self.schedules.iter().map(|known| known.run()))
    }

    /// A step keeps to the budget by itself.
    fn needs_none(&mut self, trace: Trace) {
        let none = vec![false; trace.storages.len()];
        let mut run = Running::new(Arc::new(trace), none.clone(), none);
        run.peak = run.trace.peak();
        self.ample.retain(|known| known.structure() != run.structure());
        self.ample.truncate(MOST_KINDS - 1);
        self.ample.push(Arc::new(run));
    }

    /// Whether the coming step need not be traced: all kinds of step have been seen often enough, and none needs a plan.
    pub fn is_settled(&self) -> bool {
        let settled = |known: &Observed| known.settled && known.seen > SEEN;
        !self.is_on() || (self.schedules.is_empty() && !self.observed.is_empty() && self.observed.iter().all(settled))
    }

    /// Forgets what was settled: the budget has begun to matter.
    pub fn unsettle(&mut self) {
        for known in &mut self.observed {
            known.settled &= known.tried;
        }
    }

    /// Forgets all plans and makes new ones: they leave too little of the budget free.
    pub fn plan_anew(&mut self) {
        self.schedules.clear();
        self.ample.clear();
        if let Some(job) = &mut self.job {
            job.is_stale = true;
        }
        for known in &mut self.observed {
            (known.settled, known.tried) = (false, false);
        }
    }

    /// More is there when such a step begins than its plan foresaw, and the budget does not allow it: it is planned anew, a few times at
    /// most.
    pub fn outgrown(&mut self, structure: u64) {
        if let Some(known) = self.observed.iter_mut().find(|known| known.structure == structure) {
            if known.replans == MOST_REPLANS {
                return;
            }
            known.replans += 1;
            (known.settled, known.tried) = (false, false);
        }
        self.schedules.retain(|known| known.structure() != structure);
        self.ample.retain(|known| known.structure() != structure);
    }

    /// Whether the operations of a step that follows this plan are to be measured.
    pub fn is_unmeasured(&self, structure: u64) -> bool {
        let is_settled = self.observed.iter().any(|known| known.structure == structure && known.settled);
        self.settings.planner.is_some() && self.unmeasured.contains(&structure) && !is_settled
    }

    /// A step went by its plan from beginning to end. Tells whether it is planned anew, with what was measured.
    pub fn followed(&mut self, structure: u64, outcome: Followed, budget: Option<u64>) -> bool {
        self.finished(structure);
        self.state.followed += 1;
        self.state.deviation = self.state.deviation.max(outcome.deviation);
        if self.state.schedule.as_ref().is_some_and(|shown| shown.structure() == structure) {
            self.state.measured = Arc::new(outcome.held);
        }
        outcome.trace.is_some_and(|trace| self.measured(trace, structure, budget))
    }

    /// A step left its plan.
    pub fn left(&mut self, why: Left) {
        self.state.left += 1;
        let text = match why {
            Left::Differs { at, found, planned } => {
                format!("operation {at} was `{found}`, planned was `{planned}`, or its shapes differ")
            }
            Left::Failed(failure) => failure.to_string(),
            Left::Ended { at } => format!("it ended after {at} operations"),
            Left::Exceeds { at, name, live, most } => {
                format!("after operation {at}, `{name}`, {live} bytes are held where it foresaw at most {most}")
            }
        };
        log::info!("this step leaves its plan: {text}");
        self.state.difference = Some(text);
    }

    fn finished(&mut self, structure: u64) {
        if let Some(last) = self.last.replace(structure) {
            self.successor.insert(last, structure);
        }
    }

    /// Takes the trace of a whole step of this structure. Tells whether it is planned now, or has a plan from the cache.
    pub fn observe(&mut self, mut trace: Trace, structure: u64, budget: Option<u64>) -> bool {
        trace.attribute_stages();
        self.finished(structure);
        if let Some(rehearsed) = &mut self.rehearsed {
            match rehearsed.iter_mut().find(|known| known.signature() == trace.signature()) {
                Some(known) => {
                    known.held_at_start = known.held_at_start.max(trace.held_at_start);
                    // The least time seen is the one least disturbed.
                    known.ops.iter_mut().zip(&trace.ops).for_each(|(known, op)| {
                        known.cost_ns = known.cost_ns.min(op.cost_ns);
                    });
                }
                None => rehearsed.push(trace),
            }
            return false;
        }
        self.measured(trace, structure, budget)
    }

    /// Takes the costs of a step, and plans it once they are known well enough.
    fn measured(&mut self, mut trace: Trace, structure: u64, budget: Option<u64>) -> bool {
        let signature = trace.signature();
        let at = match self.observed.iter().position(|known| known.structure == structure) {
            Some(at) => at,
            None => {
                if self.observed.len() >= MOST_KINDS {
                    // Those that were seen least go, the newest first: of more kinds in rotation some are planned.
                    let least = self.observed.iter().enumerate().rev().min_by_key(|(_, known)| known.seen);
                    if let Some((at, _)) = least {
                        self.observed.remove(at);
                    }
                }
                self.observed.push(Observed {
                    structure,
                    signature: 0,
                    costs: Vec::new(),
                    scratch: Vec::new(),
                    seen: 0,
                    held_at_start: 0,
                    settled: false,
                    tried: false,
                    cached: false,
                    replans: 0,
                });
                self.observed.len() - 1
            }
        };
        let known = &mut self.observed[at];
        known.seen += 1;
        known.held_at_start = known.held_at_start.max(trace.held_at_start);
        trace.held_at_start = known.held_at_start;
        if known.costs.is_empty() || known.signature != signature {
            let count = trace.ops.len();
            (known.signature, known.costs, known.scratch) =
                (signature, vec![Vec::with_capacity(SEEN); count], vec![u64::MAX; count]);
        }
        if known.costs.first().is_some_and(|costs| costs.len() < 2 * SEEN) {
            for (costs, op) in known.costs.iter_mut().zip(&trace.ops) {
                costs.push(op.cost_ns);
            }
        }
        for (least, op) in known.scratch.iter_mut().zip(&mut trace.ops) {
            *least = op.scratch.min(*least);
            op.scratch = *least;
        }
        let fits = budget.is_none_or(|budget| trace.peak() <= budget);
        let others_are_planned =
            !self.schedules.is_empty() && self.schedules.iter().all(|known| known.structure() != structure);
        if fits && known.seen >= SEEN && others_are_planned {
            known.settled = true;
            self.needs_none(trace);
            return false;
        }
        if known.settled || self.job.is_some() || self.settings.planner.is_none() {
            return false;
        }
        let medians = known.costs.iter().map(|costs| {
            let mut costs = costs.clone();
            costs.sort_unstable();
            costs.get(costs.len() / 2).copied().unwrap_or(1)
        });
        let seen = known.seen;
        let trace = trace.with_measures(medians.zip(known.scratch.iter().copied()).collect::<Vec<_>>());
        let Some(budget) = budget.filter(|_| !fits) else {
            known.settled = seen >= SEEN;
            if known.settled {
                self.wait.set(Stage::Done);
            }
            return false;
        };
        self.plan(trace, budget, seen >= SEEN, at)
    }

    /// Takes the plan from the cache, or has one made if `may_make`; whether either.
    fn plan(&mut self, trace: Trace, budget: u64, may_make: bool, at: usize) -> bool {
        let start = Instant::now();
        let lowered = match lower(&trace, &self.device) {
            Ok(lowered) => lowered,
            Err(error) => {
                self.state.problem = Some(error.to_string());
                self.observed[at].settled = true;
                return false;
            }
        };
        self.state.lowering_seconds = start.elapsed().as_secs_f64();
        log::info!(
            "a step of {} operations is a graph of {} ops and {} values; {} operations update parameters, from {:?} on",
            trace.ops.len(),
            lowered.graph.ops().len(),
            lowered.graph.values().len(),
            trace.ops.iter().filter(|op| op.updates).count(),
            lowered.updates
        );
        let planner = self.settings.any_planner();
        let Observed { structure, signature, .. } = self.observed[at];
        let device = self.device.clone();
        let (planner_name, planner_version) = (planner.name().to_owned(), planner.version());
        let key = CacheKey { signature, device, budget, planner: planner_name, planner_version };
        let folder = self.settings.cache.clone();
        let known = &mut self.observed[at];
        let stored = folder.as_ref().filter(|_| !known.cached);
        let stored = stored.and_then(|folder| cache::load(folder, &key, &trace, &lowered));
        if let Some(Stored { schedule, file, time_limit }) = stored {
            known.cached = true;
            // One that was made in little time is followed, and made anew when the step has been measured.
            let is_final = file.status == Some(Status::Optimal) || self.settings.time_limit <= MORE_TIME * time_limit;
            (known.settled, known.tried) = (is_final, is_final);
            if !is_final {
                self.unmeasured.push(structure);
            }
            self.wait.set(Stage::Done);
            self.state.from_cache += 1;
            // The bound was proved for the costs of that time; what carries over is how far below the plan it was.
            let below = file.lower_bound.zip(file.makespan).map(|(bound, makespan)| bound / makespan);
            let origin = Origin {
                planner: file.planner,
                status: file.status,
                stop_reason: file.stop_reason,
                lower_bound: below.filter(|share| *share <= 1.0).map(|share| share * schedule.makespan),
                seconds: file.solve_seconds.unwrap_or(0.0),
                cached: true,
            };
            log::info!("the plan for this step comes from the cache");
            self.take_up(Arc::new(schedule), origin);
            return true;
        }
        if !may_make {
            return false;
        }
        self.observed[at].settled = true;
        self.observed[at].tried = true;
        let known = self.schedules.iter().find(|known| known.structure() == structure).cloned();
        let known = known.zip(self.state.origin.as_ref().map(|origin| origin.planner.clone()));
        let (sender, messages) = channel();
        let progress = Arc::new(Mutex::new(Progress::default()));
        let shown = progress.clone();
        let task = Task { trace, lowered, budget, key, folder, limit: self.settings.time_limit, known, sender, shown };
        self.state.running = Some(Instant::now());
        self.wait.set(Stage::Planning);
        let wait = self.wait.clone();
        let spawned = std::thread::Builder::new().name("remat-planner".to_owned()).spawn(move || {
            give_way();
            // Whatever goes wrong, nobody waits in vain.
            if let Err(cause) = catch_unwind(AssertUnwindSafe(|| task.plan(&planner))) {
                task.say(Message::Problem(format!("planning failed: {}", panic_message(&*cause))));
            }
            task.say(Message::Done);
            wait.set(Stage::Done);
        });
        match spawned {
            Ok(_) => self.job = Some(Job { messages, is_stale: false, progress }),
            Err(error) => {
                self.wait.set(Stage::Done);
                self.state.running = None;
                self.state.problem = Some(format!("the planner's thread could not start: {error}"));
            }
        }
        self.job.is_some()
    }

    /// Takes up what the planner's thread has found since. A plan beyond the budget is of use only where the online
    /// policy holds more, `online` bytes.
    pub fn poll(&mut self, Limits { budget, online }: Limits) {
        while let Some(job) = &self.job {
            if let Ok(progress) = job.progress.lock() {
                self.state.progress = *progress;
            }
            match job.messages.try_recv() {
                Ok(Message::Plan(_)) if job.is_stale => {}
                Ok(Message::Plan(found)) => {
                    let (schedule, origin) = *found;
                    if budget.is_some_and(|budget| schedule.peak > budget.max(online)) {
                        let structure = schedule.structure();
                        if self.schedules.iter().any(|known| known.structure() == structure) {
                            continue;
                        }
                        let least = match schedule.peak {
                            u64::MAX => "what one holds cannot be foreseen".to_owned(),
                            least => format!("the least holds {least} bytes"),
                        };
                        self.state.problem =
                            Some(format!("no plan within the budget was found; {least}. The online policy goes on."));
                        continue;
                    }
                    self.state.made += 1;
                    self.take_up(schedule, origin);
                }
                Ok(Message::Floor(bytes, op)) => self.state.floor = Some((bytes, op)),
                Ok(Message::Problem(problem)) => self.state.problem = Some(problem),
                Ok(Message::Done) | Err(TryRecvError::Disconnected) => {
                    self.job = None;
                    self.state.running = None;
                }
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    fn take_up(&mut self, schedule: Arc<Schedule>, origin: Origin) {
        self.schedules.retain(|known| known.structure() != schedule.structure());
        if self.schedules.len() >= MOST_KINDS {
            self.schedules.remove(0);
        }
        self.schedules.push(schedule.clone());
        if self.state.schedule.as_ref().is_none_or(|shown| shown.structure() != schedule.structure()) {
            self.state.measured = Arc::default();
        }
        self.state.schedule = Some(schedule);
        self.state.origin = Some(origin);
        self.state.problem = None;
    }
}

/// Has the thread at hand, and those that it starts, wait where others want its processor.
fn give_way() {
    // On other systems this would be about the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, PLANNER_NICENESS) {
        log::debug!("the planner runs at the program's own priority: {error}");
    }
}

/// What the planner's thread works on.
struct Task {
    trace: Trace,
    lowered: Lowered,
    budget: u64,
    key: CacheKey,
    folder: Option<PathBuf>,
    limit: Duration,
    /// The plan there is, and who made it.
    known: Option<(Arc<Schedule>, String)>,
    sender: Sender<Message>,
    shown: Arc<Mutex<Progress>>,
}

impl Task {
    fn say(&self, message: Message) {
        // The engine may be gone by now: then nobody needs to know.
        let _ = self.sender.send(message);
    }

    fn plan(&self, planner: &ChosenPlanner) {
        let start = Instant::now();
        // One thread leaves the others to the program.
        let fit = match Fit::new(Arc::new(self.trace.clone()), self.lowered.clone(), Some(1)) {
            Ok(fit) => fit,
            Err(violations) => return self.say(Message::Problem(violations.to_string())),
        };
        let fit = match &self.known {
            Some((known, planner)) => fit.with_known(&known.plan, planner),
            None => fit,
        };
        let (mut floor, op) = fit.floor();
        if floor > self.budget {
            log::info!(
                "the budget of {} bytes is below the {floor} bytes that this step can be planned in; `{op}` sets them",
                self.budget,
            );
        }
        self.say(Message::Floor(floor, op.to_owned()));
        let shown = self.shown.clone();
        let progress = move |progress: Progress| *shown.lock().unwrap_or_else(PoisonError::into_inner) = progress;
        let terms = Terms { planner, budget: self.budget, limit: self.limit, progress: Some(Arc::new(progress)) };
        fit.run(&terms, |found| match found {
            Found::Plan(schedule, outcome) => {
                if schedule.peak < floor {
                    floor = schedule.peak;
                    self.say(Message::Floor(floor, op.to_owned()));
                }
                let origin = Origin::of(outcome, start.elapsed().as_secs_f64());
                if let Some(folder) = self.folder.as_ref().filter(|_| schedule.peak <= self.budget) {
                    let store_all: f64 = self.lowered.graph.ops().iter().map(|op| op.cost).sum();
                    let mut file = PlanFile::of_outcome(outcome, store_all);
                    file.solve_seconds = Some(origin.seconds);
                    cache::store(folder, &self.key, self.limit, &self.lowered.graph, &file);
                }
                self.say(Message::Plan(Box::new((schedule, origin))));
            }
            Found::Problem(error) => self.say(Message::Problem(error.to_string())),
        });
    }
}
