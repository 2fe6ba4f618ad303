use burn_remat_macros::remat;

#[remat(budget = "8 GiB", budget = "4 GiB")]
struct Model;

fn main() {}
