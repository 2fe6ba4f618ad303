use burn_remat_macros::remat;

struct Block;

#[remat(policy = "must_recompute")]
fn attention() {}

#[remat(policy = "discard everything")]
fn encode() {}

#[remat(policy)]
fn decode() {}

#[remat(policy = "must-save")]
impl Block {
    #[remat]
    fn other(&self) {}
}

#[remat(budget = "1 GiB", policy = "must-save")]
struct Model;

fn main() {}
