//! The planner of a device. It may be the user's own and do anything.
//!
//! It runs on a thread of its own. If it panics, or if its plan or its bound is not what it claims, the result is an error. If it does not return, its
//! thread is abandoned [some time](PATIENCE) after its limit. The planner is not asked again while that thread runs, so that no more threads pile up.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use burn_remat_plan::registry::{self, PlannerChoice};
use burn_remat_plan::{Graph, Outcome, PlanError, Planner, Request, Solved, solve_guarded};

use crate::error::RematError;
use crate::panics::lock;

/// How long to wait for a planner beyond its limit: it gets a processor only when the program leaves one idle.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the [module](self).
#[derive(Clone)]
pub(crate) struct ChosenPlanner {
    planner: Arc<dyn Planner>,
    /// Alive as long as an abandoned thread runs.
    left_behind: Arc<Mutex<Weak<()>>>,
}

/// A planner on a thread of its own.
struct Running {
    planner: Arc<dyn Planner>,
    /// Dropped when the thread ends.
    _token: Arc<()>,
}

impl Planner for Running {
    fn name(&self) -> &'static str {
        self.planner.name()
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let time_limit = request.time_limit.saturating_sub(PATIENCE);
        self.planner.solve(graph, &Request { time_limit, ..request.clone() })
    }
}

impl ChosenPlanner {
    /// The planner that a user asks for.
    ///
    /// # Errors
    ///
    /// If there is no planner of this name, or not in this build.
    pub fn of(choice: PlannerChoice) -> Result<Self, RematError> {
        let name = choice.name().to_owned();
        let planner = choice.planner().ok_or_else(|| RematError::UnknownPlanner { name: name.clone() })?;
        match planner.missing_feature() {
            Some(feature) => Err(RematError::PlannerFeature { name, feature }),
            None => Ok(Self { planner, left_behind: Arc::default() }),
        }
    }

    /// The planner that suits most programs.
    pub fn auto() -> Self {
        let planner = registry::planner("auto").expect("the registry has it");
        Self { planner: planner.into(), left_behind: Arc::default() }
    }

    pub fn name(&self) -> &'static str {
        self.planner.name()
    }

    /// Distinguishes its plans from those of another planner of the same name.
    pub fn version(&self) -> u32 {
        self.planner.version()
    }

    /// A plan that has been checked.
    ///
    /// # Errors
    ///
    /// The error of the planner, or [`PlanError::Internal`] or [`PlanError::Overdue`] if it is [broken](is_defect).
    pub fn solve(&self, graph: &Graph, request: &Request) -> Result<Solved, PlanError> {
        let overdue = || PlanError::Overdue { planner: self.name(), limit: request.time_limit };
        let left_behind = || lock(&self.left_behind);
        if left_behind().strong_count() > 0 {
            return Err(overdue());
        }
        let token = Arc::new(());
        let running = Arc::downgrade(&token);
        let planner = Running { planner: self.planner.clone(), _token: token };
        let patient = Request { time_limit: request.time_limit.saturating_add(PATIENCE), ..request.clone() };
        let found = solve_guarded(Arc::new(planner), graph, &patient);
        if let Err(PlanError::Overdue { .. }) = found {
            *left_behind() = running;
            return Err(overdue());
        }
        found
    }
}

/// Whether this error means that the planner is broken, and not only that it found nothing.
pub(crate) fn is_defect(error: &PlanError) -> bool {
    matches!(error, PlanError::Internal { .. } | PlanError::Overdue { .. })
}

impl Default for ChosenPlanner {
    fn default() -> Self {
        Self::auto()
    }
}

impl fmt::Debug for ChosenPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (version {})", self.name(), self.version())
    }
}
