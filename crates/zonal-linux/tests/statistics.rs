//! Counters of a pool, which are folded by the pool's own clock at the configured interval, and on demand.

use zonal::Config;
use zonal::config::StatInterval;
use zonal::units::{NodeId, PageCount};
use zonal_linux::{Frames, Pool, PoolRequest, Topology};
use zonal_testing::eventually;

fn pool(interval: StatInterval) -> Pool {
    let config = Config { stat_interval: interval, ..Config::default() };
    let topology = Topology::fake(2).unwrap().with_emulated_cpus();
    Pool::builder().size(64 << 20).topology(topology).config(config).build().unwrap()
}

/// Allocates three pages of node 1, on a CPU of node 0.
fn pages(pool: &Pool) -> Vec<Frames> {
    let first = pool.topology().nodes()[0].cpus[0];
    let _acting = pool.act_as(first).unwrap();
    let far = pool.preferred(NodeId::new(1).unwrap()).unwrap();
    let request = PoolRequest::page().policy(&far);
    (0..3).map(|_| pool.alloc(&request).unwrap()).collect()
}

fn in_totals(pool: &Pool) -> u64 {
    pool.allocated_approximate()[0].get()
}

#[test]
fn a_pool_folds_its_counters_at_the_interval_that_is_set() {
    let pool = pool(StatInterval::from_seconds(u32::MAX).unwrap());
    let held = pages(&pool);
    let kept = |pool: &Pool| pool.zones().nth(1).unwrap().in_pagesets;
    assert_ne!(kept(&pool), PageCount::ZERO);
    // The wait takes at least three ticks, because a pageset on a CPU of another node is drained after that many idle
    // ticks.
    eventually("an idle pageset of another node drains", || kept(&pool) == PageCount::ZERO);
    assert_eq!(in_totals(&pool), 0, "ticks have come, but none that folds");
    pool.set_stat_interval(StatInterval::SECOND);
    assert_eq!(pool.settings().stat_interval, StatInterval::SECOND);
    eventually("the next tick folds", || in_totals(&pool) == 3);
    drop(held);
    assert!(pool.verify().unwrap().balance());
}

#[test]
fn a_pool_refreshes_its_counters_on_demand() {
    let pool = pool(StatInterval::from_seconds(u32::MAX).unwrap());
    let mut held = pages(&pool);
    for pages in [3, 2, 1, 0] {
        pool.stat_refresh();
        assert_eq!(in_totals(&pool), pages);
        held.pop();
    }
}

#[test]
fn node_reclaim_of_a_pool_changes_while_it_is_in_use() {
    let pool = pool(StatInterval::default());
    pool.set_reclaim_distance(12);
    pool.set_min_unmapped_percent(34).unwrap();
    let settings = pool.settings();
    assert_eq!((settings.reclaim_distance, settings.min_unmapped_percent), (12, 34));
    pool.set_min_unmapped_percent(101).unwrap_err();
    assert_eq!(pool.settings(), settings);
}
