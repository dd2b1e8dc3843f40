//! CPUs that the kernel takes offline and brings back under a pool.
//!
//! A pool does not watch the kernel's CPUs: it goes on with the pagesets it has, and drains reach those of CPUs that
//! are gone. Neighbours: `load.rs` uses the pool meanwhile.

use zonal::units::CpuId;
use zonal_linux::{Pool, PoolRequest};

use super::kernel::{on_cpu, online_cpus, set_cpu_online};
use super::load::while_used;
use super::pages::{MIB, all_free, on_their_nodes, take};
use super::verdict::{Found, Verdict, ensure, text};

const POOL_BYTES: u64 = 64 * MIB;
const THREADS: usize = 4;

/// Returns CPUs other than the first, which many machines cannot take offline.
fn removable() -> Result<Vec<u32>, String> {
    Ok(online_cpus()?.into_iter().skip(1).collect())
}

/// Takes each CPU but the first offline and brings it back: at first behind the pool's back, then with the
/// pool being notified before and after.
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

/// Checks that what a CPU had in its pagesets when it went offline can be drained from elsewhere.
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

/// Checks that a pool built while a CPU is offline serves threads on that CPU later, from any node, and stays exact.
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
