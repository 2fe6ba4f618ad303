//! Processor time, and whether other programs took some of it.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Processor time of all threads of this process so far.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Other programs than this one, over a period of time.
pub struct Others {
    begun: Instant,
    own: Duration,
    /// Busy time of all processors, in clock ticks; `None` if the system does not report it.
    busy: Option<f64>,
}

/// Clock ticks per second in `/proc/stat`: the same on every current Linux.
const TICKS: f64 = 100.0;
/// Below this share of the machine, other programs do not matter.
const IDLE: f64 = 0.05;

impl Others {
    /// Begins to watch.
    pub fn watch() -> Self {
        Self { begun: Instant::now(), own: processor_time(), busy: busy_ticks() }
    }

    /// The share of the machine's processors that other programs have taken since then.
    pub fn share(&self) -> Option<f64> {
        let busy = (busy_ticks()? - self.busy?) / TICKS - (processor_time() - self.own).as_secs_f64();
        let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        Some((busy / (self.begun.elapsed().as_secs_f64() * processors)).clamp(0.0, 1.0))
    }

    /// A line about it for people.
    pub fn warning(share: Option<f64>) -> String {
        match share {
            Some(share) if share > IDLE => {
                format!("  THE MACHINE WAS NOT IDLE: other programs took {:.0}% of its processors", share * 100.0)
            }
            Some(share) => {
                format!("  the machine was idle: other programs took {:.1}% of its processors", share * 100.0)
            }
            None => "  whether the machine was idle is not known on this system".to_owned(),
        }
    }
}

/// User, nice, system, irq, softirq and steal time of all processors.
fn busy_ticks() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<f64> =
        text.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = fields[..] else { return None };
    Some(user + nice + system + irq + softirq + steal)
}
