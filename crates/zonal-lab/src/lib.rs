//! The lab: simulated NUMA machines that run the production allocator.
//!
//! [`sim`] is the simulated machine. [`hands`] is the interface that simulated programs use, and [`checks`] are
//! the invariants checked on every operation. [`workload`] has the programs; [`page_cache`] is the kernel's page
//! cache, used by the programs that work with files. A run returns an [`outcome`]; [`report`] renders the results
//! of an [`experiment`].
#![deny(unsafe_code)]

mod bounds;
mod causes;
pub mod checks;
pub mod experiment;
pub mod hands;
pub mod outcome;
pub mod page_cache;
pub mod report;
pub mod sim;
pub mod workload;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
pub use zonal_page::figures;
