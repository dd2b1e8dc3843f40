//! The threads of a pool: its clock, its tick, and background reclaim of its nodes.
//!
//! They hold the pool's core, not the pool: the last [`Pool`](crate::Pool) handle stops and joins
//! them. Neighbours: `wake.rs` is what reclaim workers wait on.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{mem, process};

use zonal::units::{NodeId, PageCount};

use crate::core::PoolCore;
use crate::error::PoolError;
use crate::platform::CLOCK_PERIOD;
use crate::sync::held;

/// How often the allocator's tick runs; part of the tuning's rules. The allocator itself knows at which ticks
/// counters are to be folded (`Config::stat_interval`).
const TICK_PERIOD: Duration = Duration::from_secs(1);
/// Rest after a round of reclaim that freed nothing, so that futile wake-ups do not eat a CPU.
const FUTILE_REST: Duration = Duration::from_millis(4);

/// The running threads of one pool.
#[derive(Debug)]
pub(crate) struct Workers {
    core: Arc<PoolCore>,
    threads: Vec<JoinHandle<()>>,
    /// Whose threads they are.
    process: u32,
}

impl Workers {
    /// Starts all threads; those already started are stopped again if one cannot be.
    pub(crate) fn start(core: Arc<PoolCore>) -> Result<Self, PoolError> {
        let mut workers = Self { core, threads: Vec::new(), process: process::id() };
        workers.spawn("zonal-clock".into(), run_clock)?;
        workers.spawn("zonal-tick".into(), run_tick)?;
        for worker in 0..workers.core.platform().wakes.workers() {
            let first = workers.core.platform().wakes.nodes_of(worker).next();
            let name = first.map_or_else(String::new, |node| format!("zonal-rec-{node}"));
            workers.spawn(name, move |core| run_reclaim(core, worker))?;
        }
        Ok(workers)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce(&PoolCore) + Send + 'static) -> Result<(), PoolError> {
        let core = Arc::clone(&self.core);
        let thread =
            thread::Builder::new().name(name).spawn(move || run(&core)).map_err(PoolError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if self.process != process::id() {
            // A child made by `fork` has a copy of everything but the threads.
            mem::take(&mut self.threads).into_iter().for_each(mem::forget);
            return;
        }
        self.core.platform().wakes.stop();
        for thread in self.threads.drain(..) {
            // A reclaimer may hold the last handle: then this is one of the threads, which ends
            // by itself right after. A panic was printed when it happened.
            if thread.thread().id() != thread::current().id() {
                thread.join().ok();
            }
        }
    }
}

fn run_clock(core: &PoolCore) {
    let platform = core.platform();
    loop {
        platform.push_clock();
        if platform.wakes.sleep(CLOCK_PERIOD) {
            return;
        }
    }
}

fn run_tick(core: &PoolCore) {
    while !core.platform().wakes.sleep(TICK_PERIOD) {
        let _at_work = held(core.still.read());
        core.allocator().tick();
    }
}

fn run_reclaim(core: &PoolCore, worker: usize) {
    let wakes = &core.platform().wakes;
    while let Some(nodes) = wakes.take(worker) {
        let freed: PageCount = nodes.into_iter().map(|node| reclaim(core, node)).sum();
        if freed == PageCount::ZERO && wakes.sleep(FUTILE_REST) {
            return;
        }
    }
}

fn reclaim(core: &PoolCore, node: NodeId) -> PageCount {
    let _at_work = held(core.still.read());
    core.allocator().background_reclaim(node)
}
