//! Blocks of 2 MiB from a pool that a page cache fills.
//!
//! Three quarters of the pool are in use for good; the rest is a cache of single pages that evicts at random. Each request
//! for a block has to evict pages. The program counts how many requests are served and how many pages they evict, once
//! with a cache that evicts the pages of the range that the pool wants, and once with one that evicts any pages of the
//! node.
//!
//! `cargo run --release --example large_blocks` makes 100 requests of each, and `--short` 10.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use zonal_linux::{
    FrameRange, Frames, HugePages, Order, PageCount, PageKind, Pool, PoolRequest, ReclaimReason,
    ReclaimRequest, Reclaimer,
};

const POOL: u64 = 128 << 20;
/// Pages of a 2 MiB block.
const BLOCK: u64 = 512;

/// A cache of single pages.
struct Cache {
    honours_ranges: bool,
    pages: Mutex<Vec<Frames>>,
    random: Mutex<fastrand::Rng>,
    /// Pages evicted for requests, without those of background reclaim.
    evicted: AtomicU64,
}

impl Cache {
    fn new(honours_ranges: bool) -> Self {
        Self {
            honours_ranges,
            pages: Mutex::default(),
            random: Mutex::new(fastrand::Rng::with_seed(1)),
            evicted: AtomicU64::new(0),
        }
    }

    fn is_wanted(&self, request: &ReclaimRequest, page: &Frames) -> bool {
        let within = |range: FrameRange| range.start <= page.first() && page.first() < range.end();
        page.node() == request.node && (!self.honours_ranges || request.range.is_none_or(within))
    }

    /// Caches pages until the pool is full, as a busy cache does.
    fn fill(&self, pool: &Pool) {
        // Background reclaim may evict pages meanwhile, so the number of requests has a bound.
        for _ in 0..pool.frames().get() {
            // No lock is held while the pool is called, because a request may call the reclaimer.
            let Ok(page) = pool.alloc(&PoolRequest::page().kind(PageKind::Cache).no_wait()) else { break };
            self.pages.lock().expect("no thread panics").push(page);
        }
    }
}

impl Reclaimer for Cache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let pages = self.pages.lock().expect("no thread panics");
        PageCount::new(pages.iter().filter(|page| self.is_wanted(request, page)).count() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let mut pages = self.pages.lock().expect("no thread panics");
        self.random.lock().expect("no thread panics").shuffle(&mut pages);
        let mut left = request.target.get();
        let evicted: Vec<Frames> = pages
            .extract_if(.., |page| {
                let goes = left > 0 && self.is_wanted(request, page);
                left -= u64::from(goes);
                goes
            })
            .collect();
        drop(pages); // the pages are freed without the lock
        if request.reason != ReclaimReason::Background {
            self.evicted.fetch_add(evicted.len() as u64, Relaxed);
        }
        PageCount::new(evicted.len() as u64)
    }
}

fn huge() -> PoolRequest<'static> {
    PoolRequest::new(Order::holding(PageCount::new(BLOCK)).expect("it is a valid size"))
}

/// Returns the pages that each request evicts: the mean for those that are served, and the most.
fn measure(honours_ranges: bool, requests: u64) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().size(POOL).huge_pages(HugePages::Never).build()?;
    let mut in_use = Vec::new();
    while (in_use.len() as u64) < POOL / 4096 / BLOCK * 3 / 4 {
        in_use.push(pool.alloc(&huge())?);
    }
    let cache = Arc::new(Cache::new(honours_ranges));
    let registered = pool.register_reclaimer(&cache);
    cache.fill(&pool);
    let (mut served, mut most, mut of_served, mut failed) = (0, 0, 0, None);
    let mut times = Vec::new();
    for _ in 0..requests {
        let begin = Instant::now();
        let block = pool.alloc(&huge());
        times.push(begin.elapsed());
        let evicted = cache.evicted.swap(0, Relaxed);
        most = most.max(evicted);
        match block {
            Ok(block) => {
                drop(block);
                (served, of_served) = (served + 1, of_served + evicted);
            }
            Err(error) => failed = Some(error),
        }
        pool.drain_pagesets(); // so that the cache uses the block, too
        cache.fill(&pool);
    }
    times.sort();
    println!(
        "{:28}{:>7} %{:>16}{:>14}{:>11} us{:>10} us",
        if honours_ranges { "evicts the range" } else { "evicts any pages" },
        100 * served / requests,
        of_served.checked_div(served).map_or("-".to_owned(), |mean: u64| mean.to_string()),
        most,
        times[times.len() / 2].as_micros(),
        times[times.len() * 99 / 100].as_micros(),
    );
    if let Some(error) = failed {
        println!("  the last error: {error}");
    }
    drop((registered, in_use));
    cache.pages.lock().expect("no thread panics").clear();
    pool.verify()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let requests = if std::env::args().any(|argument| argument == "--short") { 10 } else { 100 };
    println!(
        "{:28}{:>9}{:>16}{:>14}{:>14}{:>13}",
        "cache", "served", "evicted each", "at most", "median", "p99"
    );
    for honours_ranges in [true, false] {
        measure(honours_ranges, requests)?;
    }
    Ok(())
}
