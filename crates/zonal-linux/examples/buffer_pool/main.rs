//! A block cache over a file larger than its memory, as in a database or a file server.
//!
//! File blocks are stored in frames of a [`Pool`]. The cache never decides by itself when to evict; instead it is
//! registered as a reclaimer. The pool's watermarks and background workers decide when blocks must be evicted, from
//! which node, and how many. If the workers are too slow, the readers' own requests evict blocks. The contents of every
//! block read are checked.
//!
//! `cargo run --release -p zonal-linux --example buffer_pool -- --threads 8 --fake-nodes 4`
//!
//! Related files: `cache.rs` is the part worth reading. `file.rs` is the file that it caches, `readers.rs` uses the
//! cache, and `report.rs` prints the results.

mod cache;
mod file;
mod readers;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use zonal_linux::Pool;

use cache::{BlockCache, Failure};
use file::{BLOCK_BYTES, BlockFile};
use readers::Run;

const MIB: u64 = 1 << 20;

/// Reads a file through a block cache that is smaller than the file. Exits with 1 if any data read was wrong or the
/// accounting does not balance.
#[derive(Parser)]
struct Options {
    /// Size of the file in MiB. The file has no name, so it is removed however the program ends.
    #[arg(long, default_value_t = 256)]
    file_mib: u64,
    /// Memory of the cache in MiB.
    #[arg(long, default_value_t = 64)]
    pool_mib: u64,
    /// Number of threads that read.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Number of seconds for which the threads read.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Distance between watermarks, in 1/10000 of a zone. The longer the distance, the more time background reclaim
    /// has to start before readers must reclaim themselves. Try 10, the default of Linux (vm.watermark_scale_factor)
    /// [default: that of pools this large].
    #[arg(long)]
    watermark_scale: Option<u32>,
    /// Number of nodes to emulate [default: the machine's own nodes].
    #[arg(long)]
    fake_nodes: Option<usize>,
    /// Folder for the file [default: the folder for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Runs a short version: a 32 MiB file and an 8 MiB cache, for one second.
    #[arg(long)]
    short: bool,
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.short {
        (options.file_mib, options.pool_mib, options.seconds) = (32, 8, 1.0);
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("buffer_pool: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the example and returns whether all checks passed.
fn run(options: &Options) -> Result<bool, Failure> {
    let duration = Duration::try_from_secs_f64(options.seconds)?;
    let pool = build_pool(options)?;
    let dir = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    println!("writing a file of {} MiB in {}", options.file_mib, dir.display());
    let file = BlockFile::create(&dir, options.file_mib * MIB / BLOCK_BYTES as u64)
        .map_err(|error| format!("no file can be made in {}: {error}", dir.display()))?;
    let cache = Arc::new(BlockCache::new(pool.clone(), file));
    let registered = pool.register_reclaimer(&cache);

    report::introduce(&pool, options.threads.into());
    let run = Run { duration, threads: options.threads.into() };
    let finished = run.go(&pool, &cache, report::Timeline::start(duration))?;

    // After the reclaimer is unregistered and the pool verified, no call of the reclaimer is running any more.
    drop(registered);
    pool.verify()?;
    let totals = cache.totals();
    drop(cache);
    Ok(report::conclude(&pool, &finished, &totals)?)
}

fn build_pool(options: &Options) -> Result<Pool, Failure> {
    let size = options.pool_mib * MIB;
    let mut config = Pool::default_config(Some(size));
    if let Some(scale) = options.watermark_scale {
        config.watermarks.scale_factor = scale;
    }
    let builder = Pool::builder().size(size).config(config);
    let builder = match options.fake_nodes {
        Some(count) => builder.fake_nodes(count),
        None => builder,
    };
    let pool = builder.build()?;
    pool.warnings().iter().for_each(|warning| println!("note: {warning}"));
    Ok(pool)
}
