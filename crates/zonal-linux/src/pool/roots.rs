//! Roots: names of blocks in a shared pool, by which the successor of a process finds them.
//!
//! Roots change while the table of processes is locked. A root that is set again is first put into other cells, with a greater
//! number, so that one of both is valid at whichever moment the process dies. Related files: `memory/pool_file.rs` has the
//! cells, `pool/keeping.rs` the interface.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use zonal::machine::FrameRange;
use zonal::units::{PageCount, Pfn};

use crate::error::SharedError;
use crate::memory::pool_file::{PoolFile, ROOTS_MAX, RootCells};
use crate::shared_name::SharedName;

/// Makes `block` the block of a root, after `take` has made `process` its holder, or removes the root.
///
/// # Errors
/// If there is no room; `take` is not called then. The error of `take`; nothing has changed then.
pub(super) fn set(
    file: &PoolFile,
    process: u8,
    name: SharedName,
    block: Option<FrameRange>,
    take: impl FnOnce(FrameRange) -> Result<(), SharedError>,
) -> Result<(), SharedError> {
    // Relaxed, as everywhere here: the table's lock orders roots.
    let number_of = |root: &RootCells| root.number.load(Relaxed);
    let used = || file.roots().iter().filter(|root| number_of(root) != 0);
    // A process may have died before it removed what it had replaced.
    let is_replaced = |root: &&RootCells| {
        used().any(|other| number_of(other) > number_of(root) && other.name.load() == root.name.load())
    };
    used().filter(is_replaced).for_each(|root| root.number.store(0, Relaxed));
    let before = used().find(|root| root.name.load() == name);
    if let Some(block) = block {
        let mut free = file.roots().iter().filter(|root| number_of(root) == 0);
        // The last place is for a root that is set again.
        let root = free.next().filter(|_| before.is_some() || free.next().is_some());
        let root = root.ok_or(SharedError::FullRoots(ROOTS_MAX - 1))?;
        take(block)?;
        root.name.store(name);
        root.first.store(block.start.get(), Relaxed);
        root.count.store(block.count.get(), Relaxed);
        root.process.store(process.into(), Relaxed);
        // Release: publishes the root to a process that finds it after this one's death; pairs with `get`.
        root.number.store(before.map_or(0, number_of) + 1, Release);
    }
    if let Some(before) = before {
        before.number.store(0, Relaxed);
    }
    Ok(())
}

/// Returns the block of a root.
pub(super) fn get(file: &PoolFile, name: SharedName) -> Option<FrameRange> {
    // Acquire: takes the root; pairs with `set`.
    let roots = file.roots().iter().map(|root| (root.number.load(Acquire), root));
    let valid = roots.filter(|(number, root)| *number != 0 && root.name.load() == name);
    let (_, root) = valid.max_by_key(|(number, _)| *number)?;
    let start = Pfn::new(root.first.load(Relaxed));
    Some(FrameRange { start, count: PageCount::new(root.count.load(Relaxed)) })
}

/// Removes the roots that a process has set.
pub(super) fn forget(file: &PoolFile, process: u8) {
    let its = file.roots().iter().filter(|root| root.process.load(Relaxed) == u64::from(process));
    its.for_each(|root| root.number.store(0, Relaxed));
}
