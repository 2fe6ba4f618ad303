use burn_remat_macros::remat;

struct Block;

#[remat]
impl Block {
    #[remat]
    #[remat(stage = "second")]
    fn forward(&self) {}
}

fn main() {}
