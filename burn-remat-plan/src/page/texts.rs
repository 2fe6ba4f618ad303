//! Names, each kept once in the page and referred to by index.

use std::collections::HashMap;

use crate::decisions::form_of;
use crate::graph::{Graph, OpId};

use super::model::OpText;

/// Largest number of characters of a name.
const MOST_LETTERS: usize = 100;

/// Distinct names.
#[derive(Debug, Default)]
pub(super) struct Texts {
    all: Vec<String>,
    index: HashMap<String, usize>,
}

impl Texts {
    /// The index of a name, which is shortened if it is too long.
    pub fn index(&mut self, text: &str) -> usize {
        let mut text = text.to_owned();
        if let Some((end, _)) = text.char_indices().nth(MOST_LETTERS) {
            text.truncate(end);
            text.push('…');
        }
        let next = self.all.len();
        *self.index.entry(text).or_insert_with_key(|text| {
            self.all.push(text.clone());
            next
        })
    }
}

/// Names of ops, and all other names.
#[derive(Debug)]
pub(super) struct Names<'a> {
    graph: &'a Graph,
    pub texts: Texts,
    ops: Vec<OpText>,
    index: Vec<Option<usize>>,
}

impl<'a> Names<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        Self { graph, texts: Texts::default(), ops: Vec::new(), index: vec![None; graph.ops().len()] }
    }

    /// The index of an op.
    pub fn op(&mut self, id: OpId) -> usize {
        let op = &self.graph.ops()[id];
        *self.index[id].get_or_insert_with(|| {
            // To a reader, an op that restores a value goes by the name of the op that made it.
            let name = form_of(self.graph, op).map_or(&*op.name, |(name, _)| name);
            let name = if name.is_empty() { self.texts.index(&format!("op {id}")) } else { self.texts.index(name) };
            let stage = op.stage.as_deref().map(|stage| self.texts.index(stage));
            self.ops.push(OpText { name, stage, phase: op.phase });
            self.ops.len() - 1
        })
    }

    /// Where an op belongs: its stage, or its own name.
    pub fn place(&mut self, id: OpId) -> String {
        let op = self.op(id);
        let OpText { name, stage, .. } = self.ops[op];
        self.texts.all[stage.unwrap_or(name)].clone()
    }

    /// The name of an op by its index.
    pub fn op_name(&self, index: usize) -> usize {
        self.ops[index].name
    }

    /// All ops and all names.
    pub fn into_all(self) -> (Vec<OpText>, Vec<String>) {
        (self.ops, self.texts.all)
    }
}
