//! Runs of frames, and the limits of a machine's description.
//!
//! Neighbours: `machine.rs` describes machines with these, `machine/error.rs` displays them.

use core::fmt;

use crate::units::{MAX_ORDER_LIMIT, PageCount, Pfn};

/// Distance of a node to itself, in the units of the ACPI SLIT.
pub const LOCAL_DISTANCE: u8 = 10;

/// Most frames that one zone can span, counted from the last multiple of `2^18` at or before its first frame: 16
/// TiB of 4 KiB frames. The frames of a zone are numbered in 32 bits.
///
/// Memory that spans more must be described as several zones of one kind; [`FrameRange::zone_spans`] returns their
/// spans. On targets with 32-bit addresses the limit is `2^30`, because the metadata of more frames would not fit.
pub const ZONE_FRAMES_MAX: u64 = if usize::BITS < u64::BITS { 1 << 30 } else { 1 << 32 };

/// A run of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRange {
    /// First frame.
    pub start: Pfn,
    /// Number of frames.
    pub count: PageCount,
}

/// Displays the first and the last frame: `frames 4096-8191`.
impl fmt::Display for FrameRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, count) = (self.start, self.count.get());
        // A range in an error may end beyond `u64::MAX`.
        match (count, start.get().checked_add(count.saturating_sub(1))) {
            (0, _) => write!(f, "no frames from frame {start}"),
            (1, _) => write!(f, "frame {start}"),
            (_, Some(last)) => write!(f, "frames {start}-{last}"),
            (_, None) => write!(f, "{count} frames from frame {start}"),
        }
    }
}

impl FrameRange {
    /// Returns the frame after the last.
    #[must_use]
    pub const fn end(&self) -> Pfn {
        self.start.plus(self.count)
    }

    /// Whether all of `other` lies in this range.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        // Compare offsets, because the end of `other` may exceed `u64::MAX`.
        let offset = other.start.offset_from(self.start);
        offset
            .is_some_and(|offset| offset <= self.count && other.count <= self.count.saturating_minus(offset))
    }

    /// Returns the frames that are in both ranges, or `None` if there are none.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let start = self.start.max(other.start);
        // The end of a range may exceed `u64::MAX`.
        let rest = |of: &Self| of.count.saturating_minus(start.offset_from(of.start).unwrap_or_default());
        let count = rest(self).min(rest(other));
        (count != PageCount::ZERO).then_some(Self { start, count })
    }

    /// Splits the range into spans that one zone each can have, in ascending order: the range itself if it is
    /// small enough, otherwise split at multiples of [`ZONE_FRAMES_MAX`].
    ///
    /// Split a span this way, intersect the managed ranges with each part ([`FrameRange::intersection`]), and
    /// describe the parts as zones of the same node and kind. No block is split, because the largest is `2^18`
    /// frames. Frames beyond the largest frame number are omitted.
    pub fn zone_spans(&self) -> impl Iterator<Item = Self> + Clone + use<> {
        let last_count = PageCount::new(u64::MAX - self.start.get());
        let mut rest = Self { start: self.start, count: self.count.min(last_count) };
        let fits = fits_in_zone(self);
        core::iter::from_fn(move || {
            let left = if fits { u64::MAX } else { ZONE_FRAMES_MAX - rest.start.get() % ZONE_FRAMES_MAX };
            let part = Self { start: rest.start, count: rest.count.min(PageCount::new(left)) };
            if part.count == PageCount::ZERO {
                return None;
            }
            rest = Self { start: part.end(), count: rest.count.saturating_minus(part.count) };
            Some(part)
        })
    }
}

/// Whether one zone can span the range, whatever its largest order. Frames are numbered from a multiple of the
/// largest possible block.
pub(super) fn fits_in_zone(range: &FrameRange) -> bool {
    let lead = range.start.get() % (1 << MAX_ORDER_LIMIT);
    range.count.get().checked_add(lead).is_some_and(|frames| frames <= ZONE_FRAMES_MAX)
}
