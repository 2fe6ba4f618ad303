//! A time limit for work that cannot be interrupted.
//!
//! Problem: HiGHS looks at its clock in most of its loops but not in all: the interior-point run for the analytic centre
//! has no limit of its own, and presolve has long steps. On a busy machine a solve with a limit of 8 s took 44 s. Nor
//! does anything look at the clock while a program of millions of entries is built.
//!
//! Method: the work runs on a thread of its own and leaves its latest outcome where the caller finds it. Some time after
//! the limit the caller takes that and goes its way. The thread ends by itself when it next looks at the clock; until
//! then it takes processor time, and nobody hears of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::PlanError;
use crate::graph::Graph;
use crate::planner::{Outcome, Progress, Request};

/// What the work may take beyond the limit, to end in good order.
const GRACE: Duration = Duration::from_millis(500);

/// Stack of the working thread: what a program's main thread has.
const STACK_BYTES: usize = 8 << 20;

/// The latest outcome of work under way.
#[derive(Default)]
pub(super) struct Latest {
    outcome: Mutex<Option<Outcome>>,
    left: AtomicBool,
}

impl Latest {
    /// Replaces the outcome that the caller gets if the time runs out.
    pub fn set(&self, outcome: Outcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    fn take(&self) -> Option<Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The result of `work`, or its latest outcome soon after the request's limit.
pub(super) fn within_limit(
    name: &'static str,
    graph: &Graph,
    request: &Request,
    work: impl FnOnce(&Graph, &Request, &Latest) -> Result<Outcome, PlanError> + Send + 'static,
) -> Result<Outcome, PlanError> {
    let latest = Arc::new(Latest::default());
    let (sender, receiver) = channel();
    let thread = {
        let (graph, mut request, latest) = (graph.clone(), request.clone(), Arc::clone(&latest));
        request.progress = request.progress.map(|callback| {
            let latest = Arc::clone(&latest);
            let report = move |progress: Progress| {
                if !latest.left.load(Ordering::Relaxed) {
                    callback(progress);
                }
            };
            Arc::new(report) as Arc<dyn Fn(Progress) + Send + Sync>
        });
        // A send fails where the caller has left.
        let run = move || drop(sender.send(work(&graph, &request, &latest)));
        thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(run)
    };
    let thread = thread.map_err(|error| PlanError::Internal { planner: name, reason: error.to_string() })?;
    match receiver.recv_timeout(request.time_limit.saturating_add(GRACE)) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            latest.left.store(true, Ordering::Relaxed);
            log::debug!("{name}: left behind, its solver does not look at the clock");
            Ok(latest.take().unwrap_or_else(|| Outcome::without_plan(name, None)))
        }
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => Err(PlanError::Internal { planner: name, reason: "ended without a result".to_owned() }),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::graph::{GraphBuilder, Op};
    use crate::planner::{Planner, Status, StopReason};
    use crate::planners::StoreAll;

    fn graph() -> Graph {
        let mut builder = GraphBuilder::new("one");
        let value = builder.value(8, "x");
        builder.op(Op::new("a", 1.0, vec![], vec![value]));
        builder.build().unwrap()
    }

    #[test]
    fn work_that_ends_in_time_gives_its_own_result() {
        let outcome =
            within_limit("test", &graph(), &Request::new(8), |graph, request, _| StoreAll.solve(graph, request));
        assert_eq!(outcome.unwrap().stop_reason, StopReason::Proved);
        let error =
            within_limit("test", &graph(), &Request::new(7), |graph, request, _| StoreAll.solve(graph, request));
        assert!(matches!(error, Err(PlanError::Infeasible { .. })));
    }

    #[test]
    fn work_that_does_not_end_gives_its_latest_outcome_and_reports_no_more() {
        let reports = Arc::new(Mutex::new(0));
        let counter = Arc::clone(&reports);
        let (release, wait) = channel::<()>();
        let (done, ended) = channel();
        let request = Request {
            time_limit: Duration::from_millis(50),
            progress: Some(Arc::new(move |_| *counter.lock().unwrap() += 1)),
            ..Request::new(8)
        };
        let start = Instant::now();
        let outcome = within_limit("test", &graph(), &request, move |graph, request, latest| {
            let outcome = StoreAll.solve(graph, request)?;
            latest.set(Outcome { stop_reason: StopReason::TimeLimit, ..outcome.clone() });
            request.report(Progress::default());
            wait.recv().ok();
            request.report(Progress::default());
            done.send(()).ok();
            Ok(outcome)
        });
        assert!(start.elapsed() >= GRACE);
        drop(release);
        ended.recv().unwrap();
        assert_eq!(outcome.unwrap().stop_reason, StopReason::TimeLimit);
        assert_eq!(*reports.lock().unwrap(), 1);
    }

    #[test]
    fn work_without_any_outcome_by_then_has_no_plan() {
        let request = Request { time_limit: Duration::ZERO, ..Request::new(8) };
        let (release, wait) = channel::<()>();
        let outcome = within_limit("test", &graph(), &request, move |graph, request, _| {
            wait.recv().ok();
            StoreAll.solve(graph, request)
        });
        drop(release);
        assert_eq!(outcome.unwrap().status, Status::NoSolution);
    }

    #[test]
    #[should_panic(expected = "a defect")]
    fn a_panic_of_the_work_is_the_callers() {
        drop(within_limit("test", &graph(), &Request::new(8), |_, _, _| panic!("a defect")));
    }
}
