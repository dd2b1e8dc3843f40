//! Checks that take memory offline and bring it back while a pool is in use: memory of the pool, and of the kernel
//! beneath the pool.
//!
//! When the kernel takes a block of memory offline, it moves the pages of the block to other blocks with their
//! contents. It ignores memory bindings, so pages may move to another node.
//!
//! Related files: `load.rs` runs the threads that use the pool in the meantime.

use zonal::machine::FrameRange;
use zonal::units::PageCount;
use zonal_linux::{HugePages, OfflineError, Pool, PoolRequest, ZoneRange};

use super::kernel::{MemoryBlock, PagePlace};
use super::load::while_used;
use super::pages::{MIB, flawless, mask, needs_nodes, places, tally, touch_everything};
use super::verdict::{Found, Verdict, ensure, text};

const POOL_BYTES: u64 = 64 * MIB;
const THREADS: usize = 2;
/// Frames in each part of a pool that goes offline.
const PART: u64 = 1024;
/// Attempts to take a part offline while its frames are in use.
const ATTEMPTS: usize = 200;

/// Checks that parts of each pool zone can go offline under load. Their pages must return to the kernel, and be absent
/// until the next store.
pub(super) fn of_a_pool() -> Verdict {
    needs_nodes!();
    let pool = flawless(Pool::builder().size(POOL_BYTES).huge_pages(HugePages::Never))?;
    touch_everything(&pool);
    // The first part of each zone is in use most, because the allocator prefers lower addresses.
    let at = |zone: &ZoneRange, part: u64| FrameRange {
        start: zone.frames.start.plus(PageCount::new(part * PART)),
        count: PageCount::new(PART),
    };
    let zones: Vec<_> = pool.ranges().filter(|zone| zone.frames.count.get() >= 2 * PART).collect();
    let parts: Vec<FrameRange> = zones.iter().flat_map(|zone| [at(zone, 0), at(zone, 1)]).collect();
    ensure!(!parts.is_empty(), "no zone has {} frames", 2 * PART);
    let (refused, used) = while_used(&pool, &PoolRequest::page(), THREADS, || {
        let mut refused = 0;
        for &part in &parts {
            refused += leaves_and_returns(&pool, part)?;
        }
        Ok(refused)
    })?;
    Ok(Found::Holds(format!(
        "{} parts, refused {refused} times while in use, {used} frames meanwhile",
        parts.len()
    )))
}

/// Takes a part of a zone offline and brings it back. Returns how often the pool refused because frames were in use.
fn leaves_and_returns(pool: &Pool, part: FrameRange) -> Result<usize, String> {
    let pages: Vec<(*const u8, u16)> = (0..PART)
        .map(|at| pool.ptr_of(part.start.plus(PageCount::new(at))).expect("a frame of the pool"))
        .map(|address| (address.as_ptr().cast_const(), 0))
        .collect();
    for attempt in 0..ATTEMPTS {
        match pool.offline_memory(part) {
            Ok(()) => {
                let absent = places(&pages)?.iter().filter(|place| **place == PagePlace::Absent).count();
                ensure!(absent as u64 == PART, "{absent} of {PART} pages were given back to the kernel");
                pool.online_memory(part).map_err(text)?;
                return Ok(attempt);
            }
            Err(OfflineError::Refused(_)) => pool.drain_pagesets(),
            Err(other) => return Err(other.to_string()),
        }
    }
    // Frames of the part were in use at every attempt, which is a valid outcome under load.
    Ok(ATTEMPTS)
}

/// Checks that blocks of the machine's memory can go offline and come back while a pool uses their node. Pages that the
/// kernel moved meanwhile must still exist, on any node. A new pool's pages must be on their own nodes.
pub(super) fn of_the_kernel() -> Verdict {
    needs_nodes!();
    let blocks = MemoryBlock::movable()?;
    let Some(first) = blocks.first() else {
        return Ok(Found::Skipped("no block of memory lies in a zone Movable".into()));
    };
    let of = first.node;
    let blocks: Vec<_> = blocks.iter().filter(|block| block.node == of).collect();
    let builder = || Pool::builder().size(POOL_BYTES).huge_pages(HugePages::Never);
    let pool = flawless(builder())?;
    let bind = pool.bind(mask([of])).map_err(text)?;
    let pages = touch_everything(&pool);
    let cycle = |block: &&MemoryBlock| {
        block.offline()?;
        block.online()
    };
    let ((), used) =
        while_used(&pool, &PoolRequest::page().policy(&bind), THREADS, || blocks.iter().try_for_each(cycle))?;
    let own: Vec<_> = pages.into_iter().filter(|(_, node)| *node == of).collect();
    let found = places(&own)?;
    ensure!(found.iter().all(|place| matches!(place, PagePlace::Node(_))), "pages were lost: {found:?}");
    let moved = tally(&found);
    drop(pool);
    let later = flawless(builder())?;
    super::pages::every_page_on_its_node(&later)?;
    let names: Vec<&str> = blocks.iter().map(|block| block.name.as_str()).collect();
    Ok(Found::Holds(format!("{names:?}, {used} frames meanwhile; pages of node {of} then lie on {moved:?}")))
}
