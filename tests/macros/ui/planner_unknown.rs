use burn_remat_macros::remat;

#[remat(budget = "8 GiB", planner = "chaindp")]
struct Model;

#[remat(budget = "8 GiB", planner = "gurobi")]
struct Other;

fn main() {}
