//! M3, the zonelist cache before node reclaim: measures the cost of node reclaim that frees nothing and that frees
//! pages, and the locality that is lost or gained.
//!
//! Nodes 0 and 1 are full, node 2 has plenty of memory, and node reclaim is on. A program on node 0 allocates pages at a
//! steady rate of a simulated clock, while a cache (`mechanisms/m3/cache.rs`) holds part of nodes 0 and 1. The first
//! change of M3 shows in how often the cache's lists are walked without success. The second change shows only after direct
//! reclaim: all nodes are full, direct reclaim frees pages of node 1, and then another program frees pages of node 2. Lost
//! locality shows when the cache's pages cease to be in use. Source: Gorman 2011, Linux cd38b115d5ad, 76d3fbf8fbf6.

mod cache;

use std::sync::atomic::AtomicBool;

use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::units::NodeId;
use zonal::{Block, Config, Policy, Request};

use self::cache::{Cache, Contents};
use super::measure::{Better, Table};
use super::world::{Node, SECOND_NS, Shared, World, lasting_world, machine, run_on};
use super::{Findings, Mechanism, Origin, Sizes, stops};

pub(super) const MATTERS: &str = "node reclaim is on and expects pages that it then cannot free, such as pages in \
    use: without it, each allocation walks all of them without success.";
pub(super) const DOES_NOT_MATTER: &str =
    "node reclaim is off, which is the default, or its walks free pages.";

/// The modes to compare. The first one is without both changes, and the last one without a cache.
const MODES: [(&str, ZonelistCache); 5] = [
    ("original", ZonelistCache::Original),
    ("cache-first", ZonelistCache::CacheFirst),
    ("published", ZonelistCache::Published),
    ("on", ZonelistCache::On),
    ("off", ZonelistCache::Off),
];

/// Frames of nodes 0 and 1 each, and of node 2.
const NEAR: u64 = 1 << 14;
const FAR: u64 = 1 << 16;
/// Pages that the cache holds from node 0, and from node 1.
const CACHED: usize = 1 << 11;
/// Pages that the program allocates per second of the simulated clock.
const RATE: u64 = 2000;
/// Number of moments in a second at which the cache's pages cease to be in use.
const MOMENTS: u64 = 4;
/// Pages of a file, all of which direct reclaim frees at once, and pages that another program frees on node 2.
const FILE: usize = 1 << 10;
/// Pages that the program allocates after direct reclaim, in a fraction of a second.
const AFTERWARDS: u64 = 500;
/// CPUs of node 0 and node 2. Node 1 has none, so every CPU may reclaim it.
const PROGRAM: u32 = 0;
const OTHER: u32 = 1;

/// Measures gain and cost.
pub(super) fn measure(sizes: &Sizes, stop: &AtomicBool) -> Option<Findings> {
    let mut scene = Scene::new(sizes.reclaim_seconds);
    let mut found: Vec<Found> = MODES.map(|_| Found::default()).into();
    for _ in 0..sizes.rounds {
        for ((_, mode), found) in MODES.iter().zip(&mut found) {
            if stops(stop) {
                return None;
            }
            scene.round(*mode, found);
        }
    }
    for ((_, mode), found) in MODES.iter().zip(&mut found) {
        found.far_though_reclaimable = scene.far_though_reclaimable(*mode);
        found.far_after_direct = scene.far_after_direct(*mode);
    }
    let mut table = Table::new(MODES.map(|(name, _)| name), "on");
    fill(&mut table, &found)?;
    let setup = format!(
        "One CPU on node 0; nodes 0 and 1 of {} MiB each are full; node 2 has free memory. A program allocates {RATE} \
         pages per second of a simulated clock; a cache holds {CACHED} pages of each full node. Walks are futile while \
         all of these are in use. `original` is without both changes of the mechanism, `cache-first` has the first, \
         `published` both; they differ from each other only where direct reclaim has run. `off` has no cache at all.",
        NEAR >> 8
    );
    Some(table.finish(Mechanism::M3, setup))
}

/// Adds all measures.
fn fill(table: &mut Table, found: &[Found]) -> Option<()> {
    let first = |of: fn(&Found) -> &Vec<Met>, value: fn(&Met) -> f64| -> Vec<f64> {
        found.iter().filter_map(|found| of(found).first().map(value)).collect()
    };
    let stalls = |of: fn(&Found) -> &Vec<Met>| -> Vec<Vec<f64>> {
        found.iter().map(|found| of(found).iter().map(|met| met.stalled_us).collect()).collect()
    };
    let names = ("futile_walks", "futile walks per 1000 pages", "walks");
    table.exact(Better::Less, names, first(|found| &found.vain, |met| met.walks));
    let names = ("vain_pages_walked", "pages walked without success per 1000 pages", "pages");
    table.exact(Better::Less, names, first(|found| &found.vain, |met| met.pages_walked));
    let names = ("vain_stall", "us stalled in futile walks per 1000 pages", "us");
    table.sampled(Better::Less, Origin::Timed, names, stalls(|found| &found.vain))?;
    let names = ("freeing_walks", "successful walks per 1000 pages", "walks");
    table.exact(Better::Less, names, first(|found| &found.freeing, |met| met.walks));
    let names = ("freeing_stall", "us stalled in successful walks per 1000 pages", "us");
    table.sampled(Better::Less, Origin::Timed, names, stalls(|found| &found.freeing))?;
    let names = ("direct_stalls", "direct reclaims per 1000 pages, dirty cache", "reclaims");
    table.exact(Better::Less, names, first(|found| &found.direct_only, |met| met.direct));
    let names = ("far_after_direct_reclaim", "% from node 2 after direct reclaim of node 1", "%");
    table.exact(Better::Less, names, found.iter().map(|found| found.far_after_direct));
    let names = ("far_though_reclaimable", "% from node 2 after pages became reclaimable", "%");
    table.exact(Better::Less, names, found.iter().map(|found| found.far_though_reclaimable));
    let names = ("far_while_freeing", "% from node 2 while walks succeed", "%");
    table.exact(Better::Less, names, first(|found| &found.freeing, |met| met.far));
    Some(())
}

/// The results of one mode; those of a program in each round.
#[derive(Clone, Default, Debug)]
struct Found {
    /// Counts while the cache's pages are in use, so that node reclaim frees nothing.
    vain: Vec<Met>,
    /// Counts while the cache's pages are clean, so that node reclaim frees some.
    freeing: Vec<Met>,
    /// Counts while the cache's pages are dirty and all nodes are full, so that only direct reclaim frees some.
    direct_only: Vec<Met>,
    /// Percentage of pages that come from node 2 in the second after the cache's pages ceased to be in use.
    far_though_reclaimable: f64,
    /// Percentage of pages from node 2 although direct reclaim has just freed pages on node 1.
    far_after_direct: f64,
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
    /// Percentage of the pages that came from node 2.
    far: f64,
}

/// The machine, its cache, and the other allocated pages.
struct Scene {
    world: &'static World<'static, Shared>,
    cache: &'static Cache,
    held: Vec<Block>,
    /// Seconds of the simulated clock for which the program runs in each round.
    seconds: u64,
}

impl Scene {
    fn new(seconds: u64) -> Self {
        let near = Node { cpus: 1, frames: NEAR };
        let nodes = [near, Node { cpus: 0, ..near }, Node { cpus: 1, frames: FAR }];
        let config = Config { node_reclaim: NodeReclaim::ON, past: zonal_history::PAST, ..Config::default() };
        let distance = |from: usize, to: usize| 10 + 5 * from.abs_diff(to) as u8;
        let world = lasting_world(&machine(&nodes, distance), &config);
        let cache: &Cache = Box::leak(Box::new(Cache::new(world)));
        world.platform().set_reclaimer(cache);
        Self { world, cache, held: Vec::new(), seconds }
    }

    fn round(&mut self, mode: ZonelistCache, found: &mut Found) {
        self.prepare(mode, Contents::InUse);
        found.vain.push(self.run());
        self.prepare(mode, Contents::Clean);
        found.freeing.push(self.run());
        self.prepare(mode, Contents::Dirty);
        self.fill();
        found.direct_only.push(self.run());
    }

    /// Fills nodes 0 and 1 under `mode`, and sets the state of the cache's pages to `contents`.
    fn prepare(&mut self, mode: ZonelistCache, contents: Contents) {
        self.empty();
        self.world.set_zonelist_cache(mode).expect("past forms are linked");
        self.world.platform().advance_ns(10 * SECOND_NS);
        let full = [0, 1].map(|node| self.pages_of(node));
        for (node, pages) in full.iter().enumerate() {
            let (cached, held) = pages.split_at(CACHED);
            cached.iter().for_each(|&page| self.cache.insert(node, page));
            self.held.extend(held);
        }
        self.cache.set_contents(contents);
        self.world.platform().advance_ns(10 * SECOND_NS);
    }

    /// Frees all pages.
    fn empty(&mut self) {
        run_on(PROGRAM);
        self.cache.clear();
        self.held.drain(..).for_each(|block| {
            self.world.free(block.first, block.order).expect("it was allocated");
        });
        self.world.drain_pagesets();
    }

    /// Allocates the pages of `node` that are available to ordinary requests without reclaim.
    fn pages_of(&self, node: u16) -> Vec<Block> {
        let node = NodeId::new(node).expect("the machine has three nodes");
        let policy = Policy::bind(self.world, [node].into_iter().collect()).expect("the node has memory");
        let page = || self.world.alloc(&Request::page().policy(&policy).no_wait()).ok();
        std::iter::from_fn(page).collect()
    }

    fn page(&self) -> Block {
        self.world.alloc(&Request::page()).expect("node 2 or direct reclaim has memory")
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

    /// Allocates pages at the program's rate. Pages of nodes 0 and 1 go to the cache. Returns the number of pages that came
    /// from node 2.
    fn allocate(&mut self, pages: u64) -> u64 {
        let mut far = 0;
        for _ in 0..pages {
            self.world.platform().advance_ns(SECOND_NS / RATE);
            let page = self.page();
            match page.node.index() {
                2 => {
                    self.held.push(page);
                    far += 1;
                }
                node => self.cache.insert(node, page),
            }
        }
        far
    }

    /// Returns the percentage of pages that come from node 2 within a second after the cache's pages ceased to be in
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

    /// Returns the percentage of pages that come from node 2 after direct reclaim has freed a file on node 1.
    ///
    /// All nodes are full. Pages of files on node 1 have been used recently: node reclaim, which makes one quick walk, frees
    /// none of them, but direct reclaim frees a file. Then another program frees as many pages of node 2. Meanwhile full
    /// bits are less than a second old.
    fn far_after_direct(&mut self, mode: ZonelistCache) -> f64 {
        self.prepare(mode, Contents::Recent);
        let near = self.cache.take(0);
        self.held.extend(near);
        self.fill();
        let is_far = |page: &Block| page.node.index() == 2;
        let (mut far, near): (Vec<Block>, Vec<Block>) = self.held.drain(..).partition(is_far);
        let others: Vec<Block> = far.drain(..FILE).collect();
        // Node 2 has files of its own. It is not reclaimed for the program, because it has a CPU.
        far.drain(..CACHED).for_each(|page| self.cache.insert(2, page));
        self.held = near;
        self.held.append(&mut far);
        run_on(PROGRAM);
        self.allocate(1);
        run_on(OTHER);
        for page in others {
            self.world.free(page.first, page.order).expect("it was allocated");
        }
        self.world.drain_pagesets();
        run_on(PROGRAM);
        100.0 * self.allocate(AFTERWARDS) as f64 / AFTERWARDS as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Measure};
    use super::*;

    /// Returns the values by mode, and the kind, of a measure.
    fn of(found: &Findings, metric: &str) -> (Vec<f64>, Kind) {
        let is_it = |measure: &&Measure| measure.metric == metric;
        let measure = found.measures.iter().find(is_it).unwrap();
        (measure.values.clone(), measure.kind)
    }

    #[test]
    fn each_change_shows_in_a_measure_of_its_own() {
        let sizes = Sizes { rounds: 1, ..Sizes::for_this_machine() };
        let found = measure(&sizes, &AtomicBool::new(false)).unwrap();
        let once = 1000.0 / RATE as f64;
        // Walks of nodes 0 and 1. A mode that consults the cache first walks each once a second, the first mode walks the
        // first node for each page, and without a cache both are walked for each page.
        let walks = [1000.0 + once, 2.0 * once, 2.0 * once, 2.0 * once, 2000.0];
        assert_eq!(of(&found, "futile_walks"), (walks.to_vec(), Kind::Gain));
        let pages = walks.map(|walks| walks * CACHED as f64);
        assert_eq!(of(&found, "vain_pages_walked"), (pages.to_vec(), Kind::Gain));
        // Only the second change clears the full bit of a node that direct reclaim has freed.
        assert_eq!(of(&found, "far_after_direct_reclaim"), (vec![100.0, 100.0, 0.0, 0.0, 0.0], Kind::Gain));
        let (far, kind) = of(&found, "far_though_reclaimable");
        assert!(far[1..4].iter().all(|far| (49.0..51.0).contains(far)), "{far:?}");
        assert_eq!((far[0], far[4], kind), (0.0, 0.0, Kind::Cost));
    }

    #[test]
    fn walks_that_free_pages_and_direct_reclaim_are_the_same_in_all_modes() {
        let sizes = Sizes { rounds: 1, ..Sizes::for_this_machine() };
        let found = measure(&sizes, &AtomicBool::new(false)).unwrap();
        // A walk frees 32 pages, and no page comes from the farther node.
        let (walks, kind) = of(&found, "freeing_walks");
        assert!(walks.iter().all(|walks| (walks - 1000.0 / 32.0).abs() < 1.0), "{walks:?}");
        assert_eq!(kind, Kind::Same);
        assert_eq!(of(&found, "far_while_freeing"), (vec![0.0; 5], Kind::Same));
        let (direct, kind) = of(&found, "direct_stalls");
        assert!(direct.iter().all(|direct| (direct - 1000.0 / 32.0).abs() < 1.0), "{direct:?}");
        assert_eq!(kind, Kind::Same);
    }
}
