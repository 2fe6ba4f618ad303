//! The engine: executes every operation of a backend, keeps their history, and stays inside a byte budget by evicting
//! what it can compute again.
//!
//! An operation goes through these steps (`execute.rs`):
//!
//! 1. its inputs are pinned and made resident (`rematerialize.rs`);
//! 2. room is made for what it will newly allocate (`reuse.rs`, `evict.rs`);
//! 3. it runs on the backend, timed, with panics caught;
//! 4. its outputs' buffers are told apart from its inputs' by identity, and bytes are counted per buffer (`table.rs`);
//! 5. it becomes the recipe of its outputs, unless it cannot run again; consumed inputs die (`liveness.rs`).
//!
//! Invariants:
//!
//! - A resident tensor has a handle in the interpreter and a storage; any other has neither.
//! - A tensor without a recipe (a *root*) is never evicted. Roots are uploads, random results (unless reseeded),
//!   uninitialised memory, results of custom and distributed operations, aliases, and results of operations that
//!   consumed a root.
//! - A recipe's inputs stay known (resident, or with a recipe of their own) for as long as the recipe exists.
//! - Nothing here panics on what a program can do: a failure is kept on the tensors that it leaves without data and
//!   reaches the program, with its cause, when one of them is read.

mod aside;
mod boundaries;
mod clock;
mod code;
mod data;
mod evict;
mod execute;
mod executor;
mod failures;
mod follow;
mod forms;
mod layout;
mod liveness;
mod operation;
mod parts;
mod pool;
mod rematerialize;
mod reuse;
mod stages;
mod steps;
mod stubs;
mod table;
mod tracing;
mod updates;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use burn_ir::{OperationIr, TensorId, TensorIr};
use burn_router::TensorInterpreter;
use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use crate::backend::{Padding, RematBackend, lock};
use crate::budget::Budget;
use crate::config::RematConfig;
use crate::planning::{PlanReport, Plans, Trace, Wait};
use crate::rehearse::Rehearsal;
use crate::report::RematReport;
use aside::Aside;
use clock::Clock;
use executor::{Dry, Executor};
use failures::Late;
pub(crate) use failures::panic_message;
use follow::Follow;
use forms::Forms;
use pool::Pool;
use reuse::Reuse;
use stages::{StageStats, Stages};
use steps::{Step, StepDetector};
use table::{Description, Recipe, RecipeKey, Storages, Tensor, TensorKey};
use tracing::{EXTERNAL, Tracer};

/// While a step holds at most one part in this many of the budget, nothing is recorded: see [`Engine::light`].
const AMPLE: u64 = 4;

/// A dead root stays while it is at most one part in this many of what depends on it.
const KEEP_ROOT_RATIO: u64 = 8;

/// How many boxes of removed recipes are kept for new ones.
const SPARE_LIMIT: usize = 8192;

/// Why a tensor has no data.
type Failure = Arc<str>;
type Keys = SmallVec<[TensorKey; 4]>;
type Outs = SmallVec<[Description; 2]>;

/// Held while random numbers are drawn: a backend has one generator for all devices of a process, and what is drawn again from a
/// seed must not meet another device's numbers.
static GENERATOR: Mutex<()> = Mutex::new(());

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A tensor id that no other tensor of this process has.
pub(crate) fn fresh_id() -> TensorId {
    TensorId::new(NEXT_ID.fetch_add(1, Ordering::Relaxed))
}

/// The most bytes that one operation held at once without any of them being evictable.
#[derive(Clone, Copy, Default)]
struct Floor {
    bytes: u64,
    kind: u64,
}

#[derive(Default)]
struct Stats {
    operations: u64,
    recomputed: u64,
    evictions: u64,
    compute_ns: u64,
    recompute_ns: u64,
    /// Compute time of the last whole step.
    base_ns: u64,
    /// Compute and recompute time of the steps that went by a plan.
    followed_ns: u64,
    followed_recompute_ns: u64,
    peak: u64,
    peak_op: u64,
    steps: u64,
    steps_over_budget: u64,
    floor: Floor,
    /// Most bytes that one operation used beside its tensors.
    scratch: u64,
    scratch_op: u64,
    /// The first failure, for the report.
    failure: Option<Failure>,
    /// Kinds of operations that are not repeated, because they might give other bits.
    unrepeatable: SmallVec<[u64; 2]>,
    /// By path.
    stages: Vec<StageStats>,
}

/// See the [module](self).
pub(crate) struct Engine<B: RematBackend> {
    executor: Executor<B>,
    device: B::Device,
    /// What the device's allocator adds to tensors.
    padding: Padding,
    config: RematConfig,
    /// The budget in force: `None` while unlimited, or while a share of the first step's peak is not known yet.
    budget: Option<u64>,
    /// Whether nothing is recorded, because the budget is so ample that nothing will be evicted. It ends, in the middle
    /// of a step too, when more than one part in [`AMPLE`] of the budget is held; what came before in that step then
    /// stays until the program lets go of it.
    light: bool,
    /// Most bytes held when nothing was left to evict.
    overrun: u64,
    tensors: Slab<Tensor>,
    index: FxHashMap<TensorId, TensorKey>,
    recipes: Slab<Recipe>,
    storages: Storages,
    reuse: Reuse,
    pool: Pool,
    device_clock: Clock,
    forms: Forms,
    detector: StepDetector,
    step: Step,
    stats: Stats,
    names: FxHashMap<u64, String>,
    /// Kind of the program's operation being served: recomputations are on its account. 0 outside of one.
    serving: u64,
    /// Operations so far: the unit of age.
    clock: u64,
    /// Mark for graph walks.
    walk: u64,
    /// Bytes of live tensors that were computed since the step began.
    computed_bytes: u64,
    /// Most bytes by which the heap rose during the operation that ran last, where there is a probe.
    rise: u64,
    /// Bytes that the last operation used beside its tensors, where they count.
    scratch: u64,
    /// Most bytes held since the last operation of the program.
    most_held: u64,
    /// Evictions when the step began.
    evictions_seen: u64,
    /// State of the generator that seeds reseeded random operations.
    seeds: u64,
    floor_said: bool,
    last_failure: Option<Failure>,
    /// The first failure since the last sync.
    unsynced_failure: Option<Failure>,
    /// The first failure of a read that had left the engine.
    late: Late,
    /// Number of the step under way.
    step_number: u32,
    /// Operations begun in this step.
    position: u32,
    /// Whether an operation of the program is being served: what dies then dies with it, else before the next one.
    executing: bool,
    /// The trace of this step, where one is written.
    tracer: Option<Tracer>,
    /// The plan of this step, where one is followed.
    follow: Option<Follow>,
    /// Bytes that were held when this step began, those of other threads not counted.
    held_at_start: u64,
    plans: Plans,
    stages: Stages,
    aside: Aside,
    /// Boxes of removed recipes: operations are large, and allocating one for each shows.
    #[expect(clippy::vec_box, reason = "the boxes themselves are what is kept")]
    spare: Vec<Box<OperationIr>>,
    /// Work lists, kept to save their allocation.
    garbage: Vec<TensorKey>,
    stack: Vec<RecipeKey>,
}

impl<B: RematBackend> Engine<B> {
    /// An engine on `device` that holds nothing.
    pub fn new(device: B::Device, config: RematConfig) -> Self {
        let budget = match config.budget {
            Budget::Bytes(bytes) => Some(bytes),
            // The device has made bytes of a share of its free memory.
            Budget::Unlimited | Budget::Share(_) | Budget::Free(_) => None,
        };
        let padding = B::padding(&device);
        let executor = match &config.rehearsal {
            Some(Rehearsal::Dry(guide)) => Executor::Dry(Dry::new(guide.clone(), padding)),
            _ => Executor::Backend(TensorInterpreter::new(device.clone())),
        };
        let rehearsing = config.rehearsal.is_some();
        let mut planning = config.planning.clone();
        let unlimited = config.budget == Budget::Unlimited;
        if unlimited {
            planning.planner = None;
        }
        let plans = Plans::new(planning, B::device_name(&device), rehearsing);
        let mut engine = Self {
            executor,
            device,
            padding,
            config,
            step_number: 0,
            position: 0,
            executing: false,
            tracer: None,
            follow: None,
            held_at_start: 0,
            plans,
            stages: Stages::default(),
            aside: Aside::default(),
            budget,
            light: unlimited && !rehearsing,
            overrun: 0,
            tensors: Slab::new(),
            index: FxHashMap::default(),
            recipes: Slab::new(),
            storages: Storages::default(),
            reuse: Reuse::default(),
            pool: Pool::default(),
            device_clock: Clock::default(),
            forms: Forms::default(),
            detector: StepDetector::default(),
            step: Step::default(),
            stats: Stats::default(),
            names: FxHashMap::default(),
            serving: 0,
            clock: 0,
            walk: 0,
            computed_bytes: 0,
            rise: 0,
            scratch: 0,
            most_held: 0,
            evictions_seen: 0,
            seeds: 0x9E37_79B9_7F4A_7C15,
            floor_said: false,
            last_failure: None,
            unsynced_failure: None,
            late: Late::default(),
            spare: Vec::new(),
            garbage: Vec::new(),
            stack: Vec::new(),
        };
        if rehearsing {
            engine.tracer = Some(Tracer::new(0));
        } else if engine.plans.begins_ready() {
            engine.start_following();
        }
        engine
    }

    /// Takes one operation of the program.
    pub fn register(&mut self, op: OperationIr) {
        match &op {
            OperationIr::Init(_) => {}
            OperationIr::Drop(tensor) => {
                if let Some(&key) = self.index.get(&tensor.id) {
                    self.note_drop(key);
                    self.kill(key);
                }
            }
            _ => self.execute(op),
        }
    }

    /// Bytes of a new buffer for a tensor.
    fn allocated(&self, ir: &TensorIr) -> u64 {
        self.padding.tensor(&ir.shape, ir.dtype)
    }

    fn insert(&mut self, about: Description, made_by: u64, failure: Option<Failure>) -> TensorKey {
        let Description { id, dtype, shape, bytes } = about;
        let key = self.tensors.insert(Tensor {
            id,
            dtype,
            shape,
            bytes,
            storage: None,
            alive: true,
            recipe: None,
            dependents: SmallVec::new(),
            pins: 0,
            born: self.clock,
            since: self.clock,
            used: self.clock,
            made_by,
            read: 0,
            computed: false,
            passing: false,
            state: false,
            eligible: false,
            updated: 0,
            fresh: false,
            interval: 0,
            regular: false,
            heir: None,
            heir_of: None,
            held: false,
            step: u32::MAX,
            place: 0,
            origin: EXTERNAL,
            name: None,
            form: None,
            stub: None,
            failure,
        });
        self.index.insert(id, key);
        key
    }

    /// A tensor that the program knows nothing of: it is gone when its one pin is given back.
    fn insert_unheld(&mut self, about: Description, made_by: u64) -> TensorKey {
        let key = self.insert(about, made_by, None);
        (self.tensors[key].alive, self.tensors[key].pins) = (false, 1);
        key
    }

    /// Whether `bytes` are so few that the budget does not matter.
    fn is_ample(&self, bytes: u64) -> bool {
        match (self.config.budget, self.budget) {
            (Budget::Unlimited, _) => self.config.rehearsal.is_none(),
            (_, budget) => budget.is_some_and(|budget| bytes <= budget / AMPLE),
        }
    }

    // ---- report

    /// On a dry device: the steps that it has seen, each kind once, in order.
    pub fn rehearsed(&self) -> Vec<Trace> {
        self.plans.rehearsed().to_vec()
    }

    /// For waiting, without the engine, until no planner is at work.
    pub fn planning(&self) -> Wait {
        self.plans.wait()
    }

    /// What has happened so far.
    pub fn report(&self) -> RematReport {
        let (stats, pool) = (&self.stats, self.pool_usage());
        RematReport {
            device: B::device_name(&self.device),
            budget: self.config.budget,
            budget_bytes: self.budget,
            peak_bytes: stats.peak,
            peak_op: self.names.get(&stats.peak_op).cloned(),
            live_bytes: self.storages.live,
            device_bytes: pool.map(|usage| usage.bytes_in_use + usage.bytes_padding),
            device_reserved_bytes: pool.map(|usage| usage.bytes_reserved),
            device_peak_bytes: self.pool.peak,
            room_bytes: self.room(),
            operations: stats.operations,
            recomputed_operations: stats.recomputed,
            compute_ns: stats.compute_ns,
            recompute_ns: stats.recompute_ns,
            alternatives: self.forms.report(),
            evictions: stats.evictions,
            steps: stats.steps,
            steps_over_budget: stats.steps_over_budget + u64::from(self.step.over_budget),
            scratch_bytes: self.config.probe.is_some().then_some(stats.scratch),
            scratch_op: self.names.get(&stats.scratch_op).cloned(),
            floor_bytes: stats.floor.bytes,
            floor_op: self.names.get(&stats.floor.kind).cloned(),
            unrepeatable: stats.unrepeatable.iter().filter_map(|kind| self.names.get(kind).cloned()).collect(),
            fused: B::FUSES,
            plan: PlanReport::of(&self.plans, (stats.followed_ns, stats.followed_recompute_ns), self.budget),
            planning_seconds: self.plans.state.running.map(|since| since.elapsed().as_secs_f64()),
            planning_problem: self.plans.state.problem.clone(),
            tensors: self.tensors.len() as u64,
            recipes: self.recipes.len() as u64,
            stages: self.stage_reports(),
            failure: stats.failure.clone().or_else(|| lock(&self.late).clone()).as_deref().map(str::to_owned),
        }
    }

    /// Starts the counters anew; peak starts from what is held.
    pub fn reset_report(&mut self) {
        self.stats = Stats { peak: self.storages.live, base_ns: self.stats.base_ns, ..Stats::default() };
        self.step = Step::default();
        self.forms.used = Default::default();
        self.pool.peak = None;
        *lock(&self.late) = None;
        self.floor_said = false;
    }
}
