//! The heap of a program that uses `peak_alloc` as its allocator.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use burn_remat::MemoryProbe;
use peak_alloc::PeakAlloc;

/// Most bytes allocated before [`Heap`] last reset the peak.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The heap as seen by both a remat device and a table: the device resets the peak at every operation.
#[derive(Debug)]
pub struct Heap;

impl MemoryProbe for Heap {
    fn current(&self) -> u64 {
        PeakAlloc.current_usage() as u64
    }

    fn peak(&self) -> u64 {
        PeakAlloc.peak_usage() as u64
    }

    fn reset_peak(&self) {
        MOST.fetch_max(PeakAlloc.peak_usage(), Ordering::Relaxed);
        PeakAlloc.reset_peak_usage();
    }
}

impl Heap {
    /// Starts a measurement; returns the bytes allocated now.
    pub fn start() -> usize {
        PeakAlloc.reset_peak_usage();
        MOST.store(0, Ordering::Relaxed);
        PeakAlloc.current_usage()
    }

    /// Bytes allocated once other threads have freed what they no longer need: when nothing has changed for a while, or after two seconds.
    pub fn settled() -> usize {
        let mut held = PeakAlloc.current_usage();
        for _ in 0..20 {
            sleep(Duration::from_millis(100));
            let now = PeakAlloc.current_usage();
            if now == held {
                break;
            }
            held = now;
        }
        held
    }

    /// Most bytes allocated since the start.
    pub fn most() -> usize {
        PeakAlloc.peak_usage().max(MOST.load(Ordering::Relaxed))
    }
}
