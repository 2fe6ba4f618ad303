//! Time as planners count it: wall-clock time or, inside [`patiently`], roughly processor time.
//!
//! On a busy machine, or at low priority beside a program that computes, a planner may get a tenth of a processor. A few milliseconds of wall-clock time
//! then allow almost no work, and the result depends on what else the machine does. With a limit in processor time, the result is as good as on an idle
//! machine.
//!
//! Method: a patient clock shows wall-clock time minus the time that its threads have lost: time in which they had work to do but no processor. If
//! several threads work at once, each one's loss is divided by their number; a thread that waits for others loses nothing. At least one part in `most`
//! of the wall-clock time always counts, so that every limit is reached. If the system does not report a thread's processor time, nothing counts as lost.
//!
//! Cost: reading a patient clock takes about a microsecond, because it asks the system; a deadline that is not near needs no such reading.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A moment on the clock of the thread that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Instant);

impl Moment {
    /// The current moment.
    pub fn now() -> Self {
        OWN.with_borrow_mut(|own| Self(own.as_mut().map_or_else(Instant::now, Own::look)))
    }

    /// The time since this moment.
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    /// The time from an `earlier` moment to this one; zero if that moment was later.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// The moment that is `time` later; `None` if the clock cannot represent it.
    pub fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// Whether this moment has passed.
    pub fn passed(self) -> bool {
        OWN.with_borrow_mut(|own| match own {
            None => Instant::now() >= self.0,
            Some(own) => own.patient.at(Instant::now()) >= self.0 && own.look() >= self.0,
        })
    }
}

thread_local! {
    /// The patient clock that this thread uses, and when it was last read.
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

/// A clock that several threads share.
#[derive(Debug)]
struct Patient {
    begun: Instant,
    /// At least one part in `most` of the wall-clock time counts.
    most: u32,
    /// Nanoseconds.
    lost: AtomicU64,
    workers: AtomicU32,
}

impl Patient {
    /// What this clock shows at wall-clock time `wall`, given the losses that its threads have reported so far.
    fn at(&self, wall: Instant) -> Instant {
        let time = wall.saturating_duration_since(self.begun);
        let lost = Duration::from_nanos(self.lost.load(Ordering::Relaxed));
        self.begun + time.saturating_sub(lost).max(time / self.most)
    }
}

/// A thread that works on a patient clock.
#[derive(Debug)]
struct Own {
    patient: Arc<Patient>,
    wall: Instant,
    processor: Duration,
}

impl Own {
    fn begin(patient: Arc<Patient>) -> Self {
        patient.workers.fetch_add(1, Ordering::Relaxed);
        Self { patient, wall: Instant::now(), processor: processor_time().unwrap_or_default() }
    }

    /// Reports the time lost since the last look, and returns what the clock shows.
    fn look(&mut self) -> Instant {
        let (wall, processor) = (Instant::now(), processor_time());
        if let Some(processor) = processor {
            let had = processor.saturating_sub(self.processor);
            let lost = wall.saturating_duration_since(self.wall).saturating_sub(had);
            let lost = lost / self.patient.workers.load(Ordering::Relaxed).max(1);
            self.patient.lost.fetch_add(u64::try_from(lost.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            (self.wall, self.processor) = (wall, processor);
        }
        self.patient.at(wall)
    }

    fn end(mut self) -> Arc<Patient> {
        self.look();
        self.patient.workers.fetch_sub(1, Ordering::Relaxed);
        self.patient
    }
}

/// Processor time of this thread, if the system reports it.
fn processor_time() -> Option<Duration> {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd"))]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd")))]
    None
}

/// Runs `work` with time limits that count processor time, but end after at most `most` times as much wall-clock time.
///
/// ```
/// use std::time::Duration;
/// use burn_remat_plan::{Request, generate, minimum, planners::Auto, solve, clock::patiently};
///
/// let graph = generate::by_name("mobilenet", &generate::Options::default())?;
/// let request = Request { time_limit: Duration::from_millis(500), ..Request::new(2 * minimum(&graph).achieved) };
/// // On a busy machine, the plan is as good as on an idle one, and takes two seconds at most.
/// let solved = patiently(4, || solve(&Auto::default(), &graph, &request))?;
/// assert!(solved.checked.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn patiently<T>(most: u32, work: impl FnOnce() -> T) -> T {
    let (begun, most) = (Instant::now(), most.max(1));
    Clock(Some(Arc::new(Patient { begun, most, lost: AtomicU64::new(0), workers: AtomicU32::new(0) }))).enter(work)
}

/// The clock of a thread, to pass on to a thread that it starts.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Option<Arc<Patient>>);

impl Clock {
    /// The clock of this thread.
    pub fn current() -> Self {
        Self(OWN.with_borrow(|own| own.as_ref().map(|own| own.patient.clone())))
    }

    /// Uses this clock in `work`, unless this thread already has a patient clock.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Ends the work even if it panics.
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                drop(OWN.take().map(Own::end));
            }
        }
        let Some(patient) = self.0.as_ref().filter(|_| OWN.with_borrow(Option::is_none)) else { return work() };
        OWN.set(Some(Own::begin(patient.clone())));
        let _leave = Leave;
        work()
    }
}

/// Waits for other threads, or for a library with threads and a limit of its own. The wait does not count as lost time.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let patient = OWN.take().map(Own::end);
    let done = wait();
    OWN.set(patient.map(Own::begin));
    done
}

/// Runs `other` on a thread of its own while `own` runs here, both on the clock of this thread.
pub(crate) fn beside<A: Send, B>(other: impl FnOnce() -> A + Send, own: impl FnOnce() -> B) -> (A, B) {
    let clock = &Clock::current();
    thread::scope(|scope| {
        let other = scope.spawn(move || clock.enter(other));
        let own = own();
        (joined(other), own)
    })
}

/// Runs `work` on each of the items, the first here and every other one on a thread of its own, all on the clock of this thread. The results come in the
/// order of the items. A single item starts no thread, because a new thread must wait for its turn on a busy machine.
pub(crate) fn together<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> T + Sync,
) -> impl Iterator<Item = T> {
    let (clock, work) = (&Clock::current(), &work);
    let mut items = items.into_iter();
    let own = items.next();
    let done: Vec<T> = thread::scope(|scope| {
        let others: Vec<_> = items.map(|item| scope.spawn(move || clock.enter(|| work(item)))).collect();
        let own = own.map(work);
        own.into_iter().chain(others.into_iter().map(joined)).collect()
    });
    done.into_iter()
}

/// The result of a thread, or its panic.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    waiting(|| thread.join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(80);

    /// Uses `time` of processor time.
    fn compute(time: Duration) {
        let begun = processor_time().unwrap();
        while processor_time().unwrap() - begun < time {
            std::hint::spin_loop();
        }
    }

    /// How long `work` takes on the clock of the thread, and on the wall clock.
    fn measured(work: impl FnOnce()) -> (Duration, Duration) {
        let (begun, wall) = (Moment::now(), Instant::now());
        work();
        (begun.elapsed(), wall.elapsed())
    }

    #[test]
    fn time_without_a_processor_does_not_count_for_the_patient_up_to_a_limit() {
        let pause = || measured(|| thread::sleep(PAUSE));
        let (impatient, _) = pause();
        assert!(impatient >= PAUSE);
        let (patient, wall) = patiently(4, pause);
        assert!(patient < wall / 2 && patient >= PAUSE / 4, "{patient:?} of {wall:?}");
        let (patient, _) = patiently(1, pause);
        assert!(patient >= PAUSE);
        let (within, _) = patiently(4, || patiently(1, pause));
        assert!(within < wall.max(PAUSE), "the outer clock counts: {within:?}");
    }

    #[test]
    fn time_of_a_processor_counts_also_where_another_thread_has_it() {
        let own = patiently(4, || measured(|| compute(PAUSE)).0);
        assert!(own >= PAUSE);
        let others = patiently(4, || measured(|| together([(), ()], |()| compute(PAUSE)).for_each(drop)).0);
        assert!(others >= PAUSE / 2, "{others:?}");
        let beside = patiently(4, || measured(|| ((), ()) = super::beside(|| compute(PAUSE), || ())).0);
        assert!(beside >= PAUSE / 2, "{beside:?}");
    }

    #[test]
    fn an_end_is_seen_and_holds_on_every_thread() {
        patiently(4, || {
            let end = Moment::now().checked_add(PAUSE).unwrap();
            let passed = together(0..3, |_| {
                let before = end.passed();
                compute(2 * PAUSE);
                (before, end.passed())
            });
            // Each of the three threads may have had less than a whole processor, and the rest counts as lost.
            assert!(passed.fold(false, |any, (_, after)| any | after));
        });
        assert!(!Moment::now().checked_add(Duration::from_secs(3600)).unwrap().passed());
    }

    #[test]
    fn results_come_in_the_order_of_the_items_and_a_panic_comes_through() {
        assert_eq!(together(0..5, |item| 2 * item).collect::<Vec<_>>(), [0, 2, 4, 6, 8]);
        assert!(OWN.with_borrow(Option::is_none));
        let caught = std::panic::catch_unwind(|| {
            patiently(2, || together(0..2, |item| assert!(item == 0, "the second")).for_each(drop));
        });
        assert!(caught.is_err() && OWN.with_borrow(Option::is_none));
    }
}
