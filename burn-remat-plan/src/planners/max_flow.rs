//! Maximum flow and minimum cut by Dinic's algorithm (1970).
//!
//! Rounds of a breadth-first search for the levels of the residual network and of depth-first searches for paths that
//! climb one level at a time; an arc that led nowhere in a round is not tried again in it. Complexity: O(nodes² · arcs)
//! at worst, far less on layered networks such as training graphs.

use std::collections::VecDeque;

/// More than the sum of all finite capacities: sizes of a graph sum to less than 2^63.
pub(super) const UNLIMITED: u64 = 1 << 63;

/// A network under construction, then its residual.
#[derive(Clone, Default)]
pub(super) struct Network {
    /// Arcs out of each node.
    arcs: Vec<Vec<usize>>,
    to: Vec<usize>,
    /// The remaining capacity of each arc; an arc and its reverse have neighbouring numbers.
    left: Vec<u64>,
}

impl Network {
    /// A network with this many nodes.
    pub fn new(nodes: usize) -> Self {
        Self { arcs: vec![Vec::new(); nodes], ..Self::default() }
    }

    /// Adds an arc.
    pub fn add(&mut self, from: usize, to: usize, capacity: u64) {
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.arcs[from].push(self.to.len());
            self.to.push(to);
            self.left.push(capacity);
        }
    }

    /// Per node: whether it is on the source's side of a cut of least capacity, the one nearest to the source. Every
    /// path from source to target must have an arc that is not [`UNLIMITED`].
    pub fn source_side(mut self, source: usize, target: usize) -> Vec<bool> {
        loop {
            let level = self.levels(source);
            if level[target].is_none() {
                return level.iter().map(Option::is_some).collect();
            }
            let mut next = vec![0; self.arcs.len()];
            while self.augment(source, target, &level, &mut next) {}
        }
    }

    fn levels(&self, source: usize) -> Vec<Option<usize>> {
        let mut level = vec![None; self.arcs.len()];
        level[source] = Some(0);
        let mut queue = VecDeque::from([(source, 0)]);
        while let Some((node, depth)) = queue.pop_front() {
            for &arc in self.arcs[node].iter().filter(|&&arc| self.left[arc] > 0) {
                if level[self.to[arc]].is_none() {
                    level[self.to[arc]] = Some(depth + 1);
                    queue.push_back((self.to[arc], depth + 1));
                }
            }
        }
        level
    }

    /// Fills one path; `false` if there is none.
    fn augment(&mut self, source: usize, target: usize, level: &[Option<usize>], next: &mut [usize]) -> bool {
        let mut path: Vec<usize> = Vec::new();
        loop {
            let node = path.last().map_or(source, |&arc| self.to[arc]);
            if node == target {
                let flow = path.iter().map(|&arc| self.left[arc]).min().unwrap_or(0);
                for arc in path {
                    self.left[arc] -= flow;
                    self.left[arc ^ 1] += flow;
                }
                return true;
            }
            let climbs = |arc: usize| {
                self.left[arc] > 0
                    && level[self.to[arc]].is_some_and(|above| level[node].is_some_and(|l| above == l + 1))
            };
            while next[node] < self.arcs[node].len() && !climbs(self.arcs[node][next[node]]) {
                next[node] += 1;
            }
            match self.arcs[node].get(next[node]) {
                Some(&arc) => path.push(arc),
                None => match path.pop() {
                    Some(arc) => next[self.to[arc ^ 1]] += 1,
                    None => return false,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn a_least_cut_equals_brute_force() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for case in 0..300 {
            let nodes = rng.random_range(2..8_usize);
            let mut network = Network::new(nodes);
            let mut arcs = Vec::new();
            for _ in 0..rng.random_range(0..16) {
                let arc = (rng.random_range(0..nodes), rng.random_range(0..nodes), rng.random_range(0..9_u64));
                network.add(arc.0, arc.1, arc.2);
                arcs.push(arc);
            }
            let capacity = |is_inside: &dyn Fn(usize) -> bool| -> u64 {
                arcs.iter().filter(|arc| is_inside(arc.0) && !is_inside(arc.1)).map(|arc| arc.2).sum()
            };
            let sets = (0..1_u32 << nodes).filter(|set| set & 1 == 1 && set >> (nodes - 1) & 1 == 0);
            let least = sets.map(|set| capacity(&|node| set >> node & 1 == 1)).min();
            let side = network.source_side(0, nodes - 1);
            assert!(side[0] && !side[nodes - 1], "case {case}");
            assert_eq!(Some(capacity(&|node| side[node])), least, "case {case}");
        }
    }
}
