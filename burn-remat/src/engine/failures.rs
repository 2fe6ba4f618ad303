//! What went wrong, in words: what ran, in which step, under which plan, and out of memory by its name.
//!
//! A GPU backend takes operations and runs them later. What fails there, an allocation above all, is told when a result is
//! read, as an error or as a panic of the thread that reads. So a read is watched until it ends, and what it tells is
//! explained as it stood when the read began.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use burn_backend::{ExecutionError, TensorData};
use burn_std::future::DynFut;

use super::table::TensorKey;
use super::{Engine, Failure, Outs};
use crate::backend::{RematBackend, lock};

/// Lines of a backend's message that are passed on; a backtrace may follow.
const MOST_LINES: usize = 4;

/// What backends say when there is no memory.
const NO_MEMORY: [&str; 7] = [
    "out of memory",
    "outofmemory",
    "out-of-memory",
    "out of device memory",
    "buffer too big",
    "allocat",
    "no room for",
];

/// What was going on when an operation ran or a read began.
pub(super) struct Circumstances {
    live: u64,
    step: u32,
    /// The planner of the plan that the step follows, and what the plan holds at most.
    plan: Option<(String, u64)>,
}

impl Circumstances {
    /// A failure of `op` in words; `cause` is the backend's own account.
    pub fn explain(&self, op: &str, cause: &str) -> String {
        let lines = || cause.lines().map(str::trim).filter(|line| !line.is_empty());
        // Of several failures at once, and of their backtraces, the one that counts.
        let Some(cause) = lines().find(|line| is_memory(line)) else {
            let lines: Vec<&str> = lines().take(MOST_LINES).collect();
            return format!("`{op}` failed: {}", lines.join(" "));
        };
        let plan = match &self.plan {
            Some((planner, peak)) => format!("which follows a plan of `{planner}` for {peak} bytes"),
            None => "which follows no plan".to_owned(),
        };
        format!(
            "out of memory on the device: `{op}` failed in step {}, {plan}, with {} bytes of tensors held: {cause}. Set a smaller \
             budget, so that padding and kernel workspaces fit beside it, or make the batch smaller.",
            self.step, self.live
        )
    }

    /// An error of the backend; out of memory is explained.
    pub fn name_memory(&self, op: &str, error: ExecutionError) -> ExecutionError {
        let cause = error.to_string();
        if is_memory(&cause) { ExecutionError::with_context(self.explain(op, &cause)) } else { error }
    }
}

/// Whether a backend says that there is no memory.
fn is_memory(cause: &str) -> bool {
    let cause = cause.to_lowercase();
    NO_MEMORY.iter().any(|words| cause.contains(words))
}

/// The message of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("the backend panicked without a message")
}

/// The first failure that a read told after it had left the engine.
pub(super) type Late = Arc<Mutex<Option<Failure>>>;

/// Watches a read: out of memory gets its name, and a panic becomes an error.
pub(super) fn watched(
    mut read: DynFut<Result<TensorData, ExecutionError>>,
    circumstances: Circumstances,
    late: Late,
) -> DynFut<Result<TensorData, ExecutionError>> {
    let tell = move |cause: &str| {
        let failure = circumstances.explain("read", cause);
        log::error!("{failure}");
        lock(&late).get_or_insert_with(|| failure.as_str().into());
        ExecutionError::with_context(failure)
    };
    Box::pin(std::future::poll_fn(move |context| {
        match catch_unwind(AssertUnwindSafe(|| read.as_mut().poll(context))) {
            Ok(Poll::Ready(Err(error))) => {
                let cause = error.to_string();
                Poll::Ready(Err(if is_memory(&cause) { tell(&cause) } else { error }))
            }
            Ok(poll) => poll,
            Err(payload) => Poll::Ready(Err(tell(panic_message(&*payload)))),
        }
    }))
}

impl<B: RematBackend> Engine<B> {
    /// Says a failure once, however many tensors it leaves without data.
    pub(super) fn remember(&mut self, failure: &Failure) {
        if self.last_failure.as_ref().is_some_and(|last| Arc::ptr_eq(last, failure)) {
            return;
        }
        log::error!("{failure}");
        self.last_failure = Some(failure.clone());
        self.unsynced_failure.get_or_insert_with(|| failure.clone());
        self.stats.failure.get_or_insert_with(|| failure.clone());
    }

    /// Outputs of an operation that did not run.
    pub(super) fn register_failed(&mut self, outs: Outs, failure: Failure) {
        self.remember(&failure);
        for out in outs {
            self.insert(out, 0, Some(failure.clone()));
        }
    }

    /// A tensor that cannot be brought back.
    pub(super) fn fail(&mut self, key: TensorKey, failure: Failure) {
        self.release(key);
        self.tensors[key].failure.get_or_insert(failure);
        self.make_root(key);
        self.collect();
    }

    /// What is going on.
    pub(super) fn circumstances(&self) -> Circumstances {
        let planner = self.plans.state.origin.as_ref().map_or("", |origin| origin.planner.as_str());
        Circumstances {
            live: self.storages.live,
            step: self.step_number + 1,
            plan: self.follow.as_ref().map(|follow| (planner.to_owned(), follow.schedule().peak)),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn_std::reader::try_read_sync;

    use super::*;

    fn circumstances() -> Circumstances {
        Circumstances { live: 4096, step: 7, plan: Some(("search".to_owned(), 5000)) }
    }

    /// What a reader gets from `read`, and what is noted for the report.
    fn outcome(read: DynFut<Result<TensorData, ExecutionError>>) -> (String, Option<Failure>) {
        let late = Late::default();
        let result = try_read_sync(watched(read, circumstances(), late.clone())).unwrap();
        let noted = lock(&late).clone();
        (result.map_or_else(|error| error.to_string(), |data| format!("{data:?}")), noted)
    }

    #[test]
    fn out_of_memory_gets_its_name_with_the_step_and_the_plan() {
        for cause in [
            "An IO error happened\nCaused by:\n  can't allocate buffer of size: 99\nsome frames",
            "out of device memory allocating 99 bytes",
            "Several failures at once\nCaused by:\n\n  one\n  two\n  can't allocate buffer of size: 99",
            "wgpu error: Out of Memory",
        ] {
            let failing = ExecutionError::with_context(cause);
            let (told, noted) = outcome(Box::pin(async move { Err(failing) }));
            for part in ["out of memory on the device", "step 7", "`search`", "5000 bytes", "4096 bytes"] {
                assert!(told.contains(part), "{part}: {told}");
            }
            assert!(noted.is_some_and(|noted| told.contains(&*noted)));
        }
    }

    #[test]
    fn a_panic_of_the_reader_becomes_an_error() {
        let (told, noted) = outcome(Box::pin(async { panic!("the runner is gone") }));
        assert!(told.contains("`read` failed: the runner is gone"), "{told}");
        assert!(noted.is_some());
    }

    #[test]
    fn what_is_no_failure_of_memory_is_passed_on_as_it_is() {
        let poisoned = ExecutionError::device_poisoned("a kernel faulted");
        let expected = poisoned.to_string();
        assert_eq!(outcome(Box::pin(async move { Err(poisoned) })), (expected, None));
        let data = TensorData::from([1.0_f32]);
        assert_eq!(outcome(Box::pin(std::future::ready(Ok(data.clone())))), (format!("{data:?}"), None));
    }
}
