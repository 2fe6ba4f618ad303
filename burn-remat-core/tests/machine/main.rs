//! Tests of the machine, driven by a world without tensors. They are one program, because every program compiles the machine for that world anew.

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
