//! Ranges of frames, and the limits of a machine's description.
//!
//! Related files: `machine.rs` describes machines with ranges, and `machine/error.rs` displays the limits in errors.

use core::fmt;

use crate::units::{MAX_ORDER_LIMIT, Order, PageCount, Pfn};

/// Distance of a node to itself, in the units of the ACPI System Locality Information Table (SLIT).
pub const LOCAL_DISTANCE: u8 = 10;

/// Maximum number of frames that one zone can span, which is 16 TiB of 4 KiB frames.
///
/// The frames are counted from the last multiple of `2^18` at or before the zone's first frame. The reason for
/// the limit is that the allocator numbers the frames of a zone with 32 bits.
///
/// Memory that spans more frames must be described as several zones of one kind; [`FrameRange::zone_spans`] computes
/// their spans. On targets with 32-bit addresses the limit is `2^30`, because the metadata of more frames would not
/// fit.
pub const ZONE_FRAMES_MAX: u64 = if usize::BITS < u64::BITS { 1 << 30 } else { 1 << 32 };

/// A range of consecutive frames.
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
        // The end of a range in an error may exceed `u64::MAX`.
        match (count, start.get().checked_add(count.saturating_sub(1))) {
            (0, _) => write!(f, "no frames from frame {start}"),
            (1, _) => write!(f, "frame {start}"),
            (_, Some(last)) => write!(f, "frames {start}-{last}"),
            (_, None) => write!(f, "{count} frames from frame {start}"),
        }
    }
}

impl FrameRange {
    /// Returns the frame after the last frame.
    #[must_use]
    pub const fn end(&self) -> Pfn {
        self.start.plus(self.count)
    }

    /// Whether this range contains `frame`.
    #[inline]
    #[must_use]
    pub const fn contains_frame(&self, frame: Pfn) -> bool {
        matches!(frame.get().checked_sub(self.start.get()), Some(offset) if offset < self.count.get())
    }

    /// Whether this range contains all of `other`.
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

    /// Splits the range into aligned blocks, ascending: at each frame the largest block that is aligned, lies within the
    /// range and has at most order `max`. Returns the first frame and the order of each.
    ///
    /// These are the blocks into which [`Allocator::split_frames`](crate::Allocator::split_frames) splits the range.
    pub fn blocks(&self, max: Order) -> impl Iterator<Item = (Pfn, Order)> + Clone + use<> {
        let (mut at, mut left) = (self.start.get(), self.count.get());
        core::iter::from_fn(move || {
            let longest = left.checked_ilog2()?;
            let fits = longest.min(at.trailing_zeros()).min(max.get().into());
            let block = (Pfn::new(at), Order::new(fits as u8)?);
            left -= 1 << fits;
            at = at.wrapping_add(1 << fits); // beyond the largest frame number only after the last block
            Some(block)
        })
    }

    /// Splits the range into spans that are small enough for one zone each, in ascending order.
    ///
    /// The result is the range itself if it is small enough. Otherwise the range is split at multiples of
    /// [`ZONE_FRAMES_MAX`].
    ///
    /// To describe memory that is too large for one zone, split its span with this function, intersect the managed
    /// ranges with each part ([`FrameRange::intersection`]), and describe the parts as zones of the same node and
    /// kind. The split cuts no block in two, because blocks are aligned and have at most `2^18` frames. The result
    /// omits frames beyond the largest frame number.
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

/// Whether one zone can span the range with any largest order.
///
/// The allocator numbers a zone's frames from a multiple of the largest possible block.
pub(super) fn fits_in_zone(range: &FrameRange) -> bool {
    let lead = range.start.get() % (1 << MAX_ORDER_LIMIT);
    range.count.get().checked_add(lead).is_some_and(|frames| frames <= ZONE_FRAMES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_in_a_range_like_ranges_of_one_frame() {
        let near_end = u64::MAX - 1;
        for (start, count) in [(5, 0), (5, 3), (0, 1), (near_end, 1), (near_end, 10)] {
            let range = FrameRange { start: Pfn::new(start), count: PageCount::new(count) };
            for frame in [0, 3, 4, 5, 7, 8, near_end - 1, near_end, u64::MAX].map(Pfn::new) {
                let alone = FrameRange { start: frame, count: PageCount::new(1) };
                assert_eq!(range.contains_frame(frame), range.contains(&alone), "{frame} in {range}");
            }
        }
    }
}
