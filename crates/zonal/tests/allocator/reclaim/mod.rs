//! Reclaimers that behave and that misbehave, and contexts that may not wait.

mod bad_reclaimers;
mod reclaimers;
mod reentered;
