//! HiGHS, wrapped so that its outcomes stay apart: proved, infeasible, stopped with or without a solution.
//!
//! HiGHS keeps one pool of threads per calling thread and refuses to change its number of threads later. Each request
//! is solved on a thread of its own (see `limited`), so each gets the number that it asks for.

use std::ops::Bound;
use std::time::{Duration, Instant};

use highs::{Col, HighsModelStatus, HighsSolutionStatus, HighsStatus, RowProblem, Sense, SolvedModel};

use super::model::Model;
use super::program::IntegerProgram;
use crate::clock::waiting;
use crate::deadline::Deadline;
use crate::planner::Request;

/// The relaxation's optimum.
pub(in crate::planners) struct Relaxation {
    /// Cost in the unit of the graph, first computations included.
    pub cost: f64,
    pub numbers: Vec<f64>,
    /// Per column, the least rise in cost per unit that it moves away from its bound.
    pub reduced_costs: Vec<f64>,
}

/// How a solve of the relaxation ended.
pub(in crate::planners) enum Relaxed {
    Solved(Relaxation),
    Infeasible,
    OutOfTime,
}

/// How a solve of the integer program ended.
pub(in crate::planners) struct Integer {
    pub end: End,
    /// Columns of the best solution.
    pub numbers: Option<Vec<f64>>,
    /// Proven lower bound in the unit of the graph.
    pub bound: Option<f64>,
}

/// Why the integer solve ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::planners) enum End {
    /// The solution is optimal to within the gap.
    Solved,
    /// There is no solution.
    Infeasible,
    /// A limit was reached first.
    Limit,
}

fn threads(request: &Request) -> i32 {
    i32::try_from(request.threads.clamp(1, 64)).unwrap_or(1)
}

/// Bounds of integer columns that replace the model's: `(column, number)`.
type Fixings = [(usize, f64)];

fn problem(program: &IntegerProgram, fixings: &Fixings, integer: bool) -> (RowProblem, Vec<Col>) {
    let mut bounds: Vec<_> = program.columns.iter().map(|column| (column.lower, column.upper)).collect();
    for &(column, number) in fixings {
        bounds[column] = (number, number);
    }
    let mut problem = RowProblem::new();
    let columns: Vec<Col> = program
        .columns
        .iter()
        .zip(bounds)
        .map(|(column, (lower, upper))| {
            problem.add_column_with_integrality(column.cost, lower..=upper, integer && column.integer)
        })
        .collect();
    for row in &program.rows {
        let bound = |limit: f64| if limit.is_finite() { Bound::Included(limit) } else { Bound::Unbounded };
        let terms = row.terms.iter().map(|&(column, factor)| (columns[column], factor));
        problem.add_row((bound(row.lower), bound(row.upper)), terms);
    }
    (problem, columns)
}

/// An instance with the options of every solve.
fn instance(problem: RowProblem, request: &Request, deadline: Deadline) -> Result<highs::Model, HighsStatus> {
    let mut solver = problem.try_optimise(Sense::Minimise)?;
    solver.make_quiet();
    set(&mut solver, request, deadline, Duration::ZERO);
    Ok(solver)
}

/// HiGHS counts all runs of an instance towards its time limit: `spent` is the time that the earlier ones took.
fn set(solver: &mut highs::Model, request: &Request, deadline: Deadline, spent: Duration) {
    let seed = i32::try_from(request.seed % (1 << 31)).unwrap_or(0);
    let results = [
        solver.try_set_option("time_limit", spent.as_secs_f64() + deadline.left().as_secs_f64()),
        solver.try_set_option("threads", threads(request)),
        solver.try_set_option("random_seed", seed),
    ];
    if results.iter().any(Result::is_err) {
        log::warn!("HiGHS refused an option");
    }
}

/// The relaxation, which may be solved again under other budgets.
pub(in crate::planners) struct RelaxationSolver<'a> {
    model: &'a Model,
    request: &'a Request,
    deadline: Deadline,
    columns: Vec<Col>,
    spent: Duration,
    solver: Option<highs::Model>,
}

impl<'a> RelaxationSolver<'a> {
    pub fn new(model: &'a Model, request: &'a Request, deadline: Deadline) -> Result<Self, HighsStatus> {
        let (problem, columns) = problem(&model.program, &[], false);
        let solver = instance(problem, request, deadline)?;
        Ok(Self { model, request, deadline, columns, spent: Duration::ZERO, solver: Some(solver) })
    }

    /// Solves with `shortfall` bytes less than the budget; later calls start from the last basis.
    pub fn solve(&mut self, shortfall: f64) -> Result<Relaxed, HighsStatus> {
        let budget = self.model.scaled_budget(shortfall);
        if budget < 0.0 || self.model.program.contradiction {
            return Ok(Relaxed::Infeasible);
        }
        if shortfall > 0.0 {
            self.bound(&self.model.memory_columns, 0.0, budget);
        }
        self.solve_again(self.deadline)
    }

    /// Sets the bounds of `columns` for all later solves.
    pub fn bound(&mut self, columns: &[usize], lower: f64, upper: f64) {
        if let Some(solver) = &mut self.solver {
            for &column in columns {
                solver.change_column_bounds(self.columns[column], lower..=upper);
            }
        }
    }

    /// Solves with the bounds as they are.
    pub fn solve_again(&mut self, deadline: Deadline) -> Result<Relaxed, HighsStatus> {
        let mut solver = self.solver.take().ok_or(HighsStatus::Error)?;
        set(&mut solver, self.request, deadline, self.spent);
        let start = Instant::now();
        let solved = waiting(|| solver.try_solve())?;
        self.spent += start.elapsed();
        log::debug!("relaxation: {:?} after {} iterations", solved.status(), solved.simplex_iteration_count());
        let result = match solved.status() {
            HighsModelStatus::Optimal => {
                let solution = solved.get_solution();
                Relaxed::Solved(Relaxation {
                    cost: self.model.program.in_graph_unit(solved.objective_value()),
                    numbers: solution.columns().to_vec(),
                    reduced_costs: solution.dual_columns().iter().map(|d| d * self.model.program.cost_unit).collect(),
                })
            }
            HighsModelStatus::ModelEmpty => Relaxed::Solved(Relaxation {
                cost: self.model.program.in_graph_unit(0.0),
                numbers: vec![0.0; self.model.program.columns.len()],
                reduced_costs: vec![0.0; self.model.program.columns.len()],
            }),
            HighsModelStatus::Infeasible | HighsModelStatus::UnboundedOrInfeasible => Relaxed::Infeasible,
            status => {
                log::debug!("relaxation stopped: {status:?}");
                Relaxed::OutOfTime
            }
        };
        self.solver = Some(solved.into());
        Ok(result)
    }
}

/// Solves the integer program with `fixings`, from `start` if there is one.
pub(in crate::planners) fn solve_integer(
    program: &IntegerProgram,
    fixings: &Fixings,
    start: Option<&[f64]>,
    request: &Request,
    deadline: Deadline,
) -> Result<Integer, HighsStatus> {
    if program.contradiction {
        return Ok(Integer { end: End::Infeasible, numbers: None, bound: None });
    }
    let mut solver = instance(problem(program, fixings, true).0, request, deadline)?;
    // The solver's objective leaves out the first computations, but the gap is to be a share of their cost too.
    let gap = request.gap.max(1e-9);
    let options = [
        solver.try_set_option("mip_rel_gap", gap),
        solver.try_set_option("mip_abs_gap", (gap * program.base_cost).max(1e-6)),
    ];
    if options.iter().any(Result::is_err) {
        log::warn!("HiGHS refused a gap of {gap}");
    }
    if let Some(start) = start {
        solver.try_set_solution(Some(start), None, None, None)?;
    }
    let solved = waiting(|| solver.try_solve())?;
    let end = match solved.status() {
        HighsModelStatus::Optimal | HighsModelStatus::ModelEmpty => End::Solved,
        HighsModelStatus::Infeasible | HighsModelStatus::UnboundedOrInfeasible => End::Infeasible,
        status => {
            log::debug!("integer program stopped: {status:?}");
            End::Limit
        }
    };
    let found = solved.primal_solution_status() == HighsSolutionStatus::Feasible;
    let numbers = (found && end != End::Infeasible).then(|| solved.get_solution().columns().to_vec());
    // A program without integer columns is solved as a linear one, which gives no bound besides its optimum.
    let bound = dual_bound(&solved).or_else(|| (end == End::Solved).then(|| solved.objective_value()));
    Ok(Integer { end, numbers, bound: bound.map(|bound| program.in_graph_unit(bound)) })
}

/// The proven bound; none before the first relaxation is solved.
fn dual_bound(solved: &SolvedModel) -> Option<f64> {
    let bound = solved.double_info_value(c"mip_dual_bound").ok()?;
    (bound.is_finite() && bound.abs() < 1e29).then_some(bound)
}
