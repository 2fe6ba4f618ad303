use burn_remat_macros::remat;

#[remat]
struct Model {
    width: usize,
}

#[remat(strict)]
struct Other;

fn main() {}
