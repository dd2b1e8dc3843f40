//! The errors of splits.
//!
//! Related files: `ranges/runs.rs` splits blocks and runs.

use core::fmt;

use crate::error::FreeError;
use crate::units::{Order, Pfn};

/// Reason for a refused split, which has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitError {
    /// The parts would not be smaller than the block.
    NotLower {
        /// First frame of the block.
        frame: Pfn,
        /// Order of the block.
        order: Order,
        /// Order of the parts.
        to: Order,
    },
    /// No such block or run is allocated; contains the error that its free would return.
    NotAllocated(FreeError),
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLower { frame, order, to } => write!(
                f,
                "the block of order {order} at frame {frame} cannot be split into parts of order {to}; the order of \
                 the parts must be lower"
            ),
            Self::NotAllocated(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for SplitError {}
