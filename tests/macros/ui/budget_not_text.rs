use burn_remat_macros::remat;

#[remat(budget = 8.5)]
struct Model;

#[remat(budget)]
struct Other;

fn main() {}
