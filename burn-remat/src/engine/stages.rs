//! Which stage an operation belongs to.
//!
//! Stages nest, each thread having its own: the innermost open stage of the thread that issued an operation is the
//! operation's. Its *path* is the names of all that enclose it (`Model::forward/Block::forward`), its *visit* is the
//! number of this one passage within the step, so that eight blocks of one path can be told apart.
//!
//! Leaving names the stage, so that stages of several threads may overlap as they like. Stages are part of no signature:
//! a plan goes on to match whatever they are called. Their policies are: a plan is made for them.

use std::sync::Arc;

use burn_ir::TensorId;
use burn_std::id::StreamId;
use rustc_hash::FxHashMap;

use super::Engine;
use super::table::TensorKey;
use crate::backend::RematBackend;
use crate::checkpoint::{CheckpointPolicy, Rule};
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
    /// The number of the stage whose policy is in force here: this one's, or one's around it.
    governor: Option<i64>,
    /// The policy, where this stage sets one.
    policy: Option<CheckpointPolicy>,
    /// The step in which `scope` means something.
    scope_step: u32,
    scope: u32,
    /// What was computed under its policy, where that is not to be kept.
    made: Vec<(TensorKey, TensorId)>,
}

/// The stages that are open, and all that have been.
pub(super) struct Stages {
    open: Vec<Open>,
    paths: Vec<Path>,
    index: FxHashMap<(PathId, NameId), PathId>,
    /// The step that `visits` counts.
    step: u32,
    visits: Visit,
    /// The step that `scopes` counts.
    scope_step: u32,
    scopes: u32,
    /// Whether a stage has ever set a policy, and one under which nothing is kept.
    pub any_policy: bool,
    pub any_forced: bool,
}

impl Default for Stages {
    fn default() -> Self {
        let none = Path { text: "".into(), depth: 0 };
        Self {
            open: Vec::new(),
            paths: vec![none],
            index: FxHashMap::default(),
            step: u32::MAX,
            visits: 0,
            scope_step: u32::MAX,
            scopes: 0,
            any_policy: false,
            any_forced: false,
        }
    }
}

impl Stages {
    fn enter(&mut self, name: NameId, number: i64, policy: Option<CheckpointPolicy>) {
        let stream = StreamId::current();
        let (parent, around) = self.innermost().map_or((NO_STAGE, None), |open| (open.path, open.governor));
        let path = self.path(parent, name);
        self.any_policy |= policy.is_some();
        self.any_forced |= policy == Some(CheckpointPolicy::MustRecompute);
        self.open.push(Open {
            number,
            stream,
            path,
            step: u32::MAX,
            visit: 0,
            governor: policy.map_or(around, |_| Some(number)),
            policy,
            scope_step: u32::MAX,
            scope: 0,
            made: Vec::new(),
        });
    }

    /// Closes a stage; gives what was computed in it and is not to be kept.
    fn leave(&mut self, number: i64) -> Vec<(TensorKey, TensorId)> {
        match self.open.iter().rposition(|open| open.number == number) {
            Some(at) => self.open.remove(at).made,
            None => Vec::new(),
        }
    }

    /// The stage whose policy is in force.
    fn governor(&mut self) -> Option<&mut Open> {
        let number = self.innermost()?.governor?;
        self.open.iter_mut().rfind(|open| open.number == number)
    }

    /// The policy in force for the operation being served.
    pub fn rule(&mut self, step: u32) -> Option<Rule> {
        if !self.any_policy {
            return None;
        }
        if self.scope_step != step {
            (self.scope_step, self.scopes) = (step, 0);
        }
        let next = self.scopes + 1;
        let open = self.governor()?;
        let (policy, scope) = (open.policy?, if open.scope_step == step { open.scope } else { next });
        (open.scope_step, open.scope) = (step, scope);
        self.scopes = self.scopes.max(scope);
        Some(Rule { policy, scope })
    }

    /// Notes what is not to be kept beyond the stage whose policy is in force.
    pub fn note_forced(&mut self, made: impl Iterator<Item = (TensorKey, TensorId)>) {
        if let Some(open) = self.governor() {
            open.made.extend(made);
        }
    }

    /// Forgets what is gone by now: a stage may be open for as long as the program runs.
    pub fn prune(&mut self, is_known: impl Fn(TensorKey, TensorId) -> bool) {
        for open in &mut self.open {
            open.made.retain(|&(key, id)| is_known(key, id));
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
    pub fn enter_stage(&mut self, name: NameId, number: i64, policy: Option<CheckpointPolicy>) {
        self.stages.enter(name, number, policy);
        // What is to be given up must be recorded.
        self.light &= !self.stages.any_forced;
    }

    /// A stage ends. What must not be kept of it goes, unless a plan sees to that: all that has been read; what has not
    /// been is what the stage returns.
    pub fn leave_stage(&mut self, number: i64) {
        let made = self.stages.leave(number);
        if self.follow.is_some() {
            return;
        }
        for (key, id) in made {
            let Some(storage) = self.tensors.get(key).filter(|tensor| tensor.id == id).and_then(|t| t.storage) else {
                continue;
            };
            let may_go = |&owner: &TensorKey| {
                let tensor = &self.tensors[owner];
                tensor.pins == 0 && tensor.read > 0 && tensor.recipe.is_some()
            };
            if self.storages.get(storage).owners.iter().all(may_go) {
                self.evict(storage);
            }
        }
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
