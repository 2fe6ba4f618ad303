//! What the core needs from outside: a backend that runs operations and holds data, and something that makes plans.
//!
//! The core runs nothing and waits for nothing. Each of these calls is one command; its return value says what happened. A
//! driver for a backend carries commands out; a driver for tests or dry runs only does the accounting.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::facts::{Alternative, Failure, Kind, Need, TensorFacts, TensorId};
use crate::schedule::Schedule;
use crate::trace::{Position, Trace, TracedOp};

/// The key of a recorded operation. The driver keeps the operation so that it can run again.
pub type OpKey = u32;

/// Which buffer a tensor keeps alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// One that can be told apart from all others while it lives.
    Known {
        /// Its identity.
        identity: u64,
        /// Its whole size, however small a part of it the tensor uses.
        bytes: u64,
    },
    /// The backend does not say. The tensor's own bytes are counted, and operations that are views by nature count as views.
    Unknown,
}

/// An operation about to run.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The operation that the program asks for.
    AtHand {
        /// Tensors whose buffers it would take over, but may only read now.
        only_read: &'a [TensorId],
    },
    /// A recorded operation.
    Kept {
        /// Its key.
        op: OpKey,
        /// Tensors whose last use this is: it may overwrite them. It may only read all others.
        takes: &'a [TensorId],
        /// Outputs that get a new number, because the old one now stands for something else, or for nothing.
        renamed: &'a [(TensorId, TensorId)],
    },
}

/// An operation to run, and how.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The operation.
    pub source: Source<'a>,
    /// What it does.
    pub kind: Kind,
    /// The tensors that it makes, in the operation's order.
    pub outputs: &'a [TensorId],
    /// An evicted input of which only a substitute is left; the substitute is used instead.
    pub substitute: Option<(TensorId, Need)>,
    /// The seed to set before it runs.
    pub seed: Option<u64>,
    /// Whether it is recorded: the driver keeps a copy.
    pub keep: bool,
    /// Whether the driver reports which results can be compressed.
    pub compressible: bool,
    /// Its position in the step, if it belongs to the step.
    pub position: Option<Position>,
    /// Whether its time must be measured exactly.
    pub timed: bool,
    /// Its time according to the plan that is followed.
    pub planned_ns: Option<u64>,
    /// What the backend may let it overwrite, where results depend on that.
    pub reuse: Option<Reused>,
}

/// What an operation may overwrite: one bit for each of its first inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reused {
    /// Inputs that the program releases and whose buffers no other tensor of the program shares: without this machine, these are overwritten.
    pub expected: u8,
    /// Inputs whose buffer has no other owner now.
    pub alone: u8,
    /// Whether a recording is being made. If so, what a plan will find must not depend on what happens to be kept.
    pub records: bool,
}

/// Whether the layout of results in memory depends on what an operation overwrites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayoutFollows {
    /// Never.
    #[default]
    Nothing,
    /// Where it reads a tensor that is smaller than its buffer.
    Parts,
    /// Always.
    Reuse,
}

/// The outcome of an operation.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Time that it took.
    pub ns: u64,
    /// Most bytes that it allocated beyond what it holds now, where that can be measured.
    pub rise: Option<u64>,
    /// Bytes of the device that it needed while it ran, beyond its inputs and outputs.
    pub beside: u64,
    /// The key of the recorded copy.
    pub kept: Option<OpKey>,
    /// The buffers of its outputs.
    pub buffers: SmallVec<[(Buffer, Option<Compressible>); 2]>,
    /// Tensors that it was allowed to take over but only read: these are freed next.
    pub left: SmallVec<[TensorId; 2]>,
}

/// How a tensor can be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compressible {
    /// The method.
    pub alternative: Alternative,
    /// Bytes of the device that it takes while compressed.
    pub bytes: u64,
    /// Time to compress and decompress it once.
    pub cost_ns: u64,
}

/// What can be kept instead of an input: see [`Driver::substitute`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Substitute {
    /// What is needed of the input.
    pub need: Need,
    /// Bytes of the device that the substitute takes as long as it exists.
    pub bytes: u64,
    /// Bytes of the tensor built from it while the operation runs.
    pub stand_in: u64,
    /// Time to make both.
    pub cost_ns: u64,
}

/// What was going on when something went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// Bytes held.
    pub live: u64,
    /// The step, from 1.
    pub step: u32,
    /// Most bytes that the plan being followed holds.
    pub plan: Option<u64>,
}

/// The part of the world that holds data.
pub trait Driver {
    /// Describes a failure in an operation and its circumstances.
    fn explain(&self, kind: Kind, cause: &Failure, circumstances: Circumstances) -> Failure {
        let _ = (kind, circumstances);
        cause.clone()
    }

    /// Bytes of the device that it will need beyond its inputs, if they are more than what its outputs are expected to take.
    fn needs(&mut self, run: &Run<'_>) -> u64 {
        let _ = run;
        0
    }

    /// A number for the layout of the inputs that the operation last passed to [`needs`](Self::needs) may take over, where the layout
    /// decides whether it overwrites them.
    fn arrangement(&mut self) -> u64 {
        0
    }

    /// Runs an operation.
    ///
    /// # Errors
    ///
    /// What went wrong, in words. The tensors that the operation was allowed to take over are then gone.
    fn run(&mut self, run: &Run<'_>) -> Result<Ran, Failure>;

    /// Takes data that the program hands over, as tensor `id`.
    ///
    /// # Errors
    ///
    /// What went wrong, in words.
    fn arrive(&mut self, id: TensorId) -> Result<Buffer, Failure>;

    /// Makes `new` a second name of `source`.
    fn alias(&mut self, new: TensorId, source: TensorId) -> Buffer;

    /// Frees a tensor's data.
    fn free(&mut self, id: TensorId);

    /// Forgets a recorded operation.
    fn forget(&mut self, op: OpKey);

    /// Output `k` of a recorded operation, under the number it was recorded with.
    fn output(&mut self, op: OpKey, k: usize) -> TensorFacts;

    /// Compresses a tensor; its buffer is freed next. Returns the bytes of the device that it then takes, and the time it took.
    /// `None` if it cannot be compressed.
    fn compress(&mut self, id: TensorId) -> Option<(u64, u64)>;

    /// Gives a compressed tensor a buffer again. The compressed copy stays too until [`discard`](Self::discard).
    ///
    /// # Errors
    ///
    /// What went wrong, in words.
    fn decompress(&mut self, id: TensorId) -> Result<(Buffer, u64), Failure>;

    /// A tensor that could be compressed, or that has left a substitute, is gone for good.
    fn gone(&mut self, id: TensorId) {
        let _ = id;
    }

    /// Drops the compressed copy of a tensor.
    fn discard(&mut self, id: TensorId);

    /// What could be kept instead of an input of the current operation, for the trace.
    fn substitute(&mut self, id: TensorId, need: Need) -> Option<Substitute> {
        let _ = (id, need);
        None
    }

    /// Makes a substitute of a tensor that is about to be evicted. Returns the bytes of the device that it takes, and the time it took.
    fn leave_substitute(&mut self, id: TensorId, need: Need) -> Option<(u64, u64)>;

    /// Drops a substitute.
    fn drop_substitute(&mut self, id: TensorId);

    /// Bytes in use in the device's memory pool, if the backend reports them. May wait for the device.
    fn pool_in_use(&mut self) -> Option<u64> {
        None
    }

    /// Makes the pool release what it does not use.
    fn trim_pool(&mut self) {}

    /// A step has ended. Corrects the times in its trace with those that the device's clock has measured.
    fn end_step(&mut self, trace: Option<&mut Trace>) {
        let _ = trace;
    }

    /// The name of a kind of operation.
    fn name(&self, kind: Kind) -> String;

    /// The name of a stage.
    fn stage_name(&self, name: u32) -> Option<Arc<str>> {
        let _ = name;
        None
    }

    /// Puts an event in words, for whoever gets it as an error.
    fn in_words(&self, event: &Event) -> Failure {
        format!("{event:?}").into()
    }

    /// Something worth reporting has happened.
    fn tell(&mut self, event: Event) {
        let _ = event;
    }
}

/// How far a pass has departed from its plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Planned operations that did not come.
    pub skipped: u32,
    /// Operations that came although they were not planned.
    pub beside: u32,
    /// How many of these came in a row just now.
    pub(crate) in_a_row: u32,
}

/// What a step that followed its plan reports.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Largest difference between bytes held and bytes predicted.
    pub deviation: u64,
    /// Most bytes held during each operation.
    pub held: Vec<u64>,
    /// Whether the plan was one for tensors of other sizes. If so, nothing was predicted.
    pub carried: bool,
    /// How far the step departed from the plan, if it did.
    pub mended: Option<Mended>,
    /// The step with the time and scratch bytes of each operation, if they were requested.
    pub trace: Option<Trace>,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that a step may hold; `None` for no limit.
    pub budget: Option<u64>,
    /// Bytes that the online policy cannot do without.
    pub online: u64,
    /// The time that the online policy spent on recomputation in the last step before there was a plan, in thousandths of that step's other time. `None` unless
    /// the budget was kept.
    pub online_overhead: Option<u64>,
}

/// The part of the world that makes plans. It is called at the beginning and the end of a step. The default methods make no plans.
pub trait Planning {
    /// Whether steps are planned, or traced, at all.
    fn is_on(&self) -> bool {
        false
    }

    /// Whether the coming step need not be traced, because nothing would come of it.
    fn is_settled(&self) -> bool {
        true
    }

    /// Takes the trace of a whole step of this [structure](crate::Spine::structure). Returns whether a plan is now being made for it.
    fn observe(&mut self, trace: Trace, structure: u64, limits: Limits) -> bool {
        let _ = (trace, structure, limits);
        false
    }

    /// Takes up plans that have been finished meanwhile.
    fn poll(&mut self, limits: Limits) {
        let _ = limits;
    }

    /// The plan that the next step will probably follow.
    fn next(&self) -> Option<Arc<Schedule>> {
        None
    }

    /// Whether [`next`](Self::next) is certain, not a guess.
    fn is_sure(&self) -> bool {
        false
    }

    /// Another plan whose first `count` operations have this signature.
    fn beginning_with(&self, count: usize, prefix: u64) -> Option<Arc<Schedule>> {
        let _ = (count, prefix);
        None
    }

    /// A plan whose first operations are of the same kinds as those `done`, and whose next one is of this `kind`. If there are several, the one in which
    /// the next operation makes nearest to this many `bytes`.
    fn like(&self, done: &[TracedOp], kind: Kind, bytes: u64) -> Option<Arc<Schedule>> {
        let _ = (done, kind, bytes);
        None
    }

    /// Whether the operations of a step that follows this plan must be measured.
    fn is_unmeasured(&self, schedule: &Schedule) -> bool {
        let _ = schedule;
        false
    }

    /// A step followed its plan from beginning to end. Returns whether a new plan is made with the measurements.
    fn followed(&mut self, schedule: &Schedule, outcome: Followed, limits: Limits) -> bool {
        let _ = (schedule, outcome, limits);
        false
    }

    /// A step left its plan.
    fn left(&mut self, why: Left) {
        let _ = why;
    }

    /// When a step of this structure begins, more is held than its plan predicted.
    fn outgrown(&mut self, structure: u64) {
        let _ = structure;
    }

    /// All plans leave too little of the budget free.
    fn plan_anew(&mut self) {}

    /// The budget has begun to matter: steps that needed no plan may now need one.
    fn unsettle(&mut self) {}

    /// Passes end elsewhere than assumed: what was observed of them, and the plans made from it, are useless.
    fn forget_observed(&mut self) {}

    /// A number that changes whenever a plan is taken up.
    fn taken_up(&self) -> u64 {
        0
    }
}

/// Why a step left its plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// An operation came that differs from the planned one.
    Differs {
        /// Its position in the step.
        at: usize,
        /// The operation that came.
        found: String,
        /// The operation that was planned.
        planned: String,
    },
    /// Another operation came after all planned operations had come.
    GoesOn {
        /// How many operations were planned.
        at: usize,
        /// The operation that came.
        found: String,
    },
    /// Work that the plan itself ordered failed.
    Failed(Failure),
    /// The step ended too early.
    Ended {
        /// How many operations it had.
        at: u32,
    },
}

/// What the core has to report. The driver puts it into words.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first step has shown how many bytes the requested share is.
    Budget {
        /// Bytes that the first step held.
        first_step: u64,
        /// The budget in bytes from now on.
        budget: u64,
    },
    /// The budget cannot be kept.
    BelowFloor {
        /// The budget.
        budget: u64,
        /// Bytes that must be held at once and cannot be evicted.
        floor: u64,
        /// The operation that needs them.
        kind: Kind,
    },
    /// The rest of this step keeps what it computes, because recomputation has reached its limit.
    GaveUp,
    /// An operation has no data to work on, or met this failure.
    Failed(Failure),
    /// An operation of the program runs.
    Runs(Kind),
    /// A recorded operation runs again.
    Recomputes(Kind),
    /// A buffer is evicted; an operation of this kind made its tensor.
    Evicts(Kind),
    /// A buffer is compressed; an operation of this kind made its tensor.
    Compresses(Kind),
    /// A step has ended.
    StepEnds,
    /// The bytes held differ from those that the plan predicted.
    Deviates {
        /// After this operation.
        at: Position,
        /// Bytes held.
        live: u64,
        /// Bytes predicted.
        foreseen: u64,
    },
}

/// Everything that the machine commands: a driver and a planner.
pub trait World: Driver {
    /// The part that makes plans.
    type Planning: Planning;

    /// The part that makes plans.
    fn planning(&self) -> &Self::Planning;

    /// The part that makes plans.
    fn planning_mut(&mut self) -> &mut Self::Planning;
}
