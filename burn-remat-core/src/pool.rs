//! What the device's memory pool holds beyond tensors, and the room that is left for it.
//!
//! The engine counts buffers, rounded up as the pool rounds them. The pool holds a little more: what the backend keeps for its
//! kernels (shapes, strides, scalars). So the pool is read when a step holds most, and what it then holds beyond the engine's
//! buffers is left free from then on, by plans and by the online policy: the budget is one for the pool.
//!
//! More than one part in [`OTHERS`] of the budget is not the backend's housekeeping but other tensors of the process. This
//! device can do nothing about those, and leaves no room for them. It also leaves no room if the budget is so small that the
//! housekeeping takes such a part of it.
//!
//! Reading the pool waits until the device's thread has taken all operations so far. It is done when a step comes close
//! to the most that the last one held, and now and then while the first one grows.

use rustc_hash::FxHashMap;

/// More than one part in this many of the budget belongs to something else.
const OTHERS: u64 = 8;
/// Room is left in steps of one part in this many of the budget, but at least [`SMALLEST`] bytes: a few bytes more or less must
/// not lead to another plan, and a plan on disk is found only for the same room.
const GRID: u64 = 128;
const SMALLEST: u64 = 64 << 10;
/// How close to the most that the last step held: at most one part in this many below it.
const CLOSE: u64 = 16;
/// It is read there at most this many times: a step that follows a plan stays close to its most for long.
const READS: u64 = 4;
/// In a first step the pool is read whenever one part in this many more is held.
const GROWTH: u64 = 4;

/// What is known about the pool.
pub(crate) struct Pool {
    /// The pool is read as soon as this many bytes are held. `None` if the backend does not report it.
    read_at: Option<u64>,
    /// Whether it must be read when the current operation is done.
    due: bool,
    /// Whether there was a step before this one.
    grown: bool,
    /// Most bytes in use, padding included, for the report.
    pub peak: Option<u64>,
    /// Most bytes in use beyond the engine's buffers.
    beside: u64,
    /// The room that was left when each kind of step was planned.
    planned: FxHashMap<u64, u64>,
    /// The number of plans taken up when the pool was last trimmed.
    plans: u64,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            read_at: Some(0),
            due: false,
            grown: false,
            peak: None,
            beside: 0,
            planned: FxHashMap::default(),
            plans: 0,
        }
    }
}

impl Pool {
    /// This many bytes are held during the current operation.
    #[inline]
    pub fn note(&mut self, live: u64) {
        if self.read_at.is_some_and(|at| live >= at) {
            self.due = true;
            self.read_at = Some(live + live / if self.grown { CLOSE * READS } else { GROWTH } + 1);
        }
    }

    /// A step that held `most` bytes has ended.
    pub fn end_step(&mut self, most: u64) {
        self.grown = true;
        self.read_at = self.read_at.map(|_| most - most / CLOSE);
    }

    /// How much of a budget is to be left free.
    pub fn room(&self, budget: u64) -> u64 {
        if self.beside == 0 {
            return 0;
        }
        let grid = (budget / GRID).max(SMALLEST);
        // A quarter more, for what coming steps may add.
        let room = (self.beside + self.beside / 4).div_ceil(grid) * grid;
        if room > budget / OTHERS { 0 } else { room }
    }

    /// Whether the pool must be read now that the current operation is done.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        core::mem::take(&mut self.due)
    }

    /// The pool has `used` bytes in use, if the backend reports them, while `live` bytes are held.
    pub fn read(&mut self, used: Option<u64>, live: u64, budget: Option<u64>) {
        let Some(used) = used else {
            self.read_at = None;
            return;
        };
        self.peak = self.peak.max(Some(used));
        let beside = used.saturating_sub(live);
        if budget.is_none_or(|budget| beside <= budget / OTHERS) {
            self.beside = self.beside.max(beside);
        }
    }

    /// Whether the pool must be trimmed, as for every new plan: the steps before it held more.
    pub fn is_to_be_trimmed(&mut self, plans: u64) -> bool {
        self.read_at.is_some() && core::mem::replace(&mut self.plans, plans) != plans
    }

    /// A kind of step is planned with this much room left.
    pub fn plan_with(&mut self, kind: u64, room: u64) {
        self.planned.insert(kind, room);
    }

    /// Whether the plan for a kind of step, which holds `peak` bytes, now leaves too little room, though it left enough when it was made.
    pub fn outgrows(&self, kind: u64, peak: u64, budget: u64) -> bool {
        let planned = self.planned.get(&kind).copied().unwrap_or(0);
        // A little growth was allowed for.
        self.beside > planned && peak + planned <= budget && peak + self.room(budget) > budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 12_800_000;

    fn room(beside: u64, budget: u64) -> u64 {
        Pool { beside, ..Pool::default() }.room(budget)
    }

    #[test]
    fn room_covers_what_is_beside_tensors_in_steps() {
        assert_eq!(room(0, BUDGET), 0);
        assert_eq!([1, 70_000, 80_000].map(|beside| room(beside, BUDGET)), [100_000; 3]);
        assert_eq!(room(80_001, BUDGET), 200_000);
        assert_eq!(room(20_000, 1 << 20), SMALLEST);
        assert_eq!(room(BUDGET / 8, BUDGET), 0, "that belongs to something else");
        assert_eq!(room(10_000, 120_000), 0, "that is no budget for a GPU");
    }

    #[test]
    fn a_step_that_stays_close_to_its_most_waits_for_few_reads() {
        let mut pool = Pool::default();
        pool.end_step(BUDGET);
        let mut reads = 0;
        for live in BUDGET / 2..=BUDGET {
            pool.note(live);
            reads += u64::from(pool.is_due());
        }
        assert!((2..=READS + 1).contains(&reads), "{reads}");
    }

    #[test]
    fn a_plan_is_outgrown_once() {
        let mut pool = Pool { beside: 90_000, ..Pool::default() };
        assert!(!pool.outgrows(1, BUDGET - 200_000, BUDGET), "it leaves enough");
        assert!(pool.outgrows(1, BUDGET, BUDGET));
        pool.plan_with(2, 200_000);
        assert!(pool.outgrows(1, BUDGET, BUDGET), "only another kind of step was planned");
        pool.plan_with(1, 100_000);
        assert!(!pool.outgrows(1, BUDGET - 100_000, BUDGET), "what was added had been left free");
        assert!(!pool.outgrows(1, BUDGET, BUDGET), "a new plan would hold no less");
    }
}
