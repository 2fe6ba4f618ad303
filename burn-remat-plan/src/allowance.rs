//! What a piece of work may take.

use std::time::Duration;

use crate::deadline::Deadline;
use crate::memory::default_limit;

/// Time, bytes and threads.
#[derive(Clone, Copy)]
pub(crate) struct Allowance {
    pub deadline: Deadline,
    /// About the most bytes at once.
    pub memory: u64,
    pub threads: usize,
}

impl Allowance {
    /// So much time from now, one thread, and a quarter of the memory that is free.
    pub fn of_time(time: Duration) -> Self {
        Self { deadline: Deadline::after(time), memory: default_limit(), threads: 1 }
    }
}
