//! Fence and frame retirement errors.
//!
//! Related files: `ranges/fences.rs` fences ranges, `ranges/retire.rs` retires frames.

use crate::error::online::OnlineError;
use crate::machine::FrameRange;
use crate::units::Pfn;

messages! {
    /// Reason why a range was not fenced.
    pub enum FenceError: core::error::Error {
        /// The range is empty or does not lie within one zone.
        NotInZone(error: OnlineError) => "{error}",
        /// This frame of the range is not online.
        NotOnline(frame: Pfn) => "frame {frame} is not online; all frames of a fenced range must be online",
        /// The range overlaps another fence.
        Overlaps {
            /// The range.
            range: FrameRange,
            /// The range of the other fence.
            fenced: FrameRange,
        } => ("{}", OnlineError::Fenced { range, fenced }),
        /// The zone has as many fences as it can have.
        TooMany {
            /// The range.
            range: FrameRange,
            /// Maximum number of fences in a zone.
            max: usize,
        } => ("{}", OnlineError::TooManyFences { range, max }),
        /// The call comes from a handler that interrupted its own thread inside the allocator. It could not complete without
        /// waiting for that thread. The value is the first frame of the range.
        Reentered(frame: Pfn) => ("{}", OnlineError::Reentered(frame)),
    }

    /// Reason why a frame was not retired.
    pub enum RetireError: core::error::Error {
        /// The frame is not managed by the allocator, or offline.
        NotManaged(frame: Pfn) => "frame {frame} cannot be retired, because the allocator does not manage it",
        /// The frame is in use, and its zone has as many frames that wait to be freed as it can have.
        TooMany {
            /// The frame.
            frame: Pfn,
            /// Maximum number of these frames.
            max: usize,
        } =>
            "frame {frame} is in use, and {max} frames of its zone, the maximum, already wait to be freed; free the \
             blocks with these frames first",
        /// Other threads allocated and freed the frame at each attempt.
        Changing(frame: Pfn) =>
            "frame {frame} was allocated and freed at each attempt to retire it; repeat the call",
        /// The call comes from a handler that interrupted its own thread inside the allocator.
        Reentered(frame: Pfn) =>
            "frame {frame} is retired by a signal or interrupt handler that interrupted its own thread inside the \
             allocator, and would have to wait for that thread; retire it later",
        /// Processes share the allocator ([`Config::processes`](crate::Config::processes)), which cannot retire frames.
        Shared(frame: Pfn) => "frame {frame} cannot be retired, because processes share the allocator",
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
