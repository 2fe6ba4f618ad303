//! The figures that chain planners compute with: costs, and the bytes that each operation adds, wherever they come from.
//!
//! A [`Chain`] gives the terms of the report. A chain of stages taken from a graph (see [`views`](crate::views))
//! contains more than the format can express, such as values that both gradients of a stage share. So the terms are a
//! little finer: scratch is separate for `F_all` and for the other forward operations, and one figure covers all that
//! `B` adds.

use super::{Chain, ChainStep, StageId};

/// Costs and sizes of a chain. Boundary `i` is the input of stage `i`.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Cost of each forward operation.
    pub forward_cost: Vec<f64>,
    /// Cost of each backward operation.
    pub backward_cost: Vec<f64>,
    /// Size of boundary `0..=n`, bare.
    pub activation: Vec<u64>,
    /// Size of the saved set of each stage.
    pub saved: Vec<u64>,
    /// Bytes held on the backward side while the backward operation of the stage is the next one due.
    pub gradient: Vec<u64>,
    /// Scratch of the forward operation when it does not save.
    pub pass_scratch: Vec<u64>,
    /// Scratch of the forward operation when it saves.
    pub save_scratch: Vec<u64>,
    /// Bytes during the backward operation besides its saved set and its input.
    pub backward_bytes: Vec<u64>,
}

impl Terms {
    /// The terms of the report, Table 1: `B` holds both gradients.
    pub fn of_chain(chain: &Chain) -> Self {
        let stages = chain.stages();
        let gradient_below =
            |i: StageId| i.checked_sub(1).map_or(chain.input_gradient_bytes(), |j| stages[j].gradient_bytes);
        Self {
            forward_cost: stages.iter().map(|s| s.forward_cost).collect(),
            backward_cost: stages.iter().map(|s| s.backward_cost).collect(),
            activation: std::iter::once(chain.input_bytes()).chain(stages.iter().map(|s| s.activation_bytes)).collect(),
            saved: stages.iter().map(|s| s.saved_bytes).collect(),
            gradient: stages.iter().map(|s| s.gradient_bytes).collect(),
            pass_scratch: stages.iter().map(|s| s.forward_scratch_bytes).collect(),
            save_scratch: stages.iter().map(|s| s.forward_scratch_bytes).collect(),
            backward_bytes: (0..stages.len())
                .map(|i| stages[i].gradient_bytes + gradient_below(i) + stages[i].backward_scratch_bytes)
                .collect(),
        }
    }

    /// Number of stages.
    pub fn len(&self) -> usize {
        self.forward_cost.len()
    }

    /// The same terms in units of `unit` bytes, rounded up.
    pub fn in_units(&self, unit: u64) -> Self {
        self.scaled(|bytes| bytes.div_ceil(unit))
    }

    /// The same terms in units of `unit` bytes, rounded to the nearest unit: peaks computed from them are only estimates.
    pub fn in_nearest_units(&self, unit: u64) -> Self {
        self.scaled(|bytes| bytes.saturating_add(unit / 2) / unit)
    }

    fn scaled(&self, size: impl Fn(u64) -> u64) -> Self {
        let scale = |sizes: &[u64]| sizes.iter().map(|&bytes| size(bytes)).collect();
        Self {
            forward_cost: self.forward_cost.clone(),
            backward_cost: self.backward_cost.clone(),
            activation: scale(&self.activation),
            saved: scale(&self.saved),
            gradient: scale(&self.gradient),
            pass_scratch: scale(&self.pass_scratch),
            save_scratch: scale(&self.save_scratch),
            backward_bytes: scale(&self.backward_bytes),
        }
    }

    /// The largest number of bytes that divides all sizes; 1 if all are 0.
    pub fn common_unit(&self) -> u64 {
        let sizes = [
            &self.activation,
            &self.saved,
            &self.gradient,
            &self.pass_scratch,
            &self.save_scratch,
            &self.backward_bytes,
        ];
        sizes.into_iter().flatten().fold(0, |a, &b| gcd(a, b)).max(1)
    }

    /// Bytes while stage `i` runs forward without saving, counting its input but not the backward side.
    pub fn transit(&self, i: StageId) -> u64 {
        self.activation[i] + self.activation[i + 1] + self.pass_scratch[i]
    }

    /// Like [`transit`](Self::transit), but without the input.
    pub fn departure(&self, i: StageId) -> u64 {
        self.activation[i + 1] + self.pass_scratch[i]
    }

    /// Bytes needed to run stage `s` forward and finally backward while the backward side of `t` is held, not counting
    /// the input of `s` (`m_all` in the report).
    pub fn save_need(&self, s: StageId, t: StageId) -> u64 {
        self.saved[s] + (self.gradient[t] + self.save_scratch[s]).max(self.backward_bytes[s])
    }

    /// Peak of the schedule that saves everything, counting all boundaries.
    pub fn store_all_peak(&self) -> u64 {
        let last = self.len() - 1;
        let mut held = self.activation[0];
        let mut peak = held + self.gradient[last];
        for i in 0..self.len() {
            held += self.saved[i];
            peak = peak.max(held + self.gradient[last] + self.save_scratch[i]);
        }
        for i in (0..self.len()).rev() {
            peak = peak.max(held + self.backward_bytes[i]);
            held -= self.saved[i];
        }
        peak
    }

    /// Bytes that every schedule, persistent or not, holds at some time. The input is held throughout: it cannot be
    /// computed again. Every stage runs forward before the first backward operation.
    pub fn least_bytes(&self) -> u64 {
        let n = self.len();
        let last_gradient = self.gradient[n - 1];
        // The input of a stage in its lighter form; that of stage 0 is added below for all stages.
        let lighter = |i: StageId| i.checked_sub(1).map_or(0, |below| self.activation[i].min(self.saved[below]));
        let mut most = last_gradient;
        let mut least_gradient = u64::MAX;
        for i in (0..n).rev() {
            least_gradient = least_gradient.min(self.gradient[i]);
            let saving = self.saved[i] + self.save_scratch[i];
            let first_run = saving.min(self.activation[i + 1] + self.pass_scratch[i]) + last_gradient;
            let backward = self.saved[i] + self.backward_bytes[i];
            most = most.max(lighter(i) + first_run.max(saving + least_gradient).max(backward));
        }
        self.activation[0] + most
    }

    /// The same terms with every operation free.
    pub fn without_costs(&self) -> Self {
        let free = vec![0.0; self.len()];
        Self { forward_cost: free.clone(), backward_cost: free, ..self.clone() }
    }

    /// Whether stage `i` costs nothing and neither it nor anything around it holds a byte.
    fn is_idle(&self, i: StageId) -> bool {
        let bytes = self.activation[i]
            + self.activation[i + 1]
            + self.saved[i]
            + self.gradient[i]
            + self.pass_scratch[i]
            + self.save_scratch[i]
            + self.backward_bytes[i];
        bytes == 0 && self.forward_cost[i] + self.backward_cost[i] == 0.0
    }

    /// Cost of a list of steps.
    pub fn cost_of(&self, steps: &[ChainStep]) -> f64 {
        let cost = |step: &ChainStep| match *step {
            ChainStep::SaveAll(i) | ChainStep::KeepInput(i) | ChainStep::Pass(i) => self.forward_cost[i],
            ChainStep::Backward(i) => self.backward_cost[i],
            ChainStep::Release(_) => 0.0,
        };
        steps.iter().map(cost).sum()
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A chain whose stages are joined into groups.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    /// Terms of the groups.
    pub terms: Terms,
    /// First stage of each group, followed by the number of stages.
    starts: Vec<StageId>,
}

impl Grouped {
    /// Joins neighbours until at most `groups` are left, with shares of cost and of saved bytes as equal as whole
    /// stages allow. A group runs its stages one after the other and keeps either all of their saved sets or none.
    pub fn of(terms: &Terms, groups: usize) -> Self {
        let n = terms.len();
        let starts = if n <= groups { (0..=n).collect() } else { balanced_starts(terms, groups) };
        Self::at(terms, starts)
    }

    /// Joins each stage that costs and holds nothing with the one after it: the terms, and every optimum, are those of
    /// the chain without such stages.
    pub fn joining_idle(terms: &Terms) -> Self {
        let n = terms.len();
        let starts = (0..=n).filter(|&i| i == 0 || i == n || !terms.is_idle(i - 1)).collect();
        Self::at(terms, starts)
    }

    fn at(terms: &Terms, starts: Vec<StageId>) -> Self {
        let bounds: Vec<(StageId, StageId)> = starts.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let sum = |costs: &[f64], (i, j): (StageId, StageId)| costs[i..j].iter().sum::<f64>();
        let saved = |(i, j): (StageId, StageId)| terms.saved[i..j].iter().sum::<u64>();
        // Bytes of the saved sets before stage `k` of the group, for each `k`.
        let before = |(i, j): (StageId, StageId)| {
            (i..j).scan(0, |held, k| {
                let now = *held;
                *held += terms.saved[k];
                Some((k, now))
            })
        };
        let pass_peak = |(i, j): (StageId, StageId)| {
            (i..j).map(|k| if k == i { terms.departure(k) } else { terms.transit(k) }).max().unwrap_or(0)
        };
        let grouped = Terms {
            forward_cost: bounds.iter().map(|&b| sum(&terms.forward_cost, b)).collect(),
            backward_cost: bounds.iter().map(|&b| sum(&terms.backward_cost, b)).collect(),
            activation: starts.iter().map(|&i| terms.activation[i]).collect(),
            saved: bounds.iter().map(|&b| saved(b)).collect(),
            gradient: bounds.iter().map(|&(_, j)| terms.gradient[j - 1]).collect(),
            pass_scratch: bounds.iter().map(|&b| pass_peak(b).saturating_sub(terms.activation[b.1])).collect(),
            save_scratch: bounds
                .iter()
                .map(|&b| before(b).map(|(k, held)| held + terms.saved[k] + terms.save_scratch[k]).max())
                .zip(&bounds)
                .map(|(peak, &b)| peak.unwrap_or(0).saturating_sub(saved(b)))
                .collect(),
            backward_bytes: bounds
                .iter()
                .map(|&b| before(b).map(|(k, held)| held + terms.saved[k] + terms.backward_bytes[k]).max())
                .zip(&bounds)
                .map(|(peak, &b)| peak.unwrap_or(0).saturating_sub(saved(b)))
                .collect(),
        };
        Self { terms: grouped, starts }
    }

    /// Like [`expand`](Self::expand), for groups [joined with idle stages](Self::joining_idle), in any schedule: what
    /// lies inside a group takes no memory and is kept.
    pub fn expand_idle(&self, steps: &[ChainStep]) -> Vec<ChainStep> {
        self.expand_inside(steps, ChainStep::KeepInput)
    }

    /// Converts steps over the groups into steps over the stages.
    pub fn expand(&self, steps: &[ChainStep]) -> Vec<ChainStep> {
        self.expand_inside(steps, ChainStep::Pass)
    }

    /// Runs the stages of a group after its first forward with `inside`.
    fn expand_inside(&self, steps: &[ChainStep], inside: fn(StageId) -> ChainStep) -> Vec<ChainStep> {
        let mut out = Vec::new();
        for &step in steps {
            let (i, j) = (self.starts[step.stage()], self.starts[step.stage() + 1]);
            match step {
                ChainStep::SaveAll(_) => out.extend((i..j).map(ChainStep::SaveAll)),
                ChainStep::Backward(_) => out.extend((i..j).rev().map(ChainStep::Backward)),
                ChainStep::Release(_) => out.push(ChainStep::Release(i)),
                ChainStep::KeepInput(_) => {
                    out.push(ChainStep::KeepInput(i));
                    out.extend((i + 1..j).map(inside));
                }
                ChainStep::Pass(_) => {
                    out.push(ChainStep::Pass(i));
                    out.extend((i + 1..j).map(inside));
                }
            }
        }
        out
    }
}

/// The first stages of `groups` groups, followed by the number of stages; no group is empty.
fn balanced_starts(terms: &Terms, groups: usize) -> Vec<StageId> {
    let n = terms.len();
    let cost = terms.forward_cost.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let bytes = (terms.saved.iter().sum::<u64>() as f64).max(1.0);
    // A third of the weight each for cost, bytes and the number of stages.
    let weight = |i: StageId| terms.forward_cost[i] / cost + terms.saved[i] as f64 / bytes + 1.0 / n as f64;
    let total: f64 = (0..n).map(weight).sum();
    let mut starts = vec![0];
    let mut done = 0.0;
    for i in 0..n {
        let left = groups - starts.len();
        // Each remaining group needs a stage: if only that many stages are left, each becomes a group.
        if i > starts[starts.len() - 1] && left > 0 {
            let due = done >= total * starts.len() as f64 / groups as f64;
            if due || n - i == left {
                starts.push(i);
            }
        }
        done += weight(i);
    }
    starts.push(n);
    starts
}
