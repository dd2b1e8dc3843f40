//! Takes memory in explicit huge pages offline and brings it online. This file has only one test, because it changes
//! the machine's reserve of huge pages.

use zonal::machine::FrameRange;
use zonal::units::{PageCount, Pfn};
use zonal_linux::{HugePages, OfflineError, OnlineMemoryError, Pool, PoolRequest};
use zonal_testing::skipped;

#[path = "common/reserve.rs"]
mod reserve;

use reserve::{Reserve, free_huge_pages};

const MIB: u64 = 1 << 20;
/// Number of 4 KiB frames in a huge page.
const HUGE: u64 = 512;

fn kept(offline: Result<(), OfflineError>) -> u64 {
    match offline {
        Ok(()) => 0,
        Err(OfflineError::NotReturned { kept, why }) => {
            assert!(
                why.to_string().contains("these frames share huge pages with frames that are online"),
                "{why}"
            );
            kept.get()
        }
        Err(error) => panic!("{error}"),
    }
}

/// The frames of the pool, addressed by their offset from the first frame.
struct Frames<'p> {
    pool: &'p Pool,
    first: Pfn,
}

impl Frames<'_> {
    fn range(&self, from: u64, to: u64) -> FrameRange {
        FrameRange { start: Pfn::new(self.first.get() + from), count: PageCount::new(to - from) }
    }

    fn offline(&self, from: u64, to: u64) -> u64 {
        kept(self.pool.offline_memory(self.range(from, to)))
    }

    /// Reads a byte of a frame that is not allocated.
    fn byte(&self, at: u64) -> u8 {
        let address = self.pool.ptr_of(self.range(at, at + 1).start).unwrap();
        // SAFETY: the address is mapped, and the frame is not allocated.
        unsafe { address.read_volatile() }
    }
}

#[test]
fn huge_pages_go_offline_as_a_whole() {
    let mut reserve = match Reserve::with_free(8) {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("memory in explicit huge pages that leaves: {why}"),
    };
    // The pool has one node, because the machine's reserve may be spread over several nodes.
    let pool = Pool::builder().size(16 * MIB).fake_nodes(1).huge_pages(HugePages::Explicit).build().unwrap();
    assert_eq!(pool.warnings(), []);
    let frames = Frames { pool: &pool, first: pool.ranges().next().unwrap().frames.start };
    let mut held: Vec<_> = (0..4096).map_while(|_| pool.alloc(&PoolRequest::page().no_wait()).ok()).collect();
    held.iter_mut().for_each(|frame| frame.fill(9));
    drop(held);
    let free = free_huge_pages();

    // If only a part of a huge page goes offline, the page keeps its memory, and the result says so.
    assert_eq!(frames.offline(0, 1), 1);
    assert_eq!(frames.byte(0), 9);
    assert_eq!(free_huge_pages(), free);
    // When the rest of the huge page goes offline, the whole page returns to the reserve.
    assert_eq!(frames.offline(1, HUGE), 0);
    assert_eq!(free_huge_pages(), free + 1);
    // This range has whole huge pages in the middle, and parts of huge pages at both ends.
    assert_eq!(frames.offline(HUGE + 100, 4 * HUGE + 7), (HUGE - 100) + 7);
    assert_eq!(free_huge_pages(), free + 3);
    // This range has the rest of a huge page that is partly offline, and a part of the next huge page.
    assert_eq!(frames.offline(4 * HUGE + 7, 5 * HUGE + 1), 1);
    assert_eq!(free_huge_pages(), free + 4);

    // Huge pages come online only if the reserve can back them. First use up the reserve that the machine has of its
    // own.
    reserve.lower().unwrap();
    let rest = free_huge_pages();
    let holder = (rest > 0).then(|| {
        let builder = Pool::builder().size(rest * 2 * MIB).fake_nodes(1);
        builder.huge_pages(HugePages::Explicit).build().unwrap()
    });
    if free_huge_pages() > 0 {
        skipped!(
            "this kernel keeps the pages that went offline in reserve for the pool, so they cannot be missing when they come online"
        );
    } else {
        let refused = pool.online_memory(frames.range(0, 1)).unwrap_err();
        assert!(matches!(refused, OnlineMemoryError::NoMemory(_)), "{refused}");
        assert!(refused.to_string().contains("the range stays offline"), "{refused}");
        assert!(matches!(
            pool.offline_memory(frames.range(0, 1)),
            Err(OfflineError::Refused(_)) // the frame is not online
        ));
    }
    drop(holder);
    reserve.raise(4).unwrap();
    pool.online_memory(frames.range(0, 1)).unwrap();
    pool.online_memory(frames.range(1, HUGE)).unwrap();
    assert!(matches!(pool.online_memory(frames.range(0, 1)), Err(OnlineMemoryError::Refused(_))));
    assert!(matches!(pool.online_memory(frames.range(0, 0)), Err(OnlineMemoryError::Refused(_))));
    pool.online_memory(frames.range(HUGE + 100, 5 * HUGE + 1)).unwrap();
    let all: Vec<_> = (0..4096).map_while(|_| pool.alloc(&PoolRequest::page().no_wait()).ok()).collect();
    assert!(all.len() > 3500, "{}", all.len());
    drop(all);
    assert_eq!(pool.verify().unwrap().managed, PageCount::new(4096));
}
