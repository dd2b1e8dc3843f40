//! What a snapshot prints.

mod formats;
