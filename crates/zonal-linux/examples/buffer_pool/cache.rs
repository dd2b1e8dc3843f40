//! The cache: blocks in frames of a pool, which are found by number and evicted when the pool calls the reclaimer.
//!
//! A block is *pinned* while a reader holds it. Blocks are evicted by *second chance* (CLOCK): in order of arrival,
//! except that a block that was used since its last check is skipped once. No lock is held during a request to the
//! pool, because the request may call [`BlockCache::reclaim`] on the same thread, which would deadlock.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use hdrhistogram::Histogram;
use zonal_linux::{Frames, NodeId, PageCount, PageKind, Pool, PoolRequest, ReclaimRequest, Reclaimer};

use crate::file::BlockFile;

/// Shards of the cache, each with its own lock.
const SHARDS: usize = 64;
/// Largest number of blocks evicted from one shard before the next shard is used, so that all shards shrink equally.
const EVICTED_AT_ONCE: usize = 8;

/// An error in any thread: a shortage of frames, or a file that cannot be read.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Blocks of a file in memory.
pub(crate) struct BlockCache {
    pool: Pool,
    file: BlockFile,
    shards: Box<[Mutex<Shard>]>,
    /// Index of the shard from which the next block is evicted.
    hand: AtomicUsize,
}

/// Invariant: for each block in `blocks` whose frame is on node n, `rings[n]` contains its number exactly once.
struct Shard {
    blocks: HashMap<u64, Arc<Cached>>,
    rings: Vec<VecDeque<u64>>,
    counts: Totals,
}

struct Cached {
    frames: Frames,
    /// Whether the block was used since the last check.
    used: AtomicBool,
}

/// A block that stays in memory until this handle is dropped.
pub(crate) struct Pinned(Arc<Cached>);

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.frames
    }
}

/// Counts of events in a cache so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    pub hits: u64,
    pub misses: u64,
    pub evicted: u64,
    /// Number of times a block was not evicted because a reader held it.
    pub passed_over_pinned: u64,
}

impl BlockCache {
    /// Returns a block's contents, from memory if the block is cached, otherwise from the file. Adds the duration of a
    /// request for a frame to `requests`, in nanoseconds.
    pub(crate) fn read(&self, block: u64, requests: &mut Histogram<u64>) -> Result<Pinned, Failure> {
        if let Some(pinned) = self.shard_of(block).find(block) {
            return Ok(pinned);
        }
        // No lock is held on this line, because a frame shortage makes this request evict blocks of this cache.
        let start = Instant::now();
        let mut frames = self.pool.alloc(&PoolRequest::page().kind(PageKind::Cache))?;
        requests.saturating_record(start.elapsed().as_nanos() as u64);
        self.file.read(block, &mut frames)?;
        Ok(self.shard_of(block).insert(block, frames))
    }

    /// Whether `bytes` equal the file's contents of `block`.
    pub(crate) fn is_block(&self, block: u64, bytes: &[u8]) -> bool {
        self.file.is_block(block, bytes)
    }

    /// Returns the number of blocks in the file.
    pub(crate) fn blocks(&self) -> u64 {
        self.file.blocks()
    }

    /// Returns the counts so far.
    pub(crate) fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        for shard in &self.shards {
            let counts = lock(shard).counts;
            sum.hits += counts.hits;
            sum.misses += counts.misses;
            sum.evicted += counts.evicted;
            sum.passed_over_pinned += counts.passed_over_pinned;
        }
        sum
    }

    /// Creates an empty cache for `file` in frames of `pool`.
    pub(crate) fn new(pool: Pool, file: BlockFile) -> Self {
        let nodes = pool.topology().nodes().iter().map(|node| node.id.index() + 1).max().unwrap_or(1);
        let shard = |_| Mutex::new(Shard::new(nodes));
        Self { pool, file, shards: (0..SHARDS).map(shard).collect(), hand: AtomicUsize::new(0) }
    }

    fn shard_of(&self, block: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[block as usize % SHARDS])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().expect("nobody panics with a shard locked")
}

/// Blocks are evicted only when the pool calls this reclaimer.
impl Reclaimer for BlockCache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let of_node = |shard| lock(shard).rings.get(request.node.index()).map_or(0, VecDeque::len);
        PageCount::new(self.shards.iter().map(of_node).sum::<usize>() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let target = request.target.get() as usize;
        let (mut freed, mut fruitless) = (0, 0);
        while freed < target && fruitless < SHARDS {
            let shard = self.hand.fetch_add(1, Relaxed) % SHARDS; // relaxed: the shards may be used in any order
            let most = EVICTED_AT_ONCE.min(target - freed);
            let victims = lock(&self.shards[shard]).evict(request.node, most);
            fruitless = if victims.is_empty() { fruitless + 1 } else { 0 };
            // No lock is held when the victims are dropped, which frees their frames.
            freed += victims.len();
        }
        PageCount::new(freed as u64)
    }
}

impl Shard {
    fn new(nodes: usize) -> Self {
        let rings = vec![VecDeque::new(); nodes];
        Self { blocks: HashMap::new(), rings, counts: Totals::default() }
    }

    fn find(&mut self, block: u64) -> Option<Pinned> {
        let Some(cached) = self.blocks.get(&block) else {
            self.counts.misses += 1;
            return None;
        };
        self.counts.hits += 1;
        cached.used.store(true, Relaxed); // relaxed: a hint
        Some(Pinned(Arc::clone(cached)))
    }

    /// Adds a block that was read from the file, unless another reader has added it first.
    fn insert(&mut self, block: u64, frames: Frames) -> Pinned {
        let ring = &mut self.rings[frames.node().index()];
        let cached = self.blocks.entry(block).or_insert_with(|| {
            ring.push_back(block);
            Arc::new(Cached { frames, used: AtomicBool::new(false) })
        });
        Pinned(Arc::clone(cached))
    }

    /// Removes up to `most` blocks of `node`, in second-chance order.
    fn evict(&mut self, node: NodeId, most: usize) -> Vec<Arc<Cached>> {
        let mut victims = Vec::new();
        let Some(ring) = self.rings.get_mut(node.index()) else { return victims };
        // Two rounds are enough, because every block has had its second chance after them.
        for _ in 0..2 * ring.len() {
            if victims.len() == most {
                break;
            }
            let Some(block) = ring.pop_front() else { break };
            let Entry::Occupied(mut entry) = self.blocks.entry(block) else {
                unreachable!("block {block} is in a ring but not in its shard");
            };
            // New pins are made only under the shard's lock. The caller holds that lock, so an unpinned block stays
            // unpinned.
            let pinned = Arc::get_mut(entry.get_mut()).is_none();
            let used = entry.get().used.swap(false, Relaxed); // relaxed: a hint
            if pinned || used {
                self.counts.passed_over_pinned += u64::from(pinned);
                ring.push_back(block);
            } else {
                victims.push(entry.remove());
            }
        }
        self.counts.evicted += victims.len() as u64;
        victims
    }
}
