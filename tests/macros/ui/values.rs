use burn_remat_macros::remat;

#[remat(budget = "8 GiB", time_limit = "ten", recompute_limit = -2, strict = true, random = "maybe", cache = "")]
struct Model;

#[remat(budget = "8 GiB", time_limit = 1e9)]
struct Other;

fn main() {}
