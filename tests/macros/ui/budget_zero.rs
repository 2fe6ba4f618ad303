use burn_remat_macros::remat;

#[remat(budget = 0)]
struct Model;

#[remat(budget = "0%")]
struct Other;

#[remat(budget = -1)]
struct Third;

fn main() {}
