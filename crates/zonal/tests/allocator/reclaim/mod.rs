//! Tests of correct and incorrect reclaimers, and of contexts that may not wait.

mod bad_reclaimers;
mod deferred_frees;
mod interrupted;
mod pressure;
mod ranges_first;
mod reclaimers;
mod reentered;
