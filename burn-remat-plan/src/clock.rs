//! Time as planners count it: what goes by on the wall, or for the [patient](patiently) about what they had of a processor.
//!
//! Beside a program that computes, at low priority or on a busy machine, a planner may get a tenth of a processor. A limit of some milliseconds on the
//! wall is then one of next to no work, and what it finds depends on what else the machine does. A limit in processor time finds the same on both.
//!
//! Method: a patient clock is the wall's, less the time that its threads have lost, which is what went by while they were at work and had no processor.
//! Threads at work at the same time lose their part of it each; one that waits for others loses none. The clock falls behind the wall's as far as to one
//! part in `most` of it and no further, so that an end comes in any case. Where a system does not tell a thread's processor time, nothing counts as lost.
//!
//! Cost: about a microsecond for a look at a patient clock, which asks the system; an end that is not near is seen without one.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A moment by the clock of the thread that looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Instant);

impl Moment {
    /// The present one.
    pub fn now() -> Self {
        OWN.with_borrow_mut(|own| Self(own.as_mut().map_or_else(Instant::now, Own::look)))
    }

    /// What went by since.
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    /// What went by between an `earlier` moment and this one; nothing where it was later.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// The moment so much later, unless it is beyond the clock.
    pub fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// Whether it has come.
    pub fn passed(self) -> bool {
        OWN.with_borrow_mut(|own| match own {
            None => Instant::now() >= self.0,
            Some(own) => own.patient.at(Instant::now()) >= self.0 && own.look() >= self.0,
        })
    }
}

thread_local! {
    /// The patient clock by which this thread goes, and when it last looked.
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

/// A clock that several threads go by.
#[derive(Debug)]
struct Patient {
    begun: Instant,
    /// How much of the wall's time counts at least, as one part in so many.
    most: u32,
    /// Nanoseconds.
    lost: AtomicU64,
    workers: AtomicU32,
}

impl Patient {
    /// What this clock shows when the wall's shows `wall`, as far as its threads have told what they lost.
    fn at(&self, wall: Instant) -> Instant {
        let time = wall.saturating_duration_since(self.begun);
        let lost = Duration::from_nanos(self.lost.load(Ordering::Relaxed));
        self.begun + time.saturating_sub(lost).max(time / self.most)
    }
}

/// A thread at work by a patient clock.
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

    /// Tells what was lost since the last look.
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

/// Processor time of this thread, where the system tells it.
fn processor_time() -> Option<Duration> {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd"))]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd")))]
    None
}

/// Runs `work`, in which time limits are such on processor time, up to `most` times as much on the wall.
///
/// ```
/// use std::time::Duration;
/// use burn_remat_plan::{Request, generate, minimum, planners::Auto, solve, clock::patiently};
///
/// let graph = generate::by_name("mobilenet", &generate::Options::default())?;
/// let request = Request { time_limit: Duration::from_millis(500), ..Request::new(2 * minimum(&graph).achieved) };
/// // On a busy machine as good a plan as on an idle one, within two seconds.
/// let solved = patiently(4, || solve(&Auto::default(), &graph, &request))?;
/// assert!(solved.checked.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn patiently<T>(most: u32, work: impl FnOnce() -> T) -> T {
    let (begun, most) = (Instant::now(), most.max(1));
    Clock(Some(Arc::new(Patient { begun, most, lost: AtomicU64::new(0), workers: AtomicU32::new(0) }))).enter(work)
}

/// The clock of a thread, for another one that it starts.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Option<Arc<Patient>>);

impl Clock {
    /// That of this thread.
    pub fn current() -> Self {
        Self(OWN.with_borrow(|own| own.as_ref().map(|own| own.patient.clone())))
    }

    /// Goes by it in `work`, unless this thread has a patient clock already.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Ends the work also where it panics.
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

/// Waits for other threads, or for a library that has threads and a limit of its own: no time is lost by that.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let patient = OWN.take().map(Own::end);
    let done = wait();
    OWN.set(patient.map(Own::begin));
    done
}

/// Runs `other` on a thread of its own while `own` runs here, both by the clock of this thread.
pub(crate) fn beside<A: Send, B>(other: impl FnOnce() -> A + Send, own: impl FnOnce() -> B) -> (A, B) {
    let clock = &Clock::current();
    thread::scope(|scope| {
        let other = scope.spawn(move || clock.enter(other));
        let own = own();
        (joined(other), own)
    })
}

/// Runs `work` on each of the items, the first here and each other one on a thread of its own, by the clock of this thread. The results come in the
/// order of the items. On a busy machine a new thread waits for its turn: one item does not need one.
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

/// What a thread has found, or its panic.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    waiting(|| thread.join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(80);

    /// Takes so much of a processor.
    fn compute(time: Duration) {
        let begun = processor_time().unwrap();
        while processor_time().unwrap() - begun < time {
            std::hint::spin_loop();
        }
    }

    /// What `work` takes by the clock of the thread, and on the wall.
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
        assert!(within < wall.max(PAUSE), "the clock of the outer one: {within:?}");
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
            // Three threads may have had less than a processor each, and have lost what they had not.
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
