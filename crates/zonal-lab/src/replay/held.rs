//! The frames that programs hold in a replay: those of the trace's requests, and older ones.
//!
//! Which of the older frames a free names is not known, so a random one is freed.
//!
//! Related files: `ours.rs` allocates and frees.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use zonal::Block;
use zonal::units::{Order, PageCount, Pfn};
use zonal_machine::ZoneModel;

use super::start::StartZone;
use crate::system::System;

/// Older blocks that are split at once, so that random frames of them are not neighbours.
const SPLIT_AT_ONCE: usize = 64;

/// How many frames of the zones were allocated before a trace.
#[derive(Clone, Default, Debug)]
pub(super) struct Spread {
    used: HashMap<(u64, String), u64>,
    /// The share of all zones together, for other machines.
    share: Option<f64>,
}

impl Spread {
    /// Returns the spread in which each zone is as it was.
    pub(super) fn by_zone(zones: &[StartZone]) -> Self {
        let used = zones.iter().map(|zone| ((zone.node, zone.kind.clone()), zone.used())).collect();
        Self { used, share: None }
    }

    /// Returns the spread in which all zones have the same share.
    pub(super) fn evenly(zones: &[StartZone]) -> Self {
        let used: u64 = zones.iter().map(StartZone::used).fold(0, u64::saturating_add);
        let managed: u64 = zones.iter().map(|zone| zone.managed).fold(0, u64::saturating_add);
        Self { used: HashMap::new(), share: (managed > 0).then(|| used as f64 / managed as f64) }
    }

    /// Returns the used frames of a zone.
    pub(super) fn used(&self, zone: &ZoneModel) -> PageCount {
        let frames = match self.share {
            Some(share) => (zone.managed.get() as f64 * share) as u64,
            None => {
                let name = (u64::from(zone.node.get()), zone.kind.name().to_owned());
                self.used.get(&name).copied().unwrap_or(0)
            }
        };
        PageCount::new(frames).min(zone.managed)
    }
}

/// The blocks of the trace's requests by their recorded frame, and older blocks.
pub(super) struct Held {
    /// What a recorded request got, and its order.
    current: HashMap<Pfn, (Block, Order)>,
    /// Recorded requests that failed here.
    refused: HashSet<Pfn>,
    /// Older blocks by order.
    older: BTreeMap<Order, Vec<Block>>,
    random: fastrand::Rng,
    unknown: u64,
}

impl Held {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            current: HashMap::new(),
            refused: HashSet::new(),
            older: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
            unknown: 0,
        }
    }

    /// Returns the number of frees for which there was no block.
    pub(super) const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Keeps an older block, and returns its size.
    pub(super) fn keep(&mut self, block: Block) -> PageCount {
        self.older.entry(block.order).or_default().push(block);
        block.order.pages()
    }

    /// Takes the block of a recorded request. Returns a block to free.
    pub(super) fn took(&mut self, page: Pfn, order: Order, block: Block) -> Option<Block> {
        self.refused.remove(&page);
        self.current.insert(page, (block, order)).map(|(block, _)| block)
    }

    /// Takes a request that failed.
    pub(super) fn refused(&mut self, page: Pfn) {
        self.refused.insert(page);
    }

    /// Takes a recorded free. Returns the block to free.
    ///
    /// A split can wait for another thread of the simulation, which may be here then, so nothing is borrowed meanwhile.
    pub(super) fn gave(
        held: &RefCell<Self>,
        system: &System<'_, '_>,
        page: Pfn,
        order: Order,
    ) -> Option<Block> {
        let current = held.borrow_mut().current.remove(&page);
        if let Some((block, of)) = current {
            if of == order {
                return Some(block);
            }
            // A part of the block: the rest is older memory from now on.
            let mut parts = split(system, block, order)?.into_iter();
            let first = parts.next();
            held.borrow_mut().keep_all(parts);
            return first;
        }
        if held.borrow_mut().refused.remove(&page) {
            return None;
        }
        let larger = held.borrow_mut().larger_than(order);
        for block in larger {
            let parts = split(system, block, order)?;
            held.borrow_mut().keep_all(parts.into_iter());
        }
        let freed = held.borrow_mut().random_of(order);
        held.borrow_mut().unknown += u64::from(freed.is_none());
        freed
    }

    fn keep_all(&mut self, blocks: impl Iterator<Item = Block>) {
        blocks.for_each(|block| _ = self.keep(block));
    }

    /// Removes some older blocks to be split, if there is none of this order.
    fn larger_than(&mut self, order: Order) -> Vec<Block> {
        if self.older.get(&order).is_some_and(|blocks| !blocks.is_empty()) {
            return Vec::new();
        }
        let larger = self.older.range(order..).find(|(_, blocks)| !blocks.is_empty());
        let Some(larger) = larger.map(|(&larger, _)| larger) else { return Vec::new() };
        (0..SPLIT_AT_ONCE).map_while(|_| self.random_of(larger)).collect()
    }

    fn random_of(&mut self, order: Order) -> Option<Block> {
        let blocks = self.older.get_mut(&order).filter(|blocks| !blocks.is_empty())?;
        Some(blocks.swap_remove(self.random.usize(..blocks.len())))
    }
}

/// Splits an allocated block into blocks of an order.
fn split(system: &System<'_, '_>, block: Block, order: Order) -> Option<Vec<Block>> {
    if order > block.order {
        return None;
    }
    if order < block.order
        && let Err(error) = system.sim.allocator.split(block.first, block.order, order)
    {
        system.fault(error.to_string());
    }
    let count = block.order.pages().get() >> order.get();
    let part = |at: u64| {
        let first = block.first.plus(PageCount::new(at << order.get()));
        Block { first, order, ..block }
    };
    Some((0..count).map(part).collect())
}
