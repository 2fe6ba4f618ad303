//! Really out of memory: with a hard limit on the process's memory, plain Burn dies with a batch that a budget can train to the end.
//!
//! The same training runs in separate processes: first without a limit, to see what it takes with and without a budget, then
//! with the limit half way between.
#![cfg(target_os = "linux")]

use std::process::{Command, Output};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_remat::{RematConfig, RematExt};
use burn_remat_examples::device::is_flex;
use burn_remat_examples::training::train;

const ROWS: usize = 8192;
const WIDTH: usize = 64;
const LAYERS: usize = 24;
const STEPS: usize = 2;
/// A step saves some 200 MB.
const BUDGET: &str = "50 MiB";
/// The environment variable that tells a process of this test what to train on.
const ON: &str = "BURN_REMAT_TEST_TRAINS_ON";

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

/// Bits of the losses, and the digest of gradients and parameters.
fn training(device: &Device) -> String {
    let device = device.clone().autodiff();
    device.seed(5);
    let tower = Tower { layers: (0..LAYERS).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device)).collect() };
    let loss = |tower: &Tower, _: usize| {
        let x = Tensor::<2>::full([ROWS, WIDTH], 0.5, &device);
        tower.layers.iter().fold(x, |x, layer| layer.forward(x).tanh().exp().log()).mean()
    };
    let run = train(tower, STEPS, &mut |_, _| {}, loss).unwrap();
    let losses: Vec<u32> = run.losses.iter().map(|loss| loss.to_bits()).collect();
    format!("{losses:x?} {:x}", run.digest)
}

/// Most bytes of address space that this process has had at once.
fn most_addresses() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// The training in a process of its own, on `on`, within `limit` bytes of address space.
fn alone(on: &str, limit: Option<u64>) -> Output {
    let limit = limit.map_or("unlimited".to_owned(), |bytes| (bytes >> 10).to_string());
    Command::new("sh")
        .args(["-c", &format!("ulimit -v {limit}; exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "the_training_alone", "--include-ignored", "--nocapture", "--test-threads", "1"])
        .env(ON, on)
        // What the allocator reserves for every thread is not memory in use.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap()
}

/// The rest of the output line that begins with `label`.
fn value(output: &Output, label: &str) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| line.split_once(label)).map(|(_, value)| value.to_owned());
    found.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn plain_burn_dies_of_a_batch_that_a_budget_trains_with() {
    let test = "plain_burn_dies_of_a_batch_that_a_budget_trains_with";
    if !is_flex(test, "its memory is not that of the process") {
        return;
    }
    let takes = |output: &Output| value(output, "takes: ").parse::<u64>().unwrap();
    let (plain, remat) = (alone("plain", None), alone("remat", None));
    let (most, least) = (takes(&plain), takes(&remat));
    assert!(least + (50 << 20) < most, "plain Burn takes {most} bytes, with a budget of {BUDGET} it takes {least}");
    let limit = least + (most - least) / 2;
    println!("plain Burn takes {most} bytes, with a budget of {BUDGET} it takes {least}; the limit is {limit}");

    let dead = alone("plain", Some(limit));
    let last_words = String::from_utf8_lossy(&dead.stderr);
    assert!(!dead.status.success() && last_words.contains("memory allocation of"), "it did not die: {last_words}");
    let alive = alone("remat", Some(limit));
    assert!(alive.status.success(), "{}", String::from_utf8_lossy(&alive.stderr));
    assert_eq!(value(&alive, "trained: "), value(&plain, "trained: "));
}

#[test]
#[ignore = "run in another process by plain_burn_dies_of_a_batch_that_a_budget_trains_with"]
fn the_training_alone() {
    let Ok(on) = std::env::var(ON) else { return };
    let flex = Device::flex();
    let device = match on.as_str() {
        "plain" => flex,
        _ => flex.remat(RematConfig::new(BUDGET).without_cache()).unwrap(),
    };
    println!("\ntrained: {}", training(&device));
    println!("takes: {}", most_addresses());
}
