//! Where the kernel has put the memory of a pool, as opposed to where it was asked to put it.
//!
//! Related files: `memory/residency.rs` asks the kernel, and `pool/observe.rs` has `Placement`.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use zonal::units::NodeId;

use super::handle::Pool;
use crate::memory::residency::{count_nodes, huge_page_bytes};

/// Where the memory of the zones of one node is.
///
/// Invariant: `bytes` = sum of `bytes_on` + `absent`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeResidency {
    /// Node to which the memory belongs.
    pub node: NodeId,
    /// Bytes that the pool has mapped for the node, including memory that is offline.
    pub bytes: u64,
    /// Bytes that are in memory, by the node that the kernel reports.
    pub bytes_on: BTreeMap<NodeId, u64>,
    /// Bytes that are not in memory yet.
    pub absent: u64,
}

impl NodeResidency {
    /// Returns how many bytes are in memory on other nodes. For emulated nodes this says nothing.
    #[must_use]
    pub fn misplaced(&self) -> u64 {
        self.bytes_on.iter().filter(|&(&node, _)| node != self.node).map(|(_, bytes)| bytes).sum()
    }
}

impl Pool {
    /// Asks the kernel on which node each page of the pool is, and returns the sums for each node of the pool.
    ///
    /// The call populates nothing. It takes about 10 ms for each GiB that is in memory.
    ///
    /// ```
    /// use zonal_linux::{Pool, Prefault};
    ///
    /// let pool = Pool::builder().size(64 << 20).prefault(Prefault::AtOnce).build()?;
    /// for node in pool.residency()? {
    ///     assert_eq!(node.absent, 0);
    ///     println!("node {}: {} bytes, {} on other nodes", node.node, node.bytes, node.misplaced());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the kernel denies `move_pages(2)`: in a container, add the capability `SYS_NICE`.
    pub fn residency(&self) -> io::Result<Vec<NodeResidency>> {
        let mut found: Vec<NodeResidency> = Vec::new();
        for (node, range) in self.mapped_ranges() {
            let at = found.iter().position(|one| one.node == node).unwrap_or_else(|| {
                found.push(NodeResidency { node, bytes: 0, bytes_on: BTreeMap::new(), absent: 0 });
                found.len() - 1
            });
            found[at].bytes += range.len() as u64;
            count_nodes(range, &mut found[at].bytes_on)?;
        }
        for one in &mut found {
            one.absent = one.bytes - one.bytes_on.values().sum::<u64>();
        }
        Ok(found)
    }

    /// Returns how many bytes of the pool the kernel backs with huge pages of any kind now.
    ///
    /// ```
    /// # use zonal_linux::Pool;
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// assert!(pool.huge_page_bytes()? <= 64 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When `/proc/self/smaps` cannot be read.
    pub fn huge_page_bytes(&self) -> io::Result<u64> {
        let ranges: Vec<_> = self.mapped_ranges().map(|(_, range)| range).collect();
        huge_page_bytes(&ranges)
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
