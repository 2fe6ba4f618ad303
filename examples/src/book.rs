//! The code of the README and of the book in `docs/src`, compiled and run.
//!
//! `burn-remat-plan/tests/book.rs` checks that every page with Rust code is listed here.

/// A struct for each page, with the page as its documentation.
macro_rules! pages {
    ($($(#[$condition:meta])* $name:ident = $file:literal),* $(,)?) => {$(
        $(#[$condition])*
        #[doc = include_str!(concat!("../../", $file))]
        pub struct $name;
    )*};
}

pages! {
    Readme = "README.md",
    Attention = "docs/src/attention.md",
    Budgets = "docs/src/budgets.md",
    ComingFrom = "docs/src/coming-from.md",
    Compression = "docs/src/compression.md",
    FineTuning = "docs/src/fine-tuning.md",
    Forecast = "docs/src/forecast.md",
    #[cfg(feature = "wgpu")]
    Gpus = "docs/src/gpus.md",
    HowItWorks = "docs/src/how-it-works.md",
    #[cfg(feature = "learner")]
    Monitoring = "docs/src/monitoring.md",
    OwnPlanner = "docs/src/own-planner.md",
    Planners = "docs/src/planners.md",
    QuickStart = "docs/src/quick-start.md",
    Recordings = "docs/src/recordings.md",
    Reports = "docs/src/reports.md",
    #[cfg(feature = "serve")]
    Serving = "docs/src/serving.md",
    SeveralDevices = "docs/src/several-devices.md",
    Stages = "docs/src/stages.md",
    TrainingLoops = "docs/src/training-loops.md",
}
