//! The forward pass as the paper sees it: vertices with sizes between one source and one target.

use crate::graph::{Graph, OpId, ValueId};
use crate::views::passes::marked_forward;

/// What a vertex stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// An op with its outputs.
    Op(OpId),
    /// The graph's single input.
    Input(ValueId),
    /// A source or target that the graph does not have itself.
    Virtual,
}

/// A graph of vertices in topological order. Vertex 0 is the source, the last one the target; every vertex lies on a
/// path between them.
pub(super) struct Dag {
    origin: Vec<Origin>,
    bytes: Vec<u64>,
    predecessors: Vec<Vec<usize>>,
    successors: Vec<Vec<usize>>,
    vertex_of: Vec<Option<usize>>,
    forward: usize,
}

/// The connected pieces of a graph without its checkpoints.
pub(super) struct Pieces {
    /// Piece of each vertex; none for checkpoints, source and target.
    pub of: Vec<Option<usize>>,
    /// How many there are.
    pub count: usize,
}

impl Dag {
    /// The view of `graph`'s forward pass.
    pub fn of_forward(graph: &Graph) -> Self {
        let ops = graph.ops();
        // A graph without phases is taken as a whole: there is nothing else to divide.
        let forward = marked_forward(graph).unwrap_or(ops.len());
        let reads = |op: OpId| {
            let mut from: Vec<OpId> = ops[op].inputs.iter().filter_map(|&value| graph.producer(value)).collect();
            from.sort_unstable();
            from.dedup();
            from
        };
        let reads_of: Vec<Vec<OpId>> = (0..forward).map(reads).collect();
        let roots = reads_of.iter().filter(|from| from.is_empty()).count();
        let read = |value: &ValueId| graph.consumers(*value).first().is_some_and(|&op| op < forward);
        let mut inputs = graph.inputs().filter(read);
        let input = inputs.next().filter(|_| inputs.next().is_none());
        let bare = |op: OpId| ops[op].inputs.is_empty();

        let mut dag = Self {
            origin: Vec::with_capacity(forward + 2),
            bytes: Vec::with_capacity(forward + 2),
            predecessors: Vec::with_capacity(forward + 2),
            successors: Vec::new(),
            vertex_of: vec![None; ops.len()],
            forward,
        };
        // An input is the source if all ops start from it.
        let input = input.filter(|_| !(0..forward).any(|op| reads_of[op].is_empty() && bare(op)));
        match input {
            Some(value) => dag.push(Origin::Input(value), graph.bytes(value), Vec::new()),
            None if roots == 1 && reads_of[0].is_empty() && bare(0) && forward > 1 => {}
            None => dag.push(Origin::Virtual, 0, Vec::new()),
        }
        for (op, from) in reads_of.iter().enumerate() {
            let mut before: Vec<usize> = from.iter().filter_map(|&producer| dag.vertex_of[producer]).collect();
            let reads_source = input.is_some_and(|value| ops[op].inputs.binary_search(&value).is_ok());
            if !dag.origin.is_empty() && (before.is_empty() || reads_source) {
                before.insert(0, 0);
            }
            dag.vertex_of[op] = Some(dag.origin.len());
            dag.push(Origin::Op(op), graph.bytes_of(&ops[op].outputs), before);
        }
        dag.close();
        dag
    }

    fn push(&mut self, origin: Origin, bytes: u64, predecessors: Vec<usize>) {
        self.origin.push(origin);
        self.bytes.push(bytes);
        self.predecessors.push(predecessors);
    }

    /// Adds a target if several vertices have no successor, then the successors.
    fn close(&mut self) {
        let mut has_successor = vec![false; self.origin.len()];
        self.predecessors.iter().flatten().for_each(|&vertex| has_successor[vertex] = true);
        let ends: Vec<usize> = (0..self.origin.len()).filter(|&vertex| !has_successor[vertex]).collect();
        if ends.len() > 1 || self.origin.len() == 1 {
            self.push(Origin::Virtual, 0, ends);
        }
        self.successors = vec![Vec::new(); self.origin.len()];
        for (vertex, before) in self.predecessors.iter().enumerate() {
            for &predecessor in before {
                self.successors[predecessor].push(vertex);
            }
        }
    }

    /// How many vertices there are: at least two.
    pub fn len(&self) -> usize {
        self.origin.len()
    }

    /// The last vertex.
    pub fn target(&self) -> usize {
        self.len() - 1
    }

    pub fn bytes(&self, vertex: usize) -> u64 {
        self.bytes[vertex]
    }

    /// Ascending, without repeats.
    pub fn predecessors(&self, vertex: usize) -> &[usize] {
        &self.predecessors[vertex]
    }

    /// Ascending, without repeats.
    pub fn successors(&self, vertex: usize) -> &[usize] {
        &self.successors[vertex]
    }

    /// How many of the graph's first ops are its forward pass.
    pub fn forward_ops(&self) -> usize {
        self.forward
    }

    /// The vertex of an op of the forward pass.
    pub fn vertex_of(&self, op: OpId) -> Option<usize> {
        self.vertex_of[op]
    }

    /// The values that a vertex stands for.
    pub fn values<'a>(&self, graph: &'a Graph, vertex: usize) -> impl Iterator<Item = ValueId> + use<'a> {
        let (input, outputs) = match self.origin[vertex] {
            Origin::Op(op) => (None, graph.ops()[op].outputs.as_slice()),
            Origin::Input(value) => (Some(value), [].as_slice()),
            Origin::Virtual => (None, [].as_slice()),
        };
        input.into_iter().chain(outputs.iter().copied())
    }

    /// What is left of the graph without `checkpoints`, source and target, in connected pieces.
    pub fn pieces(&self, checkpoints: &[usize]) -> Pieces {
        let mut kept = vec![false; self.len()];
        checkpoints.iter().chain(&[0, self.target()]).for_each(|&vertex| kept[vertex] = true);
        let mut pieces = Pieces { of: vec![None; self.len()], count: 0 };
        let mut stack = Vec::new();
        for start in 0..self.len() {
            if kept[start] || pieces.of[start].is_some() {
                continue;
            }
            pieces.of[start] = Some(pieces.count);
            stack.push(start);
            while let Some(vertex) = stack.pop() {
                for &next in self.predecessors[vertex].iter().chain(&self.successors[vertex]) {
                    if !kept[next] && pieces.of[next].is_none() {
                        pieces.of[next] = Some(pieces.count);
                        stack.push(next);
                    }
                }
            }
            pieces.count += 1;
        }
        pieces
    }
}
