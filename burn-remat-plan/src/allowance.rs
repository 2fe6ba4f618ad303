//! How much time and memory, and how many threads, a piece of work may use.

use std::time::Duration;

use crate::deadline::Deadline;
use crate::memory::default_limit;

/// Limits on time, memory and threads.
#[derive(Clone, Copy)]
pub(crate) struct Allowance {
    pub deadline: Deadline,
    /// Approximate limit on the bytes held at once.
    pub memory: u64,
    pub threads: usize,
}

impl Allowance {
    /// `time` from now, one thread, and a quarter of the free memory.
    pub fn of_time(time: Duration) -> Self {
        Self { deadline: Deadline::after(time), memory: default_limit(), threads: 1 }
    }
}
