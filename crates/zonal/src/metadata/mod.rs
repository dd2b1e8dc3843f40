//! Metadata in the caller's buffers: how it is built, and which structure an address belongs to.

#[allow(unsafe_code)] // constructs cells in the caller's buffers
pub(crate) mod arena;
pub mod regions;
