//! Planted faults: the checker must find each, and name the step.

use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Alternative, Graph, GraphBuilder, Op, Plan, Step, Violation, check, simulate};
use proptest::prelude::*;

/// Two inputs, five ops, a random op that may run only once, an alternative with scratch, one result.
fn graph() -> Graph {
    let mut builder = GraphBuilder::new("planted");
    builder.constant_bytes(1000);
    let sizes = [10, 20, 30, 40, 50, 60, 70];
    let v: Vec<_> = sizes.iter().map(|&bytes| builder.value(bytes, "")).collect();
    builder.op(Op::new("a", 1.0, vec![v[0]], vec![v[1]]));
    let mut random = Op::new("random", 2.0, vec![v[1]], vec![v[2], v[3]]);
    random.recomputable = false;
    builder.op(random);
    let mut choice = Op::new("choice", 4.0, vec![v[2], v[3]], vec![v[4]]);
    choice.alternatives = vec![Alternative { name: "small".into(), cost: 8.0, inputs: vec![v[3]], scratch_bytes: 5 }];
    builder.op(choice);
    let mut wide = Op::new("wide", 16.0, vec![v[1], v[4]], vec![v[5]]);
    wide.scratch_bytes = 100;
    builder.op(wide);
    builder.op(Op::new("end", 32.0, vec![v[5]], vec![v[6]]));
    builder.build().unwrap()
}

fn plan(text: &str) -> Plan {
    Plan { steps: text.split_whitespace().map(|step| step.parse().unwrap()).collect() }
}

/// Correct as far as it goes.
const UNFINISHED: &str = "+0 -0 +1 -2 +2:0 -3 -1";

fn violations(text: &str, budget: u64) -> Vec<Violation> {
    check(&graph(), &plan(text), budget).map_or_else(|found| found.all().to_vec(), |_| Vec::new())
}

/// A valid plan that recomputes op 0 and uses the alternative.
fn good() -> String {
    // Value 0 stays so that op 0 can run again.
    "+0 +1 -1 -2 +2:0 -3 +0 -0 +3 -1 -4 +4 -5".to_owned()
}

#[test]
fn a_valid_plan_is_accepted_with_its_peak_and_makespan() {
    let plan = plan(&good());
    let checked = check(&graph(), &plan, u64::MAX).unwrap();
    assert_eq!(checked.makespan(), 1.0 + 2.0 + 8.0 + 1.0 + 16.0 + 32.0);
    // Op 3: values 1, 4, 5 and its scratch.
    assert_eq!(checked.peak_bytes(), 1000 + 20 + 50 + 60 + 100);
    let timeline = simulate(&graph(), &plan);
    assert_eq!((checked.peak_bytes(), checked.makespan()), (timeline.peak_bytes, timeline.makespan));
    assert_eq!(checked.plan(), &plan);
    assert_eq!(checked.budget(), u64::MAX);
}

#[test]
fn a_budget_one_byte_short_is_found_and_the_exact_one_is_enough() {
    assert_eq!(violations(&good(), 1230), []);
    assert_eq!(violations(&good(), 1229), [Violation::OverBudget { step: 8, bytes: 1230, budget: 1229 }]);
}

#[test]
fn an_unfinished_plan_names_every_op_and_result_that_is_missing() {
    assert_eq!(
        violations(UNFINISHED, u64::MAX),
        [Violation::NeverComputed { op: 3 }, Violation::NeverComputed { op: 4 }, Violation::ResultMissing { value: 6 },]
    );
}

#[test]
fn a_dropped_compute_is_found() {
    // Op 2 is gone: its output is missing in op 3, and is not there to be evicted.
    assert_eq!(
        violations("+0 +1 -2 -3 +3 -1 -4 +4 -5", u64::MAX),
        [
            Violation::InputMissing { step: 4, op: 3, value: 4 },
            Violation::EvictsNothing { step: 6, value: 4 },
            Violation::NeverComputed { op: 2 },
        ]
    );
}

#[test]
fn an_early_evict_is_found() {
    assert_eq!(
        violations("+0 -1 +1 +2 +3 +4", u64::MAX),
        [Violation::InputMissing { step: 2, op: 1, value: 1 }, Violation::InputMissing { step: 4, op: 3, value: 1 }]
    );
}

#[test]
fn a_double_evict_is_found() {
    assert_eq!(violations("+0 -0 -0 +1 +2 +3 +4", u64::MAX), [Violation::EvictsNothing { step: 2, value: 0 }]);
}

#[test]
fn swapped_computations_are_found() {
    assert_eq!(
        violations("+1 +0 +2 +3 +4", u64::MAX),
        [Violation::InputMissing { step: 0, op: 1, value: 1 }, Violation::OutOfOrder { step: 1, op: 0, after: 1 }]
    );
}

#[test]
fn a_wrong_order_of_independent_ops_is_found() {
    let mut builder = GraphBuilder::new("two");
    let v: Vec<_> = (0..2).map(|_| builder.value(1, "")).collect();
    builder.op(Op::new("a", 1.0, vec![], vec![v[0]]));
    builder.op(Op::new("b", 1.0, vec![], vec![v[1]]));
    let found = check(&builder.build().unwrap(), &plan("+1 +0"), 10).unwrap_err();
    assert_eq!(found.all(), [Violation::OutOfOrder { step: 1, op: 0, after: 1 }]);
}

#[test]
fn a_second_run_of_what_may_run_once_is_found() {
    assert_eq!(violations("+0 +1 +1 +2 +3 +4", u64::MAX), [Violation::RunsAgain { step: 2, op: 1, first: 1 }]);
}

#[test]
fn an_evicted_result_is_found() {
    assert_eq!(violations("+0 +1 +2 +3 +4 -6", u64::MAX), [Violation::ResultMissing { value: 6 }]);
}

#[test]
fn indices_out_of_range_are_found_and_skipped() {
    assert_eq!(
        violations("+0 +5 -7 +2:1 +99:0 +1 +2 +3 +4", u64::MAX),
        [
            Violation::NoSuchOp { step: 1, op: 5, count: 5 },
            Violation::NoSuchValue { step: 2, value: 7, count: 7 },
            Violation::NoSuchAlternative { step: 3, op: 2, alternative: 1, count: 1 },
            Violation::NoSuchOp { step: 4, op: 99, count: 5 },
        ]
    );
}

#[test]
fn the_default_implementation_needs_what_the_alternative_does_not() {
    assert_eq!(violations("+0 +1 -2 +2:0 +3 +4", u64::MAX), []);
    assert_eq!(violations("+0 +1 -2 +2 +3 +4", u64::MAX), [Violation::InputMissing { step: 3, op: 2, value: 2 }]);
    assert_eq!(violations("+0 +1 -3 +2:0 +3 +4", u64::MAX), [Violation::InputMissing { step: 3, op: 2, value: 3 }]);
}

#[test]
fn a_start_over_the_budget_is_found_even_if_no_step_is() {
    let found = violations("-0", 1009);
    assert_eq!(found[0], Violation::OverBudgetAtStart { bytes: 1010, budget: 1009 });
    assert_eq!(found[0].step(), None);
}

#[test]
fn an_empty_plan_lacks_everything() {
    assert_eq!(violations("", u64::MAX).len(), 6);
}

/// A fault planted into a valid plan.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Drop,
    Duplicate,
    SwapWithNext,
    Budget,
}

/// Random small graphs: op `i` reads a few of the values before it.
fn small_graph() -> impl Strategy<Value = Graph> {
    (1..9_usize).prop_flat_map(|ops| {
        let op = (proptest::collection::vec(any::<proptest::sample::Index>(), 0..4), 1..3_usize, 0..9_u64, 0..9_u32);
        (proptest::collection::vec(op, ops), proptest::collection::vec(0..20_u64, 2 + 2 * ops), any::<bool>()).prop_map(
            |(ops, sizes, once)| {
                let mut builder = GraphBuilder::new("random");
                let mut sizes = sizes.into_iter();
                let mut known = vec![builder.value(sizes.next().unwrap_or(1), "x")];
                for (uses, outputs, scratch, cost) in ops {
                    let inputs = uses.iter().map(|index| *index.get(&known)).collect();
                    let outputs: Vec<_> = (0..outputs).map(|_| builder.value(sizes.next().unwrap_or(1), "")).collect();
                    known.extend(&outputs);
                    let mut op = Op::new("", f64::from(cost), inputs, outputs);
                    op.scratch_bytes = scratch;
                    op.recomputable = !once;
                    builder.op(op);
                }
                builder.build().unwrap()
            },
        )
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    let small = prop_oneof![9 => 0..20_usize, 1 => any::<usize>()];
    prop_oneof![
        small.clone().prop_map(Step::Compute),
        (small.clone(), 0..3_usize).prop_map(|(op, k)| Step::ComputeAlternative(op, k)),
        small.prop_map(Step::Evict),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_steps_give_an_answer_and_never_a_panic(
        graph in small_graph(),
        steps in proptest::collection::vec(any_step(), 0..40),
        budget in any::<u64>(),
    ) {
        let _ = check(&graph, &Plan { steps }, budget);
    }

    #[test]
    fn what_the_checker_accepts_it_measures_as_the_simulator_does(graph in small_graph()) {
        let plan = StoreAll::plan(&graph);
        let timeline = simulate(&graph, &plan);
        let checked = check(&graph, &plan, timeline.peak_bytes).unwrap();
        prop_assert_eq!((checked.peak_bytes(), checked.makespan()), (timeline.peak_bytes, timeline.makespan));
    }

    /// Store-all without a single spare step: every one of its computations is needed, and each of its evictions
    /// is the only one of that value.
    #[test]
    fn every_planted_fault_is_found(
        graph in small_graph(),
        fault in prop_oneof![Just(Fault::Drop), Just(Fault::Duplicate), Just(Fault::SwapWithNext), Just(Fault::Budget)],
        at in any::<proptest::sample::Index>(),
    ) {
        let mut plan = StoreAll::plan(&graph);
        let mut budget = simulate(&graph, &plan).peak_bytes;
        let at = at.index(plan.steps.len());
        let step = plan.steps[at];
        match fault {
            Fault::Budget => {
                prop_assume!(budget > 0);
                budget -= 1;
            }
            Fault::Drop => {
                // Without an eviction the plan may still fit.
                prop_assume!(step.op().is_some());
                plan.steps.remove(at);
            }
            Fault::Duplicate => {
                // A recomputation with everything resident is a waste, not a fault.
                prop_assume!(step.op().is_none_or(|op| !graph.ops()[op].recomputable));
                plan.steps.insert(at, step);
            }
            Fault::SwapWithNext => {
                prop_assume!(at + 1 < plan.steps.len());
                // Two evictions may be swapped, and so may a computation and the eviction of a value that it does not touch.
                let ordered = match (step, plan.steps[at + 1]) {
                    (Step::Compute(_), Step::Compute(_)) => true,
                    (Step::Compute(op), Step::Evict(value)) => {
                        graph.ops()[op].inputs.contains(&value) || graph.ops()[op].outputs.contains(&value)
                    }
                    _ => false,
                };
                prop_assume!(ordered);
                plan.steps.swap(at, at + 1);
            }
        }
        prop_assert!(check(&graph, &plan, budget).is_err(), "{fault:?} at {at} went unnoticed: {plan:?}");
    }
}
