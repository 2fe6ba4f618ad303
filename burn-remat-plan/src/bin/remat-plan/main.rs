//! `remat-plan`: plans graphs and chains from the command line.
//!
//! Exit status: 0 success, 1 a check failed, 2 unusable arguments or file, 3 no plan found.

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

/// Plan which results of a training step to keep and which to recompute, within a memory budget.
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
    /// Check a plan with the independent checker and print its violations; exit status 1 if there are any
    Check(check::Args),
    /// Tabulate or draw overhead against budget, one curve per planner
    Sweep(sweep::Args),
    /// Find the smallest feasible budget and the op that sets it
    Minimum(minimum::Args),
    /// Write an HTML page: memory over time, what happens to each activation, and what other budgets cost
    Plot(page::Args),
    /// Print a summary: ops, store-all peak and makespan, largest values
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
