//! Metadata in the caller's buffers: how it is laid out, built, and found again by address.

#[allow(unsafe_code)] // builds cells in the caller's buffers
pub(crate) mod arena;
pub mod regions;
