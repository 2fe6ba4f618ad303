//! What is known about an operation on its way through the machine.

use smallvec::SmallVec;

use crate::driver::{Buffer, Compressible, Ran};
use crate::facts::{Rule, TensorId};
use crate::keys::{BufferKey, Keys, TensorKey};
use crate::trace::{Place, TracedStub};

/// An operation being served.
#[derive(Default)]
pub(super) struct Call {
    pub inputs: Keys,
    /// Inputs that the program releases.
    pub dying: Keys,
    /// Those of them that it may really take over.
    pub consumed: Keys,
    /// The others, which it may only read.
    pub only_read: SmallVec<[TensorId; 2]>,
    /// Bytes of new buffers for all its outputs.
    pub produced: u64,
    /// What it would overwrite without this machine, if results depend on that.
    pub expected: Option<u8>,
    /// What the trace needs to know about it, if a trace is being made.
    pub traced: Traced,
    /// Whether it belongs to the step, and the step is traced or planned.
    pub watched: bool,
    pub signature: u64,
    pub rule: Option<Rule>,
    /// Whether the driver was told to run it: the inputs to take over are then gone.
    pub began: bool,
}

/// The outcome of an operation, to be counted.
#[derive(Default)]
pub(super) struct Made<'a> {
    pub outputs: &'a [TensorKey],
    pub buffers: &'a [(Buffer, Option<Compressible>)],
    /// Whether it is only a view of its first input's buffer.
    pub view: bool,
    /// Most bytes that it allocated beyond what was held, where that can be measured.
    pub rise: Option<u64>,
    pub beside: u64,
    /// Inputs that it was allowed to take over but only read.
    pub left: &'a [TensorId],
}

impl<'a> Made<'a> {
    #[inline]
    pub fn of(ran: &'a Ran, outputs: &'a [TensorKey], view: bool) -> Self {
        Self { outputs, buffers: &ran.buffers, view, rise: ran.rise, beside: ran.beside, left: &ran.left }
    }
}

/// What was decided for an operation that takes over roots.
#[derive(Clone, Copy)]
pub(super) struct Settled {
    /// Whether it can run again.
    pub recordable: bool,
    /// The same for a plan, which keeps what it needs: what the step has computed counts as computable again, whatever happened this time.
    pub in_trace: bool,
    /// Whether its results count as computed, even if it takes over something that was computed and is kept.
    pub computes: bool,
    /// Whether it takes over a root, and its results succeed that root.
    pub replaces: bool,
    /// The seed to set before it runs.
    pub seed: Option<u64>,
    /// Whether its results, if they are roots, are certainly no parameters.
    pub passing: bool,
    /// Whether its results replace what earlier steps have computed.
    pub state: bool,
}

/// The effect of an operation that takes over a root.
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

/// What the trace needs to know about an operation before it runs.
#[derive(Default)]
pub(super) struct Traced {
    pub inputs: SmallVec<[TracedInput; 4]>,
    pub stub: Option<TracedStub>,
}
