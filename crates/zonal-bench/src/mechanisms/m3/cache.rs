//! A page cache of an emulated machine, whose pages may or may not be reclaimable.
//!
//! The pages of each node are on one list, with the oldest page first. A *walk* scans the list until it has freed the requested
//! number of pages. The cache counts the walks, the pages that they scan, and the CPU time that they take. Related
//! files: `mechanisms/m3.rs` fills the cache.

use std::collections::VecDeque;
use std::sync::Mutex;

use zonal::Block;
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::units::PageCount;

use super::super::world::{Shared, World, cpu_time_ns};
use super::FILE;

/// The state of the cache's pages, as reclaim finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Contents {
    /// Neither dirty nor mapped, and therefore counted as reclaimable, but in constant use, so that a walk skips
    /// them.
    InUse,
    /// Freed by any walk.
    Clean,
    /// Freed, and counted as reclaimable, only if reclaim may write pages back, as direct reclaim may.
    Dirty,
    /// Used recently, and counted as reclaimable. Node reclaim, which makes one quick walk, skips them; direct reclaim
    /// frees the oldest file with all its pages.
    Recent,
}

/// Nodes whose pages the cache holds.
const NODES: usize = 3;

/// The cost of all walks so far.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Walks {
    /// Number of walks by node reclaim.
    pub(super) walks: u64,
    /// Number of pages that these walks scanned or freed.
    pub(super) pages: u64,
    /// CPU time of these walks, in nanoseconds.
    pub(super) ns: u64,
}

struct State {
    contents: Contents,
    pages: [VecDeque<Block>; NODES],
    walks: Walks,
}

/// The cache. It is also the reclaimer of the machine from which it allocates its pages.
pub(super) struct Cache {
    world: &'static World<'static, Shared>,
    state: Mutex<State>,
}

impl Cache {
    /// Creates an empty cache.
    pub(super) const fn new(world: &'static World<'static, Shared>) -> Self {
        let state = State {
            contents: Contents::Clean,
            pages: [const { VecDeque::new() }; NODES],
            walks: Walks { walks: 0, pages: 0, ns: 0 },
        };
        Self { world, state: Mutex::new(state) }
    }

    /// Changes the state of all pages.
    pub(super) fn set_contents(&self, contents: Contents) {
        self.with(|state| state.contents = contents);
    }

    /// Appends a page to the list of its node.
    pub(super) fn insert(&self, node: usize, page: Block) {
        self.with(|state| state.pages[node].push_back(page));
    }

    /// Removes all pages of a node from its list, and returns them.
    pub(super) fn take(&self, node: usize) -> VecDeque<Block> {
        self.with(|state| std::mem::take(&mut state.pages[node]))
    }

    /// Frees all pages.
    pub(super) fn clear(&self) {
        let pages = (0..NODES).flat_map(|node| self.take(node));
        pages.for_each(|page| self.free(page));
    }

    /// Returns the cost of all walks so far.
    pub(super) fn walks(&self) -> Walks {
        self.with(|state| state.walks)
    }

    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.state.lock().expect("no thread panics here"))
    }

    fn free(&self, page: Block) {
        self.world.free(page.first, page.order).expect("the page was allocated");
    }
}

impl Reclaimer for Cache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        self.with(|state| match state.contents {
            Contents::Dirty if !request.may_write => PageCount::ZERO,
            _ => PageCount::new(state.pages.get(request.node.index()).map_or(0, VecDeque::len) as u64),
        })
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let start = cpu_time_ns();
        let (freed, passed) = self.with(|state| walk(state, request));
        let count = freed.len() as u64;
        freed.into_iter().for_each(|page| self.free(page));
        if request.reason == ReclaimReason::Node {
            self.with(|state| {
                state.walks.walks += 1;
                state.walks.pages += passed;
                state.walks.ns += cpu_time_ns() - start;
            });
        }
        PageCount::new(count)
    }
}

/// Removes pages from the list of the request's node, if they can be freed: the requested number, or a whole file. Returns
/// these pages and the number of pages scanned.
fn walk(state: &mut State, request: &ReclaimRequest) -> (Vec<Block>, u64) {
    let target = request.target.get();
    let (can_free, target) = match state.contents {
        Contents::InUse => (false, target),
        Contents::Clean => (true, target),
        Contents::Dirty => (request.may_write, target),
        Contents::Recent => (request.reason != ReclaimReason::Node, target.max(FILE as u64)),
    };
    let (mut freed, mut passed) = (Vec::new(), 0);
    let Some(pages) = state.pages.get_mut(request.node.index()) else { return (freed, passed) };
    for _ in 0..pages.len() {
        if freed.len() as u64 >= target {
            break;
        }
        let Some(page) = pages.pop_front() else { break };
        passed += 1;
        if can_free {
            freed.push(page);
        } else {
            pages.push_back(page); // pages in use move to the other end of the list
        }
    }
    (freed, passed)
}
