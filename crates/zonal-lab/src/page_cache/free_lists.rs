//! The per-CPU lists of free frames in kernels that had a zonelist cache, as far as reclaim depends on them.
//!
//! These kernels put reclaimed frames on a list of the CPU, where watermark checks do not see them, and move them to the
//! zone in batches. A check right after reclaim therefore often fails although reclaim freed frames. Once a check has
//! passed, requests use up the list before they take frames from the zone. The allocator's own pagesets are drained after
//! reclaim instead. Source: Linux 2.6.39, `free_hot_cold_page` and `buffered_rmqueue`. Related files:
//! `page_cache/reclaim.rs` frees frames, and `page_cache/mod.rs` allocates them.

use std::cell::RefCell;

use zonal::Block;
use zonal::config::ZonelistCache;

use crate::system::System;

/// Frames that a list gives to the zone at a time.
const BATCH: usize = 31;
/// Frames at which a list gives a batch to the zone.
const HIGH: usize = 6 * BATCH;

/// The lists of all CPUs. The frames in them count as allocated by the page cache.
pub(super) struct FreeLists {
    /// Frames, oldest first, indexed by CPU and zone; `None` if the allocator's pagesets are used alone.
    lists: Option<RefCell<Vec<Vec<Block>>>>,
    zones: usize,
}

impl FreeLists {
    /// Creates empty lists if the allocator uses a past form of the zonelist cache.
    pub(super) fn new(system: &System<'_, '_>, cpus: usize) -> Self {
        let allocator = system.sim.allocator;
        let zones = allocator.zones().count();
        let is_past = !matches!(allocator.settings().zonelist_cache, ZonelistCache::On | ZonelistCache::Off);
        Self { lists: is_past.then(|| RefCell::new(vec![Vec::new(); cpus * zones])), zones }
    }

    /// Returns the index of the running CPU's list for a block's zone.
    fn place(&self, system: &System<'_, '_>, block: &Block) -> usize {
        system.sim.world.cpu() * self.zones + block.zone.index()
    }

    /// Frees a frame.
    pub(super) fn free(&self, system: &System<'_, '_>, block: Block) {
        let Some(lists) = &self.lists else { return system.free(&block) };
        let drained = {
            let list = &mut lists.borrow_mut()[self.place(system, &block)];
            list.push(block);
            if list.len() < HIGH { Vec::new() } else { list.drain(..BATCH).collect() }
        };
        drained.iter().for_each(|block| system.free(block));
    }

    /// Takes a frame that the allocator served, or in its place one of the same zone that is on the running CPU's list.
    pub(super) fn take(&self, system: &System<'_, '_>, served: Block) -> Block {
        let Some(lists) = &self.lists else { return served };
        let listed = lists.borrow_mut()[self.place(system, &served)].pop();
        listed.map_or(served, |listed| {
            system.free(&served);
            listed
        })
    }

    /// Frees all frames in the lists, because a request failed. Returns whether there were any.
    pub(super) fn drain_all(&self, system: &System<'_, '_>) -> bool {
        let Some(lists) = &self.lists else { return false };
        let all: Vec<Block> = lists.borrow_mut().iter_mut().flat_map(std::mem::take).collect();
        all.iter().for_each(|block| system.free(block));
        !all.is_empty()
    }
}
