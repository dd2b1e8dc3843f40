//! What a pageset remembers of the last steps, which lets drains grow.
//!
//! Related files: `mod.rs` applies it.

use zonal::rules::pageset_tuning::{HighLimits, PagesetFigures, StepwiseState, ZoneLevel};
use zonal::units::{Order, PageCount};
use zonal_model::pageset_limits::HighRule;

use super::{EarlyDrain, PagesetKernel, lists};

/// The largest shift of the batch in a drain.
pub(super) const SHIFT_MAX: u32 = 5;

/// What a pageset remembers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Growth {
    /// Nothing: every drain has the size of a batch. Linux: before 5.14.
    Plain,
    /// The number of drains since the last allocations, which doubles the batch each time. Linux: 5.14 to 6.6. A kernel
    /// of series 6.1 was observed to stop at [`SHIFT_MAX`]; early ones of 6.0 to 6.6 may go on to what `high` allows.
    Doubling {
        /// The shift.
        factor: u32,
    },
    /// The core's rule. Linux: since 6.7.
    Stepwise {
        /// The rule's state.
        rule: StepwiseState,
        /// Whether the last block that was freed had one of the orders 1 to 3.
        after_higher_order: bool,
    },
}

impl Growth {
    pub(super) fn of(kernel: PagesetKernel) -> Self {
        match kernel.high {
            HighRule::SixBatches => Self::Plain,
            HighRule::LowWatermark => Self::Doubling { factor: 0 },
            HighRule::Tuned => Self::Stepwise { rule: StepwiseState::default(), after_higher_order: false },
        }
    }

    /// Returns the core's rule, if it is the kernel's.
    pub(super) const fn stepwise(&mut self) -> Option<&mut StepwiseState> {
        match self {
            Self::Stepwise { rule, .. } => Some(rule),
            Self::Plain | Self::Doubling { .. } => None,
        }
    }

    pub(super) const fn on_alloc(&mut self) {
        match self {
            Self::Plain => {}
            Self::Doubling { factor } => *factor /= 2,
            Self::Stepwise { rule, .. } => rule.on_pop(),
        }
    }

    /// Takes the free of a block, and returns whether the pageset must be drained although it may not be full.
    pub(super) fn on_free(&mut self, early: EarlyDrain, order: Order, pageset: &PagesetFigures) -> bool {
        let is_higher = order > Order::PAGE && order <= lists::LARGEST;
        match self {
            Self::Plain => false,
            Self::Doubling { factor } => early == EarlyDrain::AfterDrain && is_higher && *factor > 0,
            Self::Stepwise { rule, after_higher_order } => {
                let least = match early {
                    EarlyDrain::AfterHalfMin => pageset.batch.get() + pageset.limits.min().get() / 2,
                    _ => pageset.batch.get(),
                };
                let was = std::mem::replace(after_higher_order, is_higher);
                let is_early =
                    is_higher && was && free_count(*rule) >= least && pageset.count >= pageset.batch;
                rule.on_push(order, pageset.batch);
                is_early
            }
        }
    }

    /// Returns how many frames a drain moves, if it happens at `high`.
    pub(super) fn drain(&mut self, pageset: &PagesetFigures) -> PageCount {
        let PagesetFigures { high, batch, .. } = *pageset;
        match self {
            Self::Stepwise { rule, .. } => rule.drain(pageset, ZoneLevel::Above).size,
            Self::Plain => batch,
            Self::Doubling { .. } if high < batch => PageCount::new(1),
            Self::Doubling { factor } => {
                let most = high.saturating_minus(batch).max(batch);
                let wanted = PageCount::new(batch.get().checked_shl(*factor).unwrap_or(u64::MAX));
                if wanted < most && *factor < SHIFT_MAX {
                    *factor += 1;
                }
                wanted.min(most)
            }
        }
    }
}

/// Returns the number of frames freed in a row, at least 1: a drain is as large if nothing else bounds it.
fn free_count(rule: StepwiseState) -> u64 {
    let pages = PageCount::new(u64::from(u32::MAX));
    let unbounded = PagesetFigures {
        count: pages,
        high: pages,
        batch: PageCount::new(1),
        limits: HighLimits::new(PageCount::new(1), pages),
    };
    rule.drain(&unbounded, ZoneLevel::Above).size.get()
}
