//! Candidates: the positions of a zonelist that a scan may try, those of allowed zones that are not marked full.
//!
//! Zones above the request's limit and zones marked full are skipped 64 positions at a time. Nodes that policy or
//! cpuset exclude are skipped in two ways. Positions are first tested one by one, because a near one is usually
//! allowed. If that takes too long, the positions of the allowed nodes are collected in a bitmap. Apart from a few
//! tests, a scan therefore takes no more steps than the smaller of the number of allowed and of excluded nodes.
//! Neighbours: `zonelist/mod.rs` has the list, `zonelist/full_cache.rs` the full bits, `alloc/scan.rs` tries the
//! candidates.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Atomic, Platform};
use crate::units::{ZoneId, ZoneKind};
use crate::zonelist::allowed_nodes::AllowedNodes;
use crate::zonelist::{ListChanged, ListReader, NO_POSITIONS, PositionMask};

/// Positions that are tested before those of allowed nodes are collected.
const TESTS: usize = 64;

/// What a request may use of one zonelist.
pub(crate) struct Candidates<'s, 'm, P: Platform> {
    list: ListReader<'s, 'm, P>,
    limit: ZoneKind,
    filter: Option<NodeFilter<'s>>,
}

/// The nodes that may serve, if not all may.
pub(crate) struct NodeFilter<'s> {
    nodes: AllowedNodes<'s>,
    /// Positions tested so far.
    tests: usize,
    /// The positions of the allowed nodes, once collected. A reference, because the bitmap is large.
    listed: &'s mut Option<PositionMask>,
}

impl<'s, 'm, P: Platform> Candidates<'s, 'm, P> {
    /// Creates the candidates of `list`: zones up to the kind `limit`.
    #[inline]
    pub(crate) const fn new(
        list: ListReader<'s, 'm, P>,
        limit: ZoneKind,
        filter: Option<NodeFilter<'s>>,
    ) -> Self {
        Self { list, limit, filter }
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
                open = self.allowed(word, open, len)?;
                if open != 0 {
                    let position = word * 64 + open.trailing_zeros() as usize;
                    return Ok(Some((position, self.list.zone_at(position)?)));
                }
            }
            (word, open) = (word + 1, u64::MAX);
        }
        Ok(None)
    }

    /// Returns the bits of `open` from the first position of an allowed zone, for one word of positions in a list of
    /// `len` zones.
    #[inline]
    fn allowed(&mut self, word: usize, open: u64, len: usize) -> Result<u64, ListChanged> {
        let open = open & self.list.within(self.limit, word, len)?;
        match &mut self.filter {
            None => Ok(open),
            Some(filter) => filter.reduce(&self.list, word, open, len),
        }
    }
}

impl<'s> NodeFilter<'s> {
    /// Creates a filter that allows only `nodes`; `listed` stores their positions.
    #[inline]
    pub(crate) const fn new(nodes: AllowedNodes<'s>, listed: &'s mut Option<PositionMask>) -> Self {
        Self { nodes, tests: 0, listed }
    }

    /// Returns the bits of `open` from the first position of an allowed node, for one word of positions in a list of
    /// `len` zones.
    ///
    /// Not inlined, because most requests may use all nodes.
    #[inline(never)]
    fn reduce<P: Platform>(
        &mut self,
        list: &ListReader<'_, '_, P>,
        word: usize,
        mut open: u64,
        len: usize,
    ) -> Result<u64, ListChanged> {
        // If most nodes are allowed, tests soon find one.
        let few = 2 * self.nodes.count < len;
        let most = if few { self.nodes.count.min(TESTS) } else { usize::MAX };
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
