//! Which stage an operation belongs to.
//!
//! Stages nest, each thread having its own: the innermost open stage of the thread that issued an operation is the
//! operation's. Its *path* is the names of all that enclose it (`Model::forward/Block::forward`), its *visit* is the
//! number of this one passage within the step, so that eight blocks of one path can be told apart.
//!
//! Leaving names the stage, so that stages of several threads may overlap as they like. Stages are part of no signature:
//! a plan goes on to match whatever they are called.

use std::sync::Arc;

use burn_std::id::StreamId;
use rustc_hash::FxHashMap;

use super::Engine;
use crate::backend::RematBackend;
use crate::planning::Visit;
use crate::report::StageReport;
use crate::stage::{NameId, name_of};

/// Index of a path in [`Stages::paths`].
pub(super) type PathId = u32;
/// The path of what belongs to no stage.
pub(super) const NO_STAGE: PathId = 0;

/// Stages within stages beyond which further ones count as the innermost: recursion.
const DEEPEST: u32 = 64;
/// Paths beyond which new ones count as their parents: names that are made anew in every step.
const MOST_PATHS: usize = 4096;

struct Path {
    text: Arc<str>,
    depth: u32,
}

struct Open {
    number: i64,
    stream: StreamId,
    path: PathId,
    /// The step in which `visit` means something.
    step: u32,
    visit: Visit,
}

/// The stages that are open, and all that have been.
pub(super) struct Stages {
    open: Vec<Open>,
    paths: Vec<Path>,
    index: FxHashMap<(PathId, NameId), PathId>,
    /// The step that `visits` counts.
    step: u32,
    visits: Visit,
}

impl Default for Stages {
    fn default() -> Self {
        let none = Path { text: "".into(), depth: 0 };
        Self { open: Vec::new(), paths: vec![none], index: FxHashMap::default(), step: u32::MAX, visits: 0 }
    }
}

impl Stages {
    fn enter(&mut self, name: NameId, number: i64) {
        let stream = StreamId::current();
        let parent = self.current();
        let path = self.path(parent, name);
        self.open.push(Open { number, stream, path, step: u32::MAX, visit: 0 });
    }

    fn leave(&mut self, number: i64) {
        if let Some(at) = self.open.iter().rposition(|open| open.number == number) {
            self.open.remove(at);
        }
    }

    fn path(&mut self, parent: PathId, name: NameId) -> PathId {
        if let Some(&path) = self.index.get(&(parent, name)) {
            return path;
        }
        let (Some(name_text), above) = (name_of(name), &self.paths[parent as usize]) else { return parent };
        if above.depth >= DEEPEST || self.paths.len() >= MOST_PATHS {
            return parent;
        }
        let text = if parent == NO_STAGE { name_text } else { format!("{}/{name_text}", above.text).into() };
        let path = self.paths.len() as PathId;
        self.paths.push(Path { text, depth: above.depth + 1 });
        self.index.insert((parent, name), path);
        path
    }

    fn innermost(&mut self) -> Option<&mut Open> {
        if self.open.is_empty() {
            return None;
        }
        let stream = StreamId::current();
        self.open.iter_mut().rfind(|open| open.stream == stream)
    }

    /// The path of the operation being served.
    pub fn current(&mut self) -> PathId {
        self.innermost().map_or(NO_STAGE, |open| open.path)
    }

    pub fn text(&self, path: PathId) -> &str {
        self.paths.get(path as usize).map_or("", |path| &path.text)
    }
}

/// What has been done in one stage.
#[derive(Clone, Copy, Default)]
pub(super) struct StageStats {
    operations: u64,
    compute_ns: u64,
    recomputed: u64,
    recompute_ns: u64,
    recomputed_bytes: u64,
}

impl<B: RematBackend> Engine<B> {
    /// A stage begins, on the thread whose operations come now.
    pub fn enter_stage(&mut self, name: NameId, number: i64) {
        self.stages.enter(name, number);
    }

    /// A stage ends.
    pub fn leave_stage(&mut self, number: i64) {
        self.stages.leave(number);
    }

    /// Counts an operation of the program that has run.
    pub(super) fn count_in_stage(&mut self, path: PathId, cost_ns: u64) {
        if path != NO_STAGE {
            let stats = self.stats.stage(path);
            stats.operations += 1;
            stats.compute_ns += cost_ns;
        }
    }

    /// Counts a recomputation of what was first computed in a stage.
    pub(super) fn count_again_in_stage(&mut self, path: PathId, cost_ns: u64, bytes: u64) {
        if path != NO_STAGE {
            let stats = self.stats.stage(path);
            stats.recomputed += 1;
            stats.recompute_ns += cost_ns;
            stats.recomputed_bytes += bytes;
        }
    }

    /// The visit to which the operation being served belongs, counted from 1 within the step; 0 for none.
    pub(super) fn visit(&mut self) -> Visit {
        let step = self.step_number;
        if self.stages.step != step {
            (self.stages.step, self.stages.visits) = (step, 0);
        }
        let next = self.stages.visits + 1;
        let Some(open) = self.stages.innermost() else { return 0 };
        if open.step == step {
            return open.visit;
        }
        (open.step, open.visit) = (step, next);
        let path = open.path;
        self.stages.visits = next;
        if let Some(tracer) = &mut self.tracer {
            tracer.trace.visits.push(self.stages.paths[path as usize].text.clone());
        }
        next
    }

    /// Visits so far in this step.
    pub(super) fn visits(&self) -> usize {
        if self.stages.step == self.step_number { self.stages.visits as usize } else { 0 }
    }

    /// What has been done in each stage, in the order in which they were first entered.
    pub(super) fn stage_reports(&self) -> Vec<StageReport> {
        let done = self.stats.stages.iter().enumerate().filter(|(_, stats)| stats.operations + stats.recomputed > 0);
        let report = |(path, stats): (usize, &StageStats)| StageReport {
            stage: self.stages.text(path as PathId).to_owned(),
            operations: stats.operations,
            compute_ns: stats.compute_ns,
            recomputed_operations: stats.recomputed,
            recompute_ns: stats.recompute_ns,
            recomputed_bytes: stats.recomputed_bytes,
        };
        done.map(report).collect()
    }
}

impl super::Stats {
    fn stage(&mut self, path: PathId) -> &mut StageStats {
        let at = path as usize;
        if self.stages.len() <= at {
            self.stages.resize(at + 1, StageStats::default());
        }
        &mut self.stages[at]
    }
}
