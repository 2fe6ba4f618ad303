//! Planners supplied by the program: the plans of a good one are followed, and a broken one harms nothing but its plans.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use burn_remat::planner::{
    Graph, OpId, Outcome, Plan, PlanError, Planner, PlannerChoice, Request, Status, StopReason, ValueId,
    plan_from_order, planner,
};
use burn_remat::{AdvancedConfig, RematConfig, RematExt, RematReport};
use burn_remat_examples::device::under_test;
use burn_remat_examples::training::{Job, ModelKind, Run};

/// Steps until a plan is in force.
const WARMUP: usize = 6;
const STEPS: usize = WARMUP + 4;

/// Evicts the largest values (among equals, those that are unused for longest) until the step fits, and counts how often it is called.
#[derive(Default)]
struct LargestFirst {
    asked: AtomicUsize,
}

impl Planner for LargestFirst {
    fn name(&self) -> &'static str {
        "largest-first"
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut left: Vec<ValueId> = (0..graph.values().len()).filter(|&value| !graph.is_root(value)).collect();
        left.sort_by_key(|&value| (graph.bytes(value), longest_unused(graph, value)));
        let mut given_up = Vec::new();
        loop {
            let outcome = outcome(self.name(), graph, plan_from_order(graph, &order(graph, &given_up)));
            if outcome.peak_bytes <= request.budget {
                return Ok(outcome);
            }
            given_up.push(left.pop().ok_or(PlanError::no_plan(request.budget))?);
        }
    }
}

fn outcome(name: &str, graph: &Graph, plan: Plan) -> Outcome {
    Outcome::of_plan(name, graph, plan, Status::Feasible, StopReason::Heuristic)
}

/// The ops that make and read a value.
fn uses(graph: &Graph, value: ValueId) -> Vec<OpId> {
    graph.producer(value).into_iter().chain(graph.consumers(value).iter().copied()).collect()
}

/// The largest number of ops between two uses of a value.
fn longest_unused(graph: &Graph, value: ValueId) -> usize {
    uses(graph, value).windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// Every op in order. Values given up are evicted where their next use is far away, and computed again where they are missing.
fn order(graph: &Graph, given_up: &[ValueId]) -> Vec<OpId> {
    let mut leaves = vec![Vec::new(); graph.ops().len()];
    for &value in given_up {
        let uses = uses(graph, value);
        for (at, &op) in uses.iter().enumerate() {
            if uses.get(at + 1).is_none_or(|next| next - op > 4) {
                leaves[op].push(value);
            }
        }
    }
    let (mut order, mut absent) = (Vec::new(), HashSet::<ValueId>::new());
    for (op, leaves) in leaves.iter().enumerate() {
        let (mut again, mut open) = (BTreeSet::new(), vec![op]);
        while let Some(next) = open.pop() {
            for value in graph.ops()[next].inputs.iter().filter(|&value| absent.contains(value)) {
                open.extend(graph.producer(*value).filter(|&maker| again.insert(maker)));
            }
        }
        order.extend(again);
        order.push(op);
        // What was computed again on the way to the inputs is evicted again.
        absent.retain(|value| !graph.ops()[op].inputs.contains(value));
        absent.extend(leaves);
    }
    order
}

/// The fault of a broken planner.
#[derive(Clone, Copy, Debug)]
enum Broken {
    Panics,
    GivesAnInvalidPlan,
    ClaimsAnotherCost,
    ClaimsAFalseBound,
    NeverReturns,
}

impl Planner for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let good = || planner("online").expect("the registry has it").solve(graph, request);
        match self {
            Self::Panics => panic!("out of ideas"),
            Self::GivesAnInvalidPlan => {
                // The first computation is missing, so what reads its result reads nothing.
                let mut plan = good()?.plan.unwrap_or_default();
                plan.steps.remove(0);
                Ok(Outcome { plan: Some(plan), ..good()? })
            }
            Self::ClaimsAnotherCost => good().map(|good| Outcome { makespan: good.makespan / 2.0, ..good }),
            Self::ClaimsAFalseBound => good().map(|good| Outcome { lower_bound: Some(2.0 * good.makespan), ..good }),
            Self::NeverReturns => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
        }
    }
}

fn config(planner: impl Into<PlannerChoice>, budget: u64) -> RematConfig {
    RematConfig::new(budget).with_planner(planner).without_cache().with_time_limit(Duration::from_secs(2))
}

fn run(job: &Job, config: RematConfig) -> (Run, RematReport) {
    let device = under_test().remat(config).unwrap();
    let after_step = |step: usize| {
        if step + 1 == WARMUP {
            assert!(device.remat_wait_for_plan(Duration::from_secs(300)).unwrap(), "the planner does not finish");
        }
    };
    let run = job.run(&device, |step, _| after_step(step)).unwrap();
    (run, device.remat_report().unwrap())
}

#[test]
fn a_planner_of_the_programs_own_trains_a_model_and_a_broken_one_does_no_harm() {
    // One test, because all runs share the backend's generator of random numbers.
    let job = Job::standard(ModelKind::Cnn, 8, STEPS, 3).unwrap();
    let plain = job.run(&under_test(), |_, _| {}).unwrap();
    let (_, stored) = run(&job, RematConfig::default().advanced(AdvancedConfig::without_planning));
    // Enough for a planner that gives up whole values, the largest first.
    let budget = stored.peak_bytes * 8 / 10;

    let own = Arc::new(LargestFirst::default());
    let (planned, report) = run(&job, config(own.clone(), budget));
    assert!(planned.is_as(&plain, &report), "{report}");
    let plan = report.plan.as_ref().unwrap_or_else(|| panic!("no plan: {report}"));
    assert_eq!((plan.planner.as_str(), plan.steps_left, plan.deviation_bytes), ("largest-first", 0, 0), "{report}");
    assert!(plan.steps_followed >= 2 && plan.predicted_peak_bytes <= budget, "{report}");
    assert!(own.asked.load(Ordering::Relaxed) > 0);

    for (broken, said) in [
        (Broken::Panics, "out of ideas"),
        (Broken::GivesAnInvalidPlan, "planner `broken` failed"),
        (Broken::ClaimsAnotherCost, "makespan"),
        (Broken::ClaimsAFalseBound, "lower bound"),
        (Broken::NeverReturns, "did not return"),
    ] {
        let (trained, report) = run(&job, config(broken, budget));
        assert!(trained.is_as(&plain, &report), "{broken:?}: {report}");
        assert!(report.plan.is_none(), "{broken:?}: {report}");
        let problem = report.planning_problem.as_deref().unwrap_or_default();
        assert!(problem.contains("broken") && problem.contains(said), "{broken:?}: {report}");
        assert!(report.to_string().contains("no plan"), "{broken:?}: {report}");
    }
    stored_plans_are_known_by_name_and_version(&job, budget);
}

/// A plan from disk is used only for the same planner and version.
fn stored_plans_are_known_by_name_and_version(job: &Job, budget: u64) {
    struct Versioned(u32);

    impl Planner for Versioned {
        fn name(&self) -> &'static str {
            "versioned"
        }

        fn version(&self) -> u32 {
            self.0
        }

        fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
            LargestFirst::default().solve(graph, request)
        }
    }

    let folder = std::env::temp_dir().join(format!("burn-remat-planner-{}", std::process::id()));
    let from_cache = |version| {
        let config = config(Versioned(version), budget).with_cache(&folder);
        let (_, report) = run(job, config);
        report.plan.unwrap_or_else(|| panic!("version {version}: no plan")).from_cache
    };
    assert_eq!([1, 1, 2, 1].map(from_cache), [false, true, false, true]);
    std::fs::remove_dir_all(folder).unwrap();
}
