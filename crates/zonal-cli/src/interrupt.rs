//! Handles Ctrl-C. The first Ctrl-C requests the end of the command; the second exits immediately.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Returns a flag that becomes true with the first Ctrl-C (or `SIGTERM`). The second one ends the process with exit
/// code 130.
pub(crate) fn flag_on_interrupt() -> io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order of registration matters. The handler that exits if the flag is set must run before the handler
        // that sets the flag; otherwise the first signal would already exit.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&interrupted))?;
        flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Returns a flag that becomes true with the first Ctrl-C (or `SIGTERM`), and later ones do nothing more. It is for commands
/// that must clean up and need little time for that.
pub(crate) fn flag_without_exit() -> io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}
