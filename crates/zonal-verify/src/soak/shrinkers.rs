//! Reclaimers of a pool: a correct cache, and faulty ones that report a wrong count, panic, block, or use the pool
//! themselves.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::request::Block;
use zonal::units::{Order, PageCount};
use zonal_linux::{Pool, PoolRequest, Registration};

use super::owners::Owners;
use super::tally::Faults;

/// Number that identifies the cache in `owners`.
const CACHE: u32 = 1000;
/// Maximum number of blocks in the cache.
const KEPT_MAX: usize = 2048;

/// A cache of single frames that frees them when the pool reclaims.
struct Cache {
    pool: Pool,
    owners: Arc<Owners>,
    kept: Mutex<Vec<Block>>,
}

impl Cache {
    fn kept(&self) -> std::sync::MutexGuard<'_, Vec<Block>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, block: &Block) {
        self.owners.release(block, CACHE);
        // SAFETY: the block was in the cache, which frees it once, and no `Frames` owns it.
        let freed = unsafe { self.pool.free_raw(block.first, block.order) };
        assert_eq!(freed, Ok(()), "the cache gives {block:?} back");
    }
}

impl Reclaimer for Cache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        PageCount::new(self.kept().iter().filter(|block| block.node == request.node).count() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let wanted = request.target.get() as usize;
        let victims: Vec<Block> = {
            let mut kept = self.kept();
            let (mut of_node, others): (Vec<_>, Vec<_>) =
                kept.drain(..).partition(|block| block.node == request.node);
            let rest = of_node.split_off(of_node.len().min(wanted));
            *kept = others.into_iter().chain(rest).collect();
            of_node
        };
        victims.iter().for_each(|block| self.free(block));
        PageCount::new(victims.len() as u64)
    }
}

/// The fault of a reclaimer.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Reports that it freed the requested frames, but frees none.
    Boasts,
    /// Panics at every third call.
    Panics,
    /// Sleeps for a millisecond.
    Blocks,
    /// Allocates and frees blocks and drains pagesets during the call.
    UsesThePool,
}

/// A faulty reclaimer.
struct Odd {
    pool: Pool,
    manner: Manner,
    asked: AtomicU64,
}

impl Reclaimer for Odd {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1 << 20)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let asked = self.asked.fetch_add(1, Relaxed); // relaxed: only the count matters
        match self.manner {
            Manner::Boasts => return request.target,
            // `resume_unwind` panics without printing a message.
            Manner::Panics if asked % 3 == 2 => resume_unwind(Box::new("a reclaimer panics")),
            Manner::Panics => {}
            Manner::Blocks => sleep(Duration::from_millis(1)),
            Manner::UsesThePool => {
                for order in [0, 3, 9].into_iter().filter_map(Order::new) {
                    drop(self.pool.lease(&PoolRequest::new(order)));
                }
                self.pool.drain_pagesets();
            }
        }
        PageCount::ZERO
    }
}

/// All reclaimers of a round.
pub(super) struct Shrinkers {
    cache: Arc<Cache>,
    odd: Vec<Arc<Odd>>,
    _registered: Vec<Registration>,
}

impl Shrinkers {
    /// Registers a cache, and some faulty reclaimers that depend on the seed.
    pub(super) fn register(pool: &Pool, owners: &Arc<Owners>, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ 0x5eed);
        let cache =
            Arc::new(Cache { pool: pool.clone(), owners: Arc::clone(owners), kept: Mutex::default() });
        let mut registered = vec![pool.register_reclaimer(&cache)];
        let manners = [Manner::Boasts, Manner::Panics, Manner::Blocks, Manner::UsesThePool];
        let some = manners.into_iter().filter(|_| random.u8(..3) == 0);
        let odd = some.map(|manner| {
            let odd = Arc::new(Odd { pool: pool.clone(), manner, asked: AtomicU64::new(0) });
            registered.push(pool.register_reclaimer(&odd));
            odd
        });
        let odd = odd.collect();
        Self { cache, odd, _registered: registered }
    }

    /// Adds a frame to the cache, or frees it if the cache is full. The previous owner must have released it in
    /// `owners`.
    pub(super) fn keep(&self, block: Block) {
        self.cache.owners.assign(&block, CACHE);
        let mut kept = self.cache.kept();
        if kept.len() < KEPT_MAX {
            kept.push(block);
        } else {
            drop(kept);
            self.cache.free(&block);
        }
    }

    /// Returns the number of frames in the cache.
    pub(super) fn held(&self) -> u64 {
        self.cache.kept().len() as u64
    }

    pub(super) fn give_all(&self) {
        let kept = std::mem::take(&mut *self.cache.kept());
        kept.iter().for_each(|block| self.cache.free(block));
    }

    pub(super) fn faults(&self) -> Faults {
        let odd = self.odd.iter().filter(|odd| !matches!(odd.manner, Manner::Panics));
        Faults { odd_reclaims: odd.map(|odd| odd.asked.load(Relaxed)).sum(), ..Faults::default() }
    }
}
