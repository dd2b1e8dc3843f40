//! The rules that adjust `pageset.high` between two limits.
//!
//! `high` is the count of frames at which a pageset drains. Its *limits* are its smallest and largest valid values. A
//! *refill* moves blocks from the zone to the pageset, and a *drain* moves them back. A *period* and a *tick* are one
//! second each. Each rule is arithmetic over a small plain state, so that the lab and the explainer run the same
//! code.
//!
//! Related files: `rules/pageset_tuning/depth.rs` and `rules/pageset_tuning/stepwise.rs` contain one rule each, and
//! `rules/pageset_tuning/allowance.rs` says which steps need no session.
//! `pageset/depth_cells.rs` and `pageset/guard.rs` store their states in atomic cells.
//! `rules/pageset_limits.rs` computes the limits.

mod allowance;
mod depth;
mod stepwise;
pub(crate) mod words;

pub use allowance::{Allowance, Leeway};
pub use depth::{DepthState, Depths};
pub use stepwise::{Decay, PagesetFigures, Resize, StepwiseState, ZoneLevel};

use crate::units::{Order, PageCount};

/// The rule that adjusts `pageset.high`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PagesetTuning {
    /// A rule that computes `high` from the depths of allocation and freeing in the last seconds: see [`DepthState`].
    /// Source: Huang 2023, RFC "alloc/free depth based PCP high auto-tuning". This implementation differs from the
    /// RFC in three ways: `high` stays at its lower limit while 2 MiB blocks are scarce, pagesets of CPUs on other
    /// nodes stay small, and frames move in whole words of 64.
    #[default]
    Depth,
    /// The rule of [`Depth`](Self::Depth) exactly as published, for comparison and replays: a past form
    /// ([`TuningForm`]).
    DepthPublished,
    /// A rule that raises `high` in steps at refills and drains and lowers it over time: see [`StepwiseState`].
    /// Source: Linux 6.7.
    Stepwise,
    /// No adjustment: `high` is always the lower limit.
    Fixed,
}

/// The rules of the core. Every [`PagesetTuning`] is one of them, or a past form of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TuningRule {
    /// See [`PagesetTuning::Depth`].
    Depth,
    /// See [`PagesetTuning::Stepwise`].
    Stepwise,
    /// See [`PagesetTuning::Fixed`].
    Fixed,
}

impl PagesetTuning {
    /// Returns the rule of the core that this is, or of which it is a past form.
    #[must_use]
    pub const fn rule(self) -> TuningRule {
        match self {
            Self::Depth | Self::DepthPublished => TuningRule::Depth,
            Self::Stepwise => TuningRule::Stepwise,
            Self::Fixed => TuningRule::Fixed,
        }
    }

    /// Whether this is a past form, which a program must link: see [`TuningForm`].
    #[must_use]
    pub const fn is_past(self) -> bool {
        matches!(self, Self::DepthPublished)
    }

    /// Whether refills and drains are rounded to whole words: see `rules/pageset_tuning/words.rs`. Past forms and the
    /// stepwise rule compute the exact number of frames to move.
    pub(crate) const fn rounds_to_words(self) -> bool {
        matches!(self, Self::Depth | Self::Fixed)
    }
}

/// A past form of the depth rule, which the crate `zonal-history` has.
///
/// Under any past form, each free takes the pageset's lock, because it may end the period. Refills and drains move exact
/// numbers of frames. `high` has the same limits on all CPUs, also while large blocks are scarce. An idle pageset keeps the
/// frames of its CPU's own node. Pagesets have slots for
/// the largest `high`, in blocks of any cached order, so an allocator must be created with the form. The form decides the
/// rest. The core calls it when an allocator is created and when a pageset drains. Its name and its cached orders must be
/// the same in every call, because the slots are divided by them.
pub trait TuningForm: core::fmt::Debug + Sync + core::panic::RefUnwindSafe {
    /// Returns the name of the form.
    fn tuning(&self) -> PagesetTuning;
    /// Returns how many orders are cached, from order 0 and at least 4, besides that of 2 MiB blocks.
    fn smaller_orders(&self) -> u8;
    /// Returns how many frames a drain moves. `excess` are the frames above the count at which the pageset drains, if the
    /// zone is being reclaimed.
    fn drain_size(&self, batch: PageCount, excess: Option<PageCount>) -> PageCount;
}

impl PartialEq for dyn TuningForm {
    fn eq(&self, other: &Self) -> bool {
        self.tuning() == other.tuning()
    }
}

impl Eq for dyn TuningForm {}

/// The smallest and the largest valid value of `pageset.high`. Invariant: `min <= max`.
///
/// A lower limit of zero means that pagesets are disabled. Linux: `high_min`, `high_max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HighLimits {
    min: PageCount,
    max: PageCount,
}

impl HighLimits {
    /// The limits of a disabled pageset.
    pub const DISABLED: Self = Self { min: PageCount::ZERO, max: PageCount::ZERO };

    /// Returns the limits `min..=max`; if `max` is below `min`, both are `min`.
    #[must_use]
    pub fn new(min: PageCount, max: PageCount) -> Self {
        Self { min, max: max.max(min) }
    }

    /// Returns the lower limit.
    #[must_use]
    pub const fn min(self) -> PageCount {
        self.min
    }

    /// Returns the upper limit.
    #[must_use]
    pub const fn max(self) -> PageCount {
        self.max
    }

    /// Returns these limits with the upper limit lowered to the lower limit. This is used when a zone runs out of
    /// large blocks.
    #[must_use]
    pub const fn held_at_min(self) -> Self {
        Self { min: self.min, max: self.min }
    }

    /// Whether pagesets are disabled.
    #[must_use]
    pub const fn is_disabled(self) -> bool {
        self.min.get() == 0
    }

    /// Returns the valid value nearest to `high`, which is zero if pagesets are disabled.
    ///
    /// Code that changes the limits must clamp `high` immediately.
    #[must_use]
    pub fn clamp(self, high: PageCount) -> PageCount {
        if self.is_disabled() { PageCount::ZERO } else { high.clamp(self.min, self.max) }
    }
}

/// Returns how many `order` blocks a refill or drain of `size` frames moves.
///
/// The result is at least one, so that a batch smaller than one block still makes progress.
#[must_use]
pub const fn blocks_of(size: PageCount, order: Order) -> u64 {
    let blocks = size.get() >> order.get();
    if blocks == 0 { 1 } else { blocks }
}

/// Whether a pageset's CPU belongs to the node of its zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuLocality {
    /// The CPU is on the zone's node.
    Local,
    /// The CPU is on another node, or the zone's node has no CPU.
    Remote,
}

/// The number of consecutive ticks for which a pageset was idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdleTicks(u8);

impl IdleTicks {
    /// Number of ticks after which an idle remote pageset drains all its frames.
    const REMOTE: u8 = 3;
    /// Number of ticks after which an idle local pageset drains down to the lower limit.
    const LOCAL: u8 = 2;

    /// Returns an idle time of `ticks` ticks.
    #[must_use]
    pub const fn new(ticks: u8) -> Self {
        Self(ticks)
    }

    /// Returns the number of ticks.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the idle time after one more tick without an allocation or a free.
    #[must_use]
    pub const fn after_tick(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the number of frames that a pageset with `count` frames must drain after this idle time.
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

    /// Returns the surplus after each of five idle ticks.
    fn idle_trace(locality: CpuLocality) -> [u64; 5] {
        let limits = HighLimits::new(pages(252), pages(1000));
        let mut idle = IdleTicks::default();
        core::array::from_fn(|_| {
            idle = idle.after_tick();
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
        let used = IdleTicks::default();
        assert_eq!(used.surplus(CpuLocality::Local, pages(600), limits), PageCount::ZERO);
        let long = IdleTicks::new(u8::MAX).after_tick();
        assert_eq!(long.surplus(CpuLocality::Remote, pages(5), limits), pages(5));
        // A local pageset whose count is below the lower limit drains no frames.
        assert_eq!(long.surplus(CpuLocality::Local, pages(100), limits), PageCount::ZERO);
    }
}
