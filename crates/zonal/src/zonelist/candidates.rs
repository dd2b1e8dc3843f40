//! The positions of a zonelist that a scan may try: those of allowed zones that are not marked full.
//!
//! Zones above the request's limit and marked zones are left out 64 positions at a time. Nodes that
//! policy or cpuset leave out are found in two ways: positions are first tested one by one, since most
//! often a near one is allowed; when that takes too long, the positions of the allowed nodes are listed
//! as a bitmap, from the nodes' side. So beside a few tests a scan takes no more steps than the smaller
//! of two numbers: the nodes allowed, and the nodes left out. Neighbours: `zonelist.rs` has the list,
//! `zonelist_cache.rs` the marks, `scan.rs` tries the candidates.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Atomic, Platform};
use crate::units::{ZoneId, ZoneKind};
use crate::zonelist::allowed_nodes::AllowedNodes;
use crate::zonelist::{ListChanged, ListReader, NO_POSITIONS, PositionMask};

/// Positions that are tested before those of allowed nodes are listed.
const TESTS: usize = 64;

/// What a request may use of one zonelist.
pub(crate) struct Candidates<'s, 'm, P: Platform> {
    list: ListReader<'s, 'm, P>,
    limit: ZoneKind,
    filter: Option<NodeFilter<'s>>,
}

/// The nodes that may serve, where not all may.
pub(crate) struct NodeFilter<'s> {
    nodes: AllowedNodes<'s>,
    /// Positions tested so far.
    tests: usize,
    /// The positions of the allowed nodes, once they are listed. Not within: it is large.
    listed: &'s mut Option<PositionMask>,
}

impl<'s, 'm, P: Platform> Candidates<'s, 'm, P> {
    /// The zones of `list` up to the kind `limit`.
    #[inline]
    pub(crate) const fn new(
        list: ListReader<'s, 'm, P>,
        limit: ZoneKind,
        filter: Option<NodeFilter<'s>>,
    ) -> Self {
        Self { list, limit, filter }
    }

    /// The first candidate from position `from` up that is not among the marked ones, where marks count.
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
                open &= !marked[word].load(Relaxed); // relaxed: marks are hints
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

    /// The bits `open` of a word of positions from the first of an allowed zone on, in a list of `len`
    /// zones.
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
    /// Leaves only `nodes`; `listed` is room for their positions.
    #[inline]
    pub(crate) const fn new(nodes: AllowedNodes<'s>, listed: &'s mut Option<PositionMask>) -> Self {
        Self { nodes, tests: 0, listed }
    }

    /// The bits `open` of a word of positions from the first of an allowed node on, in a list of `len`
    /// zones. Out of line, since most requests may use all nodes.
    #[inline(never)]
    fn reduce<P: Platform>(
        &mut self,
        list: &ListReader<'_, '_, P>,
        word: usize,
        mut open: u64,
        len: usize,
    ) -> Result<u64, ListChanged> {
        // Where most are allowed, tests soon find one.
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
