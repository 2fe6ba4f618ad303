use burn_remat_macros::remat;

#[remat(bugdet = "8 GiB")]
struct Model;

#[remat(budget = "8 GiB", batch = 4)]
struct Other;

fn main() {}
