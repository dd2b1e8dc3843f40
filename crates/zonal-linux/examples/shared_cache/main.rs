//! A block cache over one file, in several processes, which survives when some are killed.
//!
//! Each worker is a process. It reads blocks from the file into frames of a shared [`Pool`], checks the contents, and
//! keeps the blocks in a bounded cache. It hands some of them to other workers, which get the frames themselves
//! and copy nothing. Meanwhile the parent kills workers at arbitrary instructions and starts others in their
//! place. At the end no frame may be lost or held twice.
//!
//! `cargo run --release -p zonal-linux --example shared_cache -- --seconds 60 --kill-every 0.1`
//!
//! Related files: `parent.rs` kills workers and hands blocks over, `worker.rs` has the cache, and `file.rs` the file.

mod file;
mod parent;
mod worker;

use std::error::Error;
use std::fs::File;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use zonal_linux::Pool;

use file::BlockFile;
use parent::Summary;

const MIB: u64 = 1 << 20;

type Failure = Box<dyn Error>;

/// Reads a file through block caches in several processes, some of which are killed. Exits with 1 if contents were wrong or the
/// pool has lost a frame.
#[derive(Parser)]
struct Options {
    /// Number of worker processes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=32))]
    workers: u8,
    /// Number of seconds for which the workers read.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// A worker is killed every so many seconds.
    #[arg(long, default_value_t = 1.0)]
    kill_every: f64,
    /// Size of the file in MiB. The file has no name, so it is removed however the program ends.
    #[arg(long, default_value_t = 64)]
    file_mib: u64,
    /// Memory of the pool in MiB.
    #[arg(long, default_value_t = 32)]
    pool_mib: u64,
    /// Runs a short version: 2 seconds, with a kill every 0.3.
    #[arg(long)]
    short: bool,
    /// What a worker needs, which the parent passes.
    #[arg(long, hide = true, num_args = 4)]
    as_worker: Option<Vec<String>>,
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.short {
        (options.seconds, options.kill_every) = (2.0, 0.3);
    }
    let result = match &options.as_worker {
        Some(given) => work(given),
        None => run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shared_cache: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    // Twice the workers, and the parent: a killed worker may not be recovered yet when the next one joins.
    let builder = Pool::builder().size(options.pool_mib * MIB).shared_by_descriptor();
    let pool = builder.processes(2 * options.workers + 1).build()?;
    let file = BlockFile::create(options.file_mib * MIB)?;
    println!(
        "{} workers read a file of {} MiB through a pool of {} MiB",
        options.workers, options.file_mib, options.pool_mib
    );
    let run = parent::Run {
        workers: options.workers.into(),
        duration: Duration::try_from_secs_f64(options.seconds)?,
        kill_every: Duration::try_from_secs_f64(options.kill_every)?,
    };
    let Summary { reads, hand_overs, deaths, held_by_killed, in_doubt, elapsed } = run.go(&pool, &file)?;
    let accounting = pool.verify()?;
    println!("blocks read and checked  {reads}, without the last ones of those killed");
    println!("blocks handed over       {hand_overs}, and {in_doubt} to workers that were killed meanwhile");
    println!("workers killed           {deaths}");
    println!("frames given back        about {held_by_killed}, which they held");
    println!("time                     {:.1} s", elapsed.as_secs_f64());
    println!("accounting               {accounting}");
    let is_right = accounting.balance() && accounting.allocated.get() == 0;
    if is_right { Ok(()) } else { Err("frames are allocated that no process holds".into()) }
}

/// Does the work of a worker: joins the pool and opens the file that the parent has open.
fn work(given: &[String]) -> Result<(), Failure> {
    let [pool, file, seed, cache_bytes] = given else { return Err("four values are expected".into()) };
    let pool = File::options().read(true).write(true).open(pool)?;
    let pool = Pool::join_file(std::os::fd::AsFd::as_fd(&pool))?;
    let file = BlockFile::open(file, seed.parse()?)?;
    worker::run(&pool, &file, cache_bytes.parse()?)
}
