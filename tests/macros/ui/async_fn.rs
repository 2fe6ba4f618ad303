use burn_remat_macros::remat;

struct Block;

#[remat]
impl Block {
    async fn forward(&self) {}
}

#[remat]
async fn attention() {}

fn main() {}
