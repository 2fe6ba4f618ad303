//! The machine: requests of the program go in, commands to a [`Driver`](crate::Driver) come out.
//!
//! Each rule has a file of its own below this module; this file has what they share, and the constructor.
//!
//! **Invariants**: a tensor with a buffer has data at the driver, and one without has none, except for its compressed copy or
//! substitute. A recipe runs at most once for each tensor that is brought back. Nothing here panics on what a program can do: a failure
//! is stored on the tensors that it leaves without data, and reaches the program when one of them is read. Once the program has released
//! all its tensors, no tensor and no recipe is left.

mod aliases;
mod arrive;
mod boundary;
mod bring_back;
mod call;
mod carry;
mod compress;
mod mend;
mod online;
mod operation;
mod parameters;
mod pass;
mod planned;
mod rejoin;
mod release;
mod roots;
mod stage;
mod switch;
mod tracing;

use alloc::string::String;
use alloc::vec::Vec;

use rustc_hash::FxHashSet;

use crate::counters::{Counters, StageCounts};
use crate::differences::Differences;
use crate::driver::{Circumstances, Event, LayoutFollows, Left, Limits, World};
use crate::facts::{Failure, Kind, TensorFacts, TensorId, ThreadId};
use crate::follow::Follow;
use crate::history::{History, Lineage, Spot, Tensor};
use crate::keys::{Keys, TensorKey};
use crate::ledger::Ledger;
use crate::passes::Passes;
use crate::room::Room;
use crate::schedule::Schedule;
use crate::stages::Stages;
use crate::steps::StepDetector;
use crate::threads::Threads;
use crate::trace::EXTERNAL;
use crate::tracer::Tracer;

/// While a step holds at most the budget divided by this, nothing is recorded.
const AMPLE: u64 = 4;
/// Failures are kept for at most this many threads that may ask for them.
const MOST_UNSYNCED: usize = 64;

/// The machine's own tensors get numbers from here on; those of the program stay below.
const OWN_TENSORS: TensorId = 1 << 62;

/// The budget that was requested.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Asked {
    /// None.
    #[default]
    Unlimited,
    /// This many bytes.
    Bytes(u64),
    /// This share of what the first step holds.
    Share(f64),
}

/// The settings of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The budget.
    pub budget: Asked,
    /// Whether random operations get seeds of their own, so that they can run again.
    pub reseed: bool,
    /// Whether a budget that cannot be kept is an error on the tensors concerned.
    pub strict: bool,
    /// A step may spend this many times its own compute time on recomputation.
    pub recompute_limit: f64,
    /// Whether what operations allocate beyond their tensors counts.
    pub count_workspaces: bool,
    /// Whether this is a dry run, which only observes the program.
    pub rehearsing: bool,
    /// Whether results depend on what operations overwrite.
    pub layout: LayoutFollows,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            budget: Asked::Unlimited,
            reseed: false,
            strict: false,
            recompute_limit: 20.0,
            count_workspaces: false,
            rehearsing: false,
            layout: LayoutFollows::Nothing,
        }
    }
}

/// The request that is being served.
#[derive(Clone, Copy, Default)]
struct Now {
    /// Operations so far: the unit of age.
    clock: u64,
    /// Kind of the program's operation: recomputations are attributed to it. 0 outside of an operation.
    kind: Kind,
    thread: ThreadId,
    /// Whether it comes from a thread other than the one that trains.
    foreign: bool,
    /// Whether it is not part of the plan that is followed.
    beside: bool,
}

/// Where the program is: in which step, and where in the unit of planning. That unit is a pass; or a step, where there are no passes or the program
/// marks its steps.
#[derive(Default)]
struct Steps {
    detector: StepDetector,
    passes: Passes,
    /// Steps that have ended.
    ended: u32,
    /// Number of the current unit.
    number: u32,
    /// Operations begun in this unit.
    position: u32,
    /// Whether an operation of the unit is being served: tensors dropped now die with it, otherwise before the next one.
    executing: bool,
    /// Bytes that were held when this unit began, without those of other threads.
    held_at_start: u64,
    /// Bytes of live tensors that were computed in this step.
    computed_bytes: u64,
    boundaries: boundary::Boundaries,
    /// Compute time of the last whole step.
    last_ns: u64,
    /// See [`Limits`].
    online_overhead: Option<u64>,
    totals: StepTotals,
}

impl Steps {
    /// Whether passes are planned rather than steps.
    #[inline]
    fn plans_passes(&self, clock: u64) -> bool {
        !self.detector.goes_by_marks() && self.passes.tell(clock)
    }

    /// Whether the program has backward passes that begin with a single one, as far as is known: there was one recently, or it is too early to tell.
    fn has_backwards(&self, clock: u64) -> bool {
        !self.detector.is_overdue(self.passes.last_one(), clock)
    }
}

/// What is counted within one step.
#[derive(Clone, Copy, Default)]
struct StepTotals {
    /// Time of first runs.
    compute_ns: u64,
    /// Time of recomputations.
    recompute_ns: u64,
    /// The same, using the shortest time that each operation has taken so far, so that a busy computer does not inflate it.
    repeated_ns: u64,
    /// Most bytes held.
    peak: u64,
    /// Whether the budget was exceeded.
    over_budget: bool,
    /// Whether the recomputation limit was reached.
    gave_up: bool,
}

/// What is known of the current step beyond the program itself.
#[derive(Default)]
struct Watch {
    /// Its trace, if one is being made.
    tracer: Option<Tracer>,
    /// Its plan, if one is followed.
    follow: Option<Follow>,
    /// Why it left its plan, until it is certain that it is a pass at all: a validation begins like one.
    left: Option<Left>,
    /// First operations of what was mistaken for a pass with a plan.
    refused: FxHashSet<u64>,
    /// Kinds of operations whose results were wanted again after their plan had no more use for them.
    wanted_late: FxHashSet<Kind>,
    /// Where passes have differed from their plans.
    differences: Differences,
    /// Most bytes held since the last operation of the program.
    most_held: u64,
    /// Bytes saved by earlier passes when the current unit began, which are evicted when it needs the room.
    yielding: u64,
    /// Bytes that the last operation used beyond its tensors, if they count.
    scratch: u64,
}

/// Decides for one device what to keep, evict and recompute; see the [crate](crate).
pub struct Machine<W> {
    config: Config,
    world: W,
    ledger: Ledger,
    history: History,
    steps: Steps,
    room: Room,
    watch: Watch,
    stages: Stages,
    threads: Threads,
    counters: Counters,
    now: Now,
    own: Own,
}

/// State that belongs to the machine itself.
struct Own {
    /// Whether operations are recorded: not while the budget is so ample that nothing will be evicted. Recording begins, even in the middle of
    /// a step, when more than the budget divided by [`AMPLE`] is held; what that step made before then stays until
    /// the program releases it.
    records: bool,
    /// The number of the next tensor that the machine makes for itself.
    next_id: TensorId,
    /// State of the generator that seeds reseeded random operations.
    seeds: u64,
    /// While room is made for the current operation: the inputs that it takes over, for which the decision is final.
    taken: Keys,
    /// Whether everything that the operation needs is there, so that nothing is being brought back.
    ready: bool,
    /// A parameter that was updated since the last operation, and is kept for what depends on it.
    superseded: Option<TensorKey>,
    /// The first failure of each thread since its last [`Machine::take_failure`], for at most [`MOST_UNSYNCED`] threads.
    unsynced: Vec<(ThreadId, Failure)>,
    /// The last failure that was reported, and its thread.
    last_failure: Option<(ThreadId, Failure)>,
}

/// What a machine holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Bytes held.
    pub bytes: u64,
    /// Bytes of these that could not be evicted now.
    pub fixed: u64,
    /// Tensors that are known.
    pub tensors: usize,
    /// Recorded operations.
    pub recipes: usize,
}

impl<W: World> Machine<W> {
    /// A machine that holds nothing.
    pub fn new(config: Config, world: W) -> Self {
        let budget = match config.budget {
            Asked::Bytes(bytes) => Some(bytes),
            Asked::Unlimited | Asked::Share(_) => None,
        };
        let records = config.budget != Asked::Unlimited || config.rehearsing;
        let mut machine = Self {
            config,
            world,
            ledger: Ledger::default(),
            history: History::default(),
            steps: Steps::default(),
            room: Room::new(budget),
            watch: Watch::default(),
            stages: Stages::default(),
            threads: Threads::default(),
            counters: Counters::default(),
            now: Now::default(),
            own: Own {
                records,
                next_id: OWN_TENSORS,
                seeds: 0x9E37_79B9_7F4A_7C15,
                taken: Keys::new(),
                ready: false,
                superseded: None,
                unsynced: Vec::new(),
                last_failure: None,
            },
        };
        if config.rehearsing {
            machine.watch.tracer = Some(Tracer::new(0, 0));
        } else {
            machine.start_following();
        }
        machine
    }

    /// The world that it commands.
    pub fn world(&self) -> &W {
        &self.world
    }

    /// The world that it commands.
    pub fn world_mut(&mut self) -> &mut W {
        &mut self.world
    }

    /// What has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Resets the counters; the peak restarts from what is held. Nothing else changes.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.counters.peak.bytes = self.ledger.live;
        self.room.pool.peak = None;
        self.room.floor_said = false;
    }

    /// What it holds now.
    pub fn holdings(&self) -> Holdings {
        let (tensors, recipes) = (self.history.tensors.len(), self.history.recipes.len());
        Holdings { bytes: self.ledger.live, fixed: self.ledger.fixed, tensors, recipes }
    }

    /// Whether the program has a tensor of this name here.
    pub fn has(&self, id: TensorId) -> bool {
        self.history.find(id).is_some()
    }

    /// The budget in force.
    pub fn budget(&self) -> Option<u64> {
        self.room.budget
    }

    /// Bytes of the budget that are left free for what the device's pool holds in addition to tensors.
    pub fn room_beside_tensors(&self) -> u64 {
        self.room.beside_tensors()
    }

    /// Most bytes of the pool in use, if the backend reports them.
    pub fn pool_peak(&self) -> Option<u64> {
        self.room.pool.peak
    }

    /// Whether the current step has exceeded the budget.
    pub fn is_over_budget(&self) -> bool {
        self.steps.totals.over_budget
    }

    /// What was done in each stage, in the order in which stages were first entered.
    pub fn stages(&self) -> impl Iterator<Item = (&str, StageCounts)> {
        let done =
            self.counters.stages.iter().enumerate().filter(|(_, counts)| counts.operations + counts.recomputed > 0);
        done.map(|(path, counts)| (self.stages.text(path as u32), *counts))
    }

    /// The plan that is followed.
    pub fn followed(&self) -> Option<&Schedule> {
        self.watch.follow.as_ref().map(|follow| &*follow.schedule)
    }

    /// The circumstances, for a failure message.
    pub fn circumstances(&self) -> Circumstances {
        Circumstances {
            live: self.ledger.live,
            step: self.steps.ended + 1,
            plan: self.followed().map(|schedule| schedule.peak),
        }
    }

    /// Seeds the generator that seeds random operations.
    pub fn seed(&mut self, seed: u64) {
        self.own.seeds = seed;
    }

    /// The first failure of what this thread has asked for since it last called this: other threads learn of it when they read.
    pub fn take_failure(&mut self, thread: ThreadId) -> Option<Failure> {
        let at = self.own.unsynced.iter().position(|&(of, _)| of == thread)?;
        // If the same happens again, it is told again.
        self.own.last_failure = None;
        Some(self.own.unsynced.remove(at).1)
    }

    /// Begins to serve a request.
    fn begin(&mut self, thread: ThreadId, kind: Kind) {
        let foreign = self.threads.is_foreign(thread);
        self.now = Now { clock: self.now.clock + 1, kind, thread, foreign, beside: false };
    }

    /// Whether `bytes` are so few that the budget does not matter.
    fn is_ample(&self, bytes: u64) -> bool {
        match self.config.budget {
            Asked::Unlimited => !self.config.rehearsing,
            _ => self.room.budget.is_some_and(|budget| bytes <= budget / AMPLE),
        }
    }

    /// Whether the plan applies to the current request: not if it comes from another thread, or is a read or an upload.
    fn is_planned(&self) -> bool {
        self.watch.follow.is_some() && !self.now.foreign && !self.now.beside && self.now.kind != 0
    }

    /// What plans may use: what other threads hold comes on top.
    fn limits(&self) -> Limits {
        let budget = self.room.tensor_budget().map(|budget| budget.saturating_sub(self.threads.room()));
        Limits { budget, online: self.room.overrun(), online_overhead: self.steps.online_overhead }
    }

    fn name(&self, kind: Kind) -> String {
        self.world.name(kind)
    }

    fn insert(&mut self, facts: TensorFacts, failure: Option<Failure>) -> TensorKey {
        let (clock, made_by) = (self.now.clock, self.now.kind);
        self.history.insert(Tensor {
            facts,
            buffer: None,
            alive: true,
            held: false,
            pins: 0,
            recipe: None,
            dependents: Default::default(),
            lineage: Lineage { made_by, used: clock, born: clock, since: clock, ..Lineage::default() },
            spot: Spot { step: u32::MAX, place: 0, origin: EXTERNAL, number: 0 },
            alias: None,
            small: None,
            failure,
        })
    }

    /// Reports a failure once, however many tensors it leaves without data.
    fn remember(&mut self, failure: &Failure) {
        let told = Some((self.now.thread, failure.clone()));
        if self.own.last_failure == told {
            return;
        }
        self.own.last_failure = told;
        self.world.tell(Event::Failed(failure.clone()));
        let unsynced = &mut self.own.unsynced;
        if unsynced.iter().all(|&(of, _)| of != self.now.thread) {
            // The oldest thread has probably ended.
            unsynced.drain(..(unsynced.len() + 1).saturating_sub(MOST_UNSYNCED));
            unsynced.push((self.now.thread, failure.clone()));
        }
        self.counters.failure.get_or_insert_with(|| failure.clone());
    }

    /// Registers the outputs of an operation that did not run.
    fn register_failed(&mut self, outputs: &[TensorFacts], failure: Failure) {
        self.remember(&failure);
        for &output in outputs {
            self.insert(output, Some(failure.clone()));
        }
    }

    /// Marks a tensor that cannot be brought back as failed.
    fn fail(&mut self, key: TensorKey, failure: Failure) {
        self.release(key);
        self.history.tensors[key].failure.get_or_insert(failure);
        self.make_root(key);
        self.collect();
    }

    /// Forbids evicting a tensor.
    #[inline]
    fn pin(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        tensor.pins += 1;
        if let Some(buffer) = tensor.buffer {
            self.ledger.pin(buffer);
        }
    }

    /// Releases one pin.
    #[inline]
    fn unpin(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        tensor.pins -= 1;
        if let Some(buffer) = tensor.buffer {
            self.ledger.unpin(buffer);
        }
        if tensor.is_unused() {
            self.bury(key);
        }
    }

    /// A number for a tensor that the program does not know.
    fn own_id(&mut self) -> TensorId {
        self.own.next_id += 1;
        self.own.next_id
    }
}
