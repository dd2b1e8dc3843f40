//! Tests of reads that overlap memory coming online: cells call the test when they are read.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::common::watched::{self, Access, Kind, Watch};
use zonal::error::FreeError;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::one_thread::{Cells, OneThread};
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine};

thread_local! {
    /// Whether a frame's byte was read or exchanged since [`between`] began.
    static HAS_READ_BYTE: Cell<bool> = const { Cell::new(false) };
    /// What happens before the bit of a section is read after a byte.
    static NEXT: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

struct Bytes;
struct Words;
struct Others;

impl Watch for Bytes {
    fn saw(_: Access) {
        HAS_READ_BYTE.set(true);
    }
}

impl Watch for Words {
    fn saw(access: Access) {
        // The table of frame states has no other words.
        let is_bit = access.kind == Kind::Read && access.site.file().ends_with("frame_states.rs");
        if is_bit
            && HAS_READ_BYTE.get()
            && let Some(work) = NEXT.take()
        {
            work();
        }
    }
}

impl Watch for Others {
    fn saw(_: Access) {}
}

struct Watched;

impl Cells for Watched {
    type U8 = watched::Cell<AtomicU8, Bytes>;
    type U32 = watched::Cell<AtomicU32, Others>;
    type U64 = watched::Cell<AtomicU64, Words>;
    type Lock = watched::Lock<Others>;
}

type World = Allocator<'static, OneThread<Watched>>;

const SECTION: u64 = 1 << 12;
/// Frames that come online in a section that has no managed frame, and a frame beside them that is never described.
const ARRIVAL: FrameRange = FrameRange { start: Pfn::new(3 * SECTION + 64), count: PageCount::new(64) };
const HOLE: Pfn = Pfn::new(3 * SECTION + 7);

fn world() -> &'static World {
    let id = NodeId::new(0).unwrap();
    let range = |count| FrameRange { start: Pfn::new(0), count: PageCount::new(count) };
    let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    let managed = [range(2 * SECTION)];
    let zones =
        [ZoneDescription { node: id, kind: ZoneKind::Normal, span: range(8 * SECTION), managed: &managed }];
    let machine = Machine::new(&nodes, &zones).unwrap().with_hotplug(&[ARRIVAL]).unwrap();
    let buffer = |bytes| Buffer::uninit(Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice()));
    let world = Allocator::new(OneThread::with_cells(), &machine, &Config::default(), |request| {
        Some(buffer(request.bytes))
    });
    Box::leak(Box::new(world.unwrap()))
}

/// Performs `work`, and brings [`ARRIVAL`] online within it, when the bit of a section is read after a byte.
fn between<R>(world: &'static World, work: impl FnOnce() -> R) -> R {
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
