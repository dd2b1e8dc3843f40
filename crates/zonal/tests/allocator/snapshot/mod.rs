//! Tests of the text that snapshots print.

mod formats;
