//! Failures in words: what ran, in which step, under which plan, and whether memory ran out.
//!
//! A GPU backend accepts operations and runs them later. What fails there, above all an allocation, is reported when a result is read, as an error or as
//! a panic of the thread that reads. So a read is watched until it ends, and its failure is explained with the circumstances in which the read began.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use burn_backend::{ExecutionError, TensorData};
use burn_std::future::DynFut;

use burn_remat_core::{Circumstances, Failure};

use crate::panics::{lock, panic_message};

/// How many lines of a backend's message are passed on. A backtrace may follow them.
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
pub(super) struct Told {
    pub circumstances: Circumstances,
    /// The planner of the plan that the step follows.
    pub planner: String,
}

impl Told {
    /// The message for a failure of `op`. `cause` is the backend's own message.
    pub fn explain(&self, op: &str, cause: &str) -> String {
        let lines = || cause.lines().map(str::trim).filter(|line| !line.is_empty());
        // Of several failures at once, and their backtraces, the line that counts.
        let Some(cause) = lines().find(|line| is_memory(line)) else {
            let lines: Vec<&str> = lines().take(MOST_LINES).collect();
            return format!("`{op}` failed: {}", lines.join(" "));
        };
        let Circumstances { live, step, plan } = self.circumstances;
        let plan = match plan {
            Some(peak) => format!("which follows a plan of `{}` for {peak} bytes", self.planner),
            None => "which follows no plan".to_owned(),
        };
        format!(
            "out of memory on the device: `{op}` failed in step {step}, {plan}, with {live} bytes of tensors held: {cause}. Set a smaller \
             budget, so that padding and kernel workspaces fit beside it, or make the batch smaller."
        )
    }

    /// An error of the backend. If memory ran out, it is explained.
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

/// The first failure of a read that was reported after the read had left the engine.
pub(super) type Late = Arc<Mutex<Option<Failure>>>;

/// Watches a read: if memory runs out, the error is explained, and a panic becomes an error.
pub(super) fn watched(
    mut read: DynFut<Result<TensorData, ExecutionError>>,
    told: Told,
    late: Late,
) -> DynFut<Result<TensorData, ExecutionError>> {
    let tell = move |cause: &str| {
        let failure = told.explain("read", cause);
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

#[cfg(test)]
mod tests {
    use burn_std::reader::try_read_sync;

    use super::*;

    fn told() -> Told {
        let circumstances = Circumstances { live: 4096, step: 7, plan: Some(5000) };
        Told { circumstances, planner: "search".to_owned() }
    }

    /// What a reader gets from `read`, and the failure that is kept for the report.
    fn outcome(read: DynFut<Result<TensorData, ExecutionError>>) -> (String, Option<Failure>) {
        let late = Late::default();
        let result = try_read_sync(watched(read, told(), late.clone())).unwrap();
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
