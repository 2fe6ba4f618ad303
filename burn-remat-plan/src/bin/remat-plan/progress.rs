//! Shows the progress of long solves on standard error, if that is a terminal.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn_remat_plan::{Progress, Request};
use indicatif::{ProgressBar, ProgressStyle};

/// Solves shorter than this show nothing.
const PATIENCE: Duration = Duration::from_secs(2);
const REFRESH: Duration = Duration::from_millis(100);

/// Runs `work` with a request that reports progress; shows elapsed time, incumbent and bound if it takes long.
pub fn with_progress<T>(title: &str, mut request: Request, work: impl FnOnce(&Request) -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work(&request);
    }
    let latest = Arc::new(Mutex::new(Progress::default()));
    let shared = Arc::clone(&latest);
    request.progress = Some(Arc::new(move |progress| {
        if let Ok(mut slot) = shared.lock() {
            *slot = Progress {
                incumbent: progress.incumbent.or(slot.incumbent),
                lower_bound: progress.lower_bound.or(slot.lower_bound),
            };
        }
    }));
    let (done, wait) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            let start = std::time::Instant::now() - PATIENCE;
            while wait.recv_timeout(REFRESH) == Err(RecvTimeoutError::Timeout) {
                let progress = latest.lock().map_or_else(|_| Progress::default(), |slot| *slot);
                let text = |number: Option<f64>| number.map_or_else(|| "none yet".to_owned(), |n| format!("{n:.6}"));
                let (best, bound) = (text(progress.incumbent), text(progress.lower_bound));
                bar.set_message(format!(
                    "{title}: {:.0?} s, incumbent {best}, bound {bound}",
                    start.elapsed().as_secs()
                ));
                bar.tick();
            }
            bar.finish_and_clear();
        });
        let result = work(&request);
        drop(done);
        result
    })
}
