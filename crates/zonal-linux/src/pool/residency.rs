//! Where the kernel has put the memory of a pool, as opposed to where it was asked to put it.
//!
//! Related files: `memory/residency.rs` asks the kernel, and `pool/observe.rs` has `Placement`.

use std::io;
use std::ops::Range;

use zonal::units::NodeId;

use super::handle::Pool;
use crate::memory::residency::{Backing, Residency};

/// Where the memory of one node's zones is.
///
/// Invariant: `bytes` = `pages.resident()` + `pages.absent` + `pages.unknown`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeResidency {
    /// Node to which the memory belongs.
    pub node: NodeId,
    /// Bytes that the pool has mapped for the node, including memory that is offline.
    pub bytes: u64,
    /// Where they are.
    pub pages: Residency,
}

impl NodeResidency {
    /// Returns how many bytes are in memory on the node itself.
    #[must_use]
    pub fn on_node(&self) -> u64 {
        self.pages.bytes_on.get(&self.node).copied().unwrap_or(0)
    }

    /// Returns how many bytes are in memory on other nodes. For emulated nodes this says nothing.
    #[must_use]
    pub fn misplaced(&self) -> u64 {
        self.pages.resident() - self.on_node()
    }
}

impl Pool {
    /// Asks the kernel on which node each page of the pool is, and returns the sums for each node of the pool.
    ///
    /// The call populates nothing. It takes about 10 ms for each GiB that is in memory, and less than 1 ms for each other GiB.
    ///
    /// ```
    /// use zonal_linux::{Pool, Prefault};
    ///
    /// let pool = Pool::builder().size(64 << 20).prefault(Prefault::AtOnce).build()?;
    /// for node in pool.residency()? {
    ///     assert_eq!(node.pages.absent, 0);
    ///     println!("node {}: {} bytes, {} on other nodes", node.node, node.bytes, node.misplaced());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the kernel denies `move_pages(2)` for pages that are in memory: in a container, add the capability `SYS_NICE`.
    pub fn residency(&self) -> io::Result<Vec<NodeResidency>> {
        let mut found: Vec<NodeResidency> = Vec::new();
        for (node, range) in self.mapped_ranges() {
            let (bytes, pages) = (range.len() as u64, Residency::of(range)?);
            match found.iter_mut().find(|one| one.node == node) {
                Some(one) => {
                    one.bytes += bytes;
                    one.pages.add(&pages);
                }
                None => found.push(NodeResidency { node, bytes, pages }),
            }
        }
        Ok(found)
    }

    /// Returns how the kernel backs the memory of the pool now: with huge pages of either kind, or not at all.
    ///
    /// ```
    /// # use zonal_linux::Pool;
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// let backing = pool.backing()?;
    /// assert!(backing.transparent_huge + backing.explicit_huge <= 64 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When `/proc/self/smaps` cannot be read.
    pub fn backing(&self) -> io::Result<Backing> {
        let ranges: Vec<_> = self.mapped_ranges().map(|(_, range)| range).collect();
        Backing::of(&ranges)
    }

    /// Returns the addresses of each zone's memory with its node. A child made by `fork` has no shared memory.
    fn mapped_ranges(&self) -> impl Iterator<Item = (NodeId, Range<usize>)> + '_ {
        let memory = self.core.memory();
        memory.zones().iter().filter_map(move |zone| {
            let start = memory.pointer(zone.range.start)?.as_ptr().addr();
            Some((zone.node, start..start + memory.bytes(zone.range.count)))
        })
    }
}
