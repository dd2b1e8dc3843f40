//! What a sceptic runs against the allocator: every history of small worlds, random histories against a
//! naive model, interleavings of threads, fuzzing, faults, soak.
//!
//! Nothing here is part of the allocator, nor published with it. Tests of single rooms and mechanisms
//! stand beside their subjects, in `crates/zonal`.

pub mod guest;
pub mod play;
pub mod soak;
pub mod targets;
