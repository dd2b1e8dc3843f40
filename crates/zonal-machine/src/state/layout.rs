//! Positions for free blocks, when only their number is known for each order.
//!
//! A kernel prints how many free blocks of each order a zone has, and not where they are. A buddy system never has two
//! free buddies, so every free block below the largest order needs a buddy that is at least partly in use. The layout
//! honours that: it has exactly the printed counts, if any layout has.

use std::collections::VecDeque;

use zonal::machine::FrameRange;
use zonal::units::{PageCount, Pfn};

/// The free frames of a zone, by position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreeLayout {
    /// The free blocks, ascending; none of them touches its buddy.
    pub free: Vec<FrameRange>,
    /// Free frames for which the zone has no place.
    pub left_over: PageCount,
}

/// The blocks that are not free as a whole, by order. Each may be split for smaller free blocks.
struct Used {
    by_order: Vec<VecDeque<u64>>,
}

impl Used {
    /// Takes a block of `order`, which may be part of a larger one.
    fn take(&mut self, order: usize) -> Option<u64> {
        let from = (order..self.by_order.len()).find(|&order| !self.by_order[order].is_empty())?;
        let start = self.by_order[from].pop_front()?;
        for half in (order..from).rev() {
            self.by_order[half].push_front(start + (1 << half));
        }
        Some(start)
    }
}

/// Number of orders that a buddy system has, unless more are given.
const ORDERS: usize = 11;

/// Lays out free blocks in `range`: `counts[k]` blocks of 2^k frames. Orders without a count have no free blocks.
///
/// ```
/// use zonal::machine::FrameRange;
/// use zonal::units::{PageCount, Pfn};
/// use zonal_machine::state::lay_out;
///
/// let zone = FrameRange { start: Pfn::new(0), count: PageCount::new(8) };
/// let layout = lay_out(zone, &[1, 1, 0]);
/// let free: Vec<_> = layout.free.iter().map(|run| (run.start.get(), run.count.get())).collect();
/// assert_eq!(free, [(0, 2), (2, 1)]);
/// assert_eq!(layout.left_over.get(), 0);
/// ```
#[must_use]
pub fn lay_out(range: FrameRange, counts: &[u64]) -> FreeLayout {
    let largest = counts.len().clamp(ORDERS, 63) - 1;
    let (mut pieces, mut used) = (aligned_pieces(range, largest), Used { by_order: Vec::new() });
    used.by_order.resize_with(largest + 1, VecDeque::new);
    let (mut free, mut left_over) = (Vec::new(), 0u64);
    for order in (0..=largest).rev() {
        let block = |start| FrameRange { start: Pfn::new(start), count: PageCount::new(1 << order) };
        let wanted = counts.get(order).copied().unwrap_or_default();
        for placed in 0..wanted {
            let found = match pieces[order].pop_front() {
                Some(start) => Some(start),
                None => used
                    .take(order + 1)
                    .inspect(|start| used.by_order[order].push_front(start + (1 << order))),
            };
            let Some(start) = found else {
                left_over = left_over.saturating_add((wanted - placed).saturating_mul(1 << order));
                break;
            };
            free.push(block(start));
        }
        let rest = std::mem::take(&mut pieces[order]);
        used.by_order[order].extend(rest);
    }
    free.sort_unstable_by_key(|run| run.start);
    FreeLayout { free, left_over: PageCount::new(left_over) }
}

/// Returns the starts of the aligned blocks that make up `range`, by order. Their buddies are outside the range, or they
/// have the largest order.
fn aligned_pieces(range: FrameRange, largest: usize) -> Vec<VecDeque<u64>> {
    let mut pieces = vec![VecDeque::new(); largest + 1];
    let (mut at, end) = (range.start.get(), range.start.get().saturating_add(range.count.get()));
    while at < end {
        let fits = (end - at).ilog2() as usize;
        let order = fits.min(at.trailing_zeros() as usize).min(largest);
        pieces[order].push_back(at);
        at += 1 << order;
    }
    pieces
}

impl FreeLayout {
    /// Returns the runs of `range` that are in use, ascending.
    #[must_use]
    pub fn used(&self, range: FrameRange) -> Vec<FrameRange> {
        let end = range.start.get().saturating_add(range.count.get());
        let (mut at, mut used) = (range.start.get(), Vec::new());
        let run = |from: u64, to: u64| FrameRange { start: Pfn::new(from), count: PageCount::new(to - from) };
        for free in &self.free {
            let start = free.start.get();
            if start > at {
                used.push(run(at, start));
            }
            at = start + free.count.get();
        }
        if at < end {
            used.push(run(at, end));
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> FrameRange {
        FrameRange { start: Pfn::new(start), count: PageCount::new(count) }
    }

    /// Counts the free blocks by order after all buddies that are free have merged.
    fn merged(layout: &FreeLayout, orders: usize) -> Vec<u64> {
        let mut counts = vec![0; orders];
        let mut blocks: std::collections::BTreeSet<(usize, u64)> =
            layout.free.iter().map(|run| (run.count.get().ilog2() as usize, run.start.get())).collect();
        for order in 0..orders - 1 {
            let starts: Vec<u64> =
                blocks.iter().filter(|&&(of, _)| of == order).map(|&(_, start)| start).collect();
            for start in starts {
                let buddy = start ^ (1 << order);
                if blocks.contains(&(order, start)) && blocks.remove(&(order, buddy)) {
                    blocks.remove(&(order, start));
                    blocks.insert((order + 1, start.min(buddy)));
                }
            }
        }
        blocks.iter().for_each(|&(order, _)| counts[order] += 1);
        counts
    }

    #[test]
    fn counts_are_kept_and_no_buddies_merge() {
        let mut seed = 1u64;
        let mut next = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % (most + 1)
        };
        for case in 0..2000 {
            let zone = range(next(40), 256 + next(2000));
            // A state that a buddy system can have: random frames are in use, and the free ones are merged.
            let mut free = FreeLayout { free: Vec::new(), left_over: PageCount::ZERO };
            let density = next(6);
            for frame in zone.start.get()..zone.start.get() + zone.count.get() {
                if next(6) >= density {
                    free.free.push(range(frame, 1));
                }
            }
            let counts = merged(&free, 11);
            let layout = lay_out(zone, &counts);
            assert_eq!(layout.left_over, PageCount::ZERO, "case {case}: {counts:?}");
            assert_eq!(merged(&layout, 11), counts, "case {case}");
            let used: u64 = layout.used(zone).iter().map(|run| run.count.get()).sum();
            let free: u64 = layout.free.iter().map(|run| run.count.get()).sum();
            assert_eq!(used + free, zone.count.get(), "case {case}");
        }
    }

    #[test]
    fn what_does_not_fit_is_left_over() {
        let layout = lay_out(range(0, 8), &[9, 0, 0, 0]);
        assert_eq!((layout.free.len(), layout.left_over.get()), (4, 5));
        assert_eq!(lay_out(range(5, 0), &[u64::MAX; 11]).free, []);
        assert_eq!(lay_out(range(5, 3), &[]), FreeLayout { free: vec![], left_over: PageCount::ZERO });
    }
}
