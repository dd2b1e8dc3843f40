//! The owner of every frame, which the kernel records itself to check the allocator.
//!
//! Each frame has an entry in a table: the owner that allocated the frame, or none. The first and the last eight bytes
//! of the frame have a stamp that follows from its number and its owner. A frame in two hands, or a frame that changed
//! in the hands of its owner, is noticed at once.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use arrayvec::ArrayVec;
use spin::Once;
use zonal::machine::FrameRange;
use zonal::units::{NodeId, PageCount, Pfn};

use crate::firmware::{FRAME_BYTES, Firmware, NodeFrames, RANGES_MAX};
use crate::memory_map::BootMemory;

/// Owner of the page cache's frames. Tasks and interrupt handlers have smaller numbers above 0.
pub(crate) const PAGE_CACHE: u32 = 1 << 16;

/// Owner of CPU and task stacks, of mapped pages, and of memory that the allocator does not manage.
pub(crate) const STACK: u32 = PAGE_CACHE + 1;
pub(crate) const MAPPED: u32 = PAGE_CACHE + 2;
const RESERVED: u32 = u32::MAX;

/// Of a block with more frames than this, only the first and the last frame are stamped.
const STAMPED_MAX: u64 = 16;

struct Table {
    owners: &'static [AtomicU32],
    /// The memory of each node, as the firmware describes it.
    memory: ArrayVec<NodeFrames, RANGES_MAX>,
}

static TABLE: Once<Table> = Once::new();

/// Creates the table for all memory.
pub(crate) fn start(firmware: &Firmware, memory: &mut BootMemory) {
    let frames = memory.end().get() as usize;
    let bytes = memory.take(firmware.processors[0].node, frames * size_of::<AtomicU32>());
    let bytes = bytes.expect("memory for the table of owners");
    bytes.fill(MaybeUninit::new(0));
    let start = bytes.as_ptr().cast::<AtomicU32>();
    // SAFETY: the memory begins at a frame, has the size of this many numbers, is zeroed, and is taken for good.
    let owners = unsafe { core::slice::from_raw_parts(start, frames) };
    TABLE.call_once(|| Table { owners, memory: firmware.memory.clone() });
}

/// Records that all memory is reserved except what boot code has left for the allocator.
pub(crate) fn reserve(memory: &BootMemory) {
    let table = TABLE.get().expect("the table exists");
    // Release: publishes the contents of the frame; pairs with `claim_unstamped`, `owned`.
    table.owners.iter().for_each(|owner| owner.store(RESERVED, Release));
    for frame in memory.free().flat_map(frames) {
        table.owners[frame.get() as usize].store(0, Release); // Release: as above.
    }
}

/// Records that `owner` allocated frames of `node`, and stamps them.
///
/// # Panics
/// Panics if a frame has an owner or is not managed by the allocator, or if it is not memory of this node.
pub(crate) fn claim(range: FrameRange, node: NodeId, owner: u32) {
    claim_unstamped(range, Some(node), owner);
    stamped(range).flat_map(stamps).for_each(|stamp| {
        // SAFETY: the frame was just allocated, so only its owner uses it.
        unsafe { stamp.write_volatile(value(stamp, owner)) };
    });
}

/// Records that `owner` allocated frames whose contents it uses itself, of `node` if that is known.
///
/// # Panics
/// Panics in the cases of [`claim`].
pub(crate) fn claim_unstamped(range: FrameRange, node: Option<NodeId>, owner: u32) {
    let table = TABLE.get().expect("the table exists");
    let its_node =
        table.memory.iter().find(|memory| memory.frames.contains(&range)).map(|memory| memory.node);
    assert!(
        its_node.is_some() && node.is_none_or(|node| its_node == Some(node)),
        "frames {range:?} came as memory of node {node:?}, but are of node {its_node:?}"
    );
    for frame in frames(range) {
        // AcqRel: takes and publishes the contents of the frame; pairs with `reserve`, `release_unstamped`, `owned`.
        let before = table.owners[frame.get() as usize].swap(owner, AcqRel);
        assert!(before == 0, "frame {frame} was allocated by {owner}, but {before} has it");
    }
}

/// Checks the stamps of frames that `owner` is about to free, and records that they have no owner.
///
/// # Panics
/// Panics if `owner` does not have a frame, or if a stamp has changed.
pub(crate) fn release(start: Pfn, count: PageCount, owner: u32) {
    let range = FrameRange { start, count };
    stamped(range).flat_map(stamps).for_each(|stamp| {
        // SAFETY: the frame is still allocated to its owner.
        let found = unsafe { stamp.read_volatile() };
        assert!(found == value(stamp, owner), "the stamp at {stamp:?} of {owner} changed to {found:#x}");
    });
    release_unstamped(range, owner);
}

/// Records that frames have no owner, after `owner` has used their contents.
///
/// # Panics
/// Panics if `owner` does not have a frame.
pub(crate) fn release_unstamped(range: FrameRange, owner: u32) {
    let table = TABLE.get().expect("the table exists");
    for frame in frames(range) {
        // AcqRel: takes and publishes the contents of the frame; pairs with `claim_unstamped`, `owned`.
        let before = table.owners[frame.get() as usize].swap(0, AcqRel);
        assert!(before == owner, "frame {frame} is freed by {owner}, but {before} has it");
    }
}

/// Returns how many frames the owners of managed memory have.
pub(crate) fn owned() -> usize {
    let table = TABLE.get().expect("the table exists");
    // Acquire: takes the changes of owners; pairs with `reserve`, `claim_unstamped`, `release_unstamped`.
    table.owners.iter().filter(|owner| !matches!(owner.load(Acquire), 0 | RESERVED)).count()
}

fn frames(range: FrameRange) -> impl Iterator<Item = Pfn> {
    (range.start.get()..range.end().get()).map(Pfn::new)
}

fn stamped(range: FrameRange) -> impl Iterator<Item = Pfn> {
    let all = range.count.get() <= STAMPED_MAX;
    let last = Pfn::new(range.end().get() - 1);
    frames(range).filter(move |&frame| all || frame == range.start || frame == last)
}

/// Returns the places of a frame's stamps.
fn stamps(frame: Pfn) -> [*mut u64; 2] {
    let start = frame.get() * FRAME_BYTES;
    [start as *mut u64, (start + FRAME_BYTES - 8) as *mut u64]
}

fn value(stamp: *mut u64, owner: u32) -> u64 {
    stamp.addr() as u64 ^ u64::from(owner) << 40 ^ 0x5A5A_5A5A_5A5A_5A5A
}
