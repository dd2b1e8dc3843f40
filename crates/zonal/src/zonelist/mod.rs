//! Zonelists: each node has a list of all zones with memory, in fallback order.
//!
//! Two copies of each list exist. A rebuild fills the idle copies, and then one store makes them current. A scan that
//! began before the store continues in the old copy. The scan fails with [`ListChanged`] if a second rebuild may have
//! overwritten that copy. The zones of a node are adjacent, so that a list can be read by *position* (index in the
//! list) and by node. Related files: `rules/fallback_order.rs` orders nodes, `zonelist/full_cache.rs` records which
//! positions hold full zones, and `zonelist/candidates.rs` walks a list.

pub(crate) mod candidates;
pub(crate) mod full_cache;
pub(crate) mod nearest_zones;

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::metadata::arena::{Arena, Measure};
use crate::metadata::regions::{Part, holds};
use crate::node_mask::NodeMask;
use crate::platform::cells::copy_view;
use crate::platform::{Atomic, Platform};
use crate::units::{MAX_NODES, NodeId, ZoneId, ZoneKind};
use crate::zone::order_classes::OrderClasses;
use crate::zonelist::full_cache::{FullBits, POSITION_WORDS};

/// A bitmap over the positions of any list.
pub(crate) type PositionMask = [u64; POSITION_WORDS];
const NO_POSITIONS: PositionMask = [0; POSITION_WORDS];
/// Number of zone limits that exclude at least one zone kind.
const LIMITS: usize = ZoneKind::COUNT - 1;

/// Maximum number of attempts at a scan when the lists are rebuilt twice during an attempt, which invalidates it.
pub(crate) const RESTARTS: u32 = 8;

/// The nodes that a request's policy and cpuset allow.
#[derive(Clone, Copy)]
pub(crate) struct AllowedNodes<'r> {
    /// A node is allowed if it is in the first set and, if there is a second set, also in the second.
    masks: (&'r NodeMask, Option<&'r NodeMask>),
}

impl<'r> AllowedNodes<'r> {
    /// Creates the set of nodes in `first` and, if present, in `other`.
    pub(crate) const fn new(first: &'r NodeMask, other: Option<&'r NodeMask>) -> Self {
        Self { masks: (first, other) }
    }

    /// Whether a node is allowed.
    #[inline]
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.masks.0.contains(node) && self.masks.1.is_none_or(|mask| mask.contains(node))
    }

    /// Returns how many nodes are allowed, with memory or without.
    pub(crate) fn len(&self) -> usize {
        self.masks.1.map_or_else(|| self.masks.0.len(), |other| self.masks.0.intersection(other).len())
    }

    /// Returns the bits of the 64 nodes whose ids start at `64 * word`.
    #[inline]
    fn word(&self, word: usize) -> u64 {
        self.masks.0.words[word] & self.masks.1.map_or(!0, |mask| mask.words[word])
    }
}

/// The two copies of one node's list, and the full bits, which both copies share.
pub(crate) struct Zonelist<'m, P: Platform> {
    copies: [ListCopy<'m, P>; 2],
    full: FullBits<'m, P>,
}

pub(crate) struct ListCopy<'m, P: Platform> {
    /// `[0]` = length, then the zone and the node at each position, as [`halves`].
    entries: &'m [P::U32],
    /// The stretch of each node's zones by node id: the first position and the count, as [`halves`]. All bits are 0 for a node
    /// that is not listed.
    nodes: &'m [P::U32],
    /// A bitmap for each zone limit except the highest, with the positions of the zones that are within the limit.
    within: [&'m [P::U64]; LIMITS],
}

/// Returns the halves of a cell: of an entry, the zone and its node; of a stretch, the first position and the count.
const fn halves(cell: u32) -> (usize, usize) {
    (cell as usize & 0xffff, (cell >> 16) as usize)
}

copy_view!(Zonelist, ListCopy);

impl<'m, P: Platform> Zonelist<'m, P> {
    /// Adds the size of both copies that one node's list has, for `zones` zones and node ids below `node_ids`.
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

    /// Allocates both copies of one node's list from the arena, for `zones` zones and node ids below `node_ids`.
    pub(crate) fn build(arena: &mut Arena<'m>, zones: usize, node_ids: usize) -> Self {
        let mut copy = || ListCopy {
            entries: arena.u32s::<P>(zones + 1),
            nodes: arena.u32s::<P>(node_ids),
            within: core::array::from_fn(|_| arena.u64s::<P>(zones.div_ceil(64))),
        };
        Self { copies: [copy(), copy()], full: FullBits::build(arena, zones) }
    }
}

/// The zonelists of all nodes, by node index, and the number that selects the current copies.
pub(crate) struct Zonelists<'m, P: Platform> {
    lists: &'m [Zonelist<'m, P>],
    /// Number of completed rebuilds; the lowest bit selects the current copy.
    current: &'m P::U64,
    /// Number of rebuilds begun: equals `current`, or `current + 1` during a rebuild.
    begun: &'m P::U64,
}

impl<'m, P: Platform> Zonelists<'m, P> {
    pub(crate) const fn new(lists: &'m [Zonelist<'m, P>], current: &'m P::U64, begun: &'m P::U64) -> Self {
        Self { lists, current, begun }
    }

    /// Returns the full bits of a node's list.
    #[inline]
    pub(crate) fn full(&self, node: usize) -> &FullBits<'m, P> {
        &self.lists[node].full
    }

    /// Clears the full bits for `orders` that a zone has in the list at `at`; returns whether the zone is listed.
    pub(crate) fn clear_full(&self, at: usize, zone: ZoneId, node: NodeId, orders: OrderClasses) -> bool {
        let reader = self.read(at);
        // Acquire: takes `begun`; pairs with `ListCopy::write`.
        let (first, count) = halves(reader.list.nodes[node.index()].load(Acquire));
        let position = (first..first + count).find(|&position| reader.entry(position).0 == zone.index());
        // If the list changes concurrently, all its full bits are cleared anyway.
        let position = position.filter(|_| reader.check().is_ok());
        position.inspect(|&position| self.full(at).clear(position, orders)).is_some()
    }

    /// Calls `sink` with each node in a node's list, in order, or with fewer if the lists change meanwhile.
    pub(crate) fn nodes(&self, at: usize, mut sink: impl FnMut(NodeId)) {
        let list = self.read(at);
        let mut last = None;
        for position in 0..list.len().unwrap_or(0) {
            let id = list.node_at(position);
            if list.check().is_err() {
                return;
            }
            if last.replace(id) != Some(id) {
                sink(id);
            }
        }
    }

    /// Returns which part of the lists contains the byte at `address`; `nodes` has each list's node.
    pub(crate) fn part_at(&self, nodes: impl Iterator<Item = NodeId>, address: usize) -> Option<Part> {
        if holds(self.lists, address) {
            return Some(Part::Views);
        }
        nodes.zip(self.lists).find_map(|(node, list)| {
            let in_copy = |copy: &ListCopy<'m, P>| {
                let is_within = || copy.within.iter().any(|within| holds(*within, address));
                holds(copy.entries, address) || holds(copy.nodes, address) || is_within()
            };
            let cache = || list.full.holds(address).then_some(Part::ZonelistCache(node));
            list.copies.iter().any(in_copy).then_some(Part::Zonelist(node)).or_else(cache)
        })
    }

    /// Returns a reader for the current copy of a node's list.
    #[inline]
    fn read<'a>(&'a self, node: usize) -> ListReader<'a, 'm, P> {
        let version = self.version();
        ListReader { list: &self.lists[node].copies[(version & 1) as usize], version, begun: self.begun }
    }

    /// Returns the version of the lists, which each rebuild increments.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.current.load(Acquire) // Acquire: takes the copies of this version; pairs with `Zonelists::rebuild`.
    }

    /// Replaces all lists by what `write` writes to each node's idle copy, and wipes their full bits, because positions in the
    /// lists have changed.
    ///
    /// The caller must hold the lock that serialises changes at run time.
    pub(crate) fn rebuild(&self, mut write: impl FnMut(usize, &ListCopy<'m, P>)) {
        let next = self.current.load(Relaxed) + 1; // relaxed: the lock serialises rebuilds
        // Relaxed: each entry is stored with release, which orders this store before the entry.
        self.begun.store(next, Relaxed);
        for (node, list) in self.lists.iter().enumerate() {
            write(node, &list.copies[(next & 1) as usize]);
        }
        // Release: publishes the copies of this version; pairs with `Zonelists::version`.
        self.current.store(next, Release);
        self.lists.iter().for_each(|list| list.full.wipe());
    }
}

impl<P: Platform> ListCopy<'_, P> {
    /// Replaces the zones of an idle copy.
    pub(crate) fn write(&self, zones: impl Iterator<Item = (ZoneId, NodeId, ZoneKind)>) {
        // A reader that sees one of the stores below also sees that the rebuild has begun.
        // Release: publishes `begun`; pairs with `ListReader::len`, `within`, `list_nodes`, `entry`, `clear_full`.
        self.nodes.iter().for_each(|node| node.store(0, Release));
        self.within.iter().copied().flatten().for_each(|word| word.store(0, Release)); // Release: as above.
        let (mut len, mut last_node, mut stretch) = (0, None, 0);
        for (position, (zone, node, kind)) in zones.enumerate() {
            let entry = zone.index() as u32 | (node.index() as u32) << 16;
            self.entries[position + 1].store(entry, Release); // Release: as above.
            if last_node != Some(node) {
                (last_node, stretch) = (Some(node), position as u32);
            }
            stretch += 1 << 16;
            self.nodes[node.index()].store(stretch, Release); // Release: as above.
            for within in self.within.iter().skip(kind.index()) {
                let word = &within[position / 64];
                // The load is relaxed, because there is no other writer.
                // Release: as above.
                word.store(word.load(Relaxed) | 1 << (position % 64), Release);
            }
            len = position as u32 + 1;
        }
        self.entries[0].store(len, Release); // Release: as above.
    }
}

/// A reader for the copy of a list that was current when the reader was created.
struct ListReader<'a, 'm, P: Platform> {
    list: &'a ListCopy<'m, P>,
    version: u64,
    begun: &'a P::U64,
}

/// The error that two rebuilds began during a read, so that the data read may be a mixture of two versions.
#[derive(Debug)]
pub(crate) struct ListChanged;

impl<P: Platform> ListReader<'_, '_, P> {
    /// Returns how many zones are listed.
    #[inline]
    fn len(&self) -> Result<usize, ListChanged> {
        let len = self.list.entries[0].load(Acquire); // Acquire: takes `begun`; pairs with `ListCopy::write`.
        self.check()?;
        Ok(len as usize)
    }

    /// Returns the node of the zone at `position`, which must be within the list.
    ///
    /// The result is valid only if a later [`Self::check`] succeeds.
    #[inline]
    fn node_at(&self, position: usize) -> NodeId {
        NodeId::from_index(self.entry(position).1)
    }

    /// Returns a mask of the positions in word `word` whose zones are within `limit`; `len` is the length of the list.
    #[inline]
    fn within(&self, limit: ZoneKind, word: usize, len: usize) -> Result<u64, ListChanged> {
        let Some(within) = self.list.within.get(limit.index()) else {
            return Ok(u64::MAX >> (64 - (len - word * 64).min(64)));
        };
        let positions = within[word].load(Acquire); // Acquire: takes `begun`; pairs with `ListCopy::write`.
        self.check()?;
        Ok(positions)
    }

    /// Adds the positions of all zones on `allowed` nodes to a bitmap.
    ///
    /// The result is valid only if a later [`Self::check`] succeeds.
    fn list_nodes(&self, allowed: &AllowedNodes<'_>, bitmap: &mut PositionMask) {
        // Bits are collected word by word, because nodes that are adjacent in a list often have adjacent ids.
        let (mut at, mut bits) = (0, 0);
        for word in 0..MAX_NODES / 64 {
            let mut rest = allowed.word(word);
            while rest != 0 {
                let Some(node) = self.list.nodes.get(word * 64 + rest.trailing_zeros() as usize) else {
                    break;
                };
                // Acquire: takes `begun`; pairs with `ListCopy::write`.
                let (first, count) = halves(node.load(Acquire));
                for position in first..first + count {
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

    /// Returns the indices of the zone and the node at `position`, which must be within the list; valid only if a later
    /// [`Self::check`] succeeds.
    #[inline]
    fn entry(&self, position: usize) -> (usize, usize) {
        // Acquire: takes `begun`; pairs with `ListCopy::write`.
        halves(self.list.entries[position + 1].load(Acquire))
    }

    /// Fails if a second rebuild has begun since this reader was created, because it may have overwritten the data
    /// read.
    ///
    /// This reader's acquire loads pair with the release stores of [`ListCopy::write`]. A reader that has loaded
    /// any new value therefore also sees the new `begun`, although its load is relaxed.
    #[inline]
    fn check(&self) -> Result<(), ListChanged> {
        if self.begun.load(Relaxed) > self.version + 1 { Err(ListChanged) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::{at, small};

    #[test]
    fn cells_lie_in_the_parts_they_belong_to() {
        let allocator = small(&Config::default(), |_| {});
        let lists = &allocator.state.lists;
        let nodes = [0, 1].map(NodeId::from_index);
        let list = &lists.lists[1].copies[1];
        let zonelist = Some(Part::Zonelist(nodes[1]));
        for (cell, part) in [
            (at(&lists.lists[1]), Some(Part::Views)),
            (at(list.nodes.last().unwrap()), zonelist),
            (at(list.within[2].last().unwrap()), zonelist),
        ] {
            assert_eq!(allocator.part_at(cell), part);
        }
    }
}
