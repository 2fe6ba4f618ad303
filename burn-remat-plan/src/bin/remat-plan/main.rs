//! `remat-plan`: plans for graphs and chains from the command line.
//!
//! Exit status: 0 solved, 1 a check failed, 2 unusable arguments or file, 3 infeasible.

mod budget;
mod check;
mod exit;
mod generate;
mod input;
mod limits;
mod list;
mod minimum;
mod page;
mod plot;
mod points;
mod progress;
mod show;
mod solve;
mod sweep;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Which results of a training step to keep and which to compute again, within a memory budget.
#[derive(Parser)]
#[command(name = "remat-plan", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the planners: what each is for, and its source
    List,
    /// Plan a graph or a chain within a budget
    Solve(solve::Args),
    /// Check a plan with the independent checker: its violations, exit status 1 if there are any
    Check(check::Args),
    /// Overhead against budget, one curve per planner
    Sweep(sweep::Args),
    /// The smallest feasible budget, and the op that sets it
    Minimum(minimum::Args),
    /// One HTML page: memory over time, what becomes of each activation, and what other budgets cost
    Plot(page::Args),
    /// A summary: ops, store-all peak and makespan, largest values
    Show(show::Args),
    /// Write a generated graph
    Generate(generate::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::List => list::run(),
        Command::Solve(args) => solve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Minimum(args) => minimum::run(&args),
        Command::Plot(args) => page::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Generate(args) => generate::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(),
    }
}
