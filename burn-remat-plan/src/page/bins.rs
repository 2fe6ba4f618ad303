//! Memory over time, in a bounded number of bins.
//!
//! A bin is a run of steps that together take at most one part in [`BINS`] of the whole time, or a single longer step. So two
//! neighbours take more than that, and there are at most twice as many bins. For each bin, the highest step is kept with everything
//! that is held during it. Steps that take no time belong to the bin before them, or after them if there is none before.

use crate::graph::{Graph, ValueId};
use crate::plan::Step;

use super::layers::Layers;
use super::model::Bins;
use super::run::Run;
use super::spans::starts;
use super::texts::Names;

/// The number of bins if all were as long as they may be.
const BINS: f64 = 400.0;

/// The bins of a run, and what each of the layers holds in them.
pub(super) fn bins(graph: &Graph, run: &Run, layers: &Layers, names: &mut Names<'_>) -> Bins {
    let mut state = State::new(graph, layers);
    let mut bins = Bins { layers: vec![Vec::new(); layers.count()], ..Bins::default() };
    let mut next = 0;
    for (index, cut) in cuts(graph, run).into_iter().enumerate() {
        let until = cut.highest.map_or(0, |step| step + 1);
        while next < until {
            state.step(run.plan.steps[next]);
            next += 1;
        }
        let op = cut.highest.and_then(|step| run.plan.steps[step].op());
        bins.starts.push(cut.start);
        bins.held.push(cut.held);
        bins.ops.push(op.map(|op| names.op(op)));
        bins.is_again.push(u8::from(cut.is_again));
        bins.again.push(if cut.time > 0.0 { (100.0 * cut.time_again / cut.time).ceil().min(100.0) as u8 } else { 0 });
        bins.count.push(cut.count);
        let scratch = cut.highest.map_or(0, |step| scratch(graph, run.plan.steps[step]));
        let last = layers.count() - 1;
        for (layer, changes) in bins.layers.iter_mut().enumerate() {
            let bytes = if layer == last { scratch } else { state.held[layer] };
            if changes.last().map_or(0, |&(_, bytes)| bytes) != bytes {
                changes.push((index, bytes));
            }
        }
    }
    bins
}

fn scratch(graph: &Graph, step: Step) -> u64 {
    match step {
        Step::Compute(op) => graph.ops()[op].scratch_bytes,
        Step::ComputeAlternative(op, k) => graph.ops()[op].alternatives[k].scratch_bytes,
        Step::Evict(_) => 0,
    }
}

/// A bin without what is held in it.
#[derive(Clone, Debug, Default)]
struct Cut {
    start: u32,
    time: f64,
    time_again: f64,
    count: u32,
    held: u64,
    /// The highest step; `None` for the moment before the first.
    highest: Option<usize>,
    is_again: bool,
}

impl Cut {
    fn absorb(&mut self, next: &Self) {
        if next.held > self.held || self.count == 0 && next.held == self.held {
            (self.held, self.highest, self.is_again) = (next.held, next.highest, next.is_again);
        }
        self.time += next.time;
        self.time_again += next.time_again;
        self.count += next.count;
    }
}

fn cuts(graph: &Graph, run: &Run) -> Vec<Cut> {
    let starts = starts(run);
    let most = run.makespan() / BINS;
    let mut seen = vec![false; graph.ops().len()];
    let mut cuts = vec![Cut { held: run.start, ..Cut::default() }];
    for (at, step) in run.plan.steps.iter().enumerate() {
        let Some(op) = step.op() else { continue };
        let is_again = std::mem::replace(&mut seen[op], true);
        let time = run.times[at];
        let time_again = if is_again { time } else { 0.0 };
        let (start, held) = (starts[at], run.held[at]);
        let next = Cut { start, time, time_again, count: 1, held, highest: Some(at), is_again };
        match cuts.last_mut() {
            Some(last) if last.time == 0.0 || time == 0.0 || last.time + time <= most => last.absorb(&next),
            _ => cuts.push(next),
        }
    }
    cuts
}

/// The resident values, and their bytes by layer.
struct State<'a> {
    graph: &'a Graph,
    layers: &'a Layers,
    resident: Vec<bool>,
    held: Vec<u64>,
}

impl<'a> State<'a> {
    fn new(graph: &'a Graph, layers: &'a Layers) -> Self {
        let (resident, mut held) = (vec![false; graph.values().len()], vec![0; layers.count()]);
        held[0] = graph.constant_bytes();
        let mut state = Self { graph, layers, resident, held };
        graph.inputs().for_each(|value| state.add(value));
        state
    }

    fn add(&mut self, value: ValueId) {
        if !std::mem::replace(&mut self.resident[value], true) {
            self.held[self.layers.of[value]] += self.graph.bytes(value);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Evict(value) => {
                if std::mem::replace(&mut self.resident[value], false) {
                    self.held[self.layers.of[value]] -= self.graph.bytes(value);
                }
            }
            Step::Compute(op) | Step::ComputeAlternative(op, _) => {
                self.graph.ops()[op].outputs.iter().for_each(|&value| self.add(value));
            }
        }
    }
}
