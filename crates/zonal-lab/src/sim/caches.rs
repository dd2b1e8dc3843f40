//! The private caches: which versions of lines each CPU has.
//!
//! A cache consists of *sets*, and a line can be in each *way* of its set. A set orders its ways by last use, and a line that is not there replaces the one that was used longest ago. Related files:
//! `sim/coherence.rs` knows the current version of each line.

use std::cell::Cell;

use super::access::Access;
use crate::zeroed::Zeroed;

/// Width of a line's version, in bits.
pub(super) const VERSION_BITS: u32 = 24;

/// The caches of all CPUs. Invariant: a set has at most one entry for each line.
pub(super) struct Caches {
    /// Line + 1 and version of the line used last, indexed by CPU and set; 0 = unused. Most accesses need only these, which
    /// are apart from the others so that the host's caches hold them.
    first_ways: Zeroed,
    /// The same for the other ways, indexed by CPU, set and way.
    other_ways: Zeroed,
    /// Sets of a cache.
    sets: usize,
    /// Number of other ways.
    others: usize,
    /// Right shift that turns half of a line's hash into a set. The whole hash would have to be shifted by all of its bits
    /// if there is one set.
    hash_shift: u32,
    /// Index in `first_ways` of the running CPU's first set.
    first: Cell<usize>,
    /// Recent hits of the running CPU: a line's number, shifted by one bit, and whether the CPU may also write; or
    /// [`NOT_RECENT`]. A line can only be at the place that its lowest bits select.
    ///
    /// Invariant: the CPU has the current version of a recent line, which is the line used last of its set. Another hit
    /// would not change anything, so it needs no look-up.
    recent: [Cell<usize>; RECENT],
}

/// Number of recent hits: enough for an operation of the allocator, and few because each switch to another CPU clears them.
const RECENT: usize = 32;
/// Not a recent hit.
const NOT_RECENT: usize = usize::MAX;

impl Caches {
    /// Creates empty caches. Both `lines`, at least 2, and `ways` are powers of two. A cache with fewer lines than ways has
    /// one set.
    pub(super) fn new(cpus: usize, lines: usize, ways: usize) -> Self {
        let ways = ways.min(lines);
        let (sets, others) = (lines / ways, ways - 1);
        Self {
            first_ways: Zeroed::new(cpus * sets),
            other_ways: Zeroed::new(cpus * sets * others),
            sets,
            others,
            hash_shift: u64::BITS - 1 - sets.ilog2(),
            first: Cell::new(0),
            recent: [const { Cell::new(NOT_RECENT) }; RECENT],
        }
    }

    /// Makes `cpu` the running CPU.
    pub(super) fn use_cpu(&self, cpu: usize) {
        self.first.set(cpu * self.sets);
        self.forget_recent();
    }

    /// Whether an access of the running CPU to a line is known to be a hit.
    #[inline(always)]
    pub(super) fn is_recent(&self, line: usize, access: Access) -> bool {
        let recent = self.recent[line % RECENT].get();
        if access == Access::Read { recent >> 1 == line } else { recent == line << 1 | 1 }
    }

    /// Records a hit of the running CPU, which may write to the line without a miss or not.
    #[inline(always)]
    pub(super) fn note_recent(&self, line: usize, may_write: bool) {
        self.recent[line % RECENT].set(line << 1 | usize::from(may_write));
    }

    /// Makes the next access to each line look it up.
    pub(super) fn forget_recent(&self) {
        self.recent.iter().for_each(|recent| recent.set(NOT_RECENT));
    }

    /// Whether the running CPU has a version of a line. If so, it is now the line used last.
    #[inline(always)]
    pub(super) fn has(&self, line: usize, version: u64) -> bool {
        let set = self.first.get() + self.set_of(line);
        let tag = tag_of(line, version);
        self.first_ways[set].get() == tag || self.has_in_other_ways(set, tag)
    }

    #[inline(never)]
    fn has_in_other_ways(&self, set: usize, tag: u64) -> bool {
        let found = self.others_of(set).iter().position(|way| way.get() == tag);
        if let Some(at) = found {
            self.use_tag(set, at + 1, tag);
        }
        found.is_some()
    }

    /// Puts a line's version into the cache of `cpu`, in place of its other versions.
    pub(super) fn fill(&self, cpu: usize, line: usize, version: u64) {
        let set = cpu * self.sets + self.set_of(line);
        let is_stale = |way: &Cell<u64>| way.get() >> VERSION_BITS == line as u64 + 1;
        let way = match self.others_of(set).iter().position(is_stale) {
            _ if is_stale(&self.first_ways[set]) => 0,
            Some(at) => at + 1,
            None => self.others,
        };
        self.use_tag(set, way, tag_of(line, version));
        self.recent[line % RECENT].set(NOT_RECENT);
    }

    /// Makes `tag` the one used last in a set, in place of the one in `way`.
    #[inline]
    fn use_tag(&self, set: usize, way: usize, tag: u64) {
        let mut moved = self.first_ways[set].replace(tag);
        self.recent[line_of(moved) % RECENT].set(NOT_RECENT);
        for way in &self.others_of(set)[..way] {
            moved = way.replace(moved);
        }
    }

    fn others_of(&self, set: usize) -> &[Cell<u64>] {
        &self.other_ways[set * self.others..][..self.others]
    }

    /// Returns the set for a line. The line is hashed because the nodes' metadata is at equal distances in memory, and its
    /// lines would otherwise share a few sets.
    #[inline(always)]
    fn set_of(&self, line: usize) -> usize {
        let hash = (line as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> 1 >> self.hash_shift) as usize
    }
}

#[inline(always)]
const fn tag_of(line: usize, version: u64) -> u64 {
    (line as u64 + 1) << VERSION_BITS | version
}

/// Returns the line of a tag; any number if the way is unused.
#[inline(always)]
const fn line_of(tag: u64) -> usize {
    ((tag >> VERSION_BITS) as usize).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_used_longest_ago_is_replaced() {
        let caches = Caches::new(2, 4, 4);
        caches.use_cpu(1);
        (0..4).for_each(|line| caches.fill(1, line, 0));
        assert!(caches.has(0, 0)); // line 1 is now the one used longest ago
        caches.fill(1, 4, 0);
        assert_eq!([0, 1, 2, 3, 4].map(|line| caches.has(line, 0)), [true, false, true, true, true]);
        caches.use_cpu(0);
        assert!((0..5).all(|line| !caches.has(line, 0)));
    }

    #[test]
    fn a_new_version_takes_the_place_of_the_old_one() {
        let caches = Caches::new(1, 2, 8); // fewer lines than ways
        caches.fill(0, 7, 1);
        caches.fill(0, 8, 1);
        caches.fill(0, 7, 2);
        assert!(caches.has(7, 2) && caches.has(8, 1) && !caches.has(7, 1));
    }

    #[test]
    fn lines_that_fit_into_the_cache_rarely_evict_each_other() {
        let evicted = |ways: usize| {
            let caches = Caches::new(1, 4096, ways);
            let mut random = fastrand::Rng::with_seed(1);
            let lines: Vec<usize> = (0..1024).map(|_| random.usize(..1 << 30)).collect();
            lines.iter().for_each(|&line| caches.fill(0, line, 0));
            lines.iter().filter(|&&line| !caches.has(line, 0)).count()
        };
        // A quarter of the cache is in use: a line shares its only way with another one with a probability of 1 / 9.
        assert!((80..160).contains(&evicted(1)), "{}", evicted(1));
        assert_eq!(evicted(8), 0);
    }
}
