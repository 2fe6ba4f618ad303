//! Decides whether a chain plan is valid and within a budget. Shares no code with `simulate` or any planner.
//!
//! A state is a triple `(A, S, g)`: the boundaries held as a bare activation, those held as a saved set, and the
//! boundary whose gradient is held. The first state is `({0}, {}, n)`. With `H = A ∪ S`, step by step (primes mark
//! the sets after the step):
//!
//! - `Fall i` needs `i ∈ H`; `A' = A \ {i+1}`, `S' = S ∪ {i+1}`.
//! - `Fck i` needs `i ∈ H`; `A' = A ∪ {i+1}` unless `i+1 ∈ S`.
//! - `Fn i` needs `i ∈ A`; like `Fck i`, but `i` leaves `A`.
//! - `B i` needs `g = i+1`, `i+1 ∈ S` and `i ∈ H`; `i+1` leaves `S`, `i` leaves `A`, `g' = i`.
//! - `D i` needs `i ∈ H`; `i` leaves `A` and `S`.
//!
//! Memory during a step is that of everything held before or after it: each boundary once (as a saved set if it is one
//! before or after the step), both gradients of a `B`, and the scratch of the operation. A plan is valid at a budget if
//! every requirement is met, memory never exceeds the budget, and the last state has `g = 0`.
//!
//! All violations are returned. A step with an unmet requirement still takes effect, so that one fault does not hide
//! the next.

use std::collections::BTreeSet;

use super::{Chain, ChainPlan, ChainStep, StageId};

/// One way in which a plan is wrong. `step` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainViolation {
    /// A stage that the chain does not have.
    #[error("step {step} (`{what}`): the chain has only {stages} stages")]
    NoSuchStage {
        /// Index of the step.
        step: usize,
        /// The step.
        what: ChainStep,
        /// How many stages there are.
        stages: usize,
    },
    /// A forward or backward operation, or a release, without the input of its stage.
    #[error("step {step} (`{what}`): the input of stage {} is not held", what.stage())]
    InputMissing {
        /// Index of the step.
        step: usize,
        /// The step.
        what: ChainStep,
    },
    /// `Fn` on an input that is part of a saved set.
    #[error("step {step} (`{what}`): the input of the stage is part of a saved set, which `Fn` cannot release")]
    InputSaved {
        /// Index of the step.
        step: usize,
        /// The step.
        what: ChainStep,
    },
    /// A backward operation without its saved set.
    #[error("step {step} (`{what}`): the saved set of `Fall{}` is not held", what.stage())]
    NotSaved {
        /// Index of the step.
        step: usize,
        /// The step.
        what: ChainStep,
    },
    /// A backward operation out of order.
    #[error("step {step} (`{what}`): {} is due", expected.map_or("no backward operation".to_owned(), |i| format!("`B{i}`")))]
    WrongOrder {
        /// Index of the step.
        step: usize,
        /// The step.
        what: ChainStep,
        /// The stage whose backward operation is due; `None` when all are done.
        expected: Option<StageId>,
    },
    /// More memory than allowed before the first step.
    #[error("at the start: the input and the last gradient are {bytes} bytes, {} more than the budget of {budget}", bytes - budget)]
    OverBudgetAtStart {
        /// Bytes held.
        bytes: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// More memory than allowed.
    #[error("step {step}: {bytes} bytes are held, {} more than the budget of {budget}", bytes - budget)]
    OverBudget {
        /// Index of the step.
        step: usize,
        /// Bytes held.
        bytes: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// The plan ends too early.
    #[error("the plan ends before `B{next}`")]
    Incomplete {
        /// The stage whose backward operation is due.
        next: StageId,
    },
}

struct State {
    bare: BTreeSet<usize>,
    saved: BTreeSet<usize>,
    gradient: usize,
}

impl State {
    fn holds(&self, boundary: usize) -> bool {
        self.bare.contains(&boundary) || self.saved.contains(&boundary)
    }

    fn roles(&self, boundary: usize) -> Roles {
        let (held, saved) = (self.holds(boundary), self.saved.contains(&boundary));
        Roles { held, saved, gradient: self.gradient == boundary }
    }

    fn forward(&mut self, i: StageId, save: bool) {
        if save {
            self.bare.remove(&(i + 1));
            self.saved.insert(i + 1);
        } else if !self.saved.contains(&(i + 1)) {
            self.bare.insert(i + 1);
        }
    }
}

/// What is held of a boundary.
#[derive(Clone, Copy)]
struct Roles {
    held: bool,
    saved: bool,
    gradient: bool,
}

impl Roles {
    fn or(self, other: Self) -> Self {
        let (held, saved) = (self.held || other.held, self.saved || other.saved);
        Self { held, saved, gradient: self.gradient || other.gradient }
    }

    fn bytes(self, chain: &Chain, boundary: usize) -> u64 {
        let (held, gradient) = match boundary.checked_sub(1).map(|i| &chain.stages()[i]) {
            None => (chain.input_bytes(), chain.input_gradient_bytes()),
            Some(stage) if self.saved => (stage.saved_bytes, stage.gradient_bytes),
            Some(stage) => (stage.activation_bytes, stage.gradient_bytes),
        };
        u64::from(self.held) * held + u64::from(self.gradient) * gradient
    }
}

/// Requirements of `what` that `state` does not meet.
fn unmet(state: &State, step: usize, what: ChainStep) -> Vec<ChainViolation> {
    let i = what.stage();
    let mut found = Vec::new();
    if !state.holds(i) {
        found.push(ChainViolation::InputMissing { step, what });
    }
    match what {
        ChainStep::Pass(_) if state.saved.contains(&i) => found.push(ChainViolation::InputSaved { step, what }),
        ChainStep::Backward(_) => {
            if state.gradient != i + 1 {
                found.push(ChainViolation::WrongOrder { step, what, expected: state.gradient.checked_sub(1) });
            }
            if !state.saved.contains(&(i + 1)) {
                found.push(ChainViolation::NotSaved { step, what });
            }
        }
        _ => {}
    }
    found
}

/// All violations of `plan` at `budget`; empty if it is valid. See the module's source for the definition.
/// Complexity: O(steps · log stages).
pub fn check(chain: &Chain, plan: &ChainPlan, budget: u64) -> Vec<ChainViolation> {
    let n = chain.stages().len();
    let mut state = State { bare: BTreeSet::from([0]), saved: BTreeSet::new(), gradient: n };
    let mut found = Vec::new();
    let limit = |found: &mut Vec<ChainViolation>, step: usize, bytes: u64| {
        if bytes > budget {
            found.push(ChainViolation::OverBudget { step, bytes, budget });
        }
    };
    // Bytes held between two steps.
    let mut bytes: u64 =
        BTreeSet::from([0, n]).into_iter().map(|boundary| state.roles(boundary).bytes(chain, boundary)).sum();
    if bytes > budget {
        found.push(ChainViolation::OverBudgetAtStart { bytes, budget });
    }
    for (step, &what) in plan.steps.iter().enumerate() {
        let i = what.stage();
        if i >= n {
            found.push(ChainViolation::NoSuchStage { step, what, stages: n });
            continue;
        }
        found.extend(unmet(&state, step, what));
        // No other boundary changes.
        let boundaries = BTreeSet::from([i, i + 1, state.gradient]);
        let before: Vec<(usize, Roles)> =
            boundaries.into_iter().map(|boundary| (boundary, state.roles(boundary))).collect();
        let mut scratch = chain.stages()[i].forward_scratch_bytes;
        match what {
            ChainStep::SaveAll(_) => state.forward(i, true),
            ChainStep::KeepInput(_) => state.forward(i, false),
            ChainStep::Pass(_) => {
                state.forward(i, false);
                state.bare.remove(&i);
            }
            ChainStep::Backward(_) => {
                scratch = chain.stages()[i].backward_scratch_bytes;
                state.saved.remove(&(i + 1));
                state.bare.remove(&i);
                state.gradient = i;
            }
            ChainStep::Release(_) => {
                state.bare.remove(&i);
                state.saved.remove(&i);
                scratch = 0;
            }
        }
        let mut during = bytes;
        for (boundary, was) in before {
            let (is, had) = (state.roles(boundary), was.bytes(chain, boundary));
            bytes = bytes - had + is.bytes(chain, boundary);
            during = during - had + was.or(is).bytes(chain, boundary);
        }
        let during = if matches!(what, ChainStep::Release(_)) { bytes } else { during };
        limit(&mut found, step, during + scratch);
    }
    if let Some(next) = state.gradient.checked_sub(1) {
        found.push(ChainViolation::Incomplete { next });
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{ChainStage, simulate};
    use super::*;
    use crate::planner::{Planner, Request};
    use crate::planners::ChainDp;

    fn chain() -> Chain {
        let stage = |bytes: u64| ChainStage {
            forward_cost: bytes as f64,
            backward_cost: 2.0 * bytes as f64,
            activation_bytes: bytes,
            saved_bytes: 2 * bytes,
            gradient_bytes: bytes + 1,
            forward_scratch_bytes: 3,
            backward_scratch_bytes: 5,
        };
        Chain::new("test", 10, 11, [7, 4, 9, 6].map(stage).to_vec()).unwrap()
    }

    fn plan(text: &str) -> ChainPlan {
        ChainPlan { steps: text.split_whitespace().map(|step| step.parse().unwrap()).collect() }
    }

    const PLANS: [&str; 4] = [
        "Fall0 Fall1 Fall2 Fall3 B3 B2 B1 B0",
        "Fck0 Fn1 Fck2 Fall3 B3 Fall2 B2 Fck0 Fall1 B1 Fall0 B0",
        "Fall0 Fck1 Fn2 Fall3 B3 Fck1 Fall2 B2 Fall1 B1 B0",
        "Fck0 Fck1 Fck2 Fall3 B3 D1 Fall2 B2 Fck0 Fall1 B1 Fall0 B0",
    ];

    #[test]
    fn valid_plans_pass_at_exactly_their_simulated_peak() {
        for text in PLANS {
            let peak = simulate(&chain(), &plan(text)).peak_bytes;
            assert_eq!(check(&chain(), &plan(text), peak), [], "{text}");
            let found = check(&chain(), &plan(text), peak - 1);
            assert!(
                !found.is_empty() && found.iter().all(|v| matches!(v, ChainViolation::OverBudget { .. })),
                "{text}"
            );
        }
    }

    /// Without a budget to speak of, each step is a violation that says what it holds.
    #[test]
    fn each_step_holds_what_is_simulated() {
        let request = |budget| Request { time_limit: Duration::MAX, ..Request::new(budget) };
        let most = chain().store_all_peak();
        let found = (most / 2..most).filter_map(|budget| ChainDp.solve_chain(&chain(), &request(budget)).ok()?.plan);
        let plans: Vec<ChainPlan> = PLANS.into_iter().map(plan).chain(found).collect();
        assert!(plans.len() > PLANS.len());
        for plan in plans {
            let held = check(&chain(), &plan, 0).into_iter().filter_map(|violation| match violation {
                ChainViolation::OverBudget { bytes, .. } => Some(bytes),
                _ => None,
            });
            assert_eq!(held.collect::<Vec<_>>(), simulate(&chain(), &plan).bytes, "{plan:?}");
        }
    }

    #[test]
    fn a_budget_below_the_start_is_named_as_such_and_first() {
        // Input 10 and the last gradient 7.
        let found = check(&chain(), &plan(PLANS[0]), 16);
        assert_eq!(found[0], ChainViolation::OverBudgetAtStart { bytes: 17, budget: 16 });
        assert!(found[0].to_string().starts_with("at the start: "));
        assert!(found[1..].iter().all(|v| matches!(v, ChainViolation::OverBudget { step, .. } if *step < 8)));
    }

    #[test]
    fn memory_follows_table_one() {
        // Input 10 and the last gradient 7 throughout; stage 0 saves 14 with 3 scratch.
        let timeline = simulate(&chain(), &plan(PLANS[0]));
        assert_eq!(timeline.bytes[0], 10 + 7 + 14 + 3);
        // B3: all saved sets, both gradients, scratch.
        assert_eq!(timeline.bytes[4], 10 + 2 * (7 + 4 + 9 + 6) + 7 + 10 + 5);
        // B0: input, its saved set, both gradients, scratch.
        assert_eq!(timeline.bytes[7], 10 + 14 + 8 + 11 + 5);
        assert_eq!(timeline.makespan, 3.0 * 26.0);
    }

    #[test]
    fn every_dropped_step_is_found() {
        for text in PLANS {
            let good = plan(text);
            for at in (0..good.steps.len()).filter(|&at| !matches!(good.steps[at], ChainStep::Release(_))) {
                let mut bad = good.clone();
                bad.steps.remove(at);
                assert!(!check(&chain(), &bad, u64::MAX).is_empty(), "{text} without step {at}");
            }
        }
    }

    #[test]
    fn planted_faults_are_named() {
        let names = |text: &str| {
            let name = |v: &ChainViolation| format!("{v:?}").split([' ', '{']).next().unwrap().to_owned();
            check(&chain(), &plan(text), u64::MAX).iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(
            names("Fall0 Fall1 Fall2 Fall3 B3 B1 B2 B0"),
            ["WrongOrder", "InputMissing", "WrongOrder", "WrongOrder"]
        );
        assert_eq!(names("Fall0 Fall1 Fall2 Fall3 B3 B2 B2 B1 B0"), ["WrongOrder", "NotSaved"]);
        assert_eq!(names("Fall0 Fn1 Fall2 Fall3 B3 B2 B1 B0"), ["InputSaved", "NotSaved"]);
        assert_eq!(names("Fall0 Fall1 D1 D1 Fall2 Fall3 B3 B2 B1 B0"), ["InputMissing", "InputMissing", "NotSaved"]);
        assert_eq!(names("Fall0 Fall1 Fall2 Fall3 Fall4 B3 B2 B1 B0"), ["NoSuchStage"]);
        assert_eq!(names("Fall0 Fall1 Fall2 Fall3 B3 B2 B1"), ["Incomplete"]);
        assert_eq!(names(""), ["Incomplete"]);
    }

    #[test]
    fn step_texts_survive_a_round_trip_and_nonsense_is_refused() {
        for text in PLANS {
            let back: Vec<String> = plan(text).steps.iter().map(ToString::to_string).collect();
            assert_eq!(back.join(" "), text);
        }
        for bad in ["", "F3", "Fall", "Fall-1", "B+1", "fck1", "D 1", "Fn1x", "Fn99999999999999999999999"] {
            assert!(bad.parse::<ChainStep>().is_err(), "{bad}");
        }
    }
}
