//! Reclaimers, honest and not, and contexts that may not wait.

mod bad_reclaimers;
mod reclaimers;
mod reentered;
