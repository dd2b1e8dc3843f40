//! The command whose run is recorded.
//!
//! Related files: `record/mod.rs` starts it once tracing is on.

use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::TraceError;

/// How long a command may take to end after `SIGTERM`.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks at a command.
const PERIOD: Duration = Duration::from_millis(20);

/// A running command.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    status: Option<ExitStatus>,
}

impl Running {
    /// Starts a command with the standard streams of this process.
    pub(super) fn start(words: &[OsString]) -> Result<Option<Self>, TraceError> {
        let Some((program, arguments)) = words.split_first() else { return Ok(None) };
        match Command::new(program).args(arguments).spawn() {
            Ok(child) => Ok(Some(Self { child, status: None })),
            Err(source) => {
                Err(TraceError::Command { command: program.to_string_lossy().into_owned(), source })
            }
        }
    }

    /// Returns the exit status if the command has ended.
    pub(super) fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits for the end of the command. After an interrupt the command gets `SIGTERM`, and is left running if it does not end.
    pub(super) fn wait(&mut self, interrupted: &AtomicBool) -> Option<ExitStatus> {
        let mut asked: Option<Instant> = None;
        while self.status().is_none() {
            // Relaxed: the flag carries no other data.
            if asked.is_none() && interrupted.load(Ordering::Relaxed) {
                let process = Pid::from_child(&self.child);
                let _ = kill_process(process, Signal::TERM);
                asked = Some(Instant::now());
            }
            if asked.is_some_and(|asked| asked.elapsed() > PATIENCE) {
                break;
            }
            thread::sleep(PERIOD);
        }
        self.status
    }
}
