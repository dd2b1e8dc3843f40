//! The thread that reads the source: once per interval, whatever the number of clients. A reading that does not end makes
//! the newest tick one with a problem.

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
    newest: watch::Sender<Arc<Tick>>,
    /// Dropping it stops the thread.
    _stop: mpsc::Sender<()>,
}

impl Ticks {
    /// Returns the newest tick, which changes with each reading.
    pub(crate) fn newest(&self) -> watch::Receiver<Arc<Tick>> {
        self.newest.subscribe()
    }

    /// Replaces the newest tick by one with a problem whenever a reading is overdue; has no end.
    pub(crate) async fn report_overdue(&self) {
        let mut newest = self.newest.subscribe();
        loop {
            let left = newest.borrow_and_update().overdue_in();
            let changed = newest.changed();
            let in_time = match left {
                Some(left) => tokio::time::timeout(left, changed).await.is_ok(),
                None => changed.await.is_ok(),
            };
            if !in_time {
                self.newest.send_if_modified(|tick| {
                    let is_overdue = tick.overdue_in().is_some_and(|left| left.is_zero());
                    if is_overdue {
                        *tick = Arc::new(tick.overdue());
                    }
                    is_overdue
                });
            }
        }
    }
}

/// Starts to read once per interval. A reading is overdue after the interval and `patience`.
///
/// # Errors
/// When the system has no thread.
pub(crate) fn start(mut watch: Watch, interval: Duration, patience: Duration) -> io::Result<Ticks> {
    let newest = watch::Sender::new(Arc::new(Tick::first(&watch, interval, patience)));
    let sender = newest.clone();
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
