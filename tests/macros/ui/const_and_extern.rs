use burn_remat_macros::remat;

#[remat]
const fn attention() {}

#[remat]
extern "C" fn forward() {}

fn main() {}
