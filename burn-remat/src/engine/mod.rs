//! The engine: executes every operation of a backend, keeps their history, and stays inside a byte budget by evicting
//! what it can compute again.
//!
//! An operation goes through these steps ([`Engine::execute`]):
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
//!   uninitialised memory, results of custom operations, aliases, and results of operations that
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

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use burn_router::TensorInterpreter;
use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use crate::backend::{BufferId, Padding, RematBackend, lock};
use crate::budget::Budget;
use crate::checkpoint::{CheckpointPolicy, Rule};
use crate::config::{RandomPolicy, RematConfig};
use crate::planning::{PlanReport, Plans, Position, Trace, Wait};
use crate::rehearse::Rehearsal;
use crate::report::RematReport;
use aside::Aside;
use clock::Clock;
use executor::{Dry, Executor};
use failures::Late;
pub(crate) use failures::panic_message;
use follow::Follow;
use forms::Forms;
use layout::{Layout, Taken};
use operation::{
    for_each_tensor, is_mask, is_opaque, is_random, is_view, mark_read_only, operation_kind, operation_name,
};
use pool::Pool;
use reuse::Reuse;
use stages::{StageStats, Stages};
use steps::{Step, StepDetector};
use table::{Description, Recipe, RecipeKey, StorageKey, Storages, Tensor, TensorKey};
use tracing::{EXTERNAL, Tracer};
use updates::Update;

/// While a step holds at most one part in this many of the budget, nothing is recorded: see [`Engine::light`].
const AMPLE: u64 = 4;

/// A dead root stays while it is at most one part in this many of what depends on it.
const KEEP_ROOT_RATIO: u64 = 8;

/// Recorded operations beyond which the older half is forgotten even without a step boundary, unless steps are that long.
const HISTORY_LIMIT: u64 = 200_000;

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

/// What an operation reads and writes.
#[derive(Default)]
struct Bound {
    /// Inputs, each once.
    inputs: Keys,
    /// Those that it consumes.
    consumed: Keys,
    outs: Outs,
    /// Bytes that new buffers for the outputs would take.
    produced: u64,
    /// An input that the device does not have.
    unknown: Option<TensorId>,
}

/// What becomes of an operation that consumes roots.
struct Settled {
    /// Whether it can run again.
    recordable: bool,
    /// Whether it takes a root, whose place its results take.
    replaces: bool,
    /// What to seed the generator with before it runs.
    seed: Option<u64>,
    /// Whether its results, if they are roots, are surely no parameters.
    passing: bool,
    /// Whether its results take the place of what earlier steps have computed.
    state: bool,
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

    /// Takes one operation of the program, out of its place: operations are some 600 bytes large, and are moved only where they run.
    pub fn register(&mut self, op: &mut Option<OperationIr>) {
        match op {
            None | Some(OperationIr::Init(_)) => {}
            Some(OperationIr::Drop(tensor)) => {
                if let Some(&key) = self.index.get(&tensor.id) {
                    self.note_drop(key);
                    self.kill(key);
                }
            }
            Some(_) => self.execute(op),
        }
    }

    fn execute(&mut self, place: &mut Option<OperationIr>) {
        let Some(op) = place.as_mut() else { return };
        self.clock += 1;
        self.stats.operations += 1;
        self.light &= self.is_ample(self.storages.live);
        let kind = operation_kind(op);
        self.serving = kind;
        self.names.entry(kind).or_insert_with(|| operation_name(op));
        let Bound { inputs, mut consumed, outs, produced, unknown } = self.bind(op);
        if let Some(id) = unknown {
            let failure = format!("`{}` reads tensor {id}, which this device does not have", operation_name(op));
            return self.register_failed(outs, failure.into());
        }
        for &input in &inputs {
            self.tensors[input].pins += 1;
        }
        self.aside.now = self.aside.is_other_thread();
        let aside = self.aside.now;
        if !aside && self.begins_step(&inputs, &consumed) {
            self.end_step(self.clock, true);
        }
        self.position += u32::from(!aside);
        self.executing = !aside;
        let watched = !aside && (self.tracer.is_some() || self.follow.is_some());
        let rule = self.stages.rule(self.step_number);
        let signature = if watched { self.signature(kind, rule, &outs, &inputs, &consumed) } else { 0 };
        let dying = consumed.clone();
        let (mut lent, mut began) = (Keys::new(), false);
        let mut before: SmallVec<[Option<StorageKey>; 4]> = SmallVec::new();
        let done = self.bring_in(op, (kind, signature), &inputs).and_then(|()| {
            let op = place.as_mut().ok_or("an operation was lost")?;
            let taken = self.taken(op, &inputs);
            before.extend(inputs.iter().map(|&input| self.tensors[input].storage));
            let settled = self.settle_roots(op, &outs, &inputs, &mut consumed, produced);
            let Settled { recordable, replaces, seed, .. } = settled;
            self.keep_parts(op, &inputs, &mut consumed);
            // Only now: what was brought back to cut a root free would take the room of the outputs.
            let need = self.new_bytes(op, produced, &inputs, &consumed);
            self.make_room(need);
            let layout = self.layout(op, &inputs, taken, &consumed);
            let forms = if replaces || aside { SmallVec::new() } else { self.forms_of(op) };
            let update = self.update_of(&dying, &outs);
            let kept = (recordable && !self.light).then(|| (self.boxed(op), taken));
            let views = is_view(op);
            let traced = if watched { self.trace_inputs(&inputs) } else { SmallVec::new() };
            let stub = if self.tracer.is_some() && !aside { self.traced_stub(op) } else { None };
            self.lend_all(op, &inputs, taken, &mut consumed, &mut lent)?;
            let position = (!aside).then(|| self.last_position());
            began = true;
            let cost_ns = self.run(place, seed, kind, position, layout)?;
            Ok((kept, settled, cost_ns, views, update, traced, forms, stub))
        });
        match done {
            Ok((kept, settled, cost_ns, views, update, traced, forms, stub)) => {
                let Settled { recordable, seed, passing, state, .. } = settled;
                self.stats.compute_ns += cost_ns;
                self.step.compute_ns += cost_ns;
                let stage = self.stages.current();
                self.count_in_stage(stage, cost_ns);
                let outputs: SmallVec<[TensorKey; 2]> =
                    outs.into_iter().map(|out| self.insert(out, kind, None)).collect();
                self.note_succession(&inputs, &dying, &outputs);
                if recordable {
                    self.note_computed(&inputs, &outputs);
                }
                if let Some(op) = kept {
                    self.record(op, &inputs, &outputs, seed, cost_ns, rule);
                }
                if let Some(Update::Parameter(before)) = update {
                    self.note_update();
                    if !aside {
                        outputs.iter().for_each(|&output| self.note_parameter(output, before));
                    }
                }
                for &output in &outputs {
                    let tensor = &mut self.tensors[output];
                    (tensor.passing, tensor.state) = (passing, state);
                    tensor.eligible |= seed.is_some() && !passing;
                }
                for (&output, form) in outputs.iter().zip(forms) {
                    self.tensors[output].form = form;
                }
                let settled = self.settle(&outputs, &inputs, &consumed, views, kind);
                self.share_names(&inputs, &before, &outputs, views);
                if settled.is_ok() {
                    outputs.iter().for_each(|&output| self.settle_form(output));
                }
                if watched {
                    let about = (kind, signature, cost_ns, self.scratch);
                    self.trace_op(
                        about,
                        (recordable, update.is_some(), views),
                        (rule, stub),
                        &traced,
                        &consumed,
                        &outputs,
                    );
                    self.follow_outputs(&outputs, cost_ns);
                } else if aside {
                    self.note_aside(&outputs);
                }
                if let Err(failure) = settled {
                    self.remember(&failure);
                    for output in outputs {
                        self.fail(output, failure.clone());
                    }
                }
            }
            Err(failure) => {
                self.forget_step();
                for &input in consumed.iter().filter(|_| began) {
                    // The backend may or may not have taken it; either way it is dead.
                    self.release(input);
                }
                self.register_failed(outs, failure);
            }
        }
        lent.into_iter().for_each(|stand_in| self.unpin(stand_in));
        for &input in &dying {
            self.kill(input);
        }
        self.executing = false;
        for &input in &inputs {
            self.unpin(input);
        }
        if self.follow.is_some() && !aside {
            self.follow_after();
            self.watch_budget();
        }
        let boundary = if aside { None } else { self.detector.observe(self.computed_bytes, self.clock) };
        if let Some(boundary) = boundary {
            self.end_step(boundary, true);
        } else if self.recipes.len() as u64 > HISTORY_LIMIT.max(2 * self.detector.longest()) {
            self.forget_before(self.clock - HISTORY_LIMIT / 2);
        }
    }

    /// What an operation reads and writes.
    fn bind(&self, op: &mut OperationIr) -> Bound {
        let mut bound = Bound::default();
        for_each_tensor(op, |tensor| match tensor.status {
            TensorStatus::NotInit => {
                bound.produced += self.allocated(tensor);
                bound.outs.push(Description::of(tensor));
            }
            status => match self.index.get(&tensor.id) {
                Some(&key) => {
                    if !bound.inputs.contains(&key) {
                        bound.inputs.push(key);
                    }
                    if status == TensorStatus::ReadWrite {
                        bound.consumed.push(key);
                    }
                }
                None => bound.unknown = Some(tensor.id),
            },
        });
        bound
    }

    /// Makes the inputs resident.
    fn bring_in(&mut self, op: &OperationIr, about: (u64, u64), inputs: &[TensorKey]) -> Result<(), Failure> {
        if self.follow.is_some() && !self.aside.now {
            self.follow_before(op, about, inputs);
        }
        // Only now: the plan may have left a stub just now, or be followed no more.
        let spared = self.spared(op);
        for &input in inputs.iter().filter(|&&input| spared != Some(input)) {
            self.ensure(input)?;
            self.tensors[input].used = self.clock;
        }
        Ok(())
    }

    /// Bytes of the evictable buffers among `inputs`, each once.
    fn evictable_bytes(&self, inputs: &[TensorKey]) -> u64 {
        let mut bytes = 0;
        for (at, &input) in inputs.iter().enumerate() {
            let Some(key) = self.tensors[input].storage else { continue };
            let storage = self.storages.get(key);
            if storage.roots == 0 && !inputs[..at].iter().any(|&other| self.tensors[other].storage == Some(key)) {
                bytes += storage.bytes;
            }
        }
        bytes
    }

    /// Decides which consumed roots the operation may really take, and whether it can be recorded.
    ///
    /// A consumed root on which recipes depend is taken only if history can be cut there. Either way the outputs become
    /// roots, so that no chain of updates grows behind them; only a root that is small beside the outputs is kept for
    /// their sake.
    ///
    fn settle_roots(
        &mut self,
        op: &mut OperationIr,
        outs: &Outs,
        inputs: &[TensorKey],
        consumed: &mut Keys,
        produced: u64,
    ) -> Settled {
        for &key in consumed.iter() {
            let tensor = &self.tensors[key];
            if tensor.recipe.is_none() && !tensor.held && !tensor.dependents.is_empty() {
                self.cut(key, true);
            }
        }
        let light = self.light;
        let mut kept: SmallVec<[TensorId; 2]> = SmallVec::new();
        let (mut replaces, mut replaces_other, mut replaces_parameter) = (false, false, false);
        let training = self.detector.has_begun();
        consumed.retain(|key| {
            let tensor = &self.tensors[*key];
            if tensor.recipe.is_some() || (light && tensor.computed) {
                if tensor.held {
                    kept.push(tensor.id);
                }
                return !tensor.held;
            }
            let small = tensor.bytes.saturating_mul(KEEP_ROOT_RATIO) <= produced;
            let takes = !small && !tensor.held;
            replaces |= takes;
            replaces_other |= takes && !tensor.passing;
            let alike = outs.iter().any(|out| out.shape == tensor.shape);
            let succeeded = alike && (tensor.read > 0 || tensor.updated > 0 || inputs.len() == 1);
            replaces_parameter |= takes && tensor.may_be_parameter() && (succeeded || !training);
            let keep = (small && !light) || tensor.held || !tensor.dependents.is_empty();
            if keep {
                kept.push(tensor.id);
            }
            !keep
        });
        if !kept.is_empty() {
            mark_read_only(op, &kept);
        }
        let random = is_random(op);
        let seed = (random && self.config.random == RandomPolicy::Reseed).then(|| self.next_seed());
        let differs = self.is_unrepeatable(op);
        let recordable = !replaces && !is_opaque(op) && !differs && (!random || seed.is_some());
        let passing = !replaces_other && (replaces || differs || is_mask(op));
        Settled { recordable, replaces, seed, passing, state: replaces && !replaces_parameter }
    }

    /// Whether the device may compute another result when `op` runs again.
    fn is_unrepeatable(&mut self, op: &OperationIr) -> bool {
        let differs = !B::repeats(&self.device, op);
        if differs && !self.stats.unrepeatable.contains(&self.serving) {
            self.stats.unrepeatable.push(self.serving);
        }
        differs
    }

    /// On a dry device, the time that an operation would take; it also learns there where in its step it is.
    fn dry_cost(&mut self, op: &OperationIr, kind: u64) -> Option<u64> {
        if !self.executor.is_dry() {
            return None;
        }
        let position = self.last_position() as usize;
        let Executor::Dry(dry) = &mut self.executor else { return None };
        dry.at(position, kind);
        let touched = op.inputs().chain(op.outputs()).map(|tensor| Description::of(tensor).bytes).sum();
        Some(dry.cost(touched))
    }

    /// Runs an operation on the backend, out of its place, and returns the time it took, in ns. `position` is that of an operation of the
    /// step.
    #[inline]
    fn run(
        &mut self,
        place: &mut Option<OperationIr>,
        seed: Option<u64>,
        kind: u64,
        position: Option<Position>,
        layout: Option<Layout>,
    ) -> Result<u64, Failure> {
        let op = place.as_ref().ok_or("an operation was lost")?;
        let dry = self.dry_cost(op, kind);
        let timed = self.begin_timing(op, kind);
        let _alone = is_random(op).then(|| lock(&GENERATOR));
        let executor = &mut self.executor;
        let probe = self.config.probe.as_deref();
        let before = probe.map_or(0, |probe| {
            probe.reset_peak();
            probe.current()
        });
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(move || {
            if let Some(seed) = seed {
                executor.seed(seed);
            }
            executor.run(place);
            if let Some(layout) = layout {
                executor.lay(&layout);
            }
        }));
        let elapsed = start.elapsed().as_nanos() as u64;
        self.rise = probe.map_or(0, |probe| probe.peak().saturating_sub(before));
        let known = self.end_timing(timed, result.is_ok(), position);
        let elapsed = dry.or(known).unwrap_or(elapsed);
        result.map(|()| elapsed.max(1)).map_err(|payload| {
            let cause = panic_message(&*payload);
            let name = self.names.get(&kind).map_or("an operation", String::as_str);
            let failure: Failure = self.circumstances().explain(name, cause).into();
            self.remember(&failure);
            failure
        })
    }

    /// Counts the buffers of freshly written outputs, and frees those of consumed inputs that were not reused.
    ///
    /// # Errors
    ///
    /// Over budget, where the configuration is strict.
    fn settle(
        &mut self,
        outputs: &[TensorKey],
        inputs: &[TensorKey],
        consumed: &[TensorKey],
        views: bool,
        kind: u64,
    ) -> Result<(), Failure> {
        let fixed = self.storages.rooted + self.evictable_bytes(inputs);
        let mut left: SmallVec<[usize; 4]> = SmallVec::new();
        for &input in consumed {
            let tensor = &mut self.tensors[input];
            let fixed = tensor.is_fixed();
            if let Some(storage) = tensor.storage.take() {
                self.storages.detach(storage, input, fixed);
                left.push(storage);
            }
        }
        let before = self.storages.live;
        let base = inputs.first().and_then(|&input| self.tensors[input].storage).or(left.first().copied());
        for &output in outputs {
            let tensor = &self.tensors[output];
            let buffer = self.executor.buffer(&tensor.bare(TensorStatus::ReadOnly));
            let (key, bytes) = match (buffer, base) {
                (BufferId::Known { key, bytes }, _) => (key, bytes),
                (BufferId::Unknown, Some(base)) if views => {
                    let base = self.storages.get(base);
                    (base.key, base.bytes)
                }
                (BufferId::Unknown, _) => (1 << 63 | tensor.id.value(), self.padding.buffer(tensor.bytes)),
            };
            let fixed = tensor.is_fixed();
            let storage = self.storages.attach(key, bytes, output, fixed, self.step_number);
            let tensor = &mut self.tensors[output];
            tensor.storage = Some(storage);
            tensor.used = self.clock;
        }
        let new = self.storages.live.saturating_sub(before);
        self.scratch = std::mem::take(&mut self.rise).saturating_sub(new);
        if self.scratch > self.stats.scratch {
            (self.stats.scratch, self.stats.scratch_op) = (self.scratch, kind);
        }
        if !self.config.count_workspaces {
            self.scratch = 0;
        }
        self.reuse.learn(new + self.scratch);
        let result = self.account(fixed + new, kind);
        for storage in left {
            self.storages.sweep(storage);
        }
        self.read_pool();
        result
    }

    fn record(
        &mut self,
        (op, taken): (Box<OperationIr>, Taken),
        inputs: &[TensorKey],
        outputs: &[TensorKey],
        seed: Option<u64>,
        cost_ns: u64,
        rule: Option<Rule>,
    ) {
        let stage = self.stages.current();
        let policy = rule.map(|rule| rule.policy);
        if policy == Some(CheckpointPolicy::MustRecompute) && self.follow.is_none() {
            self.stages.note_forced(outputs.iter().map(|&output| (output, self.tensors[output].id)));
        }
        let recipe = self.recipes.insert(Recipe {
            op,
            taken,
            inputs: inputs.into(),
            outputs: outputs.iter().map(|&output| Some(output)).collect(),
            seed,
            cost_ns,
            born: self.clock,
            seen: 0,
            stage,
            policy,
        });
        for &input in inputs {
            self.tensors[input].dependents.push(recipe);
        }
        for &output in outputs {
            self.tensors[output].recipe = Some(recipe);
        }
    }

    /// An operation that can run again has read `inputs` and made `outputs`.
    fn note_computed(&mut self, inputs: &[TensorKey], outputs: &[TensorKey]) {
        for &input in inputs {
            let tensor = &mut self.tensors[input];
            let last = std::mem::replace(&mut tensor.read, self.clock);
            if tensor.may_be_parameter() && tensor.updated == 0 {
                self.detector.root_read(last, self.clock);
            }
        }
        for &output in outputs {
            let tensor = &mut self.tensors[output];
            tensor.computed = true;
            self.computed_bytes += tensor.bytes;
        }
    }

    /// A copy of an operation, in a box that is used again where there is one.
    fn boxed(&mut self, op: &OperationIr) -> Box<OperationIr> {
        match self.spare.pop() {
            Some(mut spare) => {
                *spare = op.clone();
                spare
            }
            None => Box::new(op.clone()),
        }
    }

    fn next_seed(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood): every seed differs and none depends on the backend's own generator.
        self.seeds = self.seeds.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut seed = self.seeds;
        seed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        seed = (seed ^ (seed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        seed ^ (seed >> 31)
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
