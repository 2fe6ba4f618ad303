use burn_remat_macros::remat;

struct Block;

#[remat]
impl Block {
    fn new() -> Self {
        Block
    }

    fn forward(rows: usize) -> usize {
        rows
    }
}

fn main() {}
