//! Recordings of programs: [`RematExt::remat_record`](crate::RematExt::remat_record) writes one, [`RecordedProgram`] reads it and replays it.
//!
//! A file has a JSON object on each line. The first describes the device ([`Header`]). Each of the following is a request of the program
//! ([`Asking`](burn_remat_core::Asking)), in order. If a plan was followed at the end, the last is the graph that was planned (`remat-graph/1`), so that
//! `remat-plan` can plan it too. The book describes the fields. A recording has no data: neither the elements of tensors nor where they came from.
//!
//! A replay needs a machine of the core and no backend. It takes only the time of the machine's decisions.

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
    /// The backend that ran the operations.
    device: String,
    /// In a form that [`Budget`](crate::Budget) can parse.
    budget: String,
    /// Whether random operations were drawn again.
    reseed: bool,
    strict: bool,
    /// `None` for no limit.
    recompute_limit: Option<f64>,
    count_workspaces: bool,
    layout: Layout,
}

/// Whether the memory layout of an operation's results depends on what it writes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Layout {
    Nothing,
    Parts,
    Reuse,
}
