//! Checks of the allocator as a whole: every history of small worlds, random histories against a naive
//! model, random programs on simulated machines, interleavings of threads, fuzzing, faults, soak.
//!
//! Nothing here is part of the allocator, nor published with it. Tests of single files and mechanisms
//! are beside their subjects, in `crates/zonal`.

mod choices;
pub mod guest;
pub mod history;
pub mod soak;
pub mod stress;
pub mod targets;

pub use choices::Choices;
