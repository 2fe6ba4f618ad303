//! A plan with its times and its memory.

use crate::graph::Graph;
use crate::plan::{Plan, Step};
use crate::simulate::simulate;

/// A valid plan with the time of every step and the bytes held during it.
#[derive(Clone, Debug)]
pub struct Run {
    pub(super) planner: String,
    pub(super) plan: Plan,
    /// Time of each step.
    pub(super) times: Vec<f64>,
    /// Bytes held during each step.
    pub(super) held: Vec<u64>,
    /// Bytes held before the first step.
    pub(super) start: u64,
}

impl Run {
    /// The run of a plan as the graph predicts it. If no op costs anything, each takes one unit of time.
    pub fn new(graph: &Graph, planner: &str, plan: Plan) -> Self {
        let cost = |step: &Step| match *step {
            Step::Compute(op) => graph.ops()[op].cost,
            Step::ComputeAlternative(op, k) => graph.ops()[op].alternatives[k].cost,
            Step::Evict(_) => 0.0,
        };
        let mut times: Vec<f64> = plan.steps.iter().map(cost).collect();
        if times.iter().all(|&time| time == 0.0) {
            times = plan.steps.iter().map(|step| f64::from(u8::from(step.op().is_some()))).collect();
        }
        let inputs: Vec<usize> = graph.inputs().collect();
        let start = graph.constant_bytes() + graph.bytes_of(&inputs);
        let held = simulate(graph, &plan).bytes;
        Self { planner: planner.to_owned(), plan, times, held, start }
    }

    /// The run as a device is known to do it: the time of every step, and the most bytes that the device holds during it.
    /// A graph counts a little more than a device holds, because the device writes some results over their inputs.
    ///
    /// Both have one item for each step of the plan; the items of evictions do not matter.
    #[must_use]
    pub fn on_device(mut self, times: Vec<f64>, most: &[u64]) -> Self {
        self.times = times;
        for (held, &most) in self.held.iter_mut().zip(most) {
            *held = most.min(*held);
        }
        let first = self.plan.steps.iter().position(|step| step.op().is_some());
        if let Some(&most) = first.and_then(|first| most.get(first)) {
            self.start = self.start.min(most);
        }
        self
    }

    /// Most bytes held at once.
    pub fn peak_bytes(&self) -> u64 {
        let of_step = |(step, &held): (&Step, &u64)| step.op().map(|_| held);
        self.plan.steps.iter().zip(&self.held).filter_map(of_step).max().unwrap_or(0).max(self.start)
    }

    /// Time of all steps.
    pub fn makespan(&self) -> f64 {
        self.times.iter().sum()
    }
}
