//! Bytes become a graph; every planner, every bound and the minimum are tried on it and compared.
//!
//! With `cargo install cargo-fuzz`, in `burn-remat-plan`: `cargo fuzz run graphs --sanitizer none -- -max_len=64`. No nightly toolchain is
//! needed. What it finds lies in `fuzz/artifacts/graphs`; the same command with such a file's name runs it again.

#![no_main]

#[path = "../../tests/brute_force/mod.rs"]
mod brute_force;
#[path = "../../tests/hostile/mod.rs"]
mod hostile;
#[path = "../../tests/judge/mod.rs"]
mod judge;

use std::time::Duration;

use judge::{judge, quick};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    judge(&hostile::bytes::from_bytes(bytes), &quick(Duration::from_millis(5), 32 << 20), &mut |_, work| work());
});
