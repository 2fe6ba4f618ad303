use burn_remat_macros::remat;

struct Block;

#[remat(stage = "")]
fn attention() {}

#[remat(stage = "encoder")]
impl Block {
    #[remat(stage = "other")]
    fn forward(&self) {}
}

#[remat(stage = encoder)]
fn encode() {}

fn main() {}
