//! A pool that publishes itself on a Unix socket, where other programs of the same user read its state and settings.
//!
//! A client sends one request as a line of JSON, receives one line, and the connection ends. All members are in
//! `publish/answer.rs` and `publish/explain.rs`. One thread serves the clients in turn, each for at most a few seconds, so a client that does not
//! read or write delays other clients but never the pool.

mod answer;
mod error;
mod explain;
mod server;
mod socket;

use std::mem;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::memory::origin::Origin;
use crate::memory::shared_file::beyond_streams;
use crate::pool::{Pool, Recording};
use crate::sequences::resident::stays_in_memory;
use crate::threads::start::Thread;
pub use answer::PROTOCOL_VERSION;
pub use error::PublishError;
use socket::OwnSocket;
pub use socket::publisher_has_ended;

/// A published pool. Dropping it ends the thread and removes the socket; it holds a handle to the pool until then.
///
/// In a child made by `fork`, dropping it does nothing, and the child's copy of the pool stays mapped.
#[derive(Debug)]
pub struct Publication {
    origin: Origin,
    socket: OwnSocket,
    /// Shut down to stop the thread.
    stop: UnixStream,
    thread: Option<Thread>,
    _recording: Recording,
    pool: Pool,
}

impl Pool {
    /// Publishes the pool on a Unix socket at `path`, which only this user and the superuser can use.
    ///
    /// `zonal top --pool PATH` and `zonal serve --pool PATH` show the pool, `zonal settings --pool PATH` its settings, and
    /// `zonal set --pool PATH NAME=VALUE` changes them. `zonal explain --pool PATH` explains a request in its present state.
    ///
    /// While it is published, the pool keeps the last 256 requests that failed, stalled in direct reclaim, or were served by
    /// another node than the preferred one, for `zonal explain --pool PATH --recent`. A request that a pageset serves without
    /// a refill is not kept.
    ///
    /// A socket that an ended program left at `path` is replaced. The path must be at most 107 bytes long.
    ///
    /// ```
    /// # use std::io::{BufRead, BufReader, Write};
    /// # use std::os::unix::net::UnixStream;
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("pool");
    /// let pool = zonal_linux::Pool::builder().size(64 << 20).build()?;
    /// let published = pool.publish(&path)?;
    /// let mut client = UnixStream::connect(&path)?; // another program, usually `zonal`
    /// client.write_all(b"{\"zonal\": 1, \"request\": \"settings\"}\n")?;
    /// let mut answer = String::new();
    /// BufReader::new(client).read_line(&mut answer)?;
    /// assert!(answer.contains("min_free_kbytes"));
    /// drop(published); // removes the socket
    /// assert!(!path.exists());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When something other than an old socket of this user is at `path`, when a program listens there, and when the
    /// system refuses the socket or the thread. Nothing has changed then.
    pub fn publish(&self, path: impl AsRef<Path>) -> Result<Publication, PublishError> {
        let path = path.as_ref();
        let refused = |why| PublishError::Thread { path: path.to_path_buf(), why };
        let socket = OwnSocket::listen(path)?;
        let listener = socket.listener();
        let (stop, stopped) = UnixStream::pair().map_err(refused)?;
        let [stop, stopped] = [stop, stopped].map(beyond_streams);
        let (stop, stopped) = (stop.map_err(refused)?, stopped.map_err(refused)?);
        stays_in_memory();
        let (pool, recording) = (self.clone(), self.record_requests());
        let serve = move || server::serve(&pool, &listener, &stopped);
        let thread = Thread::start("zonal-publish", serve).map_err(refused)?;
        let origin = Origin::here();
        let (thread, pool) = (Some(thread), self.clone());
        let published = Publication { origin, socket, stop, thread, _recording: recording, pool };
        self.report_published(path); // after the thread has an owner, because a subscriber may panic
        Ok(published)
    }
}

impl Pool {
    /// Returns the state of the pool as JSON, as clients of [`Pool::publish`] receive it in `snapshot`: `schema`, the
    /// accounting of all zones, the values of settings, zones, nodes, pagesets and events. Counts are in frames.
    ///
    /// ```
    /// let pool = zonal_linux::Pool::builder().size(64 << 20).build()?;
    /// let snapshot: serde_json::Value = serde_json::from_str(&pool.snapshot_json())?;
    /// assert_eq!(snapshot["page_bytes"], 4096);
    /// assert!(snapshot["zones"][0]["free"].as_u64() > Some(0));
    /// assert_eq!(snapshot["accounting"]["allocated"], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn snapshot_json(&self) -> String {
        answer::snapshot(self)
    }
}

impl Publication {
    /// Returns the absolute path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.socket.path()
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The thread and the socket belong to the parent.
            mem::forget(self.thread.take());
            self.socket.leave();
            return;
        }
        // A child may have copies of the descriptors, so closing this one would not stop the thread.
        self.stop.shutdown(Shutdown::Both).unwrap_or(());
        self.pool.recheck_stopped();
        // A panic of the thread has been reported already.
        self.thread.take().into_iter().for_each(Thread::join);
    }
}
