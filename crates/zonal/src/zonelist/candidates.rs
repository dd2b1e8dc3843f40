//! Candidates: the positions of a zonelist that a scan may try, which hold allowed zones whose full bits are not set.
//!
//! Zones above the request's zone limit and zones whose full bit is set are skipped 64 positions at a time. Nodes that
//! the policy or the cpuset excludes are skipped in two ways. Positions are first tested one by one, because an allowed
//! zone is usually near the start. After a number of failed tests, the positions of all allowed nodes are collected in
//! a bitmap. Apart from a few tests, a scan therefore has at most as many steps as there are allowed nodes or excluded
//! nodes, whichever is smaller. Related files: `zonelist/mod.rs` has the list, `zonelist/full_cache.rs` has the full
//! bits, and `alloc/scan.rs` tries the candidates.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Atomic, Platform};
use crate::units::{ZoneId, ZoneKind};
use crate::zonelist::{AllowedNodes, ListChanged, ListReader, NO_POSITIONS, PositionMask, Zonelists};

/// Maximum number of positions tested one by one before the allowed nodes' positions are collected.
const TESTS: usize = 64;

/// The part of one zonelist that a request may use.
pub(crate) struct Candidates<'s, 'm, P: Platform> {
    list: ListReader<'s, 'm, P>,
    limit: ZoneKind,
    filter: Option<NodeFilter<'s>>,
}

/// A filter for the positions of the nodes that may serve a request.
struct NodeFilter<'s> {
    nodes: AllowedNodes<'s>,
    /// Number of allowed nodes.
    count: usize,
    /// Positions tested so far.
    tests: usize,
    /// The positions of the allowed nodes, once they have been collected. This field is a reference, because the bitmap
    /// is large.
    listed: &'s mut Option<PositionMask>,
}

impl<'s, 'm, P: Platform> Candidates<'s, 'm, P> {
    /// Creates the candidates of a node's list, which are the zones up to the kind `limit`.
    ///
    /// With a filter, they are on these nodes only. It has the number of nodes, of which some may have no memory, and storage
    /// for their positions.
    #[inline]
    pub(crate) fn new(
        lists: &'s Zonelists<'m, P>,
        node: usize,
        limit: ZoneKind,
        filter: Option<(AllowedNodes<'s>, usize, &'s mut Option<PositionMask>)>,
    ) -> Self {
        let filter = filter.map(|(nodes, count, listed)| NodeFilter { nodes, count, tests: 0, listed });
        Self { list: lists.read(node), limit, filter }
    }

    /// Returns the first candidate at or after position `from` whose bit in `marked` is not set.
    #[inline]
    pub(crate) fn next(
        &mut self,
        from: usize,
        marked: Option<&[P::U64]>,
    ) -> Result<Option<(usize, ZoneId)>, ListChanged> {
        let len = self.list.len()?;
        let (mut word, mut open) = (from / 64, u64::MAX << (from % 64));
        while word * 64 < len {
            if let Some(marked) = marked {
                open &= !marked[word].load(Relaxed); // relaxed: full bits are hints
            }
            if open != 0 {
                open &= self.list.within(self.limit, word, len)?;
                if let Some(filter) = self.filter.as_mut().filter(|_| P::RESTRICTS) {
                    open = filter.reduce(&self.list, word, open, len)?;
                }
                if open != 0 {
                    let position = word * 64 + open.trailing_zeros() as usize;
                    let (zone, _) = self.list.entry(position);
                    self.list.check()?;
                    return Ok(Some((position, ZoneId::from_index(zone))));
                }
            }
            (word, open) = (word + 1, u64::MAX);
        }
        Ok(None)
    }
}

impl NodeFilter<'_> {
    /// Removes the leading positions of nodes that are not allowed from `open`, one word of positions in a list with
    /// `len` zones.
    ///
    /// The function is not inlined, because most requests may use all nodes and do not call it.
    #[inline(never)]
    fn reduce<P: Platform>(
        &mut self,
        list: &ListReader<'_, '_, P>,
        word: usize,
        mut open: u64,
        len: usize,
    ) -> Result<u64, ListChanged> {
        // If most nodes are allowed, a few tests find an allowed one.
        let few = 2 * self.count < len;
        let most = if few { self.count.min(TESTS) } else { usize::MAX };
        while open != 0 && self.listed.is_none() {
            if self.nodes.contains(list.node_at(word * 64 + open.trailing_zeros() as usize)) {
                break;
            }
            open &= open - 1;
            self.tests += 1;
            if self.tests >= most {
                list.list_nodes(&self.nodes, self.listed.insert(NO_POSITIONS));
            }
        }
        list.check()?;
        Ok(self.listed.as_ref().map_or(open, |listed| open & listed[word]))
    }
}
