//! The first use of other nodes' pagesets, by several threads of each CPU at once. Other CPUs drain the pagesets, the
//! pool grows, and threads move to other CPUs at any instruction meanwhile.
//!
//! Most pagesets have no first use again, so each round has a new pool. `ZONAL_STRESS_SECONDS` makes the test run longer.
//! Related files: `sequences.rs` disturbs pagesets that were used before, and `zonal-verify` explores all interleavings of
//! a first use with two threads.

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;

use common::{check_all_free, ledger_of, stress_rounds, thread_id, when_dropped, work_disturbed};
use zonal::snapshot::PagesetSnapshot;
use zonal::units::{Order, PageCount, Pfn};
use zonal_linux::{Pool, PoolPolicy, PoolRequest, Topology};
use zonal_testing::{Ledger, allowed_cpus, bind, pin_to};

const MIB: u64 = 1 << 20;
/// Number of emulated nodes; most of them have no CPU.
const NODES: usize = 16;
const THREADS_PER_CPU: usize = 3;
/// Largest number of CPUs whose threads share the blocks.
const CPUS_MAX: usize = 4;
/// Orders into which a block of the largest order is split, one after another.
const ORDERS: [u8; 5] = [9, 5, 3, 1, 0];
/// Pools of a short run.
const POOLS: usize = 20;

struct Round<'a> {
    pool: &'a Pool,
    owners: &'a Ledger,
    policies: &'a [PoolPolicy<'static>],
    start: &'a Barrier,
}

impl Round<'_> {
    /// Allocates a block of the largest order, which no pageset caches, and splits it into blocks of several orders.
    fn blocks(&self, policy: &PoolPolicy<'static>) -> Vec<(Pfn, Order)> {
        let mut order = Order::DEFAULT_MAX;
        let first = self.pool.alloc_raw(&PoolRequest::new(order).policy(policy)).unwrap().first;
        let mut blocks = vec![(first, order)];
        for smaller in ORDERS.map(|order| Order::new(order).unwrap()) {
            let (first, _) = blocks.pop().unwrap();
            // SAFETY: no value owns the block.
            unsafe { self.pool.split_frames_raw(first, order.pages(), smaller) }.unwrap();
            let parts = (0..order.pages().get()).step_by(smaller.pages().get() as usize);
            blocks.extend(parts.map(|at| (first.plus(PageCount::new(at)), smaller)));
            order = smaller;
        }
        blocks
    }

    /// Frees blocks of all nodes, and allocates others instead, which it frees at the end. Half of the threads allocate
    /// first.
    fn work(&self, name: u32, blocks: Vec<Vec<(Pfn, Order)>>) {
        let (mut held, allocates_first) = (Vec::new(), name.is_multiple_of(2));
        self.start.wait();
        for (policy, blocks) in self.policies.iter().zip(blocks) {
            for (first, order) in blocks {
                if !allocates_first {
                    self.free(name, first, order);
                }
                // Other threads may have allocated all frames of the node.
                if let Ok(again) = self.pool.alloc_raw(&PoolRequest::new(order).policy(policy)) {
                    self.owners.assign(again.first.get(), order.pages().get(), name);
                    held.push((again.first, order));
                }
                if allocates_first {
                    self.free(name, first, order);
                }
            }
        }
        held.into_iter().for_each(|(first, order)| self.free(name, first, order));
    }

    fn free(&self, name: u32, first: Pfn, order: Order) {
        self.owners.release(first.get(), order.pages().get(), name);
        // SAFETY: the caller owns the raw block, and frees it once.
        unsafe { self.pool.free_raw(first, order) }.unwrap();
    }
}

/// Lets all threads on all CPUs use a new pool's pagesets, and disturbs them meanwhile. Returns how many pagesets were
/// used for the first time.
fn use_new_pool(cpus: &[usize], round: usize) -> usize {
    let topology = Topology::fake(NODES).unwrap();
    let bytes = NODES as u64 * 8 * MIB;
    let pool = &Pool::builder().size(bytes).max_size(2 * bytes).topology(topology).build().unwrap();
    let (owners, threads) = (&ledger_of(pool), cpus.len() * THREADS_PER_CPU);
    let policies: Vec<_> =
        pool.memory_nodes().iter().map(|node| pool.bind([node].into_iter().collect()).unwrap()).collect();
    let start = Barrier::new(threads + 2);
    let round_of = Round { pool, owners, policies: &policies, start: &start };
    // Each thread gets a part of each node's blocks, and begins with another order on each node.
    let mut parts = vec![vec![Vec::new(); NODES]; threads];
    for (node, policy) in policies.iter().enumerate() {
        for (at, (first, order)) in round_of.blocks(policy).into_iter().enumerate() {
            let thread = (at + node + round) % threads;
            owners.assign(first.get(), order.pages().get(), thread as u32 + 1);
            parts[thread][node].push((first, order));
        }
        parts.iter_mut().for_each(|part| part[node].reverse());
    }
    let used = |pageset: &PagesetSnapshot| {
        pageset.count != PageCount::ZERO || pageset.refills + pageset.drains + pageset.remote_drains != 0
    };
    assert_eq!(pool.pagesets().find(used), None);
    let working = &AtomicUsize::new(threads);
    thread::scope(|scope| {
        let (sender, ids) = channel();
        let mut disturber = Vec::new();
        for (name, blocks) in (1..).zip(parts) {
            let (round_of, sender, cpu) = (&round_of, sender.clone(), cpus[name as usize % cpus.len()]);
            let (ends, disturbers) = channel();
            disturber.push(ends);
            scope.spawn(move || {
                work_disturbed(&disturbers, || {
                    let _ends = when_dropped(|| {
                        working.fetch_sub(1, Relaxed); // relaxed: it only ends a loop
                    });
                    pin_to(cpu);
                    sender.send(thread_id()).unwrap();
                    round_of.work(name, blocks);
                });
            });
        }
        let ids: Vec<_> = ids.iter().take(threads).collect();
        scope.spawn(|| {
            start.wait();
            pool.grow(bytes).unwrap();
        });
        start.wait();
        for step in round.. {
            if working.load(Relaxed) == 0 {
                break;
            }
            bind(ids[step % threads], &[cpus[step / threads % cpus.len()]]);
            if step.is_multiple_of(32) {
                pool.drain_pagesets();
            }
        }
        drop(disturber);
    });
    check_all_free(owners, pool);
    pool.pagesets().filter(used).count()
}

#[test]
fn pagesets_of_other_nodes_are_used_first_by_several_threads() {
    let cpus: Vec<usize> = allowed_cpus().into_iter().take(CPUS_MAX).collect();
    if !Pool::builder().size(8 * MIB).build().unwrap().uses_sequences() {
        return zonal_testing::skipped!("no restartable sequences here; locks are tested instead");
    }
    let mut first_uses = 0;
    for _ in stress_rounds() {
        first_uses += (0..POOLS).map(|round| use_new_pool(&cpus, round)).sum::<usize>();
    }
    assert!(first_uses >= POOLS * NODES, "{first_uses} first uses");
}
