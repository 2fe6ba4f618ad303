//! The machine: what the program asks for goes in, commands to a [`Driver`](crate::Driver) come out.
//!
//! Each rule has a file of its own below; this one has what they share, and how the machine is made.
//!
//! **Invariants**: a tensor with a buffer has data at the driver, and one without has none, but for what stands for it while it is
//! compressed. A recipe runs at most once for each request. Nothing here panics on what a program can do: a failure is kept on the
//! tensors that it leaves without data, and reaches the program when one of them is read. After the program has let go of its tensors
//! none is left, and no recipe.

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

/// While a step holds at most one part in this many of the budget, nothing is recorded.
const AMPLE: u64 = 4;
/// Failures are kept for so many threads that may ask for them.
const MOST_UNSYNCED: usize = 64;

/// Tensors of the machine's own get numbers from here on; those of the program stay below.
const OWN_TENSORS: TensorId = 1 << 63;

/// The budget that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Asked {
    /// None.
    #[default]
    Unlimited,
    /// So many bytes.
    Bytes(u64),
    /// This share of what the first step holds.
    Share(f64),
}

/// How a machine behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The budget.
    pub budget: Asked,
    /// Whether random operations get seeds of their own, so that they can run again.
    pub reseed: bool,
    /// Whether a budget that cannot be met is an error on the tensors concerned.
    pub strict: bool,
    /// How many times its own compute time a step may spend on recomputation.
    pub recompute_limit: f64,
    /// Whether what operations allocate beside their tensors counts.
    pub count_workspaces: bool,
    /// Whether the program is only looked at.
    pub rehearsing: bool,
    /// Whether results depend on what operations write over.
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

/// What is being served.
#[derive(Clone, Copy, Default)]
struct Now {
    /// Operations so far: the unit of age.
    clock: u64,
    /// Kind of the program's operation: recomputations are on its account. 0 outside of one.
    kind: Kind,
    thread: ThreadId,
    /// Whether another thread than the one that trains has asked for it.
    foreign: bool,
    /// Whether it goes through beside the plan that is followed.
    beside: bool,
}

/// Where the program is: in which step, and where in the unit of what is planned, which is a pass or, where there are none or the program
/// marks its steps, a step.
#[derive(Default)]
struct Steps {
    detector: StepDetector,
    passes: Passes,
    /// Steps that have ended.
    ended: u32,
    /// Number of the unit under way.
    number: u32,
    /// Operations begun in this unit.
    position: u32,
    /// Whether an operation of the unit is being served: what dies then dies with it, else before the next one.
    executing: bool,
    /// Bytes that were held when this unit began, those of other threads not counted.
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
    /// Whether passes are planned, and not steps.
    #[inline]
    fn plans_passes(&self, clock: u64) -> bool {
        !self.detector.goes_by_marks() && self.passes.tell(clock)
    }

    /// Whether the program has backwards that begin with a single one, as far as is known: there was one of late, or no time for one yet.
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
    /// The same by the least time that each operation has taken so far: a busy machine does not make it more.
    repeated_ns: u64,
    /// Most bytes held.
    peak: u64,
    /// Whether more than the budget was held.
    over_budget: bool,
    /// Whether the recomputation limit was reached.
    gave_up: bool,
}

/// What is known of the step under way beside the program itself.
#[derive(Default)]
struct Watch {
    /// Its trace, where one is written.
    tracer: Option<Tracer>,
    /// Its plan, where one is followed.
    follow: Option<Follow>,
    /// Why it left its plan, as long as it is not known to be a pass at all: a validation begins like one.
    left: Option<Left>,
    /// First operations of what was taken for a pass like a planned one and soon was none.
    refused: FxHashSet<u64>,
    /// Kinds of operations whose results were wanted again when their plan had no use for them any more.
    wanted_late: FxHashSet<Kind>,
    /// Where passes have differed from their plans.
    differences: Differences,
    /// Most bytes held since the last operation of the program.
    most_held: u64,
    /// Bytes that earlier passes had saved when what is planned began, and that go where it needs the room.
    yielding: u64,
    /// Bytes that the last operation used beside its tensors, where they count.
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

/// What the machine makes itself.
struct Own {
    /// Whether operations are recorded: not while the budget is so ample that nothing will be evicted. That ends, in the middle of
    /// a step too, when more than one part in [`AMPLE`] of the budget is held; what came before in that step then stays until
    /// the program lets go of it.
    records: bool,
    /// The number of the next tensor that the program does not know.
    next_id: TensorId,
    /// State of the generator that seeds reseeded random operations.
    seeds: u64,
    /// While room is made for the operation at hand, the inputs that it takes: what was decided of them stays so.
    taken: Keys,
    /// Whether all is there that it needs: nothing is being brought back.
    ready: bool,
    /// A parameter that was updated since the last operation, and is kept for what rests on it.
    superseded: Option<TensorKey>,
    /// The first failure of each thread since its last [`Machine::take_failure`], of so many threads at most.
    unsynced: Vec<(ThreadId, Failure)>,
    /// The last one that was told, and of which thread.
    last_failure: Option<(ThreadId, Failure)>,
}

/// What a machine holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Bytes.
    pub bytes: u64,
    /// Bytes of it that could not be evicted now.
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

    /// Starts the counters anew; peak starts from what is held. Nothing else changes.
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

    /// The budget in force.
    pub fn budget(&self) -> Option<u64> {
        self.room.budget
    }

    /// Bytes of the budget that are left free for what the device's pool holds beside tensors.
    pub fn room_beside_tensors(&self) -> u64 {
        self.room.beside_tensors()
    }

    /// Most bytes of the pool in use, where it tells.
    pub fn pool_peak(&self) -> Option<u64> {
        self.room.pool.peak
    }

    /// Whether the step under way has held more than the budget.
    pub fn is_over_budget(&self) -> bool {
        self.steps.totals.over_budget
    }

    /// What has been done in each stage, in the order in which they were first entered.
    pub fn stages(&self) -> impl Iterator<Item = (&str, StageCounts)> {
        let done =
            self.counters.stages.iter().enumerate().filter(|(_, counts)| counts.operations + counts.recomputed > 0);
        done.map(|(path, counts)| (self.stages.text(path as u32), *counts))
    }

    /// The plan that is followed.
    pub fn followed(&self) -> Option<&Schedule> {
        self.watch.follow.as_ref().map(|follow| &*follow.schedule)
    }

    /// What is going on.
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

    /// The first failure of what this thread has asked for since it last called this: others hear of it where they read.
    pub fn take_failure(&mut self, thread: ThreadId) -> Option<Failure> {
        let at = self.own.unsynced.iter().position(|&(of, _)| of == thread)?;
        Some(self.own.unsynced.swap_remove(at).1)
    }

    /// Begins to serve something.
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

    /// Whether what a plan says is done meanwhile: not by other threads, nor for reads and uploads.
    fn is_planned(&self) -> bool {
        self.watch.follow.is_some() && !self.now.foreign && !self.now.beside && self.now.kind != 0
    }

    /// What plans may use: what other threads hold stands beside them.
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

    /// Says a failure once, however many tensors it leaves without data.
    fn remember(&mut self, failure: &Failure) {
        let told = Some((self.now.thread, failure.clone()));
        if self.own.last_failure == told {
            return;
        }
        self.own.last_failure = told;
        self.world.tell(Event::Failed(failure.clone()));
        let unsynced = &mut self.own.unsynced;
        if unsynced.len() < MOST_UNSYNCED && unsynced.iter().all(|&(of, _)| of != self.now.thread) {
            unsynced.push((self.now.thread, failure.clone()));
        }
        self.counters.failure.get_or_insert_with(|| failure.clone());
    }

    /// Outputs of an operation that did not run.
    fn register_failed(&mut self, outputs: &[TensorFacts], failure: Failure) {
        self.remember(&failure);
        for &output in outputs {
            self.insert(output, Some(failure.clone()));
        }
    }

    /// A tensor that cannot be brought back.
    fn fail(&mut self, key: TensorKey, failure: Failure) {
        self.release(key);
        self.history.tensors[key].failure.get_or_insert(failure);
        self.make_root(key);
        self.collect();
    }

    /// Forbids to evict a tensor.
    #[inline]
    fn pin(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        tensor.pins += 1;
        if let Some(buffer) = tensor.buffer {
            self.ledger.pin(buffer);
        }
    }

    /// Gives back one pin.
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
