//! Metadata in the caller's buffers: its construction, and the structures that an address can belong to.

#[allow(unsafe_code)] // constructs cells in the caller's buffers
pub(crate) mod arena;
pub mod regions;
