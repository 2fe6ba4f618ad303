//! What is known of an operation on its way through the machine.

use smallvec::SmallVec;

use crate::driver::{Buffer, Compressible, Ran};
use crate::facts::{Rule, TensorId};
use crate::keys::{BufferKey, Keys, TensorKey};
use crate::trace::{Place, TracedStub};

/// An operation being served.
#[derive(Default)]
pub(super) struct Call {
    pub inputs: Keys,
    /// Inputs of which the program lets go.
    pub dying: Keys,
    /// Those of them that it may really take.
    pub consumed: Keys,
    /// The others, which it may only read.
    pub only_read: SmallVec<[TensorId; 2]>,
    /// Bytes of new buffers for all that it makes.
    pub produced: u64,
    /// What it would write over if this machine were not there, where results depend on that.
    pub expected: Option<u8>,
    /// What the trace needs to know of it, where one is written.
    pub traced: Traced,
    /// Whether it is one of the step's own, and the step is traced or planned.
    pub watched: bool,
    pub signature: u64,
    pub rule: Option<Rule>,
    /// Whether the driver was told to run it: what it was to take is gone then.
    pub began: bool,
}

/// What has come of an operation, to be counted.
#[derive(Default)]
pub(super) struct Made<'a> {
    pub outputs: &'a [TensorKey],
    pub buffers: &'a [(Buffer, Option<Compressible>)],
    /// Whether it only looks at its first input's buffer.
    pub view: bool,
    /// Most bytes that it allocated beside what was held, where that can be seen.
    pub rise: Option<u64>,
    pub beside: u64,
    /// What it was to take and has only read.
    pub left: &'a [TensorId],
}

impl<'a> Made<'a> {
    #[inline]
    pub fn of(ran: &'a Ran, outputs: &'a [TensorKey], view: bool) -> Self {
        Self { outputs, buffers: &ran.buffers, view, rise: ran.rise, beside: ran.beside, left: &ran.left }
    }
}

/// What becomes of an operation that takes roots.
#[derive(Clone, Copy)]
pub(super) struct Settled {
    /// Whether it can run again.
    pub recordable: bool,
    /// The same for a plan, which keeps what it needs: whatever became of it this time, what the step has computed it can compute again.
    pub in_trace: bool,
    /// Whether its results count as computed, though it may take what was computed and is kept.
    pub computes: bool,
    /// Whether it takes a root, whose place its results take.
    pub replaces: bool,
    /// What to seed the generator with before it runs.
    pub seed: Option<u64>,
    /// Whether its results, if they are roots, are surely no parameters.
    pub passing: bool,
    /// Whether its results take the place of what earlier steps have computed.
    pub state: bool,
}

/// What an operation that takes a root does.
#[derive(Clone, Copy)]
pub(super) enum Update {
    /// It replaces this parameter.
    Parameter(TensorKey),
    /// It replaces what an earlier step has computed.
    State,
}

/// An input as it was before the operation ran.
pub(super) struct TracedInput {
    pub place: Place,
    pub buffer: Option<BufferKey>,
}

/// What the trace needs to know of an operation before it runs.
#[derive(Default)]
pub(super) struct Traced {
    pub inputs: SmallVec<[TracedInput; 4]>,
    pub stub: Option<TracedStub>,
}
