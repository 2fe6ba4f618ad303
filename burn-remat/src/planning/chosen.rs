//! The planner of a device, which may be the program's own and do anything.
//!
//! It runs on a thread of its own: one that panics gives an error, and so does one whose plan or bound is not what it claims.
//! One that does not return is left behind [some time](PATIENCE) after its limit; while that thread goes on the planner is
//! not asked again, so that no more of them pile up.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use burn_remat_plan::registry::{self, PlannerChoice};
use burn_remat_plan::{Graph, Outcome, PlanError, Planner, Request, Solved, solve_guarded};

use crate::error::RematError;
use crate::panics::lock;

/// How much longer than its limit a planner is waited for: it has the processor only when the program does not want it.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the [module](self).
#[derive(Clone)]
pub(crate) struct ChosenPlanner {
    planner: Arc<dyn Planner>,
    /// There for as long as a thread runs that was left behind.
    left_behind: Arc<Mutex<Weak<()>>>,
}

/// A planner on a thread of its own.
struct Running {
    planner: Arc<dyn Planner>,
    /// Gone when the thread is.
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
    /// Where there is none of this name, or not in this build.
    pub fn of(choice: PlannerChoice) -> Result<Self, RematError> {
        let name = choice.name().to_owned();
        let planner = choice.planner().ok_or_else(|| RematError::UnknownPlanner { name: name.clone() })?;
        match planner.missing_feature() {
            Some(feature) => Err(RematError::PlannerFeature { name, feature }),
            None => Ok(Self { planner, left_behind: Arc::default() }),
        }
    }

    /// What suits most.
    pub fn auto() -> Self {
        let planner = registry::planner("auto").expect("the registry has it");
        Self { planner: planner.into(), left_behind: Arc::default() }
    }

    pub fn name(&self) -> &'static str {
        self.planner.name()
    }

    /// What tells its plans from those of another one of the same name.
    pub fn version(&self) -> u32 {
        self.planner.version()
    }

    /// A plan that has been checked.
    ///
    /// # Errors
    ///
    /// What the planner says, and [`PlanError::Internal`] and [`PlanError::Overdue`] where it is [broken](is_defect).
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

/// Whether the planner is broken, and does not just find nothing.
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
