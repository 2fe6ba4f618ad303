use burn_remat_macros::remat;

#[remat(budget = "8 GiB", no_planning, planner = "auto", time_limit = 5)]
struct Model;

#[remat(budget = "8 GiB", cache = "plans", no_cache)]
struct Other;

fn main() {}
