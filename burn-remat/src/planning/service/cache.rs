//! Plans on disk, so that the next run of the same program plans nothing.
//!
//! One JSON file per step, budget, device and planner. It has the graph and the plan in the formats of `burn-remat-plan`, so that `remat-plan` reads both
//! parts, and a digest of itself. A file is used only if it is complete and of this version, if its graph is that of the current step (apart from costs),
//! and if the independent checker accepts its plan; otherwise the log says why, and the step is planned again.

use std::sync::Arc;
use std::time::Duration;

use burn_remat_core::Trace;
use burn_remat_plan::format::PlanFile;
use burn_remat_plan::{CheckedPlan, Graph, check};
use serde::{Deserialize, Serialize};

use super::folder::{Folder, digest};
use crate::planning::lowering::Lowered;
use crate::planning::schedule::Schedule;

/// A time limit in a file is cut to this, because a file may say anything.
const MOST_TIME: Duration = Duration::from_secs(u32::MAX as u64);
const FORMAT: &str = "burn-remat-cache/4";

/// What distinguishes one plan from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CacheKey {
    pub signature: u64,
    pub device: String,
    pub budget: u64,
    pub planner: String,
    pub planner_version: u32,
}

/// The file of one plan.
pub(super) struct CacheFile {
    pub folder: Folder,
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

/// A stored plan.
pub(super) struct Stored {
    pub schedule: Schedule,
    /// What the file says about it.
    pub file: PlanFile,
    /// Time that the planner was given.
    pub time_limit: Duration,
}

impl CacheFile {
    /// The name of the file.
    fn name(&self) -> String {
        let CacheKey { signature, device, budget, planner, planner_version } = &self.key;
        let device = digest(&format!("{device}/{planner}/{planner_version}"));
        format!("step-{signature:016x}-{budget}-{:08x}.json", device as u32)
    }

    /// The content of the file.
    fn entry(&self, time_limit: Duration, graph: &Graph, plan: &PlanFile) -> Entry {
        let value = |text: String| serde_json::from_str(&text).unwrap_or_default();
        let mut entry = Entry {
            format: FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: self.key.clone(),
            time_limit: time_limit.min(MOST_TIME).as_secs_f64(),
            graph: value(graph.to_json()),
            plan: value(plan.to_json()),
            digest: String::new(),
        };
        entry.digest = entry.own_digest();
        entry
    }

    /// Stores a plan.
    pub fn store(&self, time_limit: Duration, graph: &Graph, plan: &PlanFile) {
        let entry = self.entry(time_limit, graph, plan);
        self.folder.write(&self.name(), &serde_json::to_string(&entry).unwrap_or_default());
    }

    /// The stored plan for this step.
    pub fn load(&self, trace: &Arc<Trace>, lowered: &Lowered) -> Option<Stored> {
        let path = self.folder.path(&self.name());
        let text = std::fs::read_to_string(&path).ok()?;
        match self.stored(&text, trace, lowered) {
            Ok(found) => Some(found),
            Err(reason) => {
                log::warn!("the stored plan {} is not used: {reason}. The step is planned again.", path.display());
                None
            }
        }
    }

    /// The plan for this step in the text of a file, if it keeps to the budget.
    fn stored(&self, text: &str, trace: &Arc<Trace>, lowered: &Lowered) -> Result<Stored, String> {
        let (checked, file, time_limit) = read(text, &self.key, &lowered.graph)?;
        let schedule = Schedule::new(trace.clone(), lowered.clone(), &checked);
        if schedule.peak > self.key.budget {
            return Err(format!("it holds {} bytes, which is over the budget", schedule.peak));
        }
        Ok(Stored { schedule, file, time_limit })
    }
}

/// The plan in a file, if it fits this graph. How much it really holds is known once it becomes a schedule.
pub(super) fn plan_in(file: &serde_json::Value, graph: &Graph) -> Result<(CheckedPlan, PlanFile), String> {
    let file = PlanFile::from_json(&file.to_string()).map_err(|error| error.to_string())?;
    let plan = file.plan().map_err(|error| error.to_string())?;
    let checked = check(graph, &plan, u64::MAX).map_err(|violations| violations.to_string())?;
    Ok((checked, file))
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
    let (checked, file) = plan_in(&entry.plan, graph)?;
    let time_limit = Duration::try_from_secs_f64(entry.time_limit).map_err(|error| error.to_string())?.min(MOST_TIME);
    Ok((checked, file, time_limit))
}

/// Whether two graphs differ only in names, in what is measured (costs and scratch), and in constant bytes.
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
pub(super) mod fuzz;

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        CacheFile { folder: Folder::inside(folder), key }
    }

    /// What the cache in `folder` returns after `edit` has changed its only file.
    fn after(edit: impl Fn(String) -> String, wanted: &Graph) -> Option<f64> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("burn-remat-cache-{}-{number}", std::process::id()));
        let (file, graph) = (file(&folder, 1000), graph(200));
        let outcome = solve(&StoreAll, &graph, &Request::new(1000)).unwrap().outcome;
        file.store(Duration::from_secs(1), &graph, &PlanFile::of_outcome(&outcome, 1.5));
        let path = file.folder.path(&file.name());
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
                        read(&std::fs::read_to_string(file.folder.path(&file.name())).unwrap(), &file.key, &graph)
                            .unwrap();
                    }
                });
            }
        });
        assert_eq!(file.folder.names(), [file.name()]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
