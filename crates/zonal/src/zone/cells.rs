//! The changing state of a zone, as cells in the metadata.
//!
//! Related files: `zone/mod.rs` has the view of a zone; `zone/fences.rs`, `zone/claims.rs` and `zone/bad_frames.rs` have
//! the operations on their cells.

use crate::platform::Platform;
use crate::platform::cells::all_zero;
use crate::units::ZoneKind;
use crate::zone::counters::{TOTAL_CELLS, ThresholdCells};
use crate::zone::order_classes::OrderClasses;

/// Maximum number of fences in a zone.
pub(crate) const FENCES_MAX: usize = 8;
/// Maximum number of claims in a zone.
pub(super) const CLAIMS_MAX: usize = 8;
/// Maximum number of frames in a zone that wait for their blocks to be freed.
pub(crate) const PENDING_MAX: usize = 64;

all_zero! {
    /// The changing state of a zone, except its free areas, frame states and pagesets. Units are frames unless stated
    /// otherwise.
    ///
    /// Invariants: `min <= low <= high`, and `managed` is the number of frames whose state is not `NotManaged`.
    #[repr(C)]
    pub(crate) struct ZoneCells<P> {
        /// Limits, which every path reads and only changes of settings write.
        pub(super) rules: (line {ZoneRules<P>}),
        /// Lock of the quarantine.
        pub(super) lock: (line lock),
        /// Totals of the zone's counters.
        pub(super) totals: (line [u64; TOTAL_CELLS]),
        /// The reasons to limit pagesets to few frames: the number of reclaims under way, plus the bits of
        /// `Shortness`. All are in one cell, so that a free reads only this cell.
        pub(super) held_down: (line u64),
        /// The last failure of node reclaim for each order class, as words of
        /// `FailedReclaim` (`alloc/failed.rs`).
        pub(crate) reclaim_failed_at: [u64; OrderClasses::COUNT],
        /// Order classes for which the zone may have full bits in a zonelist cache.
        pub(crate) marked: u64,
        /// Number of blocks that have entered quarantine since the start, and number that have left it.
        pub(super) quarantine_in: u64,
        pub(super) quarantine_out: u64,
        /// Frames in quarantine.
        pub(super) quarantine_frames: u64,
        /// Number of searches for a range to empty (`reclaim/by_range.rs`).
        pub(crate) searches: u64,
        pub(super) fences: {FenceCells<P>},
        pub(super) claims: {ClaimCells<P>},
        pub(super) bad_frames: {BadFrameCells<P>},
    }
}

all_zero! {
    #[repr(C)]
    pub(super) struct ZoneRules<P> {
        pub(super) managed: u64,
        /// The watermarks `min`, `low` and `high`.
        pub(super) watermarks: [u64; 3],
        pub(super) reserve: [u64; ZoneKind::COUNT],
        /// Approximate count of free frames below which a check uses the exact count; 0 means never.
        pub(super) drift_mark: u64,
        pub(super) threshold: {ThresholdCells<P>},
        pub(super) batch: u64,
        /// Limits of `pageset.high`: first for CPUs of the zone's node, then for other CPUs.
        pub(super) high_min: [u64; 2],
        pub(super) high_max: [u64; 2],
        /// Number of fences (`zone/fences.rs`); while there are any, the zone's pagesets are closed.
        pub(super) fences: u64,
    }
}

all_zero! {
    /// The fences of a zone.
    ///
    /// Invariants: fences do not overlap; `held` is the number of a fence's frames in state `Fenced`, and 0 for an unused
    /// slot. Only the holder of the lock for run-time changes changes `range`. A free sees a change, because the change is
    /// followed by an acquisition of each area's lock.
    pub(super) struct FenceCells<P> {
        /// Words of ranges (`zone/fences.rs`); 0 is an unused slot. A range is one word, so that a free reads it whole.
        pub(super) range: [u64; FENCES_MAX],
        pub(super) held: [u64; FENCES_MAX],
    }
}

all_zero! {
    /// The claims of a zone.
    ///
    /// Invariants: claims do not overlap, and every frame in state `Claimed` is within a claim. Only the holder of the
    /// lock changes `range`.
    pub(super) struct ClaimCells<P> {
        pub(super) lock: lock,
        /// Words of ranges, as those of fences; 0 is an unused slot.
        pub(super) range: [u64; CLAIMS_MAX],
    }
}

all_zero! {
    /// The bad frames of a zone.
    ///
    /// Invariants while the lock is free: `pending` is the number of entries that are not 0, and a block is watched if
    /// and only if an entry for one of its frames has the block's state.
    pub(super) struct BadFrameCells<P> {
        pub(super) lock: lock,
        /// Words of entries (`zone/bad_frames.rs`); 0 is an unused entry.
        pub(super) entries: [u64; PENDING_MAX],
        pub(super) pending: u64,
        pub(super) retired: u64,
    }
}
