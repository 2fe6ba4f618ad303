//! The machine, driven by a world without tensors: one program, because each has to compile the machine for that world.

mod carried;
mod common;
mod failures;
mod floor;
mod logs;
mod passes;
mod planned;
mod programs;
mod recordings;
mod steps;
mod updates;
