//! `nodeN/numastat`: locality of one node's blocks, counted once per block.

use core::fmt;

use super::text::Snapshot;
use crate::platform::Platform;

pub(super) struct NumaStat<'a, 'm, P: Platform> {
    /// Index of the node.
    pub(super) place: usize,
    pub(super) of: Snapshot<'a, 'm, P>,
}

impl<P: Platform> fmt::Display for NumaStat<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locality = self.of.node_locality(self.place);
        for (name, blocks) in [
            ("numa_hit", locality.hit),
            ("numa_miss", locality.miss),
            ("numa_foreign", locality.foreign),
            ("interleave_hit", locality.interleave_hit),
            ("local_node", locality.local),
            ("other_node", locality.other),
        ] {
            writeln!(f, "{name} {blocks}")?;
        }
        Ok(())
    }
}
