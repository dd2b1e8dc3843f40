//! Steps of requests, which `Allocator::explain` and `Allocator::alloc_explained` report.
//!
//! Related files: `alloc/slow.rs` has these methods, `platform/steps.rs` defines the steps.

pub use crate::platform::steps::{Exclusion, Outcome, ReclaimStep, Step, ZoneName};
