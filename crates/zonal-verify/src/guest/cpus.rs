//! Checks that take CPUs offline and bring them back while a pool is in use.
//!
//! A pool does not follow changes of the kernel's CPUs. It continues with the pagesets that it has, and a drain also
//! empties the pagesets of CPUs that are offline.
//!
//! Related files: `load.rs` runs the threads that use the pool in the meantime.

use zonal::units::CpuId;
use zonal_linux::{Pool, PoolRequest};

use super::kernel::{on_cpu, online_cpus, set_cpu_online};
use super::load::while_used;
use super::pages::{MIB, all_free, on_their_nodes, take};
use super::verdict::{Found, Verdict, ensure, text};

const POOL_BYTES: u64 = 64 * MIB;
const THREADS: usize = 4;

/// Returns all CPUs that are online except the first one, because many machines cannot take their first CPU offline.
fn removable() -> Result<Vec<u32>, String> {
    Ok(online_cpus()?.into_iter().skip(1).collect())
}

/// Takes each CPU except the first offline and brings it back. It does so once without notifying the pool, and once
/// with a notification to the pool before and after.
pub(super) fn under_load() -> Verdict {
    let cpus = removable()?;
    if cpus.is_empty() {
        return Ok(Found::Skipped("one CPU is online; two are needed".into()));
    }
    let pool = Pool::builder().size(POOL_BYTES).build().map_err(text)?;
    let offline_and_back = |cpu: u32| {
        set_cpu_online(cpu, false)?;
        pool.drain_pagesets();
        set_cpu_online(cpu, true)
    };
    let ((), used) = while_used(&pool, &PoolRequest::page(), THREADS, || {
        cpus.iter().try_for_each(|&cpu| offline_and_back(cpu))?;
        cpus.iter().try_for_each(|&cpu| {
            pool.offline_cpu(CpuId::new(cpu)).map_err(text)?;
            offline_and_back(cpu)?;
            pool.online_cpu(CpuId::new(cpu)).map_err(text)
        })
    })?;
    for &cpu in &cpus {
        frames_of_a_cpu_that_is_gone(&pool, cpu).map_err(|why| format!("CPU {cpu}: {why}"))?;
    }
    Ok(Found::Holds(format!("{} CPUs twice, {used} frames meanwhile", cpus.len())))
}

/// Checks that other CPUs can drain the frames in the pagesets of a CPU that is offline.
fn frames_of_a_cpu_that_is_gone(pool: &Pool, cpu: u32) -> Result<(), String> {
    pool.drain_pagesets();
    on_cpu(cpu, || take(pool, &PoolRequest::page(), 50).map(drop))?;
    let before = pool.accounting().in_pagesets;
    ensure!(before.get() > 0, "nothing is in its pagesets");
    set_cpu_online(cpu, false)?;
    pool.drain_pagesets();
    let left = pool.accounting().in_pagesets;
    set_cpu_online(cpu, true)?;
    ensure!(left.get() == 0, "{left} of {before} frames are left in pagesets");
    all_free(pool)
}

/// Checks that a pool that was built while a CPU was offline later serves threads on that CPU. Frames may come from any
/// node, and the accounting must stay exact.
pub(super) fn later_than_the_pool() -> Verdict {
    let Some(&cpu) = removable()?.last() else {
        return Ok(Found::Skipped("one CPU is online; two are needed".into()));
    };
    set_cpu_online(cpu, false)?;
    let built = Pool::builder().size(POOL_BYTES).build().map_err(text);
    set_cpu_online(cpu, true)?;
    let pool = built?;
    let served = on_cpu(cpu, || {
        let mut held = take(&pool, &PoolRequest::page(), 1000)?;
        if pool.topology().nodes().len() > 1 { on_their_nodes(&mut held) } else { Ok(Default::default()) }
    })?;
    let ((), used) = while_used(&pool, &PoolRequest::page(), THREADS, || {
        on_cpu(cpu, || (0..50).try_for_each(|_| take(&pool, &PoolRequest::page(), 100).map(drop)))
    })?;
    Ok(Found::Holds(format!("CPU {cpu} is served {served:?}, {used} frames meanwhile")))
}
