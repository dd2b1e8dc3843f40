//! The thread that reads the source: once per interval, whatever the number of clients.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::tick::Tick;
use crate::watch::Watch;

/// The newest tick. Its thread ends when this is dropped, after the reading in progress.
pub(crate) struct Ticks {
    newest: watch::Receiver<Arc<Tick>>,
    /// Dropping it stops the thread.
    _stop: mpsc::Sender<()>,
}

impl Ticks {
    /// Returns the newest tick, which changes with each reading.
    pub(crate) fn newest(&self) -> watch::Receiver<Arc<Tick>> {
        self.newest.clone()
    }
}

/// Starts to read once per interval.
///
/// # Errors
/// When the system has no thread.
pub(crate) fn start(mut watch: Watch, interval: Duration) -> io::Result<Ticks> {
    let (sender, newest) = watch::channel(Arc::new(Tick::first(&watch, interval)));
    let (stop, stopped) = mpsc::channel::<()>();
    let run = move || {
        let mut next = Instant::now() + interval;
        loop {
            let wait = next.saturating_duration_since(Instant::now());
            if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            watch.tick();
            sender.send_modify(|tick| *tick = Arc::new(tick.next(&watch)));
            // Readings that a slow source has missed are not repeated.
            next = (next + interval).max(Instant::now());
        }
    };
    thread::Builder::new().name("zonal-ticker".to_owned()).spawn(run)?;
    Ok(Ticks { newest, _stop: stop })
}
