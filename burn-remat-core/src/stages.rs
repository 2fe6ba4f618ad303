//! The stage that an operation belongs to.
//!
//! Stages nest, separately for each thread: an operation belongs to the innermost open stage of the thread that issued it. Its *path* is
//! the names of all stages that enclose it (`Model::forward/Block::forward`), its *visit* is the
//! number of this one execution of the stage within the step, so that eight blocks with one path can be told apart.
//!
//! A stage is left by its number, so that stages of several threads may overlap in any way. Stages are not part of any signature:
//! a plan still matches whatever they are called. Their policies are part of it: a plan is made for them.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use rustc_hash::FxHashMap;

use crate::facts::{CheckpointPolicy, Rule, TensorId, ThreadId};
use crate::keys::{PathId, TensorKey};
use crate::trace::Visit;

/// The path of operations that belong to no stage.
pub(crate) const NO_STAGE: PathId = 0;

/// Stages nested more deeply than this count as the innermost: recursion.
const DEEPEST: u32 = 64;
/// With more paths than this, new ones count as their parents: names that are generated anew in every step.
const MOST_PATHS: usize = 4096;

/// A stage that begins.
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    /// The number of its name.
    pub name: u32,
    /// A number that identifies this visit.
    pub number: i64,
    /// The policy, if it sets one.
    pub policy: Option<CheckpointPolicy>,
}

struct Path {
    text: Arc<str>,
    depth: u32,
}

struct Open {
    number: i64,
    thread: ThreadId,
    path: PathId,
    /// The step for which `visit` is valid.
    step: u32,
    visit: Visit,
    /// The number of the stage whose policy is in force here: this one, or one around it.
    governor: Option<i64>,
    /// The policy, if this stage sets one.
    policy: Option<CheckpointPolicy>,
    /// The step for which `scope` is valid.
    scope_step: u32,
    scope: u32,
    /// What was computed under its policy, if that must not be kept.
    made: Vec<(TensorKey, TensorId)>,
}

/// The stages that are open, and the paths of all stages so far.
pub(crate) struct Stages {
    open: Vec<Open>,
    paths: Vec<Path>,
    index: FxHashMap<(PathId, u32), PathId>,
    /// The step that `visits` counts.
    step: u32,
    visits: Visit,
    /// The step that `scopes` counts.
    scope_step: u32,
    scopes: u32,
    /// Whether a stage has ever set a policy, and whether one has set a policy under which nothing is kept.
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
    pub fn enter(&mut self, thread: ThreadId, stage: Entered, text: impl FnOnce() -> Option<Arc<str>>) {
        let Entered { name, number, policy } = stage;
        let (parent, around) = self.innermost(thread).map_or((NO_STAGE, None), |open| (open.path, open.governor));
        let path = self.path(parent, name, text);
        self.any_policy |= policy.is_some();
        self.any_forced |= policy == Some(CheckpointPolicy::MustRecompute);
        self.open.push(Open {
            number,
            thread,
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

    /// Closes a stage; returns what was computed in it and must not be kept.
    pub fn leave(&mut self, number: i64) -> Vec<(TensorKey, TensorId)> {
        match self.open.iter().rposition(|open| open.number == number) {
            Some(at) => self.open.remove(at).made,
            None => Vec::new(),
        }
    }

    /// The stage whose policy is in force.
    fn governor(&mut self, thread: ThreadId) -> Option<&mut Open> {
        let number = self.innermost(thread)?.governor?;
        self.open.iter_mut().rfind(|open| open.number == number)
    }

    /// The policy in force for the operation being served, which belongs to `step`; `None` if it belongs to none.
    #[inline]
    pub fn rule(&mut self, thread: ThreadId, step: Option<u32>) -> Option<Rule> {
        if !self.any_policy {
            return None;
        }
        let Some(step) = step else {
            return Some(Rule { policy: self.governor(thread)?.policy?, scope: 0 });
        };
        if self.scope_step != step {
            (self.scope_step, self.scopes) = (step, 0);
        }
        let next = self.scopes + 1;
        let open = self.governor(thread)?;
        let (policy, scope) = (open.policy?, if open.scope_step == step { open.scope } else { next });
        (open.scope_step, open.scope) = (step, scope);
        self.scopes = self.scopes.max(scope);
        Some(Rule { policy, scope })
    }

    /// Notes what must not be kept beyond the stage whose policy is in force.
    pub fn note_forced(&mut self, thread: ThreadId, made: impl Iterator<Item = (TensorKey, TensorId)>) {
        if let Some(open) = self.governor(thread) {
            open.made.extend(made);
        }
    }

    /// Forgets what is gone by now: a stage may be open for as long as the program runs.
    pub fn prune(&mut self, is_known: impl Fn(TensorKey, TensorId) -> bool) {
        for open in &mut self.open {
            open.made.retain(|&(key, id)| is_known(key, id));
        }
    }

    fn path(&mut self, parent: PathId, name: u32, text: impl FnOnce() -> Option<Arc<str>>) -> PathId {
        if let Some(&path) = self.index.get(&(parent, name)) {
            return path;
        }
        let (Some(name_text), above) = (text(), &self.paths[parent as usize]) else { return parent };
        if above.depth >= DEEPEST || self.paths.len() >= MOST_PATHS {
            return parent;
        }
        let text = if parent == NO_STAGE { name_text } else { format!("{}/{name_text}", above.text).into() };
        let path = self.paths.len() as PathId;
        self.paths.push(Path { text, depth: above.depth + 1 });
        self.index.insert((parent, name), path);
        path
    }

    #[inline]
    fn innermost(&mut self, thread: ThreadId) -> Option<&mut Open> {
        if self.open.is_empty() {
            return None;
        }
        self.open.iter_mut().rfind(|open| open.thread == thread)
    }

    /// The path of the operation being served.
    #[inline]
    pub fn current(&mut self, thread: ThreadId) -> PathId {
        self.innermost(thread).map_or(NO_STAGE, |open| open.path)
    }

    pub fn text(&self, path: PathId) -> &str {
        self.paths.get(path as usize).map_or("", |path| &path.text)
    }

    /// The visit that the operation being served belongs to, counted from 1 within the step; 0 for none. Also the path, if the visit is new.
    pub fn visit(&mut self, thread: ThreadId, step: u32) -> (Visit, Option<Arc<str>>) {
        if self.step != step {
            (self.step, self.visits) = (step, 0);
        }
        let next = self.visits + 1;
        let Some(open) = self.innermost(thread) else { return (0, None) };
        if open.step == step {
            return (open.visit, None);
        }
        (open.step, open.visit) = (step, next);
        let path = open.path;
        self.visits = next;
        (next, Some(self.paths[path as usize].text.clone()))
    }

    /// Visits so far in this step.
    pub fn visits(&self, step: u32) -> usize {
        if self.step == step { self.visits as usize } else { 0 }
    }
}
