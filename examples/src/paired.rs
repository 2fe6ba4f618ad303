//! Several training runs side by side in one process: they take turns step by step, so that whatever else the machine does affects all of them alike.
//!
//! Every ratio is that of two steps of one round. A series is reported as its median and quartiles.

use std::hash::{DefaultHasher, Hasher};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_remat::{RematError, RematExt};
use serde_json::{Value, json};

use crate::clock::processor_time;
use crate::heap::Heap;
use crate::training::Training;

/// The median of a series and its quartiles.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The lower quartile.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The upper quartile.
    pub high: f64,
}

impl Spread {
    /// The spread of `values`; NaN if there are none.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| values.get(values.len() * quarter / 4).copied().unwrap_or(f64::NAN);
        Self { low: at(1), median: at(2), high: at(3) }
    }

    /// The spread of the ratios of two series, pair by pair.
    pub fn of_ratios(of: &[f64], to: &[f64]) -> Self {
        Self::of(of.iter().zip(to).map(|(of, to)| of / to).collect())
    }

    /// As an object of three numbers.
    pub fn json(self) -> Value {
        json!({ "lower_quartile": self.low, "median": self.median, "upper_quartile": self.high })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3}x ({:.2}-{:.2})", self.median, self.low, self.high)
    }
}

/// One device, its training, and the figures of its steps.
pub struct Entrant<'a> {
    /// Its name in a table.
    pub name: String,
    /// The device that it trains on.
    pub device: Device,
    /// Its model and optimizer.
    training: Box<dyn Training + 'a>,
    /// The loss of every step since the figures were last cleared.
    pub losses: Vec<f32>,
    /// Most bytes of the heap in a step since then, above what was allocated when the step began; 0 if the allocator does not count.
    pub heap_bytes: usize,
    steps: u64,
    wall_ms: Vec<f64>,
    processor_ms: Vec<f64>,
}

impl<'a> Entrant<'a> {
    /// `training`, which takes place on `device`.
    pub fn new(name: impl Into<String>, device: Device, training: Box<dyn Training + 'a>) -> Self {
        Self {
            name: name.into(),
            device,
            training,
            losses: Vec::new(),
            heap_bytes: 0,
            steps: 0,
            wall_ms: Vec::new(),
            processor_ms: Vec::new(),
        }
    }

    /// Trains one step and records its figures.
    ///
    /// # Errors
    ///
    /// What the device reports.
    pub fn step(&mut self) -> Result<(), String> {
        self.draw_anew();
        let before = Heap::start();
        let (wall, processor) = (Instant::now(), processor_time());
        self.losses.push(self.training.step(None)?);
        // What the last update requested is done before the clocks are read.
        self.device.sync().map_err(|error| error.to_string())?;
        self.wall_ms.push(wall.elapsed().as_secs_f64() * 1e3);
        self.processor_ms.push((processor_time() - processor).as_secs_f64() * 1e3);
        self.heap_bytes = self.heap_bytes.max(Heap::most().saturating_sub(before));
        Ok(())
    }

    /// Trains one more step. Returns a digest of its gradients and of the parameters after it, bit for bit.
    ///
    /// # Errors
    ///
    /// What the device reports.
    pub fn last_step(&mut self) -> Result<u64, String> {
        self.draw_anew();
        let mut hasher = DefaultHasher::new();
        self.training.step(Some(&mut hasher))?;
        self.training.digest(&mut hasher)?;
        Ok(hasher.finish())
    }

    /// Restarts the random numbers, so that all devices draw the same ones.
    fn draw_anew(&mut self) {
        self.device.seed(self.steps);
        self.steps += 1;
    }

    /// Trains `steps` steps, waits for the planner of a remat device, and trains `after` more. Discards their figures.
    ///
    /// # Errors
    ///
    /// What the device reports.
    pub fn warm_up(&mut self, steps: usize, after: usize) -> Result<(), String> {
        for steps in [steps, after] {
            (0..steps).try_for_each(|_| self.step())?;
            // Later steps may give more to plan, and planners share heap and processors with what is measured.
            match self.device.remat_wait_for_plan(Duration::from_secs(600)) {
                Ok(_) | Err(RematError::NotRemat { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        (self.losses, self.wall_ms, self.processor_ms, self.heap_bytes) = Default::default();
        Ok(())
    }

    /// The times of its steps, compared with those of `other` in the same rounds.
    pub fn times(&self, other: &Entrant<'_>) -> Times {
        Times {
            wall_ms: Spread::of(self.wall_ms.clone()),
            processor_ms: Spread::of(self.processor_ms.clone()),
            wall_ratio: Spread::of_ratios(&self.wall_ms, &other.wall_ms),
            processor_ratio: Spread::of_ratios(&self.processor_ms, &other.processor_ms),
        }
    }
}

/// Lets all entrants train for this many rounds, one step each; a different one begins each round. Calls `seen` after each.
///
/// # Errors
///
/// What a device reports.
pub fn take_turns(entrants: &mut [Entrant<'_>], rounds: usize, mut seen: impl FnMut()) -> Result<(), String> {
    let count = entrants.len();
    for round in 0..rounds {
        (0..count).try_for_each(|at| entrants[(round + at) % count].step())?;
        seen();
    }
    Ok(())
}

/// The time of steps, and its ratio to the time of another entrant's steps.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Wall time.
    pub wall_ms: Spread,
    /// Processor time of all threads of the process.
    pub processor_ms: Spread,
    /// Wall time, as a ratio.
    pub wall_ratio: Spread,
    /// Processor time, as a ratio.
    pub processor_ratio: Spread,
}

impl Times {
    /// The head of a table's columns.
    pub fn head() -> String {
        let [wall, processor] = ["wall / plain", "processor / plain"];
        format!("{:>10}{:>11}  {wall:<24}{processor:<24}", "wall ms", "processor")
    }

    /// The columns of a table.
    pub fn columns(&self) -> String {
        let [wall, processor] = [self.wall_ratio, self.processor_ratio].map(|ratio| ratio.to_string());
        format!("{:>10.2}{:>11.2}  {wall:<24}{processor:<24}", self.wall_ms.median, self.processor_ms.median)
    }

    /// Adds the four series to `row`, an object.
    pub fn add_to(&self, mut row: Value) -> Value {
        row["wall_ms"] = self.wall_ms.json();
        row["processor_ms"] = self.processor_ms.json();
        row["wall_ratio"] = self.wall_ratio.json();
        row["processor_ratio"] = self.processor_ratio.json();
        row
    }
}
