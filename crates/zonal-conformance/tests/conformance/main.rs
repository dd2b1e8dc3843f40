//! The scenarios on platforms that keep the contract, and on platforms with one planted mistake each.

mod access;
mod cells;
mod embed;
#[allow(dead_code)]
#[path = "../../../zonal/examples/embed/kernel.rs"]
mod kernel;
mod machine;
mod mistakes;
mod right;
mod sequences;
