use burn_remat_macros::remat;

#[remat("8 GiB")]
struct Model;

fn main() {}
