//! The lab: machines that are not here, running the allocator that ships.
//!
//! [`sim`] is the simulated machine; [`hands`] is what programs on it work with, [`checks`] what must
//! hold meanwhile; [`workload`] has the programs, [`page_cache`] is the kernel's part of those that use
//! files; [`outcome`] is what they give; [`report`] shows the results of an [`experiment`].
#![deny(unsafe_code)]

mod bounds;
mod causes;
pub mod checks;
pub mod experiment;
pub mod figures;
pub mod hands;
pub mod outcome;
pub mod page_cache;
pub mod report;
pub mod sim;
pub mod workload;
