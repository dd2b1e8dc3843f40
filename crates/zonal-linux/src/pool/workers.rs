//! The threads of a pool: its clock, its tick, and background reclaim for its nodes.
//!
//! They hold the pool's core, not the pool. Dropping the last [`Pool`](crate::Pool) handle stops them and waits for
//! those that are not in a reclaimer; the others drop the core when the reclaimer returns. Neighbours: reclaim
//! workers wait on `threads/wake.rs`, `threads/presence.rs` tracks where each thread is, and
//! `threads/attributes.rs` sets their signals and scheduling.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use zonal::units::{NodeId, PageCount};

use super::core::PoolCore;
use super::platform::CLOCK_PERIOD;
use super::reclaimers;
use crate::error::PoolError;
use crate::sequences::resident::stays_in_memory;
use crate::threads::attributes::{SignalsBlocked, reset_scheduling, take_own_signals};
use crate::threads::presence::Presence;

/// Period of the allocator's tick, which the pageset tuning rules depend on. The allocator itself decides at which
/// ticks counters are folded (`Config::stat_interval`).
const TICK_PERIOD: Duration = Duration::from_secs(1);
/// Pause after a round of reclaim that freed nothing, so that futile wake-ups do not use up a CPU.
const FUTILE_REST: Duration = Duration::from_millis(4);

/// The running threads of one pool.
#[derive(Debug)]
pub(super) struct Workers {
    core: Arc<PoolCore>,
    threads: Vec<JoinHandle<()>>,
    /// Number of references to the core that threads hold.
    held: Arc<AtomicU32>,
}

/// What a thread holds, dropped in this order.
struct Worker {
    _held: Held,
    core: Arc<PoolCore>,
    _present: Present,
}

impl Worker {
    fn live(self, run: impl FnOnce(&PoolCore)) {
        take_own_signals();
        reset_scheduling();
        reclaimers::join_pool(self.core.platform().key);
        run(&self.core);
    }
}

/// Counts one reference to the core.
struct Held(Arc<AtomicU32>);

impl Held {
    fn count(held: &Arc<AtomicU32>) -> Self {
        held.fetch_add(1, Ordering::Relaxed); // read after the thread ended, or in a child (relaxed)
        Self(Arc::clone(held))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed); // relaxed: as above
    }
}

/// Counts one running thread.
struct Present(Arc<Presence>);

impl Present {
    fn count(presence: &Arc<Presence>) -> Self {
        presence.join();
        Self(Arc::clone(presence))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Workers {
    /// Starts all threads; if one cannot be started, stops those already started.
    pub(super) fn start(core: Arc<PoolCore>) -> Result<Self, PoolError> {
        // A thread that is not joined executes this library's code until it exits.
        stays_in_memory();
        let mut workers = Self { core, threads: Vec::new(), held: Arc::default() };
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
        let worker = Worker {
            _held: Held::count(&self.held),
            core: Arc::clone(&self.core),
            _present: Present::count(&self.core.platform().presence),
        };
        // A new thread inherits the blocked signals of the thread that starts it.
        let _blocked = SignalsBlocked::begin().map_err(PoolError::Thread)?;
        let thread = thread::Builder::new().name(name).spawn(move || worker.live(run));
        self.threads.push(thread.map_err(PoolError::Thread)?);
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let platform = self.core.platform();
        if platform.presence.is_here() {
            platform.wakes.stop();
            // The threads have finished their work. What remains is the end of their stacks, and destructors of
            // thread locals that reclaimers created, which may wait for the caller: if there were none, join the
            // threads so that nothing of them remains.
            if !platform.presence.wait_until_exited() {
                self.threads.drain(..).for_each(|thread| _ = thread.join());
            }
            return;
        }
        mem::take(&mut self.threads).into_iter().for_each(mem::forget);
        // A child made by `fork` has copies of the threads' references, but no threads to drop them. The exception
        // is this thread, if a reclaimer made the child on it: it drops its own reference.
        let own = u32::from(reclaimers::belongs_to(platform.key));
        let held = self.held.load(Ordering::Relaxed);
        self.held.store(own, Ordering::Relaxed);
        for _ in own..held {
            // SAFETY: each was counted while its thread held it; the thread is not in this process, so nothing here
            // uses or drops it. The references of `self` and of this thread are not among them.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&self.core)) };
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
        let _at_work = core.platform().presence.work();
        core.allocator().tick();
    }
}

fn run_reclaim(core: &PoolCore, worker: usize) {
    let wakes = &core.platform().wakes;
    while let Some(nodes) = wakes.take(worker) {
        let freed: PageCount = nodes.into_iter().map(|node| reclaim(core, node)).sum();
        // A reclaimer may have forked and returned in the child, where this is the only thread.
        if !core.platform().presence.is_here() {
            return;
        }
        if freed == PageCount::ZERO && wakes.sleep(FUTILE_REST) {
            return;
        }
    }
}

fn reclaim(core: &PoolCore, node: NodeId) -> PageCount {
    let _at_work = core.platform().presence.work();
    core.allocator().background_reclaim(node)
}
