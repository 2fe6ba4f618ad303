use burn_remat_macros::remat;

#[remat(budget = "8 XB")]
struct Model;

fn main() {}
