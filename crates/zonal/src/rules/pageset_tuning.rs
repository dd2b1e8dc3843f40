//! How deep a pageset may become: rules that move `pageset.high` between two limits.
//!
//! Vocabulary: `high` is the count at which a pageset drains; *limits* are the least and the most
//! it may be; a *refill* takes blocks from the zone, a *drain* gives them back; a *period* is one
//! second, and so is a *tick*. All rules are arithmetic over small plain states, so that the lab
//! and the explainer run the same code; `pageset.rs` keeps the states in cells under its lock.
//! Neighbours: `pageset_tuning/depth.rs` and `pageset_tuning/stepwise.rs` hold one rule each,
//! `watermarks.rs` says how high the limits are.

pub(crate) mod depth;
pub(crate) mod stepwise;
pub(crate) mod words;

pub use depth::{DepthState, Depths};
pub use stepwise::{Decay, PagesetFigures, Resize, StepwiseState, ZoneLevel};

use crate::units::{Order, PageCount};

/// Which rule moves `pageset.high`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PagesetTuning {
    /// From how deep allocation and freeing went in the last seconds: see [`DepthState`].
    /// Source: Huang 2023, RFC "alloc/free depth based PCP high auto-tuning". Ours beside it: `high`
    /// stays at its lower limit while 2 MiB blocks are scarce, pagesets of CPUs of other nodes stay
    /// small, and frames move in whole words of 64.
    #[default]
    Depth,
    /// As [`Depth`](Self::Depth), exactly as published, for comparison and replays: any CPU's `high` may
    /// rise to an eighth of the zone divided among the CPUs of its node, refills and drains are batches,
    /// and every free is counted by itself, which makes frees slower. Only an allocator that starts with this
    /// rule has slots enough for it (`Layout`).
    DepthPublished,
    /// By steps at refills and drains, with a decay: see [`StepwiseState`]. Source: Linux 6.7.
    Stepwise,
    /// Never: `high` is the lower limit.
    Fixed,
}

impl PagesetTuning {
    /// Whether `high` follows from depths.
    pub(crate) const fn follows_depth(self) -> bool {
        matches!(self, Self::Depth | Self::DepthPublished)
    }

    /// Whether the rule has to see every free: then none is served without the pageset's lock.
    pub(crate) const fn sees_every_free(self) -> bool {
        matches!(self, Self::DepthPublished | Self::Stepwise)
    }

    /// Whether refills and drains are rounded to whole words: see `words.rs`. The rule of Linux says
    /// by itself how much moves.
    pub(crate) const fn rounds_to_words(self) -> bool {
        matches!(self, Self::Depth | Self::Fixed)
    }
}

/// The least and the most that `pageset.high` may be: `min <= max`.
/// A lower limit of zero says that pagesets are disabled. Linux: `high_min`, `high_max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HighLimits {
    min: PageCount,
    max: PageCount,
}

impl HighLimits {
    /// Limits of a pageset that keeps nothing.
    pub const DISABLED: Self = Self { min: PageCount::ZERO, max: PageCount::ZERO };

    /// The limits `min..=max`; with a `max` below `min`, `min` is both.
    #[must_use]
    pub fn new(min: PageCount, max: PageCount) -> Self {
        Self { min, max: max.max(min) }
    }

    /// The lower limit.
    #[must_use]
    pub const fn min(self) -> PageCount {
        self.min
    }

    /// The upper limit.
    #[must_use]
    pub const fn max(self) -> PageCount {
        self.max
    }

    /// These limits while `high` is held down, as when a zone runs out of large blocks.
    #[must_use]
    pub const fn held_at_min(self) -> Self {
        Self { min: self.min, max: self.min }
    }

    /// Whether pagesets are disabled.
    #[must_use]
    pub const fn is_disabled(self) -> bool {
        self.min.get() == 0
    }

    /// The nearest lawful `high`: zero when disabled. Whoever changes limits applies this at once.
    #[must_use]
    pub fn clamp(self, high: PageCount) -> PageCount {
        if self.is_disabled() { PageCount::ZERO } else { high.clamp(self.min, self.max) }
    }
}

/// How many blocks of `order` a refill or drain of `size` frames moves: at least one, so that a
/// batch smaller than one block still makes progress.
#[must_use]
pub const fn blocks_of(size: PageCount, order: Order) -> u64 {
    let blocks = size.get() >> order.get();
    if blocks == 0 { 1 } else { blocks }
}

/// Whether a pageset's CPU belongs to the node of its zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuLocality {
    /// CPU and zone are of one node.
    Local,
    /// The zone lies on another node, or its node has no CPU.
    Remote,
}

/// What a tick found out about a pageset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// Blocks were taken or given since the last tick.
    Used,
    /// Nothing happened since the last tick.
    Idle,
}

/// For how many ticks in a row a pageset was idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdleTicks(u8);

impl IdleTicks {
    /// Ticks after which an idle remote pageset drains fully.
    const REMOTE: u8 = 3;
    /// Ticks after which an idle local pageset drains down to the lower limit.
    const LOCAL: u8 = 2;

    /// An idle time of `ticks`, as kept in a cell of one byte.
    #[must_use]
    pub const fn new(ticks: u8) -> Self {
        Self(ticks)
    }

    /// The bare number of ticks.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The idle time after one more tick.
    #[must_use]
    pub const fn after_tick(self, activity: Activity) -> Self {
        match activity {
            Activity::Used => Self(0),
            Activity::Idle => Self(self.0.saturating_add(1)),
        }
    }

    /// Frames that a pageset of `count` frames must give back for having been idle so long.
    #[must_use]
    pub const fn surplus(self, locality: CpuLocality, count: PageCount, limits: HighLimits) -> PageCount {
        match locality {
            CpuLocality::Remote if self.0 >= Self::REMOTE => count,
            CpuLocality::Local if self.0 >= Self::LOCAL => count.saturating_minus(limits.min),
            CpuLocality::Remote | CpuLocality::Local => PageCount::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pages(count: u64) -> PageCount {
        PageCount::new(count)
    }

    #[test]
    fn limits_clamp_and_never_cross() {
        let limits = HighLimits::new(pages(252), pages(1000));
        assert_eq!(limits.clamp(pages(0)), pages(252));
        assert_eq!(limits.clamp(pages(500)), pages(500));
        assert_eq!(limits.clamp(pages(5000)), pages(1000));
        assert_eq!(limits.held_at_min().clamp(pages(500)), pages(252));
        let crossed = HighLimits::new(pages(252), pages(100));
        assert_eq!((crossed.min(), crossed.max()), (pages(252), pages(252)));
        assert_eq!(HighLimits::new(PageCount::ZERO, pages(9)).clamp(pages(5)), PageCount::ZERO);
    }

    #[test]
    fn a_batch_in_blocks_never_reaches_zero() {
        for order in 0..=18 {
            for size in [0, 1, 7, 63, 2016] {
                assert!(blocks_of(pages(size), Order::new(order).unwrap()) >= 1);
            }
        }
        assert_eq!(blocks_of(pages(63), Order::PAGE), 63);
        assert_eq!(blocks_of(pages(63), Order::new(3).unwrap()), 7);
        assert_eq!(blocks_of(pages(63), Order::new(9).unwrap()), 1);
    }

    /// Surplus after each of five idle ticks.
    fn idle_trace(locality: CpuLocality) -> [u64; 5] {
        let limits = HighLimits::new(pages(252), pages(1000));
        let mut idle = IdleTicks::default();
        core::array::from_fn(|_| {
            idle = idle.after_tick(Activity::Idle);
            idle.surplus(locality, pages(600), limits).get()
        })
    }

    #[test]
    fn idle_pagesets_drain_after_their_time() {
        assert_eq!(idle_trace(CpuLocality::Remote), [0, 0, 600, 600, 600]);
        assert_eq!(idle_trace(CpuLocality::Local), [0, 348, 348, 348, 348]);
    }

    #[test]
    fn use_ends_idleness_and_ticks_do_not_wrap() {
        let limits = HighLimits::new(pages(252), pages(1000));
        let used = IdleTicks::new(2).after_tick(Activity::Used);
        assert_eq!(used.surplus(CpuLocality::Local, pages(600), limits), PageCount::ZERO);
        let long = IdleTicks::new(u8::MAX).after_tick(Activity::Idle);
        assert_eq!(long.surplus(CpuLocality::Remote, pages(5), limits), pages(5));
        // Below the lower limit a local pageset keeps what it has.
        assert_eq!(long.surplus(CpuLocality::Local, pages(100), limits), PageCount::ZERO);
    }
}
