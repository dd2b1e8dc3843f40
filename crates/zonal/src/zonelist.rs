//! Zonelists: for each node, all zones with memory in fallback order.
//!
//! Two copies of each list exist. A rebuild fills the idle ones, then one store makes them current;
//! a scan that has begun goes on in the old copy, and notices when a second rebuild is about to
//! overwrite it. Vocabulary: *position* = place in a list, *rank* = position of a given zone.
//! Neighbours: `fallback.rs` orders nodes, `zonelist_cache.rs` remembers full positions.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::carve::{Carver, Measure, copy_view};
use crate::platform::{Atomic, Platform};
use crate::units::ZoneId;
use crate::zonelist_cache::FullMarks;

const NOT_LISTED: u32 = u32::MAX;

/// The lists of one node, with their cache.
pub(crate) struct Zonelist<'m, P: Platform> {
    pub(crate) copies: [ListCopy<'m, P>; 2],
    pub(crate) full: FullMarks<'m, P>,
}

pub(crate) struct ListCopy<'m, P: Platform> {
    /// `[0]` = length, then the zones by position.
    pub(crate) entries: &'m [P::U32],
    /// Position of each zone, or [`NOT_LISTED`].
    pub(crate) ranks: &'m [P::U32],
}

copy_view!(Zonelist, ListCopy, ListVersion);

impl<'m, P: Platform> Zonelist<'m, P> {
    /// Adds the metadata of the lists over `zones` zones.
    pub(crate) fn measure(measure: &mut Measure, zones: usize) {
        for _ in 0..2 {
            measure.add::<P::U32>(zones + 1);
            measure.add::<P::U32>(zones);
        }
        FullMarks::<P>::measure(measure, zones);
    }

    /// Carves the lists over `zones` zones.
    pub(crate) fn carve(carver: &mut Carver<'m>, zones: usize) -> Self {
        let mut copy = || ListCopy { entries: carver.u32s::<P>(zones + 1), ranks: carver.u32s::<P>(zones) };
        Self { copies: [copy(), copy()], full: FullMarks::carve(carver, zones) }
    }
}

/// Which copy of all lists is current.
pub(crate) struct ListVersion<'m, P: Platform> {
    /// Completed rebuilds; its lowest bit names the current copy.
    current: &'m P::U64,
    /// Rebuilds begun: `current`, or one more while one runs.
    begun: &'m P::U64,
}

impl<'m, P: Platform> ListVersion<'m, P> {
    pub(crate) const fn new(current: &'m P::U64, begun: &'m P::U64) -> Self {
        Self { current, begun }
    }

    /// A reader of the current copy of `list`.
    pub(crate) fn read<'a>(&'a self, list: &'a Zonelist<'m, P>) -> ListReader<'a, 'm, P> {
        let version = self.current.load(Acquire); // pairs with the release in `publish`
        ListReader { list: &list.copies[(version & 1) as usize], version, begun: self.begun }
    }

    /// Starts a rebuild; the caller holds the lock of changes. Gives a writer of the idle copies.
    pub(crate) fn begin(&self) -> ListWriter {
        let next = self.current.load(Relaxed) + 1; // relaxed: changes are serialised by their lock
        // Ordered before every entry written by the release of that write.
        self.begun.store(next, Relaxed);
        ListWriter { version: next }
    }

    /// Makes what `writer` wrote current.
    pub(crate) fn publish(&self, writer: &ListWriter) {
        self.current.store(writer.version, Release); // pairs with the acquire in `read`
    }
}

/// Permission to write the idle copies, until published.
pub(crate) struct ListWriter {
    version: u64,
}

impl ListWriter {
    /// Replaces the idle copy of `list` by `zones`.
    pub(crate) fn write<P: Platform>(
        &self,
        list: &Zonelist<'_, P>,
        zones: impl Iterator<Item = ZoneId> + Clone,
    ) {
        // Release on every store pairs with the acquire loads of a `ListReader`: whoever sees one
        // of them also sees that the rebuild has begun.
        let copy = &list.copies[(self.version & 1) as usize];
        copy.ranks.iter().for_each(|rank| rank.store(NOT_LISTED, Release));
        let mut len = 0;
        for (position, zone) in zones.enumerate() {
            copy.entries[position + 1].store(zone.index() as u32, Release);
            copy.ranks[zone.index()].store(position as u32, Release);
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

/// The lists were rebuilt twice under a reader: what it read may be a mixture.
#[derive(Debug)]
pub(crate) struct ListChanged;

impl<P: Platform> ListReader<'_, '_, P> {
    /// The zone at `position`, or `None` past the end.
    #[inline]
    pub(crate) fn zone_at(&self, position: usize) -> Result<Option<ZoneId>, ListChanged> {
        let len = self.checked(self.list.entries[0].load(Acquire))?;
        if position >= len as usize {
            return Ok(None);
        }
        let zone = self.checked(self.list.entries[position + 1].load(Acquire))?;
        Ok(Some(ZoneId::from_index(zone as usize)))
    }

    /// Position of `zone`, or `None` when it is not listed.
    pub(crate) fn position_of(&self, zone: ZoneId) -> Result<Option<usize>, ListChanged> {
        let rank = self.checked(self.list.ranks[zone.index()].load(Acquire))?;
        Ok((rank != NOT_LISTED).then_some(rank as usize))
    }

    /// `value`, unless the rebuild after next may have written it. The acquire loads of entries
    /// pair with the releases of [`ListWriter::write`], so this look cannot be too early.
    fn checked(&self, value: u32) -> Result<u32, ListChanged> {
        if self.begun.load(Relaxed) > self.version + 1 { Err(ListChanged) } else { Ok(value) }
    }
}
