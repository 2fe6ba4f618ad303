//! Recordings of programs: [`RematExt::remat_record`](crate::RematExt::remat_record) writes one, [`RecordedProgram`] reads it and replays it.
//!
//! A file has a JSON object on each line. The first says what the device was ([`Header`]); each further one is something that the program asked for
//! ([`Asking`](burn_remat_core::Asking)), in order; and the last, where a plan was followed at the end, is the graph that was planned
//! (`remat-graph/1`), so that `remat-plan` plans it too. The guide describes the fields. There is no data in it: neither the numbers of tensors
//! nor where they came from.
//!
//! Playing back takes a machine of the core and no backend, and is as fast as the machine decides.

mod played;
mod read;
mod write;

use serde::{Deserialize, Serialize};

pub use played::ReplayReport;
pub use read::{RecordedProgram, RecordingError};
pub(crate) use write::Writer;

/// The device on which a program was recorded: the first line of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    /// Of this library.
    version: String,
    /// The backend below.
    device: String,
    /// As [`Budget`](crate::Budget) reads it.
    budget: String,
    /// Whether random operations were drawn again.
    reseed: bool,
    strict: bool,
    /// `None` for no limit.
    recompute_limit: Option<f64>,
    count_workspaces: bool,
    layout: Layout,
}

/// Whether what an operation writes over decides how its results lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Layout {
    Nothing,
    Parts,
    Reuse,
}
