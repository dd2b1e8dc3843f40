//! The errors of splits.
//!
//! Related files: `ranges/runs.rs` splits blocks and runs.

use crate::error::FreeError;
use crate::units::{Order, Pfn};

messages! {
    /// Reason for a refused split, which has changed nothing.
    pub enum SplitError: core::error::Error {
        /// The parts would not be smaller than the block.
        NotLower {
            /// First frame of the block.
            frame: Pfn,
            /// Order of the block.
            order: Order,
            /// Order of the parts.
            to: Order,
        } =>
            "the block of order {order} at frame {frame} cannot be split into parts of order {to}; the order of the \
             parts must be lower",
        /// No such block or run is allocated; contains the error that its free would return.
        NotAllocated(error: FreeError) => "{error}",
    }
}
