//! `remat-plan`: plans for graphs and chains from the command line.
fn main() {}
