//! The engine of burn-remat: a state machine that decides what to keep, evict and recompute, but does none of it itself.
//!
//! It receives what a program asks for ([`Machine::operation`], uploads, reads, drops, step marks), keeps account of it, and
//! commands a [`Driver`]: run this operation, free that tensor. The return value of a command says what happened. So the same machine
//! trains on a backend, does dry runs without one, predicts what a plan will hold by going through a trace ([`replay`]), and goes through
//! recordings of what another program asked for ([`play`]).
//!
//! There is no backend here, no thread, no clock, no disk and no log: the crate does not use the standard library.
//!
//! | part | question |
//! | --- | --- |
//! | `ledger` | how many bytes are held, and how many could be evicted |
//! | `history` | what could be computed again, and from what |
//! | `steps`, `machine/parameters` | where a training step begins |
//! | `machine/online` | what is evicted when nothing is known of the future |
//! | `machine/planned` | what a plan evicts, keeps and brings back |
//! | `machine` | how an operation passes through all of these |
#![no_std]
#![warn(missing_docs)]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod accounts;
mod carry;
mod counters;
mod differences;
mod driver;
mod facts;
mod follow;
mod history;
mod keys;
mod ledger;
mod machine;
mod passes;
mod player;
mod pool;
mod recording;
mod replay;
mod reuse;
mod room;
mod schedule;
mod slice;
mod sound;
mod spine;
mod stages;
mod steps;
mod threads;
mod trace;
mod tracer;

pub use counters::{AlternativeCounts, Counters, Most, StageCounts, Times};
pub use driver::{
    Buffer, Circumstances, Compressible, Driver, Event, Followed, LayoutFollows, Left, Limits, Mended, OpKey, Planning,
    Ran, Reused, Run, Source, Substitute, World,
};
pub use facts::{
    Alternative, CheckpointPolicy, Failure, Input, Kind, Nature, Need, Operation, Rule, TensorFacts, TensorId, ThreadId,
};
pub use machine::{Asked, Config, Holdings, Machine};
pub use player::{Player, play};
pub use recording::{Asking, Made, Misfit, OperationCall, Recorder, Recording};
pub use replay::replay;
pub use schedule::{Action, Foreseen, Schedule};
pub use spine::Spine;
pub use stages::Entered;
pub use trace::{
    Between, Number, Place, Position, Trace, TracedForm, TracedOp, TracedStorage, TracedStub, TracedTensor, Visit,
    extend,
};
