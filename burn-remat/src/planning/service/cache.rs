//! Plans on disk, so that the next run of the same program plans nothing.
//!
//! One JSON file per step, budget, device and planner. (What a dry run has found is for all steps of one structure, and for just what it
//! holds.) It has the graph and the plan in the formats of `burn-remat-plan`, so that `remat-plan` reads both parts, and a digest
//! of itself. A file is used only if it is whole and of this version, if its graph is that of the step at hand (costs apart), and if the independent checker accepts its
//! plan; otherwise the log says why and the step is planned anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use burn_remat_core::Trace;
use burn_remat_plan::format::PlanFile;
use burn_remat_plan::{CheckedPlan, Graph, Status, check};
use serde::{Deserialize, Serialize};

use crate::planning::lowering::Lowered;
use crate::planning::schedule::Schedule;

/// Files beyond which the oldest of ours go.
const MOST_FILES: usize = 500;
/// No planner is given more time than this: what a file says may be anything.
const MOST_TIME: Duration = Duration::from_secs(u32::MAX as u64);
/// What the names of our files begin with, in a folder of our own inside the one that the user names.
const PREFIX: &str = "step-";
const OWN_FOLDER: &str = "burn-remat-plans";
const FORMAT: &str = "burn-remat-cache/4";

/// What tells one plan from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CacheKey {
    pub signature: u64,
    pub device: String,
    pub budget: u64,
    pub planner: String,
    pub planner_version: u32,
}

/// Where one plan is kept, inside the folder that the user names.
pub(super) struct CacheFile {
    pub folder: PathBuf,
    pub key: CacheKey,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    format: String,
    version: String,
    key: CacheKey,
    /// Time that the planner was given, in seconds.
    time_limit: f64,
    /// `remat-graph/1`.
    graph: serde_json::Value,
    /// `remat-plan/1`.
    plan: serde_json::Value,
    /// Of the other fields.
    digest: String,
}

impl Entry {
    fn own_digest(&self) -> String {
        let Self { format, version, key, time_limit, graph, plan, .. } = self;
        let text = format!("{format}{version}{key:?}{time_limit}{graph}{plan}");
        format!("{:016x}", digest(&text))
    }
}

/// FNV-1a, 64 bits: the same on every machine and in every version.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The folder of this user's plans: `$BURN_REMAT_CACHE`, or `burn-remat` in `$XDG_CACHE_HOME` or `~/.cache`.
pub(super) fn default_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("BURN_REMAT_CACHE").or_else(|| {
        set("XDG_CACHE_HOME")
            .or_else(|| set("LOCALAPPDATA"))
            .or_else(|| set("HOME").map(|home| home.join(".cache")))
            .map(|base| base.join("burn-remat"))
    })
}

/// A stored plan.
pub(super) struct Stored {
    pub schedule: Schedule,
    /// The file's own account of it.
    pub file: PlanFile,
    /// Time that the planner was given.
    pub time_limit: Duration,
}

impl CacheFile {
    fn own_folder(&self) -> PathBuf {
        self.folder.join(OWN_FOLDER)
    }

    fn path(&self) -> PathBuf {
        let (beginning, end) = self.name();
        self.own_folder().join(format!("{beginning}{}{end}", self.key.budget))
    }

    /// The name of the file, without the budget that stands between these.
    fn name(&self) -> (String, String) {
        let CacheKey { signature, device, planner, planner_version, .. } = &self.key;
        let device = digest(&format!("{device}/{planner}/{planner_version}"));
        (format!("{PREFIX}{signature:016x}-"), format!("-{:08x}.json", device as u32))
    }

    /// What it holds.
    fn entry(&self, time_limit: Duration, graph: &Graph, plan: &PlanFile) -> Entry {
        let value = |text: String| serde_json::from_str(&text).unwrap_or_default();
        let mut entry = Entry {
            format: FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: self.key.clone(),
            time_limit: time_limit.as_secs_f64(),
            graph: value(graph.to_json()),
            plan: value(plan.to_json()),
            digest: String::new(),
        };
        entry.digest = entry.own_digest();
        entry
    }

    /// Stores a plan. A failure costs only the time of planning again, so it is logged and no error.
    pub fn store(&self, time_limit: Duration, graph: &Graph, plan: &PlanFile) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let entry = self.entry(time_limit, graph, plan);
        let path = self.path();
        // Written beside and renamed, so that no reader sees half a file. Several devices of a process may store at once.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let draft = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
        let folder = self.own_folder();
        let done = std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&draft, serde_json::to_string(&entry).unwrap_or_default()))
            .and_then(|()| std::fs::rename(&draft, &path));
        if let Err(error) = done {
            log::warn!("the plan could not be stored in {}: {error}", path.display());
            // On a full disk there is half of it.
            let _ = std::fs::remove_file(&draft);
        }
        prune(&folder);
    }

    /// The stored plan for this step.
    pub fn load(&self, trace: &Arc<Trace>, lowered: &Lowered) -> Option<Stored> {
        let path = self.path();
        let text = std::fs::read_to_string(&path).ok()?;
        match self.stored(&text, self.key.budget, trace, lowered) {
            Ok(found) => Some(found),
            Err(reason) => {
                log::warn!("the stored plan {} is not used: {reason}. The step is planned again.", path.display());
                None
            }
        }
    }

    /// Where the plans are kept that dry runs find for steps of this structure, whatever small operations they have besides.
    pub fn of_dry_run(&self, structure: u64) -> Self {
        self.with_key(CacheKey { signature: structure, ..self.key.clone() })
    }

    fn with_key(&self, key: CacheKey) -> Self {
        Self { folder: self.folder.clone(), key }
    }

    /// A stored plan for this step that was made for hardly less than this budget; of several that for most. A dry run has found it, in another process
    /// perhaps. How much cheaper a plan for this budget may be is not known.
    pub fn load_near(&self, trace: &Arc<Trace>, lowered: &Lowered) -> Option<Stored> {
        let (beginning, end) = self.name();
        let budget_of = |name: &str| name.strip_prefix(&beginning)?.strip_suffix(&end)?.parse::<u64>().ok();
        let names = std::fs::read_dir(self.own_folder()).ok()?.flatten().map(|entry| entry.file_name());
        let budgets = names.filter_map(|name| budget_of(name.to_str()?));
        let budget = budgets.filter(|&least| is_near(least, self.key.budget)).max()?;
        let near = self.with_key(CacheKey { budget, ..self.key.clone() });
        let text = std::fs::read_to_string(near.path()).ok()?;
        let found = near.stored(&text, self.key.budget, trace, lowered);
        let Stored { schedule, file, .. } =
            found.inspect_err(|reason| log::debug!("a stored plan for {budget} bytes is not used: {reason}")).ok()?;
        let file = PlanFile { status: Some(Status::Feasible), lower_bound: None, ..file };
        Some(Stored { schedule, file, time_limit: Duration::ZERO })
    }

    /// The plan for this step in what a file holds, if that keeps to this `budget`.
    fn stored(&self, text: &str, budget: u64, trace: &Arc<Trace>, lowered: &Lowered) -> Result<Stored, String> {
        let (checked, file, time_limit) = read(text, &self.key, &lowered.graph)?;
        let schedule = Schedule::new(trace.clone(), lowered.clone(), &checked);
        if schedule.peak > budget {
            return Err(format!("it holds {} bytes", schedule.peak));
        }
        Ok(Stored { schedule, file, time_limit })
    }
}

/// How much more than the plan that holds least takes a budget may be for that plan to be of use, as one part of what it takes: with more there are
/// cheaper ones, which are soon found.
const NEAR: u64 = 8;

/// Whether a budget is hardly more than the `least` that a plan takes.
pub(super) fn is_near(least: u64, budget: u64) -> bool {
    least <= budget && budget - least <= least / NEAR
}

/// Removes the oldest plans where there are too many. Files that are not ours are left alone.
fn prune(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut files: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_ours))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    for (_, path) in files.iter().take(files.len().saturating_sub(MOST_FILES)) {
        // Another process may have been quicker.
        let _ = std::fs::remove_file(path);
    }
}

/// Whether a file is one that we have written, by its name.
fn is_ours(name: &str) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(".json"));
    let parts: Vec<&str> = parts.map_or_else(Vec::new, |rest| rest.split('-').collect());
    let is_hex = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let [signature, budget, device] = parts[..] else { return false };
    is_hex(signature, 16) && budget.parse::<u64>().is_ok() && is_hex(device, 8)
}

fn read(text: &str, key: &CacheKey, graph: &Graph) -> Result<(CheckedPlan, PlanFile, Duration), String> {
    let entry: Entry = serde_json::from_str(text).map_err(|error| format!("it cannot be read ({error})"))?;
    if entry.format != FORMAT || entry.version != env!("CARGO_PKG_VERSION") {
        return Err(format!("it was written by version {}", entry.version));
    }
    if entry.digest != entry.own_digest() {
        return Err("it has been changed since it was written".to_owned());
    }
    if entry.key != *key {
        return Err("it belongs to another step, device or budget".to_owned());
    }
    let stored = Graph::from_json(&entry.graph.to_string()).map_err(|error| error.to_string())?;
    if !same_structure(&stored, graph) {
        return Err("its graph is not that of this step".to_owned());
    }
    let file = PlanFile::from_json(&entry.plan.to_string()).map_err(|error| error.to_string())?;
    let plan = file.plan().map_err(|error| error.to_string())?;
    // How much it really holds is seen when it becomes a schedule.
    let checked = check(graph, &plan, u64::MAX).map_err(|violations| violations.to_string())?;
    let time_limit = Duration::try_from_secs_f64(entry.time_limit).map_err(|error| error.to_string())?.min(MOST_TIME);
    Ok((checked, file, time_limit))
}

/// Whether two graphs differ in nothing but names, what is measured (costs and scratch), and what is there beside them.
fn same_structure(a: &Graph, b: &Graph) -> bool {
    a.results() == b.results()
        && a.values().iter().map(|value| value.bytes).eq(b.values().iter().map(|value| value.bytes))
        && a.ops().len() == b.ops().len()
        && a.ops()
            .iter()
            .zip(b.ops())
            .all(|(a, b)| a.inputs == b.inputs && a.outputs == b.outputs && a.recomputable == b.recomputable)
}

#[cfg(test)]
#[path = "cache_fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use burn_remat_plan::{GraphBuilder, Op, Request, planners::StoreAll, solve};

    use super::*;

    fn graph(bytes: u64) -> Graph {
        let mut builder = GraphBuilder::new("test");
        let (x, y) = (builder.value(100, "x"), builder.value(bytes, "y"));
        builder.op(Op::new("f", 1.5, vec![x], vec![y]));
        builder.build().unwrap()
    }

    fn file(folder: &Path, budget: u64) -> CacheFile {
        let (device, planner) = ("test".into(), "store-all".into());
        let key = CacheKey { signature: 7, device, budget, planner, planner_version: 1 };
        CacheFile { folder: folder.to_path_buf(), key }
    }

    /// What the cache in `folder` says after `edit` has been at its only file.
    fn after(edit: impl Fn(String) -> String, wanted: &Graph) -> Option<f64> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("burn-remat-cache-{}-{number}", std::process::id()));
        let (file, graph) = (file(&folder, 1000), graph(200));
        let outcome = solve(&StoreAll, &graph, &Request::new(1000)).unwrap().outcome;
        file.store(Duration::from_secs(1), &graph, &PlanFile::of_outcome(&outcome, 1.5));
        let path = file.path();
        std::fs::write(&path, edit(std::fs::read_to_string(&path).unwrap())).unwrap();
        let found = read(&std::fs::read_to_string(&path).unwrap(), &file.key, wanted);
        std::fs::remove_dir_all(folder).unwrap();
        found.ok().map(|(checked, _, _)| checked.makespan())
    }

    #[test]
    fn a_whole_file_is_used_and_a_damaged_one_is_not() {
        let same = graph(200);
        assert_eq!(after(|text| text, &same), Some(1.5));
        assert_eq!(after(|text| text[..text.len() / 2].to_owned(), &same), None);
        assert_eq!(after(|text| text.replace("\"+0\"", "\"+1\""), &same), None);
        assert_eq!(after(|text| text.replace(env!("CARGO_PKG_VERSION"), "0.0.9"), &same), None);
        assert_eq!(after(|_| String::new(), &same), None);
        assert_eq!(after(|text| text, &graph(201)), None);
    }

    #[test]
    fn devices_that_store_the_same_plan_at_once_leave_whole_files() {
        let folder = std::env::temp_dir().join(format!("burn-remat-cache-at-once-{}", std::process::id()));
        let (file, graph) = (file(&folder, 1000), graph(200));
        let outcome = solve(&StoreAll, &graph, &Request::new(1000)).unwrap().outcome;
        let plan = PlanFile::of_outcome(&outcome, 1.5);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        file.store(Duration::from_secs(1), &graph, &plan);
                        read(&std::fs::read_to_string(file.path()).unwrap(), &file.key, &graph).unwrap();
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(folder.join(OWN_FOLDER)).unwrap().count(), 1);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_files_of_ours_are_removed() {
        let folder = std::env::temp_dir().join(format!("burn-remat-cache-prune-{}", std::process::id()));
        let own = folder.join(OWN_FOLDER);
        std::fs::create_dir_all(&own).unwrap();
        let theirs = ["notes.json", "step-1.json", "step-0123456789abcdef-10-0123456g.json"];
        theirs.iter().for_each(|name| std::fs::write(own.join(name), "mine").unwrap());
        std::fs::write(folder.join("results.json"), "mine").unwrap();
        let count = MOST_FILES as u64 + 20;
        (0..count).for_each(|budget| std::fs::write(file(&folder, budget).path(), "plan").unwrap());
        prune(&own);
        let left = std::fs::read_dir(&own).unwrap().count();
        assert_eq!(left, MOST_FILES + theirs.len());
        assert!(theirs.iter().all(|name| own.join(name).exists()) && folder.join("results.json").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
