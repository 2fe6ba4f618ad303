//! Planning in the background: one thread at a time, what it sends, and how another thread waits for it.
//!
//! The thread first plans for a moment, so that there is a plan soon, and then for the time that the user allows. It sends each plan that is better than
//! those before. It yields to the program, even more so once there is a plan.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn_remat_core::Trace;
use burn_remat_plan::Outcome;
use burn_remat_plan::format::PlanFile;

use super::cache::CacheFile;
use super::state::{Floor, Origin};
use crate::panics::{lock, panic_message};
use crate::planning::chosen::ChosenPlanner;
use crate::planning::fit::{Fit, Found, GOOD_ENOUGH, Terms, first};
use crate::planning::lowering::Lowered;
use crate::planning::schedule::Schedule;

/// Niceness of the planner's thread until there is a plan: it gets a quarter of a processor that the program also uses, and all of an idle one.
const UNTIL_A_PLAN: i32 = 5;
/// Niceness while it looks for a better plan: it gets only idle time.
const FOR_A_BETTER_ONE: i32 = 19;

/// A step to be planned.
pub(super) struct Task {
    pub trace: Arc<Trace>,
    pub lowered: Lowered,
    pub budget: u64,
    pub planner: ChosenPlanner,
    pub limit: Duration,
    /// The present plan, and the planner that made it.
    pub known: Option<(Arc<Schedule>, String)>,
    /// Where plans are kept.
    pub cache: Option<CacheFile>,
}

/// What the planner's thread sends.
pub(super) enum Message {
    /// A plan, and the budget for which it was made.
    Plan(Arc<Schedule>, Origin, u64),
    /// The size of the smallest plan for a kind of step.
    Floor(Floor),
    Problem(String),
}

/// The state of planning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No step has been seen often enough.
    #[default]
    Watching,
    /// A planner is at work.
    Planning,
    /// There is a plan, or it is known that there will be none.
    Done,
}

/// Lets another thread wait for a plan.
#[derive(Clone, Default)]
pub(crate) struct Wait(Arc<(Mutex<Stage>, Condvar)>);

impl Wait {
    fn set(&self, stage: Stage) {
        *lock(&self.0.0) = stage;
        self.0.1.notify_all();
    }

    /// Waits until no planner is at work. Returns `false` if the time is up first, or if planning has not begun.
    pub fn wait(&self, limit: Duration) -> bool {
        let waited = self.0.1.wait_timeout_while(lock(&self.0.0), limit, |stage| *stage == Stage::Planning);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == Stage::Done
    }
}

/// The thread at work.
struct Job {
    messages: Receiver<Message>,
    since: Instant,
    /// Its plans are no longer wanted.
    is_stale: bool,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Background {
    job: Option<Job>,
    wait: Wait,
}

impl Background {
    /// A handle to wait until no planner is at work.
    pub fn wait(&self) -> Wait {
        self.wait.clone()
    }

    /// There is a plan, or there will be none, so nobody needs to wait.
    pub fn done(&self) {
        self.wait.set(Stage::Done);
    }

    /// Since when a planner has been at work.
    pub fn since(&self) -> Option<Instant> {
        self.job.as_ref().map(|job| job.since)
    }

    /// Marks the plans of the thread at work as no longer wanted.
    pub fn disown(&mut self) {
        if let Some(job) = &mut self.job {
            job.is_stale = true;
        }
    }

    /// Plans a step on a thread of its own. No planner may be at work.
    ///
    /// # Errors
    ///
    /// The error of the system if it cannot start a thread.
    pub fn start(&mut self, task: Task) -> std::io::Result<()> {
        let (sender, messages) = channel();
        let (worker, wait, since) = (Worker { task, sender }, self.wait(), Instant::now());
        self.wait.set(Stage::Planning);
        let spawned = std::thread::Builder::new().name("remat-planner".to_owned()).spawn(move || {
            give_way(UNTIL_A_PLAN);
            // Whatever goes wrong, nobody must wait forever.
            if let Err(cause) = catch_unwind(AssertUnwindSafe(|| worker.plan())) {
                worker.say(Message::Problem(format!("planning failed: {}", panic_message(&*cause))));
            }
            // A thread that has waited must find this one done.
            drop(worker);
            wait.set(Stage::Done);
        });
        match spawned {
            Ok(_) => self.job = Some(Job { messages, since, is_stale: false }),
            Err(error) => {
                self.done();
                return Err(error);
            }
        }
        Ok(())
    }

    /// The next message that the thread has sent.
    pub fn next(&mut self) -> Option<Message> {
        loop {
            let job = self.job.as_ref()?;
            match job.messages.try_recv() {
                Ok(Message::Plan(..)) if job.is_stale => {}
                Ok(message) => return Some(message),
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => self.job = None,
            }
        }
    }
}

/// Lowers the priority of this thread and of those that it starts.
#[cfg_attr(
    not(target_os = "linux"),
    expect(unused_variables, reason = "elsewhere this would change the whole process")
)]
fn give_way(niceness: i32) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, niceness) {
        log::debug!("the planner keeps the priority that it has: {error}");
    }
}

/// What the thread works on.
struct Worker {
    task: Task,
    sender: Sender<Message>,
}

impl Worker {
    fn say(&self, message: Message) {
        // The engine may be gone by now: then nobody needs to know.
        let _ = self.sender.send(message);
    }

    fn plan(&self) {
        let start = Instant::now();
        let Task { trace, lowered, budget, planner, limit, known, .. } = &self.task;
        let terms = Terms { planner, budget: *budget, limit: *limit };
        // One thread, so that the others are left to the program.
        let threads = Some(1);
        let first = if known.is_none() { first(trace, lowered, threads, &terms) } else { None };
        if let Some((schedule, outcome)) = &first {
            self.hand_on(schedule, outcome, start);
            if schedule.overhead() <= GOOD_ENOUGH {
                return;
            }
        }
        let fit = match Fit::new(trace.clone(), lowered.clone(), threads, *budget) {
            Ok(fit) => fit,
            Err(violations) => return self.say(Message::Problem(violations.to_string())),
        };
        let mut told = first.as_ref().map(|(schedule, _)| schedule.clone());
        let fit = match (known, first) {
            (Some((known, planner)), _) => fit.with_known(&known.plan, planner),
            (None, Some(first)) => fit.beginning_with(first),
            (None, None) => fit,
        };
        let (mut floor, op) = fit.floor();
        log::debug!("the smallest plan, {floor} bytes, was found in {:.3} s", start.elapsed().as_secs_f64());
        let say_floor =
            |bytes| self.say(Message::Floor(Floor { structure: fit.structure(), bytes, op: op.to_owned() }));
        if floor > *budget {
            log::info!(
                "the budget of {budget} bytes is too small to plan this step: the smallest plan holds {floor} bytes, set by `{op}`"
            );
        }
        say_floor(floor);
        fit.run(&terms, |found| match found {
            Found::Plan(schedule, _) if told.take_if(|told| Arc::ptr_eq(told, &schedule)).is_some() => {}
            Found::Plan(schedule, outcome) => {
                if schedule.peak < floor {
                    floor = schedule.peak;
                    say_floor(floor);
                }
                self.hand_on(&schedule, outcome, start);
            }
            Found::Problem(error) => self.say(Message::Problem(error.to_string())),
        });
    }

    /// Hands on a plan that was found since `start`, and stores it for other runs.
    fn hand_on(&self, schedule: &Arc<Schedule>, outcome: &Outcome, start: Instant) {
        let Task { lowered, budget, limit, cache, .. } = &self.task;
        let origin = Origin::of(outcome, start.elapsed().as_secs_f64());
        if let Some(cache) = cache.as_ref().filter(|_| schedule.peak <= *budget) {
            let store_all: f64 = lowered.graph.ops().iter().map(|op| op.cost).sum();
            let mut file = PlanFile::of_outcome(outcome, store_all);
            file.solve_seconds = Some(origin.seconds);
            cache.store(*limit, &lowered.graph, &file);
        }
        self.say(Message::Plan(schedule.clone(), origin, *budget));
        give_way(FOR_A_BETTER_ONE);
    }
}
