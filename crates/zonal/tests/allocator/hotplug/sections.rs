//! Tests of reads that overlap memory coming online: cells call the test when they are read.

use std::cell::{Cell, RefCell};

use crate::common::Plan;
use crate::common::watched::{Access, Kind};
use crate::common::watching::{WatchedAllocator, Watcher};
use zonal::Config;
use zonal::error::FreeError;
use zonal::machine::FrameRange;
use zonal::units::{Order, PageCount, Pfn, ZoneKind};

thread_local! {
    /// Whether a frame's byte was read or exchanged since [`between`] began.
    static HAS_READ_BYTE: Cell<bool> = const { Cell::new(false) };
    /// What happens before the bit of a section is read after a byte.
    static NEXT: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

struct Overlap;

impl Watcher for Overlap {
    fn before(&self, access: Access) {
        if access.bytes == 1 {
            HAS_READ_BYTE.set(true);
        }
        // The table of frame states has no other words.
        let is_word = access.bytes == 8 && access.kind == Kind::Read;
        if is_word
            && access.site.file().ends_with("frame_states.rs")
            && HAS_READ_BYTE.get()
            && let Some(work) = NEXT.take()
        {
            work();
        }
    }
}

const SECTION: u64 = 1 << 12;
/// Frames that come online in a section that has no managed frame, and a frame beside them that is never described.
const ARRIVAL: FrameRange = FrameRange { start: Pfn::new(3 * SECTION + 64), count: PageCount::new(64) };
const HOLE: Pfn = Pfn::new(3 * SECTION + 7);

fn world() -> &'static WatchedAllocator {
    let plan = Plan {
        nodes: vec![(0, vec![0])],
        distances: vec![vec![10]],
        zones: vec![(0, ZoneKind::Normal, 0, 8 * SECTION, vec![(0, 2 * SECTION)])],
        hotplug: vec![(ARRIVAL.start.get(), ARRIVAL.count.get())],
        ..Plan::default()
    };
    Box::leak(Box::new(plan.build_watched(&Config::default(), &Overlap).allocator))
}

/// Performs `work`, and brings [`ARRIVAL`] online within it, when the bit of a section is read after a byte.
fn between<R>(world: &'static WatchedAllocator, work: impl FnOnce() -> R) -> R {
    NEXT.set(Some(Box::new(|| world.online_memory(ARRIVAL).unwrap())));
    HAS_READ_BYTE.set(false);
    let result = work();
    assert!(NEXT.take().is_none(), "the memory never came online");
    assert_eq!(world.online_frames(ARRIVAL), ARRIVAL.count);
    result
}

#[test]
fn a_frame_beside_memory_that_comes_online_is_never_managed() {
    let world = world();
    let refused = between(world, || world.free(HOLE, Order::PAGE));
    assert_eq!(refused, Err(FreeError::NotManaged(HOLE)));
    world.verify().unwrap();
}
