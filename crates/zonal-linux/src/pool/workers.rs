//! The threads of a pool: one updates its clock, one runs its tick, and the others run background reclaim.
//!
//! Each thread holds a reference to the core of the pool but no [`Pool`](crate::Pool) handle. Dropping the last handle
//! stops the threads and waits for those that are not in a reclaimer. A thread that is in a reclaimer drops its
//! reference to the core when the reclaimer returns.
//!
//! Related files: reclaim workers wait for wake-ups in `threads/wake.rs`, `threads/presence.rs` counts the threads that
//! are in a reclaimer, and `threads/start.rs` starts the threads.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use zonal::units::{NodeId, PageCount};

use super::core::PoolCore;
use super::core_ref::Owned;
use super::members::Membership;
use super::observed::{Observed, report_pressure};
use super::platform::CLOCK_PERIOD;
use super::reclaimers;
use crate::error::PoolError;
use crate::sequences::resident::stays_in_memory;
use crate::threads::presence::Presence;
use crate::threads::start::Thread;

/// Period of the allocator's tick. The rules that tune pagesets assume this period. At each tick the allocator also
/// folds per-CPU counters, if `Config::stat_interval` has elapsed.
const TICK_PERIOD: Duration = Duration::from_secs(1);
/// Pause after a round of reclaim that freed no frames. Without the pause, repeated wake-ups could keep a CPU busy
/// although no frames can be freed.
const FUTILE_REST: Duration = Duration::from_millis(4);

/// The running threads of one pool.
#[derive(Debug)]
pub(super) struct Workers {
    /// Lets blocks hold references to the core. Declared first, because it is dropped while `core` still keeps the core.
    _owned: Owned,
    core: Arc<PoolCore>,
    threads: Vec<Thread>,
    /// Number of references to the core that threads hold.
    held: Arc<AtomicU32>,
}

/// The values that a thread of the pool holds. They are dropped in this order.
struct Worker {
    _held: Held,
    core: Arc<PoolCore>,
    _present: Present,
}

impl Worker {
    fn live(self, run: impl FnOnce(&PoolCore)) {
        reclaimers::join_pool(self.core.platform().key);
        run(&self.core);
    }
}

/// Counts one reference to the core.
struct Held(Arc<AtomicU32>);

impl Held {
    fn count(held: &Arc<AtomicU32>) -> Self {
        held.fetch_add(1, Ordering::Relaxed); // relaxed: only a forked child, with one thread, reads the count
        Self(Arc::clone(held))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed); // relaxed: as in `count`
    }
}

/// Counts one running thread.
pub(crate) struct Present(Arc<Presence>);

impl Present {
    pub(super) fn count(presence: &Arc<Presence>) -> Self {
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
    /// Starts all threads. If one of them cannot be started, stops the threads that were already started.
    pub(super) fn start(core: Arc<PoolCore>) -> Result<Self, PoolError> {
        // A thread that is never joined executes code of this library until it exits, so the library must not be
        // unloaded before that.
        stays_in_memory();
        let mut workers =
            Self { _owned: Owned::begin(&core), core, threads: Vec::new(), held: Arc::default() };
        workers.spawn("zonal-clock".into(), run_clock)?;
        workers.spawn("zonal-tick".into(), run_tick)?;
        if workers.core.members().is_some() {
            workers.spawn("zonal-share".into(), run_share)?;
        }
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
        self.threads.push(Thread::start(&name, move || worker.live(run)).map_err(PoolError::Thread)?);
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let platform = self.core.platform();
        if platform.presence.is_here() {
            platform.wakes.stop();
            if let Some(members) = self.core.members() {
                members.ring();
            }
            // After `wait_until_exited`, the threads outside reclaimers have left the pool but may not have exited, and
            // may still run destructors of thread locals. Destructors that a reclaimer installed may wait for the
            // caller of this function. The threads are therefore joined only if no thread ever ran a reclaimer.
            if !platform.presence.wait_until_exited() {
                self.threads.drain(..).for_each(Thread::join);
            }
            return;
        }
        mem::take(&mut self.threads).into_iter().for_each(mem::forget);
        // This process is a child made by `fork`. It has copies of the references that the threads hold, but not the
        // threads that would drop them, so they are dropped here. The exception is the reference of the calling thread,
        // if a reclaimer on a thread of the pool made the child: that thread drops its own reference.
        let own = u32::from(reclaimers::belongs_to(platform.key));
        let held = self.held.load(Ordering::Relaxed);
        self.held.store(own, Ordering::Relaxed);
        for _ in own..held {
            // SAFETY: each of these references was counted while a thread held it. That thread does not exist in this
            // process, so no code here uses or drops the reference. The references that `self` and the calling thread
            // hold are not dropped by this loop.
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
    let mut observed = Observed::default();
    while !core.platform().wakes.sleep(TICK_PERIOD) {
        tick(core);
        pass_pressure(core);
        observed.report(core);
        // A callback or a subscriber may have called `fork` and returned in the child, which has no other thread.
        if !core.platform().presence.is_here() {
            return;
        }
    }
}

fn run_share(core: &PoolCore) {
    if let Some(members) = core.members() {
        let platform = core.platform();
        members.serve(
            || {
                // Before the table is locked, which a thread that pauses this one may wait for.
                let _at_work = platform.presence.work();
                // If the table is locked, the next round does it.
                _ = members.recover_dead(Membership::free_table, |process| core.allocator().recover(process));
            },
            || {
                let _at_work = platform.presence.work();
                core.allocator().drain_pagesets();
            },
            |bits| {
                let nodes = (0..platform.wakes.workers()).flat_map(|worker| platform.wakes.nodes_of(worker));
                let wanted = nodes.filter(|node| bits >> (node.get() % 64) & 1 == 1);
                wanted.for_each(|node| platform.wakes.wake(node));
            },
            || platform.wakes.sleep(Duration::ZERO) || !platform.presence.is_here(),
        );
    }
}

fn tick(core: &PoolCore) {
    let _at_work = core.platform().presence.work();
    core.allocator().tick();
}

fn run_reclaim(core: &PoolCore, worker: usize) {
    let wakes = &core.platform().wakes;
    while let Some(nodes) = wakes.take(worker) {
        pass_pressure(core);
        let freed: PageCount = nodes.into_iter().map(|node| reclaim(core, node)).sum();
        pass_pressure(core);
        // A reclaimer may have called `fork` and returned in the child. This thread is then the only thread of the
        // child and must end, because the pool has no background reclaim there.
        if !core.platform().presence.is_here() {
            return;
        }
        if freed == PageCount::ZERO && wakes.sleep(FUTILE_REST) {
            return;
        }
    }
}

fn pass_pressure(core: &PoolCore) {
    let platform = core.platform();
    let _at_work = platform.presence.work();
    let now = |node, kind| core.allocator().pressure_event(node, kind);
    platform.listeners.pass(now, |event| report_pressure(platform, event));
}

fn reclaim(core: &PoolCore, node: NodeId) -> PageCount {
    let _at_work = core.platform().presence.work();
    core.allocator().background_reclaim(node)
}
