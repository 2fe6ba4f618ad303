//! Graphs made of random bytes: no planner, no bound and no minimum may panic, contradict another or take more memory than its limit.
//!
//! How well they keep to their time is printed (`--nocapture`) and not asserted, since other programs take time too. In the slow test, what takes too
//! long is tried twice more, and the quickest try counts.

mod brute_force;
mod hostile;
mod judge;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn_remat_plan::Request;
use burn_remat_plan::chain::{self, Chain, ChainStage};
use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::lower_bound::{Effort, lower_bound};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::registry::planner;
use hostile::Numbers;
use hostile::bytes::from_bytes;
use judge::{judge, quick};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// One test at a time has the heap to itself.
static ALONE: Mutex<()> = Mutex::new(());

const MEMORY_LIMIT: u64 = 32 << 20;
/// By how much a limit may be exceeded: a tenth, and the time that a busy machine takes to wake a thread.
const MOST: f64 = 1.1;
const SLACK: Duration = Duration::from_millis(20);
/// More than any result takes.
const RESULTS: usize = 1 << 20;

/// The bytes of a graph: mostly a few pieces.
fn bytes(seed: u64) -> Vec<u8> {
    let mut numbers = Numbers::new(seed);
    let pieces = [1, 2, 2, 3, 3, 4, 6, 10][numbers.below(8)];
    (0..5 + 3 * pieces).map(|_| numbers.below(256) as u8).collect()
}

/// What a planner, or another source of work, has used of its limits.
#[derive(Default)]
struct Taken {
    times: usize,
    too_long: usize,
    /// The longest time, with its graph; and the most memory.
    longest: (Duration, String),
    most_bytes: usize,
}

/// Work that takes too long is tried up to `tries` times.
fn run(seeds: std::ops::Range<u64>, time_limit: Duration, tries: usize) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (start, mut broken) = (Instant::now(), Vec::new());
    let mut taken = BTreeMap::<String, Taken>::new();
    let request = quick(time_limit, MEMORY_LIMIT);
    for seed in seeds.clone() {
        let graph = from_bytes(&bytes(seed));
        let mut measure = |what: &str, work: &mut dyn FnMut()| {
            let (mut time, mut bytes) = (Duration::MAX, 0);
            for _ in 0..tries {
                let (taken, held) = used_by(&mut *work);
                (time, bytes) = (time.min(taken), bytes.max(held));
                if time <= time_limit.mul_f64(MOST) + SLACK {
                    break;
                }
            }
            let taken = taken.entry(what.to_owned()).or_default();
            taken.times += 1;
            taken.too_long += usize::from(time > time_limit.mul_f64(MOST) + SLACK);
            if time > taken.longest.0 {
                taken.longest = (time, graph.name().to_owned());
            }
            taken.most_bytes = taken.most_bytes.max(bytes);
            let name = graph.name();
            assert!(bytes as f64 <= MOST * MEMORY_LIMIT as f64, "{what} on {name}: {bytes} bytes");
        };
        if catch_unwind(AssertUnwindSafe(|| judge(&graph, &request, &mut measure))).is_err() {
            broken.push(seed);
        }
        if (seed + 1 - seeds.start).is_multiple_of(1000) {
            println!("{} graphs, {} broken, {:.0?}", seed + 1 - seeds.start, broken.len(), start.elapsed());
        }
    }
    println!(
        "planner, times asked, longer than {MOST} x {time_limit:?} + {SLACK:?}, longest, most bytes, the graph of the longest"
    );
    for (what, Taken { times, too_long, longest, most_bytes }) in &taken {
        println!("{what}, {times}, {too_long}, {:.1?}, {most_bytes}, {}", longest.0, longest.1);
    }
    assert!(broken.is_empty(), "graphs {broken:?} of {seeds:?} broke something: see above");
}

/// The time of some work, and the most bytes that it holds at once.
fn used_by(work: impl FnOnce()) -> (Duration, usize) {
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    let start = Instant::now();
    work();
    let (time, bytes) = (start.elapsed(), HEAP.peak_usage().saturating_sub(before));
    // A thread that was abandoned at its time limit holds its memory until it next checks the clock: it is not to count with what follows.
    while HEAP.current_usage() > before + RESULTS && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    (time, bytes)
}

#[test]
fn planners_of_chains_and_relaxations_keep_to_their_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut numbers = Numbers::new(7);
    let mut stage = || ChainStage {
        forward_cost: 1.0 + numbers.below(90) as f64,
        backward_cost: 2.0 + numbers.below(90) as f64,
        activation_bytes: 50 + numbers.below(100) as u64,
        saved_bytes: 100 + numbers.below(400) as u64,
        gradient_bytes: 50,
        ..ChainStage::default()
    };
    let chain = Chain::new("stages", 50, 50, (0..40).map(|_| stage()).collect()).expect("it is valid");
    let memory_limit = 4 << 20;
    let least = chain::minimum(&chain).achieved;
    let request = |budget| Request { budget, ..quick(Duration::from_secs(2), memory_limit) };
    for name in ["search", "chain-dp", "auto"] {
        let planner = planner(name).expect("it is in the registry");
        let (_, bytes) = used_by(|| drop(planner.solve_chain(&chain, &request(least * 5 / 4)).expect("it fits")));
        assert!(bytes as f64 <= MOST * memory_limit as f64, "{name} on a chain: {bytes} bytes");
    }
    let graph = by_name("residual", &Options { depth: 100, ..Options::default() }).expect("it is a family");
    let effort = Effort { bytes: memory_limit, ..Effort::time(Duration::from_secs(1)) };
    let (_, bytes) = used_by(|| assert!(lower_bound(&graph, StoreAll::peak(&graph) / 3, effort) > 0.0));
    assert!(bytes as f64 <= MOST * memory_limit as f64, "the bound of a graph: {bytes} bytes");
}

/// Six ops of one-byte values, with costs from 32 to 2^51: the search of states once drew a false conclusion from what no schedule can do.
#[test]
fn what_the_search_of_states_learns_holds_for_schedules() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let graph = from_bytes(&[0x8a, 0x95, 0x86, 0xe3, 0x04, 0x8a, 0x59, 0x21]);
    judge(&graph, &quick(Duration::from_secs(1), MEMORY_LIMIT), &mut |_, work| work());
}

#[test]
fn nothing_breaks_on_three_hundred_random_graphs() {
    run(0..300, Duration::from_millis(2), 1);
}

/// Two hours on one core: `cargo test --release -p burn-remat-plan --test adversarial -- --ignored --nocapture`; `FIRST` and `GRAPHS` in the
/// environment choose others, or fewer.
#[test]
#[ignore = "two hours"]
fn nothing_breaks_on_a_hundred_thousand_random_graphs() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let first = number("FIRST", 300);
    run(first..first + number("GRAPHS", 100_000), Duration::from_millis(5), 3);
}
