//! Tests of the public interface. They are one program, so that code that is generic over the platform is compiled only
//! once.
//!
//! Related files: `common/` has the machines and platforms of these tests.

mod common;

mod hotplug;
mod invalid_frees;
mod mechanisms;
mod metadata;
mod platforms;
mod reclaim;
mod requests;
mod scale;
mod settings;
mod snapshot;
