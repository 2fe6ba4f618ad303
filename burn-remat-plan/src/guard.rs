//! Keeps a caller safe from a planner that panics or does not return.
//!
//! Not all work can be interrupted. HiGHS checks its clock in most of its loops but not in all: the interior-point run for
//! the analytic centre has no limit of its own, and presolve has long steps; on a busy machine, a solve with a limit of 8 s
//! took 44 s. And a third-party planner may do anything.
//!
//! Method: [`within_limit`] runs the work on a thread of its own, which stores its latest outcome where the caller can find
//! it. Shortly after the limit, the caller takes that outcome and continues. The thread ends by itself when it next checks
//! the clock; until then it still uses processor time and memory, but its progress reports are dropped.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::clock::{Clock, waiting};
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::planner::{Progress, Request};

/// Stack of the working thread: the same as that of a program's main thread.
const STACK_BYTES: usize = 8 << 20;

/// Shortest wait for a result.
const SHORT: Duration = Duration::from_millis(1);

/// Extra time after the limit for work to finish: a twentieth of it, but at least a tick of the system's clock.
pub(crate) fn grace(limit: Duration) -> Duration {
    (limit / 20).clamp(Duration::from_millis(10), Duration::from_millis(500))
}

/// The latest outcome of work in progress.
pub(crate) struct Latest<T> {
    outcome: Mutex<Option<T>>,
    left: AtomicBool,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self { outcome: Mutex::new(None), left: AtomicBool::new(false) }
    }
}

impl<T> Latest<T> {
    /// Replaces the outcome that the caller gets if the time runs out.
    #[cfg(any(test, feature = "highs"))]
    pub fn set(&self, outcome: T) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    fn take(&self) -> Option<T> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// How guarded work ended.
pub(crate) enum Ended<T> {
    /// By itself, with this result.
    Done(T),
    /// It did not end in time; this is its latest outcome, if any.
    Left(Option<T>),
}

/// Runs `work`; a panic becomes [`PlanError::Internal`].
///
/// # Errors
///
/// The error of `work`, or its panic.
pub(crate) fn isolated<T>(planner: &'static str, work: impl FnOnce() -> Result<T, PlanError>) -> Result<T, PlanError> {
    // `work` borrows only the problem and the request, which it cannot leave half changed.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let reason = format!("it panicked: {}", message_of(&*panic));
        Err(PlanError::Internal { planner, reason })
    })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The result of `work`, or its latest outcome soon after the request's limit.
///
/// # Errors
///
/// The error of `work`, its panic, or that no thread could be started.
pub(crate) fn within_limit<T: Send + 'static>(
    planner: &'static str,
    request: &Request,
    work: impl FnOnce(&Request, &Latest<T>) -> Result<T, PlanError> + Send + 'static,
) -> Result<Ended<T>, PlanError> {
    let latest = Arc::new(Latest::default());
    let (sender, receiver) = channel();
    let spawned = {
        let (mut request, latest, clock) = (request.clone(), Arc::clone(&latest), Clock::current());
        request.progress = request.progress.map(|callback| {
            let latest = Arc::clone(&latest);
            let report = move |progress: Progress| {
                if !latest.left.load(Ordering::Relaxed) {
                    callback(progress);
                }
            };
            Arc::new(report) as Arc<dyn Fn(Progress) + Send + Sync>
        });
        // The send fails if the caller has given up.
        let run = move || drop(sender.send(clock.enter(|| isolated(planner, || work(&request, &latest)))));
        thread::Builder::new().name(planner.to_owned()).stack_size(STACK_BYTES).spawn(run)
    };
    spawned.map_err(|error| PlanError::Internal { planner, reason: error.to_string() })?;
    let end = Deadline::after(request.time_limit.saturating_add(grace(request.time_limit)));
    let received = loop {
        let left = end.left().max(SHORT);
        match waiting(|| receiver.recv_timeout(left)) {
            // On a patient clock, the end may be further away than it seemed.
            Err(RecvTimeoutError::Timeout) if !end.passed() => {}
            received => break received,
        }
    };
    match received {
        Ok(result) => result.map(Ended::Done),
        Err(RecvTimeoutError::Timeout) => {
            latest.left.store(true, Ordering::Relaxed);
            log::debug!("{planner}: abandoned, because it does not check the clock");
            Ok(Ended::Left(latest.take()))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(PlanError::Internal { planner, reason: "it ended without a result".to_owned() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(limit: Duration) -> Request {
        Request { time_limit: limit, ..Request::new(8) }
    }

    #[test]
    fn work_that_ends_in_time_gives_its_own_result() {
        let minute = Duration::from_secs(60);
        assert!(matches!(within_limit("test", &request(minute), |_, _| Ok(3)), Ok(Ended::Done(3))));
        let error = PlanError::FeatureMissing { planner: "test", feature: "none" };
        let told = error.clone();
        let found = within_limit::<u8>("test", &request(minute), |_, _| Err(error));
        assert_eq!(found.err(), Some(told));
    }

    #[test]
    fn work_that_does_not_end_gives_its_latest_outcome_and_reports_no_more() {
        let reports = Arc::new(Mutex::new(0));
        let counter = Arc::clone(&reports);
        let (release, wait) = channel::<()>();
        let (set, is_set) = channel();
        let (done, ended) = channel();
        let request = Request {
            progress: Some(Arc::new(move |_| *counter.lock().unwrap() += 1)),
            ..request(Duration::from_millis(200))
        };
        let found = within_limit("test", &request, move |request, latest| {
            latest.set(1);
            request.report(Progress::default());
            set.send(()).ok();
            wait.recv().ok();
            request.report(Progress::default());
            done.send(()).ok();
            Ok(2)
        });
        is_set.recv().unwrap();
        drop(release);
        ended.recv().unwrap();
        // On a very busy machine, the work may not have started by then.
        assert!(matches!(found, Ok(Ended::Left(Some(1) | None))));
        assert!(*reports.lock().unwrap() <= 1);
    }

    #[test]
    fn patient_work_is_waited_for_by_its_own_clock() {
        let limit = Duration::from_millis(200);
        let slow = move |_: &Request, _: &Latest<u8>| {
            let begun = std::time::Instant::now();
            while begun.elapsed() < 2 * limit {
                thread::sleep(limit / 20);
                crate::clock::Moment::now();
            }
            Ok(3)
        };
        let found = || within_limit("test", &request(limit), slow);
        assert!(matches!(found(), Ok(Ended::Left(None))));
        assert!(matches!(crate::clock::patiently(4, found), Ok(Ended::Done(3))));
    }

    #[test]
    fn a_panic_is_an_error_that_says_what_the_panic_said() {
        let text = |panic: fn() -> u8| isolated("test", || Ok(panic())).unwrap_err().to_string();
        assert!(text(|| panic!("a defect")).contains("a defect"));
        assert!(text(|| panic!("number {}", 7)).contains("number 7"));
        let Err(error) = within_limit::<u8>("test", &request(Duration::from_secs(60)), |_, _| panic!("a defect"))
        else {
            panic!("no error")
        };
        assert!(error.to_string().contains("a defect"));
    }
}
