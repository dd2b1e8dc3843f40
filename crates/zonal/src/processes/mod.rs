//! What is particular to an allocator that processes share: handovers of blocks, and recovery from the death of a process.

mod handover;
mod recover;

pub use recover::OnDeath;
