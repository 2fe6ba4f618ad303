//! The division tree: a forward graph as nested independent segments (definitions 1 to 6, algorithms 2 to 4).
//!
//! A segment has two ends and an interior that touches nothing else. It is one of
//!
//! | paper | here | its parts |
//! | --- | --- | --- |
//! | single tensors | [`Kind::Edge`] | none: the interior is empty |
//! | linear IS | [`Kind::Linear`] | between one splitting vertex and the next |
//! | branch IS | [`Kind::Branch`] | the connected pieces of the interior |
//! | complicated IS | [`Kind::Complicated`] | its largest proper segments |
//!
//! A vertex splits a segment where no edge jumps over its place in topological order: all other vertices then come
//! before or after it on every path, whatever the order. In a complicated segment, two ends *k* before *t* bound a
//! proper segment if a connected piece between them touches only *k* and *t*. Two such segments that overlap are
//! nested, else their union would make the whole linear; so with *k* ascending and, for each piece, *t* descending,
//! every segment found first is a largest one. Its first vertex reads only *k* and its last is read only by *t*, which
//! rules out most pairs. A vertex inside no proper segment is a *joint*: when the segment has any checkpoint inside,
//! every joint must be one.

use super::dag::Dag;
use crate::deadline::Deadline;

/// How a segment divides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing inside.
    Edge,
    /// Splitting vertices in order; child *k* lies before vertex *k*, the last child after the last vertex.
    Linear(Vec<usize>),
    /// Parallel children between the same ends.
    Branch,
    /// The vertices that lie inside no child.
    Complicated(Vec<usize>),
}

/// A node of the tree.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Bytes of all vertices inside.
    pub bytes: u64,
    pub kind: Kind,
    /// Indices of the parts, all greater than the segment's own.
    pub children: Vec<usize>,
}

/// A segment that is still to be divided.
struct Open {
    source: usize,
    target: usize,
    /// Ascending.
    interior: Vec<usize>,
    /// Whether an edge from source to target belongs to it.
    direct: bool,
}

/// The tree; node 0 is the whole graph.
pub(super) struct DivisionTree {
    nodes: Vec<Segment>,
    complete: bool,
}

impl DivisionTree {
    /// Divides `dag` until nothing more can be divided. After the deadline, what is left counts as complicated without proper
    /// segments: valid, but no longer the best.
    pub fn new(dag: &Dag, deadline: Deadline) -> Self {
        let whole = Open {
            source: 0,
            target: dag.target(),
            interior: (1..dag.target()).collect(),
            direct: dag.successors(0).contains(&dag.target()),
        };
        let mut divider = Divider { dag, deadline, inside: vec![0; dag.len()], stamp: 0, complete: true };
        let mut open = vec![whole];
        let mut nodes: Vec<Segment> = Vec::new();
        while let Some(segment) = open.get_mut(nodes.len()) {
            let segment = std::mem::replace(segment, Open { source: 0, target: 0, interior: vec![], direct: false });
            let bytes = segment.interior.iter().map(|&vertex| dag.bytes(vertex)).sum();
            let (kind, parts) = divider.divide(&segment);
            nodes.push(Segment { bytes, kind, children: (open.len()..open.len() + parts.len()).collect() });
            open.extend(parts);
        }
        Self { nodes, complete: divider.complete }
    }

    pub fn nodes(&self) -> &[Segment] {
        &self.nodes
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the tree was finished before the deadline.
    pub fn complete(&self) -> bool {
        self.complete
    }
}

struct Divider<'a> {
    dag: &'a Dag,
    deadline: Deadline,
    /// `stamp` of the last set that a vertex was put in.
    inside: Vec<usize>,
    stamp: usize,
    complete: bool,
}

impl Divider<'_> {
    fn divide(&mut self, segment: &Open) -> (Kind, Vec<Open>) {
        if segment.interior.is_empty() {
            return (Kind::Edge, Vec::new());
        }
        let branches = self.components(segment);
        if segment.direct || branches.len() > 1 {
            let part = |interior| Open { interior, direct: false, ..*segment };
            return (Kind::Branch, branches.into_iter().map(part).collect());
        }
        let splits = self.splitting_vertices(segment);
        if !splits.is_empty() {
            return self.linear(segment, splits);
        }
        self.complicated(segment)
    }

    fn mark(&mut self, vertices: &[usize]) {
        self.stamp += 1;
        for &vertex in vertices {
            self.inside[vertex] = self.stamp;
        }
    }

    fn is_inside(&self, vertex: usize) -> bool {
        self.inside[vertex] == self.stamp
    }

    /// Connected pieces of the interior, each ascending, by first vertex.
    fn components(&mut self, segment: &Open) -> Vec<Vec<usize>> {
        self.mark(&segment.interior);
        let mut pieces = Vec::new();
        for &start in &segment.interior {
            if !self.is_inside(start) {
                continue;
            }
            self.inside[start] = 0;
            let mut piece = vec![start];
            let mut next = 0;
            while let Some(&vertex) = piece.get(next) {
                next += 1;
                for &other in self.dag.predecessors(vertex).iter().chain(self.dag.successors(vertex)) {
                    if self.is_inside(other) {
                        self.inside[other] = 0;
                        piece.push(other);
                    }
                }
            }
            piece.sort_unstable();
            pieces.push(piece);
        }
        pieces
    }

    /// Vertices that no edge of the segment jumps over.
    fn splitting_vertices(&mut self, segment: &Open) -> Vec<usize> {
        self.mark(&segment.interior);
        let reach = |this: &Self, vertex: usize| {
            let mut ends = this.dag.successors(vertex).iter().rev();
            let last = ends.find(|&&end| this.is_inside(end) || (end == segment.target && vertex != segment.source));
            last.copied().unwrap_or(vertex)
        };
        let mut farthest = reach(self, segment.source);
        let mut splits = Vec::new();
        for &vertex in &segment.interior {
            if farthest <= vertex {
                splits.push(vertex);
            }
            farthest = farthest.max(reach(self, vertex));
        }
        splits
    }

    fn linear(&self, segment: &Open, splits: Vec<usize>) -> (Kind, Vec<Open>) {
        let mut parts = Vec::with_capacity(splits.len() + 1);
        let mut rest = segment.interior.as_slice();
        let mut source = segment.source;
        for &target in splits.iter().chain([&segment.target]) {
            let before = rest.partition_point(|&vertex| vertex < target);
            let (interior, behind) = rest.split_at(before);
            let direct = self.dag.successors(source).binary_search(&target).is_ok();
            parts.push(Open { source, target, interior: interior.to_vec(), direct });
            rest = behind.get(1..).unwrap_or(&[]);
            source = target;
        }
        (Kind::Linear(splits), parts)
    }

    fn complicated(&mut self, segment: &Open) -> (Kind, Vec<Open>) {
        let mut owned = vec![false; self.dag.len()];
        let mut parts: Vec<Open> = Vec::new();
        self.mark(&segment.interior);
        // Ends of pieces: vertices with a predecessor that leads nowhere else.
        let closes = |this: &Self, vertex: usize| {
            let mut before = this.dag.predecessors(vertex).iter();
            before.any(|&other| this.is_inside(other) && this.dag.successors(other).len() == 1)
        };
        let mut targets: Vec<usize> = segment.interior.iter().copied().filter(|&v| closes(self, v)).collect();
        targets.extend(closes(self, segment.target).then_some(segment.target));
        let sources = std::iter::once(&segment.source).chain(&segment.interior);
        let mut queue = Vec::new();
        let mut seen = vec![0usize; self.dag.len()];
        let mut round = 0;
        for &source in sources {
            if owned[source] {
                continue;
            }
            let first = parts.len();
            for &start in self.dag.successors(source) {
                if !self.is_inside(start) || owned[start] || self.dag.predecessors(start).len() > 1 {
                    continue;
                }
                if self.deadline.passed() {
                    self.complete = false;
                    break;
                }
                for &target in targets.iter().rev().take_while(|&&target| target > start) {
                    if (source, target) == (segment.source, segment.target) {
                        continue;
                    }
                    round += 1;
                    if !self.closed(source, target, start, &mut queue, &mut seen, round) {
                        continue;
                    }
                    queue.iter().for_each(|&vertex| owned[vertex] = true);
                    match parts[first..].iter_mut().find(|part| part.target == target) {
                        Some(part) => part.interior.append(&mut queue),
                        None => {
                            let interior = std::mem::take(&mut queue);
                            let direct = self.dag.successors(source).binary_search(&target).is_ok();
                            parts.push(Open { source, target, interior, direct });
                        }
                    }
                    break;
                }
            }
        }
        parts.iter_mut().for_each(|part| part.interior.sort_unstable());
        let joints = segment.interior.iter().copied().filter(|&vertex| !owned[vertex]).collect();
        (Kind::Complicated(joints), parts)
    }

    /// Whether the piece around `start` touches nothing but `source` and `target`; it is then in `queue`.
    fn closed(
        &self,
        source: usize,
        target: usize,
        start: usize,
        queue: &mut Vec<usize>,
        seen: &mut [usize],
        round: usize,
    ) -> bool {
        queue.clear();
        queue.push(start);
        seen[start] = round;
        let mut next = 0;
        while let Some(&vertex) = queue.get(next) {
            next += 1;
            for &other in self.dag.predecessors(vertex).iter().chain(self.dag.successors(vertex)) {
                if other == source || other == target || seen[other] == round {
                    continue;
                }
                if other < source || other > target || !self.is_inside(other) {
                    return false;
                }
                seen[other] = round;
                queue.push(other);
            }
        }
        true
    }
}
