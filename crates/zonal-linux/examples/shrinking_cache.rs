//! A page cache that gives half of its pool back to the system under load, and takes it again.
//!
//! Threads read and write pages of a cache that fills the pool. Meanwhile the main thread shrinks the pool by half, and
//! then grows it. The reclaimer drops exactly the pages that the pool asks for, so the other half stays cached. The
//! program measures the resident memory of the process, and the longest time that a thread waited for a page.
//!
//! `cargo run --release --example shrinking_cache` uses 1 GiB, and `--short` 128 MiB.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use zonal_linux::{
    FrameRange, Frames, HugePages, PageCount, PageKind, Pool, PoolRequest, ReclaimRequest, Reclaimer,
};

const SHARDS: usize = 64;
const THREADS: u64 = 2;
const MIB: u64 = 1 << 20;

/// Pages by key, in shards that each have a lock.
struct Cache {
    shards: [Mutex<HashMap<u64, Frames>>; SHARDS],
}

impl Cache {
    fn shard(&self, key: u64) -> &Mutex<HashMap<u64, Frames>> {
        &self.shards[key as usize % SHARDS]
    }

    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().expect("no thread panics").len()).sum()
    }

    /// Reads the page of `key`, or caches it; returns whether it was cached.
    fn read(&self, pool: &Pool, key: u64) -> bool {
        if let Some(page) = self.shard(key).lock().expect("no thread panics").get(&key) {
            assert_eq!(page[0], key as u8, "a cached page keeps its contents");
            return true;
        }
        // The request may call the reclaimer, which locks shards, so this thread holds no lock here.
        let request = PoolRequest::page().kind(PageKind::Cache);
        if let Ok(mut page) = pool.alloc(&request) {
            page.fill(key as u8);
            self.shard(key).lock().expect("no thread panics").insert(key, page);
        }
        false
    }
}

fn is_wanted(request: &ReclaimRequest, page: &Frames) -> bool {
    let within = |range: FrameRange| range.start <= page.first() && page.first() < range.end();
    request.range.is_none_or(within)
}

impl Reclaimer for Cache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let wanted = |shard: &Mutex<HashMap<u64, Frames>>| {
            let pages = shard.lock().expect("no thread panics");
            pages.values().filter(|page| is_wanted(request, page)).count()
        };
        PageCount::new(self.shards.iter().map(wanted).sum::<usize>() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let target = request.target.get();
        let mut freed = 0;
        for shard in &self.shards {
            let mut dropped = Vec::new();
            let mut pages = shard.lock().expect("no thread panics");
            let keys: Vec<u64> =
                pages.iter().filter(|(_, page)| is_wanted(request, page)).map(|(&key, _)| key).collect();
            for key in keys {
                if freed == target {
                    break;
                }
                dropped.extend(pages.remove(&key));
                freed += 1;
            }
            drop(pages); // the pages are freed without the lock
        }
        PageCount::new(freed)
    }
}

/// Returns the resident memory of this process in MiB.
fn resident_mib() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024)
}

/// Counts of all threads.
#[derive(Default)]
struct Counts {
    reads: AtomicU64,
    hits: AtomicU64,
    longest_us: AtomicU64,
}

/// Reads random pages until `stop` is set.
fn work(pool: &Pool, cache: &Cache, seed: u64, keys: u64, stop: &AtomicBool, counts: &Counts) {
    let mut random = seed;
    while !stop.load(Relaxed) {
        let begin = Instant::now();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let hit = cache.read(pool, (random >> 32) % keys);
        counts.hits.fetch_add(hit.into(), Relaxed);
        counts.reads.fetch_add(1, Relaxed);
        counts.longest_us.fetch_max(begin.elapsed().as_micros() as u64, Relaxed);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let size = if std::env::args().any(|argument| argument == "--short") { 128 * MIB } else { 1024 * MIB };
    let pool = Pool::builder().size(size).huge_pages(HugePages::Never).build()?;
    let cache = Arc::new(Cache { shards: std::array::from_fn(|_| Mutex::default()) });
    let _registered = pool.register_reclaimer(&cache);
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    // A little more than the pool can hold, so that reads keep allocating and reclaiming.
    let keys = pool.frames().get() * 11 / 10;
    println!("{:28}{:>10}{:>10}{:>10}{:>14}", "", "pool", "cached", "resident", "longest read");
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for thread in 0..THREADS {
            let (pool, cache, stop, counts) = (&pool, &cache, &stop, &counts);
            workers.push(scope.spawn(move || work(pool, cache, thread, keys, stop, counts)));
        }
        let run = || -> Result<(), Box<dyn Error>> {
            let wait = |reads: u64| {
                let until = counts.reads.load(Relaxed) + reads;
                while counts.reads.load(Relaxed) < until {
                    assert!(workers.iter().all(|worker| !worker.is_finished()), "a worker panicked");
                    thread::yield_now();
                }
            };
            let report = |what: &str| -> Result<(), Box<dyn Error>> {
                let pages = pool.accounting().managed.get();
                println!(
                    "{what:28}{:>6} MiB{:>6} MiB{:>6} MiB{:>11} us",
                    pages * 4096 / MIB,
                    cache.len() as u64 * 4096 / MIB,
                    resident_mib()?,
                    counts.longest_us.swap(0, Relaxed),
                );
                Ok(())
            };
            wait(4 * keys);
            report("full")?;
            let begin = Instant::now();
            let returned = pool.shrink(size / 2)?;
            let time = begin.elapsed();
            report("shrunk by half")?;
            wait(2 * keys);
            report("under load")?;
            pool.grow(returned)?;
            wait(4 * keys);
            report("grown again")?;
            println!(
                "shrinking took {} ms; {} MiB were returned to the system",
                time.as_millis(),
                returned / MIB
            );
            Ok(())
        };
        let result = run();
        stop.store(true, Relaxed);
        result
    })?;
    let (hits, reads) = (counts.hits.load(Relaxed), counts.reads.load(Relaxed));
    println!("{reads} reads, {} % of them from the cache", 100 * hits / reads);
    for shard in &cache.shards {
        shard.lock().expect("no thread panics").clear();
    }
    println!("at the end: {}", pool.verify()?);
    Ok(())
}
