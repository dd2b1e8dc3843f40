//! The private caches: which versions of lines each CPU has.
//!
//! A cache consists of *sets*, and a line can be in each *way* of its set. A set orders its ways by last use, and a line that is not there replaces the one that was used longest ago. Related files:
//! `sim/coherence.rs` knows the current version of each line.

use std::cell::Cell;

use super::recent::Recent;
use crate::zeroed::Zeroed;

/// Width of a line's version, in bits.
pub(super) const VERSION_BITS: u32 = 24;

/// First ways that are copied for each CPU.
const NEAR: usize = 64;

/// The caches of all CPUs. Invariant: a set has at most one entry for each line.
pub(super) struct Caches {
    /// Line + 1 and version of the line used last, indexed by CPU and set; 0 = unused. Most accesses need only these, which
    /// are apart from the others so that the host's caches hold them.
    first_ways: Zeroed,
    /// Copies from `first_ways`, indexed by CPU and the line's [`near_place`]; 0 = none. They are so few that
    /// the host's caches hold those of many CPUs.
    ///
    /// Invariant: an element is 0 or is also the element of `first_ways` for its line's set.
    near: Zeroed,
    /// The same as in `first_ways` for the other ways, indexed by CPU, set and way.
    other_ways: Zeroed,
    /// Sets of a cache.
    sets: usize,
    /// Number of other ways.
    others: usize,
    /// Right shift that turns half of a line's hash into a set. The whole hash would have to be shifted by all of its bits
    /// if there is one set.
    hash_shift: u32,
    /// The running CPU.
    cpu: Cell<usize>,
    /// Lines that the running CPU is known to have.
    pub(super) recent: Recent,
}

impl Caches {
    /// Creates empty caches. Both `lines`, at least 2, and `ways` are powers of two. A cache with fewer lines than ways has
    /// one set. The first line of memory is at address `base`.
    pub(super) fn new(base: usize, cpus: usize, lines: usize, ways: usize) -> Self {
        let ways = ways.min(lines);
        let (sets, others) = (lines / ways, ways - 1);
        Self {
            first_ways: Zeroed::new(cpus * sets),
            near: Zeroed::new(cpus * NEAR),
            other_ways: Zeroed::new(cpus * sets * others),
            sets,
            others,
            hash_shift: u64::BITS - 1 - sets.ilog2(),
            cpu: Cell::new(0),
            recent: Recent::new(base),
        }
    }

    /// Makes `cpu` the running CPU.
    pub(super) fn use_cpu(&self, cpu: usize) {
        self.cpu.set(cpu);
        self.recent.forget_all();
    }

    /// Whether the running CPU has a version of a line. If so, it is now the line used last.
    #[inline(always)]
    pub(super) fn has(&self, line: usize, version: u64) -> bool {
        let (cpu, tag) = (self.cpu.get(), tag_of(line, version));
        self.near_of(cpu, line).get() == tag || self.has_elsewhere(cpu, line, tag)
    }

    #[inline(never)]
    fn has_elsewhere(&self, cpu: usize, line: usize, tag: u64) -> bool {
        let set = cpu * self.sets + self.set_of(line);
        if self.first_ways[set].get() == tag {
            self.near_of(cpu, line).set(tag);
            return true;
        }
        let found = self.others_of(set).iter().position(|way| way.get() == tag);
        if let Some(at) = found {
            self.use_tag(cpu, set, at + 1, tag);
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
        self.use_tag(cpu, set, way, tag_of(line, version));
        self.recent.forget(line);
    }

    /// Makes `tag` the one used last in a set of `cpu`, in place of the one in `way`.
    #[inline]
    fn use_tag(&self, cpu: usize, set: usize, way: usize, tag: u64) {
        let mut moved = self.first_ways[set].replace(tag);
        self.recent.forget(line_of(moved));
        let near = self.near_of(cpu, line_of(moved));
        if near.get() == moved {
            near.set(0);
        }
        self.near_of(cpu, line_of(tag)).set(tag);
        for way in &self.others_of(set)[..way] {
            moved = way.replace(moved);
        }
    }

    #[inline(always)]
    fn near_of(&self, cpu: usize, line: usize) -> &Cell<u64> {
        &self.near[cpu * NEAR + near_place(line)]
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

/// Returns a line's place among a CPU's copies. Adjacent lines have different places, and so do the first lines of adjacent
/// buffers.
#[inline(always)]
const fn near_place(line: usize) -> usize {
    (line ^ (line / NEAR)) % NEAR
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
        let caches = Caches::new(0, 2, 4, 4);
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
        let caches = Caches::new(0, 1, 2, 8); // fewer lines than ways
        caches.fill(0, 7, 1);
        caches.fill(0, 8, 1);
        caches.fill(0, 7, 2);
        assert!(caches.has(7, 2) && caches.has(8, 1) && !caches.has(7, 1));
    }

    #[test]
    fn hits_are_those_of_a_list_in_the_order_of_use() {
        const WAYS: usize = 4;
        let caches = Caches::new(0, 2, WAYS, WAYS);
        let mut lists = [const { Vec::new() }; 2];
        let (mut random, mut running) = (fastrand::Rng::with_seed(1), 0);
        caches.use_cpu(running);
        for step in 0..100_000 {
            // Some of these lines share a place among the copies.
            let (line, version) = (random.usize(..3) * NEAR + random.usize(..3), random.u64(..2));
            match random.u32(..4) {
                0 => {
                    running = random.usize(..2);
                    caches.use_cpu(running);
                }
                1 => {
                    let cpu = random.usize(..2);
                    caches.fill(cpu, line, version);
                    lists[cpu].retain(|&(other, _)| other != line);
                    lists[cpu].insert(0, (line, version));
                    lists[cpu].truncate(WAYS);
                }
                _ => {
                    let list = &mut lists[running];
                    let found = list.iter().position(|&entry| entry == (line, version));
                    assert_eq!(caches.has(line, version), found.is_some(), "step {step}, line {line}");
                    found.into_iter().for_each(|at| list[..=at].rotate_right(1));
                }
            }
        }
    }

    #[test]
    fn lines_that_fit_into_the_cache_rarely_evict_each_other() {
        let evicted = |ways: usize| {
            let caches = Caches::new(0, 1, 4096, ways);
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
