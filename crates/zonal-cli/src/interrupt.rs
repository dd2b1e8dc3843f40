//! Handles Ctrl-C: the first requests an end, the second exits at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Returns a flag that becomes true with the first Ctrl-C (or `SIGTERM`); the second exits with 130.
pub(crate) fn flag_on_interrupt() -> io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the handler that checks the flag must run before the one that sets it, or the
        // first signal would exit.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&interrupted))?;
        flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}
