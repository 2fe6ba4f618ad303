//! Chains for tests, and the cheapest schedule of a chain, found by trying all of them.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::{BinaryHeap, HashMap};
use std::path::PathBuf;

use burn_remat_plan::chain::{Chain, ChainStage};

/// A chain of equal stages.
pub fn equal_stages(name: &str, count: usize) -> Chain {
    let stage = ChainStage {
        forward_cost: 1.0,
        backward_cost: 2.0,
        activation_bytes: 4,
        saved_bytes: 9,
        gradient_bytes: 4,
        ..ChainStage::default()
    };
    Chain::new(name, 4, 4, vec![stage; count]).unwrap()
}

/// Which schedules a search ranges over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// What is kept stays until its backward use.
    Persistent,
    /// Persistent, and a stage saves only when its backward operation is due.
    InputsOnly,
    /// Anything may be released at any time.
    Any,
}

/// How a boundary is held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Held {
    No,
    /// Just computed: may still be passed over.
    Bare,
    /// Kept as a checkpoint.
    Kept,
    Saved,
}

/// Stages still to go backward, and every boundary.
type State = (usize, Vec<Held>);

fn bytes(chain: &Chain, (due, held): &State) -> u64 {
    let gradient = due.checked_sub(1).map_or(chain.input_gradient_bytes(), |i| chain.stages()[i].gradient_bytes);
    let boundary = |(at, held): (usize, &Held)| match (at.checked_sub(1), held) {
        (_, Held::No) => 0,
        (None, _) => chain.input_bytes(),
        (Some(i), Held::Saved) => chain.stages()[i].saved_bytes,
        (Some(i), _) => chain.stages()[i].activation_bytes,
    };
    gradient + held.iter().enumerate().map(boundary).sum::<u64>()
}

/// All states one operation away, each with its cost, without those over the budget.
fn next_states(chain: &Chain, state: &State, class: Class, budget: u64) -> Vec<(State, f64)> {
    let mut found = Vec::new();
    let (due, held) = state;
    if class == Class::Any {
        // Every boundary that some stage reads may be released, including that of the backward operation just done.
        for i in (0..chain.stages().len()).filter(|&i| held[i] != Held::No) {
            let mut after = state.clone();
            after.1[i] = Held::No;
            found.push((after, 0.0));
        }
    }
    for i in 0..*due {
        if held[i] == Held::No {
            continue;
        }
        let stage = &chain.stages()[i];
        for (form, keeps) in [(Held::Saved, true), (Held::Bare, true), (Held::Bare, false)] {
            let passes_kept = !keeps && (held[i] == Held::Saved || (held[i] == Held::Kept && class != Class::Any));
            let saves_early = form == Held::Saved && class == Class::InputsOnly && i + 1 != *due;
            let useless = held[i + 1] == Held::Saved || (form == Held::Bare && held[i + 1] != Held::No);
            if passes_kept || saves_early || useless {
                continue;
            }
            let mut during = state.clone();
            during.1[i + 1] = form;
            if held[i] != Held::Saved {
                during.1[i] = Held::Kept;
            }
            if bytes(chain, &during) + stage.forward_scratch_bytes <= budget {
                let mut after = during;
                if !keeps {
                    after.1[i] = Held::No;
                }
                found.push((after, stage.forward_cost));
            }
        }
    }
    let Some(i) = due.checked_sub(1) else { return found };
    if held[i + 1] == Held::Saved && held[i] != Held::No {
        let stage = &chain.stages()[i];
        let written = i.checked_sub(1).map_or(chain.input_gradient_bytes(), |j| chain.stages()[j].gradient_bytes);
        if bytes(chain, state) + written + stage.backward_scratch_bytes <= budget {
            let mut after = (i, held.clone());
            after.1[i + 1] = Held::No;
            if held[i] != Held::Saved {
                after.1[i] = Held::No;
            }
            found.push((after, stage.backward_cost));
        }
    }
    found
}

/// Cost of the cheapest schedule of the class within the budget, if there is one: every reachable state is tried. Costs
/// must be whole numbers.
pub fn brute_force(chain: &Chain, class: Class, budget: u64) -> Option<f64> {
    let n = chain.stages().len();
    let mut start = (n, vec![Held::No; n + 1]);
    start.1[0] = Held::Bare;
    if bytes(chain, &start) > budget {
        return None;
    }
    let mut best: HashMap<State, u64> = HashMap::from([(start.clone(), 0)]);
    let mut queue = BinaryHeap::from([(std::cmp::Reverse(0), start)]);
    while let Some((std::cmp::Reverse(cost), state)) = queue.pop() {
        if state.0 == 0 {
            return Some(cost as f64);
        }
        if best[&state] < cost {
            continue;
        }
        for (after, by) in next_states(chain, &state, class, budget) {
            let cost = cost + by as u64;
            if best.get(&after).is_none_or(|&known| cost < known) {
                best.insert(after.clone(), cost);
                queue.push((std::cmp::Reverse(cost), after));
            }
        }
    }
    None
}

/// A folder of chains with known optima, if it is available.
pub fn benchmark_chains() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/benchmarks/chains");
    let found = folder.is_dir();
    if !found {
        eprintln!("skipped: {} does not exist", folder.display());
    }
    found.then_some(folder)
}
