//! The options that the solving subcommands share.

use std::time::Duration;

use burn_remat_plan::Request;

/// Limits of one solve.
#[derive(clap::Args)]
pub struct Limits {
    /// Time limit for one solve
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    time_limit: Duration,
    /// Relative gap between the plan and the proven bound at which an exact planner may stop
    #[arg(long, value_parser = gap, default_value = "0")]
    gap: f64,
    /// Seed for all random choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Approximate limit on the memory that the planner itself uses; default: a quarter of the free memory
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    memory_limit: Option<u64>,
    /// Number of threads; default: all that the machine has
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

impl Limits {
    /// A request for `budget` bytes.
    pub fn request(&self, budget: u64) -> Request {
        let mut request =
            Request { time_limit: self.time_limit, gap: self.gap, seed: self.seed, ..Request::new(budget) };
        if let Some(bytes) = self.memory_limit {
            request.memory_limit = bytes;
        }
        if let Some(threads) = self.threads {
            request.threads = usize::from(threads);
        }
        request
    }
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "this is not a number of seconds".to_owned())?;
    // A year: much longer times overflow the clock.
    if number > 0.0 && number <= 31_536_000.0 {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err("must be more than 0 and at most 31536000 (one year)".to_owned())
    }
}

fn gap(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("must be a number that is at least 0, such as 0.01".to_owned()),
    }
}
