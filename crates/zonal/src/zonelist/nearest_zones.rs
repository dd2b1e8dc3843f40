//! For each CPU, the last set of nodes that was looked up in its zonelist, and the nearest zone on these nodes.
//!
//! Threads in a cpuset make many requests with the same set, and to find its nearest zone takes a step for each node that is
//! nearer or for each node of the set. To compare the set takes a step for 64 nodes. Readers and writers never wait: a
//! CPU's record has a *version*, which is odd while a thread writes the record. Meanwhile other threads look the zone up
//! each time; after a `fork` during a write, the child does so for good. Related files: `zonelist/candidates.rs`
//! finds the zone, and `alloc/route.rs` serves requests from it.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::metadata::arena::{Arena, Measure};
use crate::metadata::regions::index;
use crate::platform::{Atomic, Platform};
use crate::units::{ZoneId, ZoneKind};
use crate::zonelist::AllowedNodes;

/// Cells of a record: its version, the version of the zonelists, the zone with the zone limit, and the set.
const VERSION: usize = 0;
const LISTS: usize = 1;
const FOUND: usize = 2;
const SET: usize = 3;

/// Number of cells in a cache line.
const LINE: usize = 8;

/// The records of all CPUs, by CPU index.
pub(crate) struct NearestZones<'m, P: Platform> {
    cells: &'m [P::U64],
    /// Number of words in a set.
    words: usize,
}

impl<'m, P: Platform> NearestZones<'m, P> {
    /// Adds the size of the records for `cpus` CPUs and node ids below `node_ids`.
    pub(crate) fn measure(measure: &mut Measure, cpus: usize, node_ids: usize) {
        measure.add::<P::U64>(cpus * Self::stride(node_ids.div_ceil(64)));
    }

    /// Allocates the records from the arena.
    pub(crate) fn build(arena: &mut Arena<'m>, cpus: usize, node_ids: usize) -> Self {
        let words = node_ids.div_ceil(64);
        Self { cells: arena.u64s::<P>(cpus * Self::stride(words)), words }
    }

    /// Returns the number of cells in a record, which is a number of whole lines.
    const fn stride(words: usize) -> usize {
        (SET + words).next_multiple_of(LINE)
    }

    /// Returns the CPU index of the record that contains the byte at `address`.
    pub(crate) fn cpu_at(&self, address: usize) -> Option<usize> {
        index(self.cells, address).map(|at| at / Self::stride(self.words))
    }

    #[inline(always)]
    fn record(&self, cpu: u32) -> Option<&'m [P::U64]> {
        let stride = Self::stride(self.words);
        self.cells.get(cpu as usize * stride..)?.get(..SET + self.words)
    }

    /// Returns the zone that was found last for the CPU, if one was found.
    #[inline(always)]
    pub(crate) fn last_zone(&self, cpu: u32) -> Option<ZoneId> {
        let found = self.record(cpu)?[FOUND].load(Relaxed); // relaxed: any zone of the machine will do
        (found != 0).then(|| ZoneId::from_index(found as u32 as usize))
    }

    /// Returns the nearest zone on `nodes` within a zone limit, if the CPU's record has it, found in this version of the
    /// zonelists.
    #[inline(always)]
    pub(crate) fn recall(
        &self,
        cpu: u32,
        limit: ZoneKind,
        lists: u64,
        nodes: &AllowedNodes<'_>,
    ) -> Option<ZoneId> {
        let record = self.record(cpu)?;
        // A reader that sees a store of `record_zone` also sees that the version is odd, or newer.
        // Acquire: takes the record of this version, or a newer version; pairs with `NearestZones::record_zone`.
        let version = record[VERSION].load(Acquire);
        let is_same = record[LISTS].load(Acquire) == lists; // Acquire: as above.
        let found = record[FOUND].load(Acquire); // Acquire: as above.
        if found >> 32 != limit.index() as u64 + 1 {
            return None;
        }
        // Acquire: as above.
        let different = record[SET..]
            .iter()
            .enumerate()
            .fold(0, |different, (at, word)| different | (word.load(Acquire) ^ nodes.word(at)));
        // Relaxed: the acquire loads above come first.
        let is_whole = version.is_multiple_of(2) && record[VERSION].load(Relaxed) == version;
        (is_same && different == 0 && is_whole).then(|| ZoneId::from_index(found as u32 as usize))
    }

    /// Records the nearest zone on `nodes`, unless another thread is writing the CPU's record.
    pub(crate) fn record_zone(
        &self,
        cpu: u32,
        limit: ZoneKind,
        lists: u64,
        nodes: &AllowedNodes<'_>,
        zone: ZoneId,
    ) {
        let Some(record) = self.record(cpu) else { return };
        let version = record[VERSION].load(Relaxed); // relaxed: the exchange decides
        // Relaxed: a record that another thread writes is left alone.
        // Acquire: takes the previous writer's stores; pairs with `NearestZones::record_zone`.
        if !version.is_multiple_of(2)
            || record[VERSION].compare_exchange(version, version + 1, Acquire, Relaxed).is_err()
        {
            return;
        }
        // Release: publishes the odd version with each of these stores; pairs with `NearestZones::recall`.
        record[LISTS].store(lists, Release);
        let found = ((limit.index() as u64 + 1) << 32) | zone.index() as u64; // never zero
        record[FOUND].store(found, Release); // Release: as above.
        // Release: as above.
        record[SET..].iter().enumerate().for_each(|(at, word)| word.store(nodes.word(at), Release));
        // Release: publishes the record; pairs with `NearestZones::recall`, `NearestZones::record_zone`.
        record[VERSION].store(version + 2, Release);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;
    use crate::Config;
    use crate::metadata::regions::Part;
    use crate::node_mask::NodeMask;
    use crate::testing::{Native, at, small};
    use crate::units::NodeId;

    #[test]
    fn cells_lie_in_the_parts_they_belong_to() {
        let allocator = small(&Config::default(), |_| {});
        for info in allocator.state.cpus.iter().filter(|info| info.exists()) {
            let last = &allocator.state.nearest.cells[LINE * info.index as usize + LINE - 1];
            let part = allocator.part_at(at(last));
            assert_eq!(part, Some(Part::NearestZone(info.id)));
        }
    }

    /// Threads record and recall the nearest zone of different sets in one record.
    #[test]
    fn a_record_is_never_a_mixture() {
        const WORDS: usize = 16;
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let cells: [AtomicU64; NearestZones::<Native>::stride(WORDS)] =
            core::array::from_fn(|_| AtomicU64::new(0));
        let nearest = &NearestZones::<Native> { cells: &cells, words: WORDS };
        // The nodes of a set follow from its zone.
        let set = |zone: usize| -> NodeMask {
            (0..WORDS).map(|word| NodeId::from_index(64 * word + (zone + word) % 64)).collect()
        };
        let recalled: usize = std::thread::scope(|scope| {
            let threads: std::vec::Vec<_> = (0..4_usize)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut recalled = 0;
                        for round in 0..rounds {
                            let number = (round / 2 + thread) % 4;
                            let (mask, zone) = (set(number), ZoneId::from_index(number));
                            let nodes = AllowedNodes::new(&mask, None);
                            if round % 2 == thread % 2 {
                                nearest.record_zone(0, ZoneKind::Movable, 1, &nodes, zone);
                            }
                            if let Some(found) = nearest.recall(0, ZoneKind::Movable, 1, &nodes) {
                                assert_eq!(found, zone);
                                recalled += 1;
                            }
                        }
                        recalled
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(recalled > 0);
        assert!(nearest.last_zone(0).is_some());
    }
}
