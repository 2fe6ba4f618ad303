//! What a chain plan costs: memory at every step, peak and makespan.
//!
//! One pass over the steps with a running sum. It expects a valid plan and does not decide validity; that is the job
//! of [`check`](super::check()), which shares no code with this file.

use super::{Chain, ChainPlan, ChainStep};

/// Memory over the steps of a chain plan.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainTimeline {
    /// Bytes held during each step; for a release, what remains after it.
    pub bytes: Vec<u64>,
    /// Most bytes held at any step, and at the start.
    pub peak_bytes: u64,
    /// Sum of the costs of all operations run.
    pub makespan: f64,
}

/// Sizes of what a simulation holds.
struct Memory<'a> {
    chain: &'a Chain,
    /// Bytes held for each boundary, 0 if it is not held.
    boundary: Vec<u64>,
    /// Whether a boundary is held as a saved set.
    saved: Vec<bool>,
    held: u64,
}

impl Memory<'_> {
    fn set(&mut self, boundary: usize, bytes: u64, saved: bool) {
        self.held = self.held - self.boundary[boundary] + bytes;
        self.boundary[boundary] = bytes;
        self.saved[boundary] = saved;
    }

    fn gradient_bytes(&self, boundary: usize) -> u64 {
        boundary.checked_sub(1).map_or(self.chain.input_gradient_bytes, |i| self.chain.stages[i].gradient_bytes)
    }

    /// Performs the step and returns the bytes held during it.
    fn run(&mut self, step: ChainStep) -> u64 {
        let i = step.stage();
        let stage = &self.chain.stages[i];
        match step {
            ChainStep::SaveAll(_) => {
                self.set(i + 1, stage.saved_bytes, true);
                self.held + stage.forward_scratch_bytes
            }
            ChainStep::KeepInput(_) | ChainStep::Pass(_) => {
                if !self.saved[i + 1] {
                    self.set(i + 1, stage.activation_bytes, false);
                }
                let during = self.held + stage.forward_scratch_bytes;
                if matches!(step, ChainStep::Pass(_)) {
                    self.set(i, 0, false);
                }
                during
            }
            ChainStep::Backward(_) => {
                self.held += self.gradient_bytes(i);
                let during = self.held + stage.backward_scratch_bytes;
                self.held -= self.gradient_bytes(i + 1);
                self.set(i + 1, 0, false);
                if !self.saved[i] {
                    self.set(i, 0, false);
                }
                during
            }
            ChainStep::Release(_) => {
                self.set(i, 0, false);
                self.held
            }
        }
    }
}

/// Runs through `plan` and records memory and cost. The plan must pass [`check`](super::check()) at some budget.
pub fn simulate(chain: &Chain, plan: &ChainPlan) -> ChainTimeline {
    let n = chain.stages.len();
    let mut memory = Memory { chain, boundary: vec![0; n + 1], saved: vec![false; n + 1], held: 0 };
    memory.set(0, chain.input_bytes, false);
    memory.held += memory.gradient_bytes(n);
    let mut timeline =
        ChainTimeline { bytes: Vec::with_capacity(plan.steps.len()), peak_bytes: memory.held, makespan: 0.0 };
    for &step in &plan.steps {
        let during = memory.run(step);
        timeline.peak_bytes = timeline.peak_bytes.max(during);
        timeline.bytes.push(during);
        timeline.makespan += match step {
            ChainStep::SaveAll(i) | ChainStep::KeepInput(i) | ChainStep::Pass(i) => chain.stages[i].forward_cost,
            ChainStep::Backward(i) => chain.stages[i].backward_cost,
            ChainStep::Release(_) => 0.0,
        };
    }
    timeline
}
