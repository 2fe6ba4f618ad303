//! A list of instances with the memory at each: the order of a search, in blocks.
//!
//! A block holds at most [`CAP`] instances. It knows the most and the least memory of its positions, and what was added
//! to all of them: so adding to a long range costs constant time for every block that stays wholly within the budget,
//! or wholly over it. Instances are compared by labels, 64-bit numbers that grow along the list; the label of a new one lies
//! midway between those of its neighbours, and if there is little room between them, all labels are spread again.
//!
//! Invariants: a block's `lazy` plus `memory[i]` is the memory while `slots[i]` runs; `over` is the sum over all positions
//! above the budget of the bytes above it and `step`; only an empty list has an empty block.
//!
//! Complexity: O(CAP + length / CAP) for each operation, and O(length) when labels or blocks are rebuilt.

/// Number of an instance.
pub(crate) type Instance = u32;

/// Stands before everything: the inputs of the graph are computed there.
pub(crate) const START: Instance = 0;
/// Stands after everything: the results of the graph are used there.
pub(crate) const END: Instance = 1;

/// The most instances of a block.
const CAP: usize = 32;

/// A block and an index in it, or one past its last.
type Place = (usize, usize);

#[derive(Clone)]
struct Block {
    lazy: i64,
    most: i64,
    least: i64,
    over: i64,
    body: u32,
    len: u32,
}

#[derive(Clone)]
struct Body {
    slots: [Instance; CAP],
    memory: [i64; CAP],
}

/// The list.
#[derive(Clone)]
pub(super) struct Blocks {
    budget: i64,
    /// What a position over the budget counts in `over` besides its excess bytes.
    step: i64,
    blocks: Vec<Block>,
    bodies: Vec<Body>,
    /// Per body its block's place in the list.
    rank: Vec<u32>,
    /// Bodies that are not in use.
    spare: Vec<u32>,
    len: usize,
    body_of: Vec<u32>,
    label: Vec<u64>,
    pub over: i64,
}

/// What a position counts that is this many bytes above the budget.
fn excess(bytes: i64, step: i64) -> i64 {
    if bytes > 0 { bytes + step } else { 0 }
}

impl Blocks {
    pub fn new(budget: i64, step: i64) -> Self {
        Self {
            budget,
            step,
            blocks: Vec::new(),
            bodies: Vec::new(),
            rank: Vec::new(),
            spare: Vec::new(),
            len: 0,
            body_of: Vec::new(),
            label: Vec::new(),
            over: 0,
        }
    }

    /// Replaces the list with the instances 2, 3, .. and their `memory`.
    pub fn load(&mut self, memory: &[i64]) {
        let count = memory.len() + 2;
        self.body_of = vec![u32::MAX; count];
        self.label = vec![0; count];
        self.label[END as usize] = u64::MAX;
        let order: Vec<Instance> = (2..count as u32).collect();
        self.fill(&order, memory);
    }

    /// Makes room for one more number of an instance.
    pub fn grow(&mut self) {
        self.body_of.push(u32::MAX);
        self.label.push(0);
    }

    /// Rebuilds the blocks, three quarters full, and spreads the labels.
    fn fill(&mut self, order: &[Instance], memory: &[i64]) {
        self.blocks.clear();
        self.bodies.clear();
        self.rank.clear();
        self.spare.clear();
        self.len = order.len();
        self.over = 0;
        let size = CAP * 3 / 4;
        let parts = order.chunks(size).zip(memory.chunks(size));
        for (slots, memory) in parts {
            let rank = self.blocks.len();
            let mut body = Body { slots: [START; CAP], memory: [0; CAP] };
            body.slots[..slots.len()].copy_from_slice(slots);
            body.memory[..slots.len()].copy_from_slice(memory);
            for &instance in slots {
                self.body_of[instance as usize] = rank as u32;
            }
            self.bodies.push(body);
            self.rank.push(rank as u32);
            self.blocks.push(Block { lazy: 0, most: 0, least: 0, over: 0, body: rank as u32, len: slots.len() as u32 });
            self.recount(rank);
        }
        self.spread_labels();
    }

    fn spread_labels(&mut self) {
        let step = u64::MAX / (self.len as u64 + 1);
        let mut label = 0;
        for block in &self.blocks {
            for &instance in &self.bodies[block.body as usize].slots[..block.len as usize] {
                label += step;
                self.label[instance as usize] = label;
            }
        }
    }

    /// Rebuilds the blocks if too many have become small.
    pub fn compact(&mut self) {
        if self.blocks.len() > 8 + 4 * self.len / CAP {
            let order = self.order();
            let memory = self.profile();
            self.fill(&order, &memory);
        }
    }

    /// The instances in order.
    pub fn order(&self) -> Vec<Instance> {
        let parts = self.blocks.iter();
        parts.flat_map(|b| &self.bodies[b.body as usize].slots[..b.len as usize]).copied().collect()
    }

    /// The memory at every position.
    pub fn profile(&self) -> Vec<i64> {
        (0..self.blocks.len()).flat_map(|rank| self.memory_of(rank)).collect()
    }

    fn memory_of(&self, rank: usize) -> impl Iterator<Item = i64> {
        let block = &self.blocks[rank];
        self.bodies[block.body as usize].memory[..block.len as usize].iter().map(|m| m + block.lazy)
    }

    /// Recomputes a block's aggregates.
    fn recount(&mut self, rank: usize) {
        let block = &mut self.blocks[rank];
        let budget = self.budget - block.lazy;
        let (mut most, mut least, mut over) = (i64::MIN / 2, i64::MAX / 2, 0);
        for &memory in &self.bodies[block.body as usize].memory[..block.len as usize] {
            most = most.max(memory);
            least = least.min(memory);
            over += excess(memory - budget, self.step);
        }
        self.over += over - block.over;
        block.over = over;
        (block.most, block.least) = (most + block.lazy, least + block.lazy);
    }

    /// A number that orders instances: that of an earlier instance is smaller.
    pub fn label(&self, instance: Instance) -> u64 {
        self.label[instance as usize]
    }

    fn place(&self, instance: Instance) -> Place {
        if instance == END {
            return self.blocks.last().map_or((0, 0), |block| (self.blocks.len() - 1, block.len as usize));
        }
        let body = self.body_of[instance as usize];
        let rank = self.rank[body as usize] as usize;
        let slots = &self.bodies[body as usize].slots[..self.blocks[rank].len as usize];
        (rank, slots.iter().position(|&i| i == instance).unwrap_or(0))
    }

    fn behind(&self, instance: Instance) -> Place {
        if instance == START {
            return (0, 0);
        }
        let (rank, index) = self.place(instance);
        (rank, index + 1)
    }

    /// The instance before a place; [`START`] if there is none.
    fn preceding(&self, (rank, index): Place) -> Instance {
        let slot = |rank: usize, index: usize| self.bodies[self.blocks[rank].body as usize].slots[index];
        match (index, rank) {
            (0, 0) => START,
            (0, _) => slot(rank - 1, self.blocks[rank - 1].len as usize - 1),
            _ => slot(rank, index - 1),
        }
    }

    /// The instance at a place; [`END`] if there is none.
    fn following(&self, (rank, index): Place) -> Instance {
        match self.blocks.get(rank) {
            Some(block) if index < block.len as usize => self.bodies[block.body as usize].slots[index],
            _ => self.blocks.get(rank + 1).map_or(END, |block| self.bodies[block.body as usize].slots[0]),
        }
    }

    /// The instance `steps` further on, or back if negative, but not beyond the ends.
    pub fn near(&self, instance: Instance, steps: i32) -> Instance {
        let mut at = instance;
        for _ in 0..steps.abs() {
            let place = self.place(at);
            let next = if steps < 0 { self.preceding(place) } else { self.following((place.0, place.1 + 1)) };
            if next == START || next == END {
                break;
            }
            at = next;
        }
        at
    }

    /// One of the instances in the blocks around `instance`, chosen by `number`.
    pub fn around(&self, instance: Instance, number: usize) -> Instance {
        let rank = self.place(instance).0;
        let blocks = &self.blocks[rank.saturating_sub(1)..(rank + 2).min(self.blocks.len())];
        let mut index = number % blocks.iter().map(|block| block.len as usize).sum::<usize>();
        for block in blocks {
            let len = block.len as usize;
            if index < len {
                return self.bodies[block.body as usize].slots[index];
            }
            index -= len;
        }
        instance
    }

    /// The instance after `instance`.
    pub fn after(&self, instance: Instance) -> Instance {
        self.following(self.behind(instance))
    }

    /// The memory while `instance` runs.
    pub fn memory(&self, instance: Instance) -> i64 {
        let (rank, index) = self.place(instance);
        let block = &self.blocks[rank];
        self.bodies[block.body as usize].memory[index] + block.lazy
    }

    /// The first instance over the budget from `instance` on, wrapping around at the end.
    pub fn first_over(&self, instance: Instance) -> Option<Instance> {
        let (rank, index) = self.place(instance);
        let count = self.blocks.len();
        for step in 0..=count {
            let at = (rank + step) % count;
            let block = &self.blocks[at];
            if block.over == 0 {
                continue;
            }
            let from = if step == 0 { index } else { 0 };
            let body = &self.bodies[block.body as usize];
            let budget = self.budget - block.lazy;
            if let Some(found) = body.memory[from..block.len as usize].iter().position(|&m| m > budget) {
                return Some(body.slots[from + found]);
            }
        }
        None
    }

    /// The most memory after `before` and before `until`; 0 if nothing is between.
    pub fn most_between(&self, before: Instance, until: Instance) -> i64 {
        let (from, to) = (self.behind(before), self.place(until));
        let mut most = 0;
        let (mut rank, mut index) = from;
        while (rank, index) < to {
            let block = &self.blocks[rank];
            let end = if rank == to.0 { to.1 } else { block.len as usize };
            if index == 0 && end == block.len as usize {
                most = most.max(block.most);
            } else if index < end {
                let memory = &self.bodies[block.body as usize].memory[index..end];
                most = most.max(memory.iter().copied().max().unwrap_or(0) + block.lazy);
            }
            (rank, index) = (rank + 1, 0);
        }
        most
    }

    /// Adds to the memory of all positions after `before` and before `until`.
    pub fn add(&mut self, before: Instance, until: Instance, bytes: i64) {
        if bytes == 0 {
            return;
        }
        let ((mut rank, mut index), to) = (self.behind(before), self.place(until));
        while (rank, index) < to {
            let len = self.blocks[rank].len as usize;
            let end = if rank == to.0 { to.1 } else { len };
            if index == 0 && end == len {
                self.add_to_block(rank, bytes);
            } else if index < end {
                let body = self.blocks[rank].body as usize;
                self.bodies[body].memory[index..end].iter_mut().for_each(|memory| *memory += bytes);
                self.recount(rank);
            }
            (rank, index) = (rank + 1, 0);
        }
    }

    /// Adds to the memory while `instance` runs.
    pub fn add_at(&mut self, instance: Instance, bytes: i64) {
        if bytes != 0 {
            let (rank, index) = self.place(instance);
            let body = self.blocks[rank].body as usize;
            self.bodies[body].memory[index] += bytes;
            self.recount(rank);
        }
    }

    fn add_to_block(&mut self, rank: usize, bytes: i64) {
        let budget = self.budget;
        let block = &mut self.blocks[rank];
        block.lazy += bytes;
        let stays_within = block.most.max(block.most + bytes) <= budget;
        let stays_over = block.least.min(block.least + bytes) > budget;
        if !stays_within && !stays_over {
            self.recount(rank);
            return;
        }
        block.most += bytes;
        block.least += bytes;
        if !stays_within {
            let change = bytes * i64::from(block.len);
            block.over += change;
            self.over += change;
        }
    }

    /// Puts a new instance into a block and gives it a label.
    pub fn put(&mut self, instance: Instance, target: Instance, memory: i64) {
        let (mut rank, mut index) = self.place(target);
        if self.blocks[rank].len as usize == CAP {
            self.split(rank);
            (rank, index) = self.place(target);
        }
        let block = &mut self.blocks[rank];
        let body = &mut self.bodies[block.body as usize];
        let len = block.len as usize;
        body.slots.copy_within(index..len, index + 1);
        body.memory.copy_within(index..len, index + 1);
        body.slots[index] = instance;
        body.memory[index] = memory - block.lazy;
        block.len += 1;
        block.most = block.most.max(memory);
        block.least = block.least.min(memory);
        let over = excess(memory - self.budget, self.step);
        block.over += over;
        self.over += over;
        self.len += 1;
        self.body_of[instance as usize] = block.body;
        let (low, high) = (self.label(self.preceding((rank, index))), self.label(target));
        self.label[instance as usize] = low + (high - low) / 2;
        // A label in between needs room on both sides, for `span_behind`.
        if high - low < 4 {
            self.spread_labels();
        }
    }

    fn split(&mut self, rank: usize) {
        let half = CAP / 2;
        let new = self.spare.pop().unwrap_or_else(|| {
            self.bodies.push(Body { slots: [START; CAP], memory: [0; CAP] });
            self.rank.push(0);
            self.bodies.len() as u32 - 1
        });
        let block = self.blocks[rank].clone();
        let old = self.bodies[block.body as usize].clone();
        let body = &mut self.bodies[new as usize];
        body.slots[..CAP - half].copy_from_slice(&old.slots[half..]);
        body.memory[..CAP - half].copy_from_slice(&old.memory[half..]);
        for &instance in &old.slots[half..] {
            self.body_of[instance as usize] = new;
        }
        self.blocks[rank].len = half as u32;
        self.blocks.insert(rank + 1, Block { body: new, len: (CAP - half) as u32, over: 0, ..block });
        self.number_blocks(rank + 1);
        self.recount(rank);
        self.recount(rank + 1);
    }

    fn number_blocks(&mut self, from: usize) {
        for (rank, block) in self.blocks.iter().enumerate().skip(from) {
            self.rank[block.body as usize] = rank as u32;
        }
    }

    /// Takes an instance out of its block.
    pub fn take(&mut self, instance: Instance) {
        let (rank, index) = self.place(instance);
        let block = &mut self.blocks[rank];
        let body = &mut self.bodies[block.body as usize];
        let len = block.len as usize;
        let memory = body.memory[index] + block.lazy;
        body.slots.copy_within(index + 1..len, index);
        body.memory.copy_within(index + 1..len, index);
        block.len -= 1;
        self.len -= 1;
        let over = excess(memory - self.budget, self.step);
        block.over -= over;
        self.over -= over;
        let (extreme, empty) = (memory == block.most || memory == block.least, block.len == 0);
        if empty && self.blocks.len() > 1 {
            self.spare.push(self.blocks.remove(rank).body);
            self.number_blocks(rank);
        } else if extreme {
            self.recount(rank);
        }
    }
}
