//! What the search for the minimum may take.

use crate::deadline::Deadline;

/// Time, bytes and threads.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub deadline: Deadline,
    pub memory: u64,
    pub threads: usize,
}
