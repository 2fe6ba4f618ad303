use burn_remat_macros::remat;

#[remat]
mod layers {}

#[remat]
const WIDTH: usize = 8;

trait Layer {
    #[remat]
    fn forward(&self);
}

fn main() {}
