//! Planning as a service, with one job per file: the engine reports what it has seen, and takes up plans when there are any.

mod background;
mod cache;
mod dry_runs;
mod folder;
mod handed;
mod known;
mod observed;
mod plans;
mod sequence;
mod settings;
mod state;

pub(crate) use background::Wait;
pub(crate) use handed::hand_over;
pub(crate) use plans::{Met, Plans, does_like};
pub(crate) use settings::PlanSettings;
pub(crate) use state::{Origin, PlanState, Ready};
