//! A small page cache: frames that the kernel gives back when free memory is scarce.
//!
//! A real kernel's cache has the contents of files. This one has only frames, in one list for each node. The allocator
//! calls it as its reclaimer.

use arrayvec::ArrayVec;
use zonal::machine::FrameRange;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::units::{NodeId, Order, PageCount, Pfn};

use crate::firmware::NODES_MAX;
use crate::owners;
use crate::platform::pinned;
use crate::sync::Mutex;

/// The most frames of each node that the cache has.
const FRAMES_MAX: usize = 8192;
/// Frames that the reclaimer frees under one hold of the cache's lock.
const STEP: usize = 32;

/// The cached frames of all nodes.
pub(crate) struct PageCache {
    nodes: [Mutex<ArrayVec<Pfn, FRAMES_MAX>>; NODES_MAX],
}

/// The page cache of this kernel.
pub(crate) static CACHE: PageCache =
    PageCache { nodes: [const { Mutex::new(ArrayVec::new_const()) }; NODES_MAX] };

impl PageCache {
    /// Adds an allocated frame of a node. Returns whether the cache had room.
    pub(crate) fn insert(&self, node: NodeId, frame: Pfn) -> bool {
        self.nodes[node.index()].lock().try_push(frame).is_ok()
    }

    /// Takes up to [`STEP`] of a node's frames out of the cache, only those within `range` if it is present.
    fn remove(&self, node: NodeId, most: usize, range: Option<FrameRange>) -> ArrayVec<Pfn, STEP> {
        let mut cached = self.nodes[node.index()].lock();
        let mut removed = ArrayVec::new();
        let mut at = cached.len();
        while at > 0 && removed.len() < most.min(STEP) {
            at -= 1;
            if range.is_none_or(|range| (range.start..range.end()).contains(&cached[at])) {
                removed.push(cached.swap_remove(at));
            }
        }
        removed
    }
}

impl Reclaimer for PageCache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        PageCount::new(self.nodes[request.node.index()].lock().len() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let mut freed = 0;
        while freed < request.target.get() {
            let left = usize::try_from(request.target.get() - freed).unwrap_or(usize::MAX);
            let frames = self.remove(request.node, left, request.range);
            if frames.is_empty() {
                break;
            }
            for &frame in &frames {
                owners::release(frame, Order::PAGE.pages(), owners::PAGE_CACHE);
                pinned(|allocator| allocator.free(frame, Order::PAGE)).expect("a cached frame can be freed");
            }
            freed += frames.len() as u64;
        }
        PageCount::new(freed)
    }
}
