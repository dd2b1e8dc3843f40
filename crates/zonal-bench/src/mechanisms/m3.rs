//! M3, the zonelist cache before node reclaim: measures the cost of node reclaim that frees nothing and that frees
//! pages, and the locality that is lost by avoiding node reclaim.
//!
//! Node 0, which has the CPU, is full; node 1 has plenty of memory; node reclaim is on. A program allocates pages at
//! a steady rate of a simulated clock, while a cache (`mechanisms/m3/cache.rs`) holds part of node 0. Gain: how often
//! the cache's list is walked, and the time for which callers stall in these walks. Cost: the pages from node 1
//! although node 0 is reclaimable again. Source: Gorman 2011, Linux cd38b115d5ad, 76d3fbf8fbf6.

mod cache;

use std::sync::atomic::AtomicBool;

use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::{Block, Config, Request};

use self::cache::{Cache, Contents};
use super::world::{Node, SECOND_NS, Single, World, lasting_world, machine, run_on};
use super::{Findings, Measure, Mechanism, Sizes, stops};

pub(super) const MATTERS: &str = "node reclaim is on and expects pages that it then cannot free, such as pages in \
    use: without it, each allocation walks all of them without success.";
pub(super) const DOES_NOT_MATTER: &str =
    "node reclaim is off, which is the default, or its walks free pages.";

/// The modes to compare.
const MODES: [(&str, ZonelistCache); 5] = [
    ("off", ZonelistCache::Off),
    ("original", ZonelistCache::Original),
    ("cache-first", ZonelistCache::CacheFirst),
    ("published", ZonelistCache::Published),
    ("on", ZonelistCache::On),
];

/// Frames of node 0 and node 1.
const NEAR: u64 = 1 << 14;
const FAR: u64 = 1 << 16;
/// Node 0's pages that the cache holds.
const CACHED: usize = 1 << 11;
/// Pages that the program allocates per second of the simulated clock.
const RATE: u64 = 2000;
/// Number of moments in a second at which the cache's pages cease to be in use.
const MOMENTS: u64 = 4;

/// Measures gain and cost.
pub(super) fn measure(sizes: &Sizes, stop: &AtomicBool) -> Option<Findings> {
    let mut scene = Scene::new(sizes.reclaim_seconds);
    let mut found = Vec::new();
    for (_, mode) in MODES {
        if stops(stop) {
            return None;
        }
        found.push(scene.found(mode));
    }
    let setup = format!(
        "One CPU on node 0 of {} MiB, which is full; node 1 has free memory. A program allocates {RATE} pages per \
         second of a simulated clock; a cache holds {CACHED} pages of node 0. Walks are futile while all of these \
         are in use. Cost: measured over the second after they cease to be in use.",
        NEAR >> 8
    );
    let of = |value: fn(&Found) -> f64| found.iter().map(value).collect::<Vec<f64>>();
    let measures = vec![
        Measure::gain("futile_walks", "futile walks per 1000 pages", "walks", of(|found| found.vain.walks)),
        Measure::gain(
            "vain_pages_walked",
            "pages walked per 1000 pages",
            "pages",
            of(|found| found.vain.pages_walked),
        ),
        Measure::gain(
            "vain_stall",
            "us stalled in walks per 1000 pages",
            "us",
            of(|found| found.vain.stalled_us),
        ),
        Measure::gain(
            "freeing_walks",
            "successful walks per 1000 pages",
            "walks",
            of(|found| found.freeing.walks),
        ),
        Measure::gain(
            "freeing_stall",
            "us stalled in walks per 1000 pages",
            "us",
            of(|found| found.freeing.stalled_us),
        ),
        Measure::gain(
            "direct_stalls",
            "direct reclaims per 1000 pages, dirty cache",
            "reclaims",
            of(|found| found.direct_only.direct),
        ),
        Measure::cost(
            "far_though_reclaimable",
            "% from node 1 after pages became reclaimable",
            "%",
            of(|found| found.far_though_reclaimable),
        ),
        Measure::cost(
            "far_while_freeing",
            "% from node 1 while walks succeed",
            "%",
            of(|found| found.freeing.far),
        ),
    ];
    let variants = MODES.map(|(name, _)| name).to_vec();
    Some(Findings { mechanism: Mechanism::M3, setup, variants, measures })
}

/// The results of one mode.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Counts while the cache's pages are in use, so that node reclaim frees nothing.
    vain: Met,
    /// Counts while the cache's pages are clean, so that node reclaim frees some.
    freeing: Met,
    /// Counts while the cache's pages are dirty and both nodes are full, so that only direct reclaim frees some.
    direct_only: Met,
    /// Percentage of pages that come from node 1 in the second after the cache's pages ceased to be in use.
    far_though_reclaimable: f64,
}

/// Counts per 1000 pages of the program.
#[derive(Clone, Copy, Debug)]
struct Met {
    /// Number of walks by node reclaim.
    walks: f64,
    pages_walked: f64,
    stalled_us: f64,
    /// Number of direct reclaims by the caller.
    direct: f64,
    /// Percentage of the pages that came from node 1.
    far: f64,
}

/// The machine, its cache, and the other allocated pages.
struct Scene {
    world: &'static World<'static, Single>,
    cache: &'static Cache,
    held: Vec<Block>,
    /// Seconds of the simulated clock for which the program runs.
    seconds: u64,
}

impl Scene {
    fn new(seconds: u64) -> Self {
        let nodes = [Node { cpus: 1, frames: NEAR }, Node { cpus: 0, frames: FAR }];
        let config = Config { node_reclaim: NodeReclaim::ON, past: zonal_history::PAST, ..Config::default() };
        let world = lasting_world(&machine(&nodes, |_, _| 20), &config);
        let cache: &Cache = Box::leak(Box::new(Cache::new(world)));
        world.platform().set_reclaimer(cache);
        Self { world, cache, held: Vec::new(), seconds }
    }

    fn found(&mut self, mode: ZonelistCache) -> Found {
        self.prepare(mode, Contents::InUse);
        let vain = self.run();
        self.prepare(mode, Contents::Clean);
        let freeing = self.run();
        self.prepare(mode, Contents::Dirty);
        self.fill();
        let direct_only = self.run();
        Found { vain, freeing, direct_only, far_though_reclaimable: self.far_though_reclaimable(mode) }
    }

    /// Fills node 0 under `mode`, and sets the state of the cache's pages to `contents`.
    fn prepare(&mut self, mode: ZonelistCache, contents: Contents) {
        run_on(0);
        self.cache.clear();
        let world = self.world;
        self.held.drain(..).for_each(|block| world.free(block.first, block.order).expect("it was allocated"));
        world.drain_pagesets();
        world.set_zonelist_cache(mode).expect("past forms are linked");
        world.platform().advance_ns(10 * SECOND_NS);
        let local = |page: &Block| page.node.index() == 0;
        let near: Vec<Block> = std::iter::from_fn(|| Some(self.page())).take_while(local).collect();
        let (cached, held) = near.split_at(CACHED);
        cached.iter().for_each(|&page| self.cache.insert(page));
        self.held.extend(held);
        self.cache.set_contents(contents);
        world.platform().advance_ns(10 * SECOND_NS);
    }

    fn page(&self) -> Block {
        self.world.alloc(&Request::page()).expect("node 1 has memory")
    }

    /// Allocates all pages that are available without reclaim.
    fn fill(&mut self) {
        let page = || self.world.alloc(&Request::page().no_wait()).ok();
        self.held.extend(std::iter::from_fn(page));
    }

    /// Runs the program, and returns its counts.
    fn run(&mut self) -> Met {
        let before = (self.cache.walks(), self.world.events().direct_stalls);
        let pages = self.seconds * RATE;
        let far = self.allocate(pages);
        let after = (self.cache.walks(), self.world.events().direct_stalls);
        let each = |after: u64, before: u64| 1000.0 * (after - before) as f64 / pages as f64;
        Met {
            walks: each(after.0.walks, before.0.walks),
            pages_walked: each(after.0.pages, before.0.pages),
            stalled_us: each(after.0.ns, before.0.ns) / 1000.0,
            direct: each(after.1, before.1),
            far: 100.0 * far as f64 / pages as f64,
        }
    }

    /// Allocates pages at the program's rate. Pages of node 0 go to the cache. Returns the number of pages that came
    /// from node 1.
    fn allocate(&mut self, pages: u64) -> u64 {
        let mut far = 0;
        for _ in 0..pages {
            self.world.platform().advance_ns(SECOND_NS / RATE);
            let page = self.page();
            if page.node.index() == 0 {
                self.cache.insert(page);
            } else {
                self.held.push(page);
                far += 1;
            }
        }
        far
    }

    /// Returns the percentage of pages that come from node 1 within a second after the cache's pages ceased to be in
    /// use. The result is the mean over moments in the second after a walk that freed nothing.
    fn far_though_reclaimable(&mut self, mode: ZonelistCache) -> f64 {
        let mut far = 0;
        for moment in 0..MOMENTS {
            self.prepare(mode, Contents::InUse);
            self.allocate((2 * moment + 1) * RATE / (2 * MOMENTS));
            self.cache.set_contents(Contents::Clean);
            far += self.allocate(RATE);
        }
        100.0 * far as f64 / (MOMENTS * RATE) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_avoids_futile_walks_and_costs_locality_when_pages_become_reclaimable() {
        let mut scene = Scene::new(1);
        for (name, mode) in MODES {
            let found = scene.found(mode);
            let consults = !["off", "original"].contains(&name);
            // There is one walk per second if the mode consults the cache before node reclaim, otherwise one walk per
            // page.
            let walks = if consults { 1000.0 / RATE as f64 } else { 1000.0 };
            assert_eq!(found.vain.walks, walks, "{name}: {found:?}");
            assert_eq!(found.vain.pages_walked, walks * CACHED as f64, "{name}: {found:?}");
            assert_eq!((found.vain.far, found.vain.direct), (100.0, 0.0), "{name}: {found:?}");
            // In every mode, a walk frees 32 pages, and no page comes from the farther node.
            assert!((found.freeing.walks - 1000.0 / 32.0).abs() < 1.0, "{name}: {found:?}");
            assert_eq!((found.freeing.far, found.freeing.direct), (0.0, 0.0), "{name}: {found:?}");
            // Node reclaim makes no walk. Direct reclaim frees pages of node 0, which then serves.
            assert_eq!((found.direct_only.walks, found.direct_only.far), (0.0, 0.0), "{name}: {found:?}");
            assert!((found.direct_only.direct - 1000.0 / 32.0).abs() < 1.0, "{name}: {found:?}");
            let far = if consults { 49.0..51.0 } else { 0.0..0.001 };
            assert!(far.contains(&found.far_though_reclaimable), "{name}: {found:?}");
        }
    }
}
