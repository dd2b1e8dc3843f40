//! Fence and frame retirement errors.
//!
//! Related files: `ranges/fences.rs` fences ranges, `ranges/retire.rs` retires frames.

use core::fmt;

use crate::error::online::OnlineError;
use crate::machine::FrameRange;
use crate::units::Pfn;

/// Reason why a range was not fenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceError {
    /// The range is empty or does not lie within one zone.
    NotInZone(OnlineError),
    /// This frame of the range is not online.
    NotOnline(Pfn),
    /// The range overlaps another fence.
    Overlaps {
        /// The range.
        range: FrameRange,
        /// The range of the other fence.
        fenced: FrameRange,
    },
    /// The zone has as many fences as it can have.
    TooMany {
        /// The range.
        range: FrameRange,
        /// Maximum number of fences in a zone.
        max: usize,
    },
    /// The call comes from a handler that interrupted its own thread inside the allocator. It could not complete without
    /// waiting for that thread. The value is the first frame of the range.
    Reentered(Pfn),
}

/// Reason why a frame was not retired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetireError {
    /// The frame is not managed by the allocator, or offline.
    NotManaged(Pfn),
    /// The frame is in use, and its zone has as many frames that wait to be freed as it can have.
    TooMany {
        /// The frame.
        frame: Pfn,
        /// Maximum number of these frames.
        max: usize,
    },
    /// Other threads allocated and freed the frame at each attempt.
    Changing(Pfn),
    /// The call comes from a handler that interrupted its own thread inside the allocator.
    Reentered(Pfn),
    /// Processes share the allocator ([`Config::processes`](crate::Config::processes)), which cannot retire frames.
    Shared(Pfn),
}

impl fmt::Display for FenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInZone(error) => error.fmt(f),
            Self::NotOnline(frame) => {
                write!(f, "frame {frame} is not online; all frames of a fenced range must be online")
            }
            &Self::Overlaps { range, fenced } => OnlineError::Fenced { range, fenced }.fmt(f),
            &Self::TooMany { range, max } => OnlineError::TooManyFences { range, max }.fmt(f),
            &Self::Reentered(frame) => OnlineError::Reentered(frame).fmt(f),
        }
    }
}

impl fmt::Display for RetireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotManaged(frame) => {
                write!(f, "frame {frame} cannot be retired, because the allocator does not manage it")
            }
            Self::TooMany { frame, max } => write!(
                f,
                "frame {frame} is in use, and {max} frames of its zone, the maximum, already wait to be freed; free \
                 the blocks with these frames first"
            ),
            Self::Changing(frame) => {
                write!(
                    f,
                    "frame {frame} was allocated and freed at each attempt to retire it; repeat the call"
                )
            }
            Self::Shared(frame) => {
                write!(f, "frame {frame} cannot be retired, because processes share the allocator")
            }
            Self::Reentered(frame) => write!(
                f,
                "frame {frame} is retired by a signal or interrupt handler that interrupted its own thread inside the \
                 allocator, and would have to wait for that thread; retire it later"
            ),
        }
    }
}

impl From<FenceError> for OnlineError {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::NotInZone(error) => error,
            FenceError::NotOnline(frame) => Self::NotOnline(frame),
            FenceError::Overlaps { range, fenced } => Self::Fenced { range, fenced },
            FenceError::TooMany { range, max } => Self::TooManyFences { range, max },
            FenceError::Reentered(frame) => Self::Reentered(frame),
        }
    }
}

impl core::error::Error for FenceError {}
impl core::error::Error for RetireError {}
