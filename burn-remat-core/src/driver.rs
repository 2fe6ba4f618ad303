//! What the core asks of the world: a backend that runs operations and holds data, and whoever makes plans.
//!
//! The core runs nothing and waits for nothing. Each of these calls is one command; what it returns is what happened. A
//! driver for a backend carries commands out, one for tests or rehearsals only keeps the books.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::facts::{Alternative, Failure, Kind, Need, TensorFacts, TensorId};
use crate::schedule::Schedule;
use crate::trace::{Position, Trace, TracedOp};

/// A recorded operation, kept by the driver so that it can run again.
pub type OpKey = u32;

/// Which buffer a tensor keeps alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// One that can be told apart from all others while it lives.
    Known {
        /// Its identity.
        identity: u64,
        /// Its whole size, however little of it the tensor looks at.
        bytes: u64,
    },
    /// The backend does not tell: the tensor's own bytes are counted, and views are taken for views.
    Unknown,
}

/// An operation about to run.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The one that the program asks for.
    AtHand {
        /// Tensors of which it would take the buffer, and that it may only read now.
        only_read: &'a [TensorId],
    },
    /// One that was recorded.
    Kept {
        /// Which one.
        op: OpKey,
        /// Tensors whose last use this is: it may write over them. All others are only read.
        takes: &'a [TensorId],
        /// Outputs that go under another number, because the first one stands for something else by now, or for nothing.
        renamed: &'a [(TensorId, TensorId)],
    },
}

/// What to run and how.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The operation.
    pub source: Source<'a>,
    /// What it does.
    pub kind: Kind,
    /// The tensors that it makes, in its order.
    pub outputs: &'a [TensorId],
    /// An input that is evicted and has left a substitute, which stands in for it.
    pub substitute: Option<(TensorId, Need)>,
    /// What to seed the generator with before it runs.
    pub seed: Option<u64>,
    /// Whether it is recorded: the driver keeps a copy.
    pub keep: bool,
    /// Whether to say which of its results could be compressed.
    pub compressible: bool,
    /// Its place in the step, where it is one of the step's own.
    pub position: Option<Position>,
    /// Whether its time is wanted exactly.
    pub timed: bool,
    /// What the plan that is followed says it takes.
    pub planned_ns: Option<u64>,
    /// What the backend lets it write over, where results depend on that.
    pub reuse: Option<Reused>,
}

/// What an operation may write over: a bit for each of its first inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reused {
    /// Inputs of which the program lets go, and of whose buffer it has no other tensor: without this machine it writes over these.
    pub expected: u8,
    /// Inputs whose buffer has no other owner now.
    pub alone: u8,
    /// Whether recordings are made: what a plan will find must not depend on what is kept by chance.
    pub records: bool,
}

/// Whether what an operation writes over decides how its results lie in memory.
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

/// What has run.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Time that it took.
    pub ns: u64,
    /// Most bytes that it allocated beside what it holds now, where that can be seen.
    pub rise: Option<u64>,
    /// Bytes of the device that it needed while it ran, beside its inputs and outputs.
    pub beside: u64,
    /// The copy that was kept.
    pub kept: Option<OpKey>,
    /// The buffers of its outputs.
    pub buffers: SmallVec<[(Buffer, Option<Compressible>); 2]>,
    /// Tensors that it was to take and has only read: these are freed next.
    pub left: SmallVec<[TensorId; 2]>,
}

/// How a tensor can be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compressible {
    /// In which way.
    pub alternative: Alternative,
    /// Bytes of the device that it takes then.
    pub bytes: u64,
    /// Time to compress it and to bring it back once.
    pub cost_ns: u64,
}

/// How an input could be spared: see [`Driver::substitute`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Substitute {
    /// What is needed of it.
    pub need: Need,
    /// Bytes of the device that it takes as long as it is there.
    pub bytes: u64,
    /// Bytes of what stands in for the tensor, while the operation runs.
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
    /// What the plan that is followed holds at most.
    pub plan: Option<u64>,
}

/// The part of the world that holds data.
pub trait Driver {
    /// What went wrong in an operation, with what was going on.
    fn explain(&self, kind: Kind, cause: &Failure, circumstances: Circumstances) -> Failure {
        let _ = (kind, circumstances);
        cause.clone()
    }

    /// Bytes of the device that it will need while it runs, beside its inputs and outputs.
    fn needs(&mut self, run: &Run<'_>) -> u64 {
        let _ = run;
        0
    }

    /// A number for how the inputs lie that the operation may take of which [`needs`](Self::needs) was asked last, where that decides
    /// whether it writes over them.
    fn arrangement(&mut self) -> u64 {
        0
    }

    /// Runs an operation.
    ///
    /// # Errors
    ///
    /// What went wrong, in words. What the operation was to take is gone then.
    fn run(&mut self, run: &Run<'_>) -> Result<Ran, Failure>;

    /// Takes the data that the program hands over, as tensor `id`.
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

    /// What a recorded operation makes as its output `k`, under a number of its own.
    fn output(&mut self, op: OpKey, k: usize) -> TensorFacts;

    /// Compresses a tensor beside its buffer, which is freed next: the bytes of the device that it takes and the time it took.
    /// `None` where it cannot be done.
    fn compress(&mut self, id: TensorId) -> Option<(u64, u64)>;

    /// Gives a compressed tensor a buffer again. It stays compressed too until [`discard`](Self::discard).
    ///
    /// # Errors
    ///
    /// What went wrong, in words.
    fn decompress(&mut self, id: TensorId) -> Result<(Buffer, u64), Failure>;

    /// A tensor that could be compressed, or had left a substitute, is gone for good.
    fn gone(&mut self, id: TensorId) {
        let _ = id;
    }

    /// Drops what a tensor is compressed to.
    fn discard(&mut self, id: TensorId);

    /// What could stand in for an input of the operation at hand, for the trace.
    fn substitute(&mut self, id: TensorId, need: Need) -> Option<Substitute> {
        let _ = (id, need);
        None
    }

    /// Leaves a substitute of a tensor that is about to be evicted: bytes of the device that it takes, and time.
    fn leave_substitute(&mut self, id: TensorId, need: Need) -> Option<(u64, u64)>;

    /// Drops a substitute.
    fn drop_substitute(&mut self, id: TensorId);

    /// Bytes in use of the device's memory pool, where it tells. May wait for the device.
    fn pool_in_use(&mut self) -> Option<u64> {
        None
    }

    /// Has the pool give back what it does not use.
    fn trim_pool(&mut self) {}

    /// A step has ended: corrects the times of its trace by what the device's clock has measured.
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

    /// An event in words, for whoever gets it as an error.
    fn in_words(&self, event: &Event) -> Failure {
        format!("{event:?}").into()
    }

    /// Something worth telling has happened.
    fn tell(&mut self, event: Event) {
        let _ = event;
    }
}

/// How far a pass has done other things than its plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Planned operations that did not come.
    pub skipped: u32,
    /// Operations that came and were not planned.
    pub beside: u32,
    /// Of these, how many in a row just now.
    pub(crate) in_a_row: u32,
}

/// What a step that went by its plan tells.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Largest difference between bytes held and bytes foreseen.
    pub deviation: u64,
    /// Most bytes held during each operation.
    pub held: Vec<u64>,
    /// Whether the plan was one for tensors of other sizes. Nothing was foreseen then.
    pub carried: bool,
    /// How far it did other things than the plan, if it did.
    pub mended: Option<Mended>,
    /// The step with the time and scratch bytes of each operation, where they were wanted.
    pub trace: Option<Trace>,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that a step may hold; `None` for no limit.
    pub budget: Option<u64>,
    /// Bytes that the online policy cannot do without.
    pub online: u64,
    /// Thousandths of a step's time that the online policy has recomputed for in the last step before there was a plan, as long as the budget is kept.
    pub online_overhead: Option<u64>,
}

/// The part of the world that makes plans. Calls come at the beginning and the end of a step. As they stand here there are no plans.
pub trait Planning {
    /// Whether steps are planned, or written down, at all.
    fn is_on(&self) -> bool {
        false
    }

    /// Whether the coming step need not be traced: nothing would come of it.
    fn is_settled(&self) -> bool {
        true
    }

    /// Takes the trace of a whole step of this [structure](crate::Spine::structure). Tells whether it is planned now.
    fn observe(&mut self, trace: Trace, structure: u64, limits: Limits) -> bool {
        let _ = (trace, structure, limits);
        false
    }

    /// Takes up what was planned meanwhile.
    fn poll(&mut self, limits: Limits) {
        let _ = limits;
    }

    /// The plan with which the next step probably goes.
    fn next(&self) -> Option<Arc<Schedule>> {
        None
    }

    /// Whether [`next`](Self::next) is known, and no guess.
    fn is_sure(&self) -> bool {
        false
    }

    /// Another plan whose first `count` operations have this signature.
    fn beginning_with(&self, count: usize, prefix: u64) -> Option<Arc<Schedule>> {
        let _ = (count, prefix);
        None
    }

    /// A plan whose first operations are of the same kinds as those `done`, and the next of this `kind`: of several the one in which that makes
    /// about so many `bytes`.
    fn like(&self, done: &[TracedOp], kind: Kind, bytes: u64) -> Option<Arc<Schedule>> {
        let _ = (done, kind, bytes);
        None
    }

    /// Whether the operations of a step that follows this plan are to be measured.
    fn is_unmeasured(&self, schedule: &Schedule) -> bool {
        let _ = schedule;
        false
    }

    /// A step went by its plan from beginning to end. Tells whether it is planned anew, with what was measured.
    fn followed(&mut self, schedule: &Schedule, outcome: Followed, limits: Limits) -> bool {
        let _ = (schedule, outcome, limits);
        false
    }

    /// A step left its plan.
    fn left(&mut self, why: Left) {
        let _ = why;
    }

    /// More is there when such a step begins than its plan foresaw.
    fn outgrown(&mut self, structure: u64) {
        let _ = structure;
    }

    /// All plans leave too little of the budget free.
    fn plan_anew(&mut self) {}

    /// The budget has begun to matter: what needed no plan may need one.
    fn unsettle(&mut self) {}

    /// Passes end elsewhere than it seemed: what was observed of them, and the plans for that, are of no use.
    fn forget_observed(&mut self) {}

    /// A number that changes whenever a plan is taken up.
    fn taken_up(&self) -> u64 {
        0
    }
}

/// Why a step left its plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// Another operation came than the planned one.
    Differs {
        /// Its place in the step.
        at: usize,
        /// What came.
        found: String,
        /// What was planned.
        planned: String,
    },
    /// Another operation came when all that was planned had come.
    GoesOn {
        /// How many operations were planned.
        at: usize,
        /// What came.
        found: String,
    },
    /// The plan's own work failed.
    Failed(Failure),
    /// The step was over too soon.
    Ended {
        /// How many operations it had.
        at: u32,
    },
}

/// What the core has to tell. The driver makes words of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first step has shown what a share of it is.
    Budget {
        /// Bytes that the first step held.
        first_step: u64,
        /// Bytes of the budget from now on.
        budget: u64,
    },
    /// The budget cannot be met.
    BelowFloor {
        /// The budget.
        budget: u64,
        /// Bytes that are needed at once and cannot be evicted.
        floor: u64,
        /// The operation that needs them.
        kind: Kind,
    },
    /// The rest of this step keeps what it computes: recomputation has reached its limit.
    GaveUp,
    /// An operation was left without data, or ran into this.
    Failed(Failure),
    /// An operation of the program runs.
    Runs(Kind),
    /// A recorded operation runs again.
    Recomputes(Kind),
    /// A buffer of a tensor that this kind of operation made is evicted.
    Evicts(Kind),
    /// It is compressed.
    Compresses(Kind),
    /// A step has ended.
    StepEnds,
    /// Other bytes are held than the plan foresaw.
    Deviates {
        /// After this operation.
        at: Position,
        /// Bytes held.
        live: u64,
        /// Bytes foreseen.
        foreseen: u64,
    },
}

/// All of the world.
pub trait World: Driver + Planning {}

impl<T: Driver + Planning> World for T {}
