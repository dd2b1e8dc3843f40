//! The lab: simulated NUMA machines that run the production allocator.
//!
//! [`sim`] is the simulated machine. [`system`] is the interface that simulated programs use, and [`checks`] holds the
//! invariants that are checked on every operation. [`workload`] contains the programs. [`page_cache`] models the
//! kernel's page cache for the programs that work with files. A run returns an [`outcome`]; [`report`] renders the
//! results of an [`experiment`].
#![deny(unsafe_code)]

mod bounds;
mod causes;
pub mod checks;
pub mod experiment;
pub mod outcome;
pub mod page_cache;
mod parallel;
pub mod replay;
pub mod report;
pub mod sim;
pub mod system;
pub mod what_if;
pub mod workload;
mod zeroed;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
pub use parallel::in_parallel;
pub use zonal_page::figures;
