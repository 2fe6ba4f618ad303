//! One pass over the program that evicts when memory runs out: the seeds of the search, and the upper half of
//! [`minimum`](crate::minimum()).
//!
//! Before each first computation the missing inputs are made resident by running the ops that lead to them. That list
//! of ops (its *closure*) is fixed before it runs, and whatever it still needs is pinned, so that a pass ends after at
//! most n closures of n ops. If the closure would not fit, two others are tried: one depth first instead of in program
//! order, and one that relies only on roots and on what the op itself holds. The value that is evicted is the one with the
//! least `cost to recover / (bytes * distance to next use)`, with exponents that the caller varies.
//!
//! A root (an input, or an output of an op that must not run again) is evicted only when it has no direct use left and
//! every value still needed can do without it.
//!
//! Complexity: O(steps * resident values) in the worst case; `Policy::step_limit` caps the steps.

use crate::deadline::{Deadline, Patience};
use crate::graph::{Graph, OpId, ValueId};

/// How values are chosen for eviction, and how long a pass may get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Exponent of the cost to recover a value.
    pub cost: f64,
    /// Exponent of the distance to the next use.
    pub distance: f64,
    /// Most computations.
    pub step_limit: usize,
}

/// A compute order that fits in `budget`, or `None` if this policy finds none by `deadline`.
pub(crate) fn construct(graph: &Graph, budget: u64, policy: Policy, deadline: Deadline) -> Option<Vec<OpId>> {
    let mut pass = Pass::new(graph, budget, policy, deadline);
    // The start state counts every input, whatever a plan does.
    if pass.held > budget {
        return None;
    }
    for op in 0..graph.ops().len() {
        pass.advance(Some(op))?;
    }
    pass.advance(None)?;
    Some(pass.order)
}

/// `powf` with the usual exponents taken out: this is the innermost loop.
fn power(base: f64, exponent: f64) -> f64 {
    match exponent {
        0.0 => 1.0,
        1.0 => base,
        _ => base.powf(exponent),
    }
}

const NEVER: usize = usize::MAX;
/// About how many of the resident values are considered for an eviction.
const SAMPLE: usize = 400;

struct Pass<'g> {
    graph: &'g Graph,
    budget: u64,
    policy: Policy,
    patience: Patience,
    order: Vec<OpId>,
    held: u64,
    resident: Vec<bool>,
    /// The resident values, in no order that matters.
    list: Vec<ValueId>,
    place: Vec<usize>,
    pins: Vec<u32>,
    /// Index into `consumers(v)` of the first use that is still ahead.
    ahead: Vec<usize>,
    /// Cost to recover a value, as of its eviction.
    recover: Vec<f64>,
    /// Whether a root has been evicted while something was still derived from it.
    lost_root: bool,
    now: OpId,
}

impl<'g> Pass<'g> {
    fn new(graph: &'g Graph, budget: u64, policy: Policy, deadline: Deadline) -> Self {
        let count = graph.values().len();
        let mut pass = Self {
            graph,
            budget,
            policy,
            patience: Patience::until(deadline),
            order: Vec::with_capacity(graph.ops().len()),
            held: graph.constant_bytes(),
            resident: vec![false; count],
            list: Vec::new(),
            place: vec![NEVER; count],
            pins: vec![0; count],
            ahead: vec![0; count],
            recover: vec![0.0; count],
            lost_root: false,
            now: 0,
        };
        for value in graph.inputs() {
            pass.add(value);
        }
        pass
    }

    fn add(&mut self, value: ValueId) {
        if !std::mem::replace(&mut self.resident[value], true) {
            self.held += self.graph.bytes(value);
            self.place[value] = self.list.len();
            self.list.push(value);
        }
    }

    fn remove(&mut self, value: ValueId) {
        self.recover[value] = self.cost_to_recover(value);
        self.resident[value] = false;
        self.held -= self.graph.bytes(value);
        let at = self.place[value];
        self.list.swap_remove(at);
        if let Some(&moved) = self.list.get(at) {
            self.place[moved] = at;
        }
        self.place[value] = NEVER;
    }

    fn cost_to_recover(&self, value: ValueId) -> f64 {
        let Some(id) = self.graph.producer(value) else { return 0.0 };
        let op = &self.graph.ops()[id];
        op.cost + op.inputs.iter().filter(|&&w| !self.resident[w]).map(|&w| self.recover[w]).sum::<f64>()
    }

    /// The next op, from `now` on, that uses `value` for its first computation.
    fn next_use(&mut self, value: ValueId) -> usize {
        let consumers = self.graph.consumers(value);
        let ahead = &mut self.ahead[value];
        while consumers.get(*ahead).is_some_and(|&op| op < self.now) {
            *ahead += 1;
        }
        match consumers.get(*ahead) {
            Some(&op) => op,
            None if self.graph.is_result(value) => self.graph.ops().len(),
            None => NEVER,
        }
    }

    /// Runs `op` for the first time, or at the end (`None`) makes the results resident.
    fn advance(&mut self, op: Option<OpId>) -> Option<()> {
        let graph = self.graph;
        self.now = op.unwrap_or(graph.ops().len());
        let targets = self.targets(op);
        let work = self.choose_closure(op)?;
        if self.patience.is_over(64 * work.len()) {
            return None;
        }
        let needs = |id: OpId| graph.ops()[id].inputs.iter();
        for &value in targets.iter().chain(work.iter().flat_map(|&id| needs(id))) {
            self.pins[value] += 1;
        }
        for &id in &work {
            let wanted = graph.ops()[id].outputs.iter().any(|&v| !self.resident[v] && self.pins[v] > 0);
            if wanted {
                self.compute(id)?;
            }
            for &value in needs(id) {
                self.pins[value] -= 1;
            }
        }
        if let Some(op) = op {
            self.compute(op)?;
            self.drop_useless(op);
        }
        for &value in targets {
            self.pins[value] -= 1;
        }
        Some(())
    }

    fn targets(&self, op: Option<OpId>) -> &'g [ValueId] {
        op.map_or(self.graph.results(), |op| &self.graph.ops()[op].inputs)
    }

    /// Evicts inputs and outputs of `op` that nothing can use.
    fn drop_useless(&mut self, op: OpId) {
        let graph = self.graph;
        for &value in graph.ops()[op].outputs.iter().chain(&graph.ops()[op].inputs) {
            if self.resident[value] && graph.consumers(value).is_empty() && !graph.is_result(value) {
                self.remove(value);
            }
        }
    }

    fn compute(&mut self, id: OpId) -> Option<()> {
        if self.order.len() >= self.policy.step_limit {
            return None;
        }
        let op = &self.graph.ops()[id];
        let new: u64 = op.outputs.iter().filter(|&&v| !self.resident[v]).map(|&v| self.graph.bytes(v)).sum();
        for &v in op.outputs.iter().chain(&op.inputs) {
            self.pins[v] += 1;
        }
        let room = self.make_room(new + op.scratch_bytes);
        for &v in op.outputs.iter().chain(&op.inputs) {
            self.pins[v] -= 1;
        }
        if !room || op.inputs.iter().any(|&v| !self.resident[v]) {
            return None;
        }
        for &value in &op.outputs {
            self.add(value);
        }
        self.order.push(id);
        Some(())
    }

    fn make_room(&mut self, extra: u64) -> bool {
        while self.held + extra > self.budget {
            // Looking for a root takes longest, since it means checking what can do without it.
            let weight = if self.lost_root { self.resident.len() } else { self.list.len().min(SAMPLE) };
            if self.patience.is_over(weight) {
                return false;
            }
            let Some(victim) = self.victim() else { return false };
            if self.graph.is_root(victim) {
                self.lost_root = true;
            }
            self.remove(victim);
        }
        true
    }

    fn victim(&mut self) -> Option<ValueId> {
        // A long list is sampled, from a different place each time.
        let stride = self.list.len() / SAMPLE + 1;
        let start = self.order.len() % stride;
        self.victim_of(start, stride).or_else(|| self.victim_of(0, 1)).or_else(|| self.root_victim())
    }

    /// The value with the least score among every `stride`-th of the list.
    fn victim_of(&mut self, start: usize, stride: usize) -> Option<ValueId> {
        let mut best: Option<(f64, ValueId)> = None;
        for at in (start..self.list.len()).step_by(stride) {
            let value = self.list[at];
            let bytes = self.graph.bytes(value);
            if self.pins[value] > 0 || bytes == 0 || self.graph.is_root(value) {
                continue;
            }
            let next = self.next_use(value);
            let distance = if next == NEVER { self.graph.ops().len() * 2 } else { next - self.now.min(next) } + 1;
            let score = power(self.cost_to_recover(value) + 1e-9, self.policy.cost)
                / (bytes as f64 * power(distance as f64, self.policy.distance));
            if best.is_none_or(|(least, id)| (score, value) < (least, id))
                && (!self.lost_root || next == NEVER && !self.needed_somewhere(value) || self.can_do_without(value))
            {
                best = Some((score, value));
            }
        }
        best.map(|(_, value)| value)
    }

    fn root_victim(&mut self) -> Option<ValueId> {
        let mut roots: Vec<ValueId> = self.list.iter().copied().filter(|&v| self.graph.is_root(v)).collect();
        roots.sort_by_key(|&v| (std::cmp::Reverse(self.graph.bytes(v)), v));
        roots.into_iter().find(|&v| {
            self.pins[v] == 0
                && self.graph.bytes(v) > 0
                && self.next_use(v) == NEVER
                && (!self.needed_somewhere(v) || self.all_can_do_without(v))
        })
    }

    /// Whether any value derived from `value` by one op is still to be used: a cheap sign that `value` may be needed again.
    fn needed_somewhere(&self, value: ValueId) -> bool {
        !self.graph.consumers(value).is_empty()
    }

    /// Whether `value` could be computed again from the other resident values.
    fn can_do_without(&self, value: ValueId) -> bool {
        let mut seen = vec![false; self.graph.values().len()];
        self.recoverable(value, value, &mut seen)
    }

    /// `seen` marks values already shown to be recoverable.
    fn recoverable(&self, value: ValueId, without: ValueId, seen: &mut [bool]) -> bool {
        let mut stack = vec![value];
        while let Some(v) = stack.pop() {
            if seen[v] || (self.resident[v] && v != without) {
                continue;
            }
            seen[v] = true;
            let Some(id) = self.graph.producer(v) else { return false };
            if !self.graph.ops()[id].recomputable {
                return false;
            }
            stack.extend_from_slice(&self.graph.ops()[id].inputs);
        }
        true
    }

    fn all_can_do_without(&self, value: ValueId) -> bool {
        let graph = self.graph;
        let mut seen = vec![false; graph.values().len()];
        let produced = |v: ValueId| graph.producer(v).is_none_or(|op| op < self.now);
        let wanted = |v: ValueId| {
            graph.consumers(v).last().is_some_and(|&op| op >= self.now) || graph.is_result(v) || self.pins[v] > 0
        };
        (0..graph.values().len())
            .filter(|&v| produced(v) && wanted(v) && !self.resident[v])
            .all(|v| self.recoverable(v, value, &mut seen))
    }

    /// The ops to run before `op`, in an order whose peak fits if everything else that can be evicted is.
    fn choose_closure(&self, op: Option<OpId>) -> Option<Vec<OpId>> {
        let targets = self.targets(op);
        if targets.iter().all(|&v| self.resident[v]) {
            return Some(Vec::new());
        }
        let trusted = |v: ValueId| self.resident[v];
        let frugal = |v: ValueId| {
            self.resident[v] && (self.graph.is_root(v) || targets.binary_search(&v).is_ok() || self.lost_root)
        };
        let depth_first = self.closure(targets, trusted)?;
        let mut ascending = depth_first.clone();
        ascending.sort_unstable();
        let fits = |work: &[OpId]| self.least_peak(work, op) <= self.budget;
        if fits(&ascending) {
            return Some(ascending);
        }
        if fits(&depth_first) {
            return Some(depth_first);
        }
        let depth_first = self.closure(targets, frugal)?;
        let mut ascending = depth_first.clone();
        ascending.sort_unstable();
        [ascending, depth_first].into_iter().find(|work| fits(work))
    }

    /// The ops that lead from the values `trusted` to `targets`, depth first; `None` if one of them may not run again.
    fn closure(&self, targets: &[ValueId], trusted: impl Fn(ValueId) -> bool) -> Option<Vec<OpId>> {
        let ops = self.graph.ops();
        let mut state = std::collections::BTreeMap::<OpId, bool>::new();
        let mut work = Vec::new();
        let missing =
            |inputs: &[ValueId]| -> Vec<ValueId> { inputs.iter().copied().filter(|&v| !trusted(v)).collect() };
        let mut stack = Vec::new();
        for &target in targets {
            if !trusted(target) {
                stack.push(self.graph.producer(target)?);
            }
            while let Some(&id) = stack.last() {
                if !ops[id].recomputable {
                    return None;
                }
                match state.insert(id, true) {
                    None => {
                        for value in missing(&ops[id].inputs) {
                            stack.push(self.graph.producer(value)?);
                        }
                        // From now on `true` means: visited; the op is listed when it is on top again.
                        state.insert(id, false);
                    }
                    Some(false) => {
                        stack.pop();
                        work.push(id);
                    }
                    Some(true) => {
                        stack.pop();
                    }
                }
            }
        }
        Some(work)
    }

    /// The peak of running `work` and then `op` if everything that can be evicted is evicted as soon as possible.
    fn least_peak(&self, work: &[OpId], op: Option<OpId>) -> u64 {
        let graph = self.graph;
        let ops = graph.ops();
        let mut uses = std::collections::BTreeMap::<ValueId, u32>::new();
        for &value in self.targets(op) {
            *uses.entry(value).or_default() += 1;
        }
        for &id in work {
            for &value in &ops[id].inputs {
                *uses.entry(value).or_default() += 1;
            }
        }
        let stays = |v: ValueId| {
            self.graph.is_root(v)
                && (self.graph.consumers(v).last().is_some_and(|&c| c >= self.now) || self.graph.is_result(v))
        };
        let mut here: std::collections::BTreeSet<ValueId> =
            self.list.iter().copied().filter(|v| uses.contains_key(v) || stays(*v)).collect();
        let mut held = graph.constant_bytes() + here.iter().map(|&v| graph.bytes(v)).sum::<u64>();
        let mut peak = held;
        for &id in work.iter().chain(&op) {
            for &value in &ops[id].outputs {
                if here.insert(value) {
                    held += graph.bytes(value);
                }
            }
            peak = peak.max(held + ops[id].scratch_bytes);
            for &value in &ops[id].inputs {
                let left = uses.get_mut(&value).map_or(0, |n| {
                    *n -= 1;
                    *n
                });
                if left == 0 && !stays(value) && here.remove(&value) {
                    held -= graph.bytes(value);
                }
            }
            for &value in &ops[id].outputs {
                if uses.get(&value).is_none_or(|&n| n == 0) && !stays(value) && here.remove(&value) {
                    held -= graph.bytes(value);
                }
            }
        }
        peak
    }
}
