//! Runs a workload on the caller's pool, and reports the state of the pool afterwards.
//!
//! On an emulated machine, the lanes (the threads of the workload) act as CPUs spread over all nodes. Related files:
//! the crate `zonal_workload` runs the lanes, and front ends print the [`PoolReport`].

use std::io;
use std::sync::atomic::AtomicBool;

use zonal::snapshot::{Accounting, Events, Locality};
use zonal::units::{CpuId, Order, PageCount, Pfn};
use zonal::verify::VerifyError;
use zonal_linux::{ActingCpu, Placement, Pool, PoolPolicy, PoolRequest};
use zonal_workload::{Measurement, PageSource, Plan, Progress, run};

/// The result of a run on a pool, and the state of the pool after it.
#[derive(Clone, Debug)]
pub struct PoolReport {
    /// The plan of the run.
    pub plan: Plan,
    /// Speed and latency of the run.
    pub measured: Measurement,
    /// Counts of the nodes that served allocations, including those of the preparation.
    pub locality: Locality,
    /// Counts of events, including those of the preparation.
    pub events: Events,
    /// The largest `pageset.high` of all pagesets when the run ends.
    pub pageset_high: PageCount,
    /// Bytes of metadata per frame.
    pub metadata_bytes_per_frame: f64,
    /// The accounting after all blocks were freed.
    pub accounting: Accounting,
    /// The error that verification of the whole pool found, if any.
    pub fault: Option<VerifyError>,
    /// How the pool's memory is placed on real nodes.
    pub placement: Placement,
}

impl PoolReport {
    /// Whether every frame is accounted for and no frame is still allocated.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.fault.is_none() && self.accounting.balance() && self.accounting.allocated == PageCount::ZERO
    }
}

/// Runs `plan` on a pool that has no other users, with requests under `policy`, in the same way as [`run`].
///
/// # Errors
/// Returns an error if the system refuses a thread.
///
/// # Panics
/// Panics if the pool refuses to free a frame that it allocated, or if the number of threads does not suit the
/// workload.
pub fn run_on_pool(
    pool: &Pool,
    policy: &PoolPolicy<'_>,
    plan: &Plan,
    stop: &AtomicBool,
    on_progress: &mut dyn FnMut(Progress),
) -> io::Result<PoolReport> {
    let measured = run_beside_others(pool, policy, plan, stop, on_progress)?;
    let verified = pool.verify();
    Ok(PoolReport {
        plan: *plan,
        measured,
        locality: pool.locality(),
        events: pool.events(),
        pageset_high: pool.pagesets().map(|pageset| pageset.high).max().unwrap_or_default(),
        metadata_bytes_per_frame: pool.metadata_bytes() as f64 / pool.frames().get() as f64,
        accounting: pool.accounting(),
        fault: verified.err(),
        placement: pool.placement(),
    })
}

/// Runs `plan` like [`run_on_pool`] on a pool that other processes may use at the same time, and returns only what was measured.
///
/// # Errors
/// Those of [`run_on_pool`].
///
/// # Panics
/// Panics for the reasons of [`run_on_pool`].
pub fn run_beside_others(
    pool: &Pool,
    policy: &PoolPolicy<'_>,
    plan: &Plan,
    stop: &AtomicBool,
    on_progress: &mut dyn FnMut(Progress),
) -> io::Result<Measurement> {
    let nodes = pool.topology().nodes().iter();
    let cpus: Vec<CpuId> = nodes.flat_map(|node| node.cpus.iter().copied()).collect();
    let source = |lane: usize| {
        let cpu = cpus.get(lane * cpus.len() / plan.threads);
        // A thread acts as the CPU that runs it if the pool's CPUs are real.
        let cpu = cpu.filter(|_| pool.topology().has_emulated_cpus());
        let act = |&cpu: &CpuId| pool.act_as(cpu).expect("an emulated CPU of the pool");
        PoolSource { pool, policy, _acting: cpu.map(act) }
    };
    run(plan, source, stop, on_progress)
}

/// One thread's interface to a pool.
struct PoolSource<'a> {
    pool: &'a Pool,
    policy: &'a PoolPolicy<'a>,
    _acting: Option<ActingCpu>,
}

impl PageSource for PoolSource<'_> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        self.pool.alloc_raw(&PoolRequest::new(order).policy(self.policy)).ok().map(|block| block.first)
    }

    #[inline]
    fn free(&mut self, page: Pfn, order: Order) {
        // SAFETY: the workload frees each raw block of `alloc` once, and no `Frames` owns it.
        let given = unsafe { self.pool.free_raw(page, order) };
        given.expect("the block was allocated");
    }

    #[inline]
    fn touch(&mut self, page: Pfn) {
        let first = self.pool.ptr_of(page).expect("a pool knows the frames it gave out");
        // SAFETY: the frame is mapped, and only this workload holds it.
        unsafe { first.cast::<u64>().write_volatile(page.get()) };
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use zonal_linux::Topology;
    use zonal_workload::{Latencies, Workload};

    use super::*;

    const POOL_BYTES: u64 = 64 << 20;

    /// Runs a workload until the first progress report with a pair.
    fn report(pool: &Pool, workload: Workload) -> PoolReport {
        let plan = Plan {
            workload,
            threads: NonZeroUsize::new(2).unwrap(),
            duration: Duration::from_secs(3600),
            warm_up: Duration::ZERO,
            seed: 3,
            pages: pool.frames(),
            latencies: Latencies::Sampled,
        };
        let stop = AtomicBool::new(false);
        let policy = PoolPolicy::local();
        let mut enough = |now: Progress| stop.store(now.pairs > 0, Ordering::Relaxed); // relaxed: only the flag is read
        run_on_pool(pool, &policy, &plan, &stop, &mut enough).unwrap()
    }

    #[test]
    fn every_workload_leaves_the_pool_balanced() {
        for workload in Workload::ALL {
            let pool = Pool::builder().size(POOL_BYTES).build().unwrap();
            let report = report(&pool, workload);
            let name = workload.name();
            assert!(report.is_balanced(), "{name}: {:?} {:?}", report.accounting, report.fault);
            assert!(report.measured.pairs > 0, "{name}");
            assert_eq!(report.accounting.managed, pool.frames(), "{name}");
            // The workload holds half of the pool, which does not fit on one node if the pool has several.
            let near = report.locality.hit >= report.measured.pairs / 2;
            assert!(near || pool.memory_nodes().len() > 1, "{name}: {:?}", report.locality);
            assert!(report.metadata_bytes_per_frame > 0.0);
        }
    }

    #[test]
    fn an_allocated_frame_at_the_end_is_detected() {
        let pool = Pool::builder().size(POOL_BYTES).build().unwrap();
        let kept = pool.alloc(&PoolRequest::page()).unwrap();
        let report = report(&pool, Workload::Pair);
        assert!(!report.is_balanced());
        assert_eq!(report.accounting.allocated, PageCount::new(1));
        drop(kept);
    }

    #[test]
    fn lanes_of_an_emulated_machine_run_on_different_nodes() {
        let topology = Topology::fake(2).unwrap().with_emulated_cpus();
        let pool = Pool::builder().size(POOL_BYTES).topology(topology).build().unwrap();
        let report = report(&pool, Workload::Pair);
        assert_eq!(report.placement, Placement::Emulated);
        let serving = pool.zones().filter(|zone| zone.locality.hit > 0).count();
        let with_cpus = pool.topology().nodes().iter().filter(|node| !node.cpus.is_empty()).count();
        assert_eq!(serving, with_cpus.min(2));
        assert_eq!(report.locality.other, 0);
    }
}
