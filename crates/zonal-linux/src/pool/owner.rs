//! What a pool reports about each process that shares it.

use zonal::units::PageCount;

use crate::shared_name::SharedName;

/// A process that takes part in a shared pool, or for which something is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolOwner {
    /// Its number in the pool, from 1.
    pub process: u8,
    /// Its process id, in its own namespace.
    pub pid: u32,
    /// How many processes have had this number.
    pub epoch: u64,
    /// Frames that it has allocated or taken over. The number may be out of date.
    pub held: PageCount,
    /// Whether it is the calling process.
    pub is_this: bool,
    /// Whether it lives.
    pub is_alive: bool,
    /// Its name, if its blocks outlive it.
    pub name: Option<SharedName>,
}
