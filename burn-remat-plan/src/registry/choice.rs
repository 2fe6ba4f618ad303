//! A planner, by name or of the caller's own.

use std::fmt;
use std::sync::Arc;

use crate::planner::Planner;

/// One of the registry's planners by its name, or a planner of the caller's own. Functions take `impl Into<PlannerChoice>`, so that both can
/// be passed as they are.
///
/// ```
/// use std::sync::Arc;
/// use burn_remat_plan::{planners::StoreAll, registry::PlannerChoice};
///
/// let choices: [PlannerChoice; 3] = ["auto".into(), StoreAll.into(), Arc::new(StoreAll).into()];
/// assert_eq!(choices.map(|choice| choice.name().to_owned()), ["auto", "store-all", "store-all"]);
/// ```
#[derive(Clone)]
pub enum PlannerChoice {
    /// A name of the [registry](super).
    Named(String),
    /// Any planner.
    Own(Arc<dyn Planner>),
}

impl PlannerChoice {
    /// The requested name, or that of the planner.
    pub fn name(&self) -> &str {
        match self {
            Self::Named(name) => name,
            Self::Own(planner) => planner.name(),
        }
    }

    /// The planner; `None` for a name that the registry does not have.
    pub fn planner(self) -> Option<Arc<dyn Planner>> {
        match self {
            Self::Named(name) => super::planner(&name).map(Arc::from),
            Self::Own(planner) => Some(planner),
        }
    }
}

impl fmt::Debug for PlannerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PlannerChoice").field(&self.name()).finish()
    }
}

impl From<&str> for PlannerChoice {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

impl From<String> for PlannerChoice {
    fn from(name: String) -> Self {
        Self::Named(name)
    }
}

impl From<&String> for PlannerChoice {
    fn from(name: &String) -> Self {
        Self::Named(name.clone())
    }
}

impl<P: Planner + 'static> From<P> for PlannerChoice {
    fn from(planner: P) -> Self {
        Self::Own(Arc::new(planner))
    }
}
