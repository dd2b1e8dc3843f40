//! Checks `zonal top`: in a pseudo-terminal, and as scripts call it.
//!
//! Related files: `pty.rs` starts programs in a pseudo-terminal, `terminal.rs` checks the view there, `sources.rs`
//! checks it while its source fails, and `scripts.rs` checks `--once`, `--json` and errors.

mod pty;
mod scripts;
mod sources;
mod terminal;
