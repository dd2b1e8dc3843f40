//! Prints the events of a pool whose memory runs short, for `docs/observing.md`: a cache fills the pool, requests
//! reclaim, a frame is retired, and the pool shrinks.
//!
//! `cargo run --release -p zonal-linux --example observed -- 3`

use std::collections::VecDeque;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use zonal_linux::{Frames, PageCount, PageKind, Pool, PoolRequest, ReclaimRequest, Reclaimer};

#[derive(Parser)]
struct Args {
    /// Seconds to run.
    #[arg(default_value_t = 3)]
    seconds: u64,
    /// Run for less than a second
    #[arg(long)]
    short: bool,
    /// Largest level of the events to print; `off` installs no subscriber.
    #[arg(long, default_value = "debug")]
    level: tracing::level_filters::LevelFilter,
}

/// Blocks that may be dropped at any time, the oldest first.
#[derive(Default)]
struct Cache(Mutex<VecDeque<Frames>>);

impl Reclaimer for Cache {
    fn count(&self, _: &ReclaimRequest) -> PageCount {
        PageCount::new(self.0.lock().unwrap().len() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let mut blocks = self.0.lock().unwrap();
        let count = blocks.len().min(request.target.get() as usize);
        let freed: Vec<Frames> = blocks.drain(..count).collect();
        drop(blocks);
        PageCount::new(freed.len() as u64)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_max_level(args.level).with_ansi(false).with_writer(std::io::stderr).init();
    let pool = Pool::builder().size(64 << 20).fake_nodes(2).build()?;
    let cache = Arc::new(Cache::default());
    let registration = pool.register_reclaimer(&cache);
    let until = Instant::now()
        + if args.short { Duration::from_millis(300) } else { Duration::from_secs(args.seconds) };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < until {
                    if let Ok(page) = pool.alloc(&PoolRequest::page().kind(PageKind::Cache)) {
                        cache.0.lock().unwrap().push_back(page);
                    }
                }
            });
        }
    });
    // Larger than the pool.
    let refused = pool.alloc_contiguous(&PoolRequest::page(), pool.frames());
    let frame = pool.ranges().next().ok_or("the pool has a zone")?.frames.start;
    // SAFETY: only a frame is retired.
    unsafe { pool.allocator() }.retire(frame)?;
    drop(registration);
    drop((refused, cache));
    pool.set_setting("zone_reclaim_mode", "1")?;
    pool.shrink(8 << 20)?;
    thread::sleep(Duration::from_millis(1100)); // the tick reports what was counted
    Ok(())
}
