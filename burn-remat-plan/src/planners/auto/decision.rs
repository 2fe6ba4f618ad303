//! Which plan won, and which planners were tried.

/// The result of one planner.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// Name of the planner.
    pub planner: &'static str,
    /// The makespan, or why there is none.
    pub result: Result<f64, String>,
}

/// Which plan won, and which planners were tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Name of the winner.
    pub winner: String,
    /// The planners that were tried, in the order in which they ran.
    pub tried: Vec<Tried>,
}

impl std::fmt::Display for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} wins", self.winner)?;
        for (i, tried) in self.tried.iter().enumerate() {
            let (lead, name) = (if i == 0 { ": " } else { ", " }, tried.planner);
            match &tried.result {
                Ok(makespan) => write!(f, "{lead}{name} {makespan}")?,
                Err(why) => write!(f, "{lead}{name} {why}")?,
            }
        }
        Ok(())
    }
}
