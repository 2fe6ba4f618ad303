use burn_remat_macros::remat;

#[remat(budget = "8 GiB", stage = "encoder")]
struct Model;

#[remat(budget = "8 GiB")]
impl Model {
    fn forward(&self) {}
}

#[remat(step)]
impl Other {
    fn forward(&self) {}
}

struct Other;

fn main() {}
