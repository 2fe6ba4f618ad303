//! A plan as pictures, as a page for a browser, and as a trace: the feature `show`.

mod others;
mod page;
mod perfetto;
pub(crate) mod picture;

use std::path::Path;
use std::time::Duration;

use self::others::others;
use super::report::PlanReport;

/// The most time to plan for another budget, in the files that are saved.
const LIMIT: Duration = Duration::from_millis(600);

impl PlanReport {
    /// A picture (SVG, `size` in pixels) of the memory held over the step: without evictions, as planned, as measured in the last step that followed the
    /// plan, and the budget.
    ///
    /// # Errors
    ///
    /// Errors of the drawing library.
    pub fn memory_picture(&self, size: (u32, u32)) -> Result<String, String> {
        picture::memory(&self.schedule, &self.measured, self.budget, size)
    }

    /// A picture (SVG, `size` in pixels) of the time added against the budget. It makes plans for nine budgets, and may take
    /// `limit` for each.
    ///
    /// # Errors
    ///
    /// Errors of the drawing library.
    pub fn overhead_picture(&self, limit: Duration, size: (u32, u32)) -> Result<String, String> {
        picture::overhead(&self.schedule, &others(&self.schedule, limit)?, size)
    }

    /// One self-contained HTML page: the memory of the step over time, without evictions and as planned, value by value; a slider that
    /// shows the plans of other budgets; and a table of what becomes of each activation. It makes plans for nine budgets, and may take
    /// `limit` for each.
    ///
    /// # Errors
    ///
    /// Errors of planning.
    pub fn html(&self, limit: Duration) -> Result<String, String> {
        Ok(page::html(&self.schedule, &self.planner, self.budget, &others(&self.schedule, limit)?))
    }

    /// Writes the [page](Self::html) to a file. Takes some seconds.
    ///
    /// # Errors
    ///
    /// Errors of planning or of the file system.
    pub fn save_html(&self, path: impl AsRef<Path>) -> std::io::Result<()> {
        std::fs::write(path, self.html(LIMIT).map_err(std::io::Error::other)?)
    }

    /// The step as a timeline in the Trace Event Format (JSON), for <https://ui.perfetto.dev> or `chrome://tracing`: its operations, those
    /// that run again in another colour, the stages, and counters of the bytes held and of the budget. Bytes are those of the last step that
    /// followed the plan, if one has. Times are those measured for planning, in microseconds.
    pub fn trace(&self) -> String {
        perfetto::trace(self).to_string()
    }

    /// Writes the [timeline](Self::trace) to a file.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub fn save_trace(&self, path: impl AsRef<Path>) -> std::io::Result<()> {
        std::fs::write(path, self.trace())
    }

    /// Writes `graph.json`, `plan.json`, `plan.html` (see [`html`](Self::html)), `trace.json` (see [`trace`](Self::trace)), `memory.svg`
    /// and `overhead.svg` into `folder`, which is created if it does not exist. Takes some seconds.
    ///
    /// # Errors
    ///
    /// Errors of the file system or of the drawing library.
    pub fn save(&self, folder: impl AsRef<Path>) -> std::io::Result<()> {
        const SIZE: (u32, u32) = (960, 540);
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder)?;
        self.save_graph(folder.join("graph.json"))?;
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other)?;
        std::fs::write(folder.join("plan.json"), text + "\n")?;
        let picture = self.memory_picture(SIZE).map_err(std::io::Error::other)?;
        std::fs::write(folder.join("memory.svg"), picture)?;
        let others = others(&self.schedule, LIMIT).map_err(std::io::Error::other)?;
        let picture = picture::overhead(&self.schedule, &others, SIZE).map_err(std::io::Error::other)?;
        std::fs::write(folder.join("overhead.svg"), picture)?;
        let page = page::html(&self.schedule, &self.planner, self.budget, &others);
        std::fs::write(folder.join("plan.html"), page)?;
        self.save_trace(folder.join("trace.json"))
    }
}
