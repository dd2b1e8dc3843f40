//! Zonelists: for each node, all zones with memory in fallback order.
//!
//! Two copies of each list exist. A rebuild fills the idle copies, then one store makes them current. A scan that has
//! begun continues in the old copy, and notices when a second rebuild is about to overwrite it. The zones of a node
//! are adjacent, so that a list can be read by *position* (index in the list) and by node. Neighbours:
//! `rules/fallback_order.rs` orders nodes, `zonelist/full_cache.rs` records which positions hold full zones,
//! `zonelist/candidates.rs` walks a list.

pub(crate) mod allowed_nodes;
pub(crate) mod candidates;
pub(crate) mod full_cache;

use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::metadata::arena::{Arena, Measure};
use crate::platform::cells::copy_view;
use crate::platform::{Atomic, Platform};
use crate::units::{MAX_NODES, NodeId, ZoneId, ZoneKind};
use crate::zonelist::allowed_nodes::AllowedNodes;
use crate::zonelist::full_cache::FullBits;

/// A bitmap over the positions of any list.
pub(crate) type PositionMask = [u64; MAX_NODES * ZoneKind::COUNT / 64];
const NO_POSITIONS: PositionMask = [0; MAX_NODES * ZoneKind::COUNT / 64];
/// Number of zone limits that exclude at least one kind of zone.
const LIMITS: usize = ZoneKind::COUNT - 1;

/// The two copies of one node's list, and the cache of its full zones, which both copies share.
pub(crate) struct Zonelist<'m, P: Platform> {
    pub(crate) copies: [ListCopy<'m, P>; 2],
    pub(crate) full: FullBits<'m, P>,
}

pub(crate) struct ListCopy<'m, P: Platform> {
    /// `[0]` = length, then an [`Entry`] for each position.
    pub(crate) entries: &'m [P::U32],
    /// By node id: the node's positions, as [`Stretch`].
    pub(crate) nodes: &'m [P::U32],
    /// For each zone limit except the highest, a bitmap of the positions of zones within it.
    pub(crate) within: [&'m [P::U64]; LIMITS],
}

/// The entry at a position: a zone and its node.
#[derive(Clone, Copy)]
struct Entry(u32);

impl Entry {
    const NODE_SHIFT: u32 = 16;

    const fn new(zone: ZoneId, node: NodeId) -> Self {
        Self(zone.index() as u32 | (node.index() as u32) << Self::NODE_SHIFT)
    }

    const fn zone(self) -> ZoneId {
        ZoneId::from_index(self.0 as usize % (1 << Self::NODE_SHIFT))
    }

    const fn node(self) -> NodeId {
        NodeId::from_index((self.0 >> Self::NODE_SHIFT) as usize)
    }
}

/// The positions of a node's zones: the first position and the count; all bits are 0 for a node that is not listed.
#[derive(Clone, Copy)]
struct Stretch(u32);

impl Stretch {
    const NONE: Self = Self(0);
    const COUNT_SHIFT: u32 = 16;

    const fn starting(position: usize) -> Self {
        Self(position as u32)
    }

    const fn extended(self) -> Self {
        Self(self.0 + (1 << Self::COUNT_SHIFT))
    }

    fn positions(self) -> Range<usize> {
        let first = self.0 as usize % (1 << Self::COUNT_SHIFT);
        first..first + (self.0 >> Self::COUNT_SHIFT) as usize
    }
}

/// A zone to be listed.
#[derive(Clone, Copy)]
pub(crate) struct Listed {
    pub(crate) zone: ZoneId,
    pub(crate) node: NodeId,
    pub(crate) kind: ZoneKind,
}

copy_view!(Zonelist, ListCopy, Zonelists);

impl<'m, P: Platform> Zonelist<'m, P> {
    /// Adds the size of both copies of one node's list: `zones` zones, node ids below `node_ids`.
    pub(crate) fn measure(measure: &mut Measure, zones: usize, node_ids: usize) {
        for _ in 0..2 {
            measure.add::<P::U32>(zones + 1);
            measure.add::<P::U32>(node_ids);
            for _ in 0..LIMITS {
                measure.add::<P::U64>(zones.div_ceil(64));
            }
        }
        FullBits::<P>::measure(measure, zones);
    }

    /// Allocates both copies of one node's list from the arena: `zones` zones, node ids below `node_ids`.
    pub(crate) fn build(arena: &mut Arena<'m>, zones: usize, node_ids: usize) -> Self {
        let mut copy = || ListCopy {
            entries: arena.u32s::<P>(zones + 1),
            nodes: arena.u32s::<P>(node_ids),
            within: core::array::from_fn(|_| arena.u64s::<P>(zones.div_ceil(64))),
        };
        Self { copies: [copy(), copy()], full: FullBits::build(arena, zones) }
    }
}

/// The zonelists of all nodes, by node index, and which copy of them is current.
pub(crate) struct Zonelists<'m, P: Platform> {
    pub(crate) lists: &'m [Zonelist<'m, P>],
    /// Completed rebuilds; the lowest bit selects the current copy.
    current: &'m P::U64,
    /// Rebuilds begun: equals `current`, or `current + 1` during a rebuild.
    begun: &'m P::U64,
}

impl<'m, P: Platform> Zonelists<'m, P> {
    pub(crate) const fn new(lists: &'m [Zonelist<'m, P>], current: &'m P::U64, begun: &'m P::U64) -> Self {
        Self { lists, current, begun }
    }

    /// Returns a reader of the current copy of a node's list.
    pub(crate) fn read<'a>(&'a self, node: usize) -> ListReader<'a, 'm, P> {
        let version = self.current.load(Acquire); // pairs with the release in `publish`
        ListReader { list: &self.lists[node].copies[(version & 1) as usize], version, begun: self.begun }
    }

    /// Returns the full bits of a node's list.
    pub(crate) const fn full(&self, node: usize) -> &'m FullBits<'m, P> {
        &self.lists[node].full
    }

    /// Starts a rebuild and returns a writer of the idle copies.
    ///
    /// The caller holds the lock for run-time changes.
    pub(crate) fn begin(&self) -> ListWriter {
        let next = self.current.load(Relaxed) + 1; // relaxed: changes are serialised by their lock
        // Relaxed: each entry is written with release, which orders this store before it.
        self.begun.store(next, Relaxed);
        ListWriter { version: next }
    }

    /// Makes the copies written by `writer` current.
    pub(crate) fn publish(&self, writer: &ListWriter) {
        self.current.store(writer.version, Release); // pairs with the acquire in `read`
    }
}

/// Permission to write the idle copies until they are published.
pub(crate) struct ListWriter {
    version: u64,
}

impl ListWriter {
    /// Replaces the idle copy of `list` with `zones`.
    pub(crate) fn write<P: Platform>(&self, list: &Zonelist<'_, P>, zones: impl Iterator<Item = Listed>) {
        // Release on every store pairs with the acquire loads of a `ListReader`: a reader that sees one of them also
        // sees that the rebuild has begun.
        let copy = &list.copies[(self.version & 1) as usize];
        copy.nodes.iter().for_each(|node| node.store(Stretch::NONE.0, Release));
        copy.within.iter().copied().flatten().for_each(|word| word.store(0, Release));
        let (mut len, mut of_node) = (0, (None, Stretch::NONE));
        for (position, Listed { zone, node, kind }) in zones.enumerate() {
            copy.entries[position + 1].store(Entry::new(zone, node).0, Release);
            let before = if of_node.0 == Some(node) { of_node.1 } else { Stretch::starting(position) };
            of_node = (Some(node), before.extended());
            copy.nodes[node.index()].store(of_node.1.0, Release);
            for within in copy.within.iter().skip(kind.index()) {
                let word = &within[position / 64];
                // Relaxed: there is no other writer.
                word.store(word.load(Relaxed) | 1 << (position % 64), Release);
            }
            len = position as u32 + 1;
        }
        copy.entries[0].store(len, Release);
    }
}

/// One list as it was when the reader was made.
pub(crate) struct ListReader<'a, 'm, P: Platform> {
    list: &'a ListCopy<'m, P>,
    version: u64,
    begun: &'a P::U64,
}

/// Two rebuilds began during a read, so the data read may be a mixture.
#[derive(Debug)]
pub(crate) struct ListChanged;

impl<P: Platform> ListReader<'_, '_, P> {
    /// Returns how many zones are listed.
    #[inline]
    pub(crate) fn len(&self) -> Result<usize, ListChanged> {
        let len = self.list.entries[0].load(Acquire);
        self.check()?;
        Ok(len as usize)
    }

    /// Returns the zone at `position`, which must not be past the end.
    #[inline]
    fn zone_at(&self, position: usize) -> Result<ZoneId, ListChanged> {
        let entry = self.entry(position);
        self.check()?;
        Ok(entry.zone())
    }

    /// Returns the node of the zone at `position`, which must not be past the end.
    ///
    /// Valid only if a later [`Self::check`] succeeds.
    #[inline]
    pub(crate) fn node_at(&self, position: usize) -> NodeId {
        self.entry(position).node()
    }

    /// Returns a mask of the 64 positions in word `word` whose zones are within `limit`. `len` is the length of the
    /// list.
    #[inline]
    pub(crate) fn within(&self, limit: ZoneKind, word: usize, len: usize) -> Result<u64, ListChanged> {
        let Some(within) = self.list.within.get(limit.index()) else {
            return Ok(u64::MAX >> (64 - (len - word * 64).min(64)));
        };
        let positions = within[word].load(Acquire); // pairs with `ListWriter::write`
        self.check()?;
        Ok(positions)
    }

    /// Adds the positions of all zones of `allowed` nodes to a bitmap.
    ///
    /// Valid only if a later [`Self::check`] succeeds.
    fn list_nodes(&self, allowed: &AllowedNodes<'_>, bitmap: &mut PositionMask) {
        // Bits are collected word by word: neighbours in a list often have neighbouring ids.
        let (mut at, mut bits) = (0, 0);
        for word in 0..MAX_NODES / 64 {
            let mut rest = allowed.word(word);
            while rest != 0 {
                let Some(node) = self.list.nodes.get(word * 64 + rest.trailing_zeros() as usize) else {
                    break;
                };
                for position in Stretch(node.load(Acquire)).positions() {
                    if position / 64 != at {
                        bitmap[at] |= bits;
                        (at, bits) = (position / 64, 0);
                    }
                    bits |= 1 << (position % 64);
                }
                rest &= rest - 1;
            }
        }
        bitmap[at] |= bits;
    }

    /// Returns the position of a zone of `node`, or `None` if it is not listed.
    pub(crate) fn position_of(&self, zone: ZoneId, node: NodeId) -> Result<Option<usize>, ListChanged> {
        let position = self.stretch(node).positions().find(|&position| self.entry(position).zone() == zone);
        self.check()?;
        Ok(position)
    }

    fn stretch(&self, node: NodeId) -> Stretch {
        Stretch(self.list.nodes[node.index()].load(Acquire)) // pairs with `ListWriter::write`
    }

    #[inline]
    fn entry(&self, position: usize) -> Entry {
        Entry(self.list.entries[position + 1].load(Acquire)) // pairs with `ListWriter::write`
    }

    /// Fails if a second rebuild has begun since this reader was made: it may have overwritten what was read.
    ///
    /// The acquire loads pair with the releases of [`ListWriter::write`], so a reader that has seen any new value
    /// also sees the new `begun` here.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), ListChanged> {
        if self.begun.load(Relaxed) > self.version + 1 { Err(ListChanged) } else { Ok(()) }
    }
}
