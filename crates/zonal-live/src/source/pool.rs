//! A program's pool that publishes itself on a Unix socket.
//!
//! Each question is one connection: a line of JSON to the program, and a line back. Related file: `snapshot.rs` has the
//! members of a snapshot.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use zonal_linux::PROTOCOL_VERSION;
use zonal_machine::Excerpt;
use zonal_machine::state::Clock;

use super::snapshot::Snapshot;
use super::{Source, SourceError};
use crate::sample::Sample;

/// Time for a question and its answer, after which the pool counts as silent. The pool serves its clients in turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of an answer, which is far above what a snapshot with thousands of CPUs needs.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Bytes that are read at once.
const PART_BYTES: usize = 256 << 10;
/// Pause before another attempt to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// A published pool.
#[derive(Debug)]
pub struct PoolSource {
    path: PathBuf,
    clock: Clock,
}

impl PoolSource {
    /// Opens the socket at `path` when it reads.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, clock: Clock::start() }
    }
}

impl Source for PoolSource {
    fn title(&self) -> String {
        format!("the pool at {}", super::shown(&self.path))
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        let found: Snapshot = ask(&self.path, "snapshot", Value::Object(serde_json::Map::new()))?;
        let mut sample =
            found.sample().map_err(|why| SourceError::NotAPool { path: self.path.clone(), why })?;
        self.clock.stamp(&mut sample);
        Ok(sample)
    }
}

/// Sends a request with the members of `request`, and returns the member of the answer that has the request's name.
///
/// # Errors
/// When the program cannot be asked, or refuses.
pub fn ask<T: DeserializeOwned>(path: &Path, name: &str, mut request: Value) -> Result<T, SourceError> {
    request["zonal"] = PROTOCOL_VERSION.into();
    request["request"] = name.into();
    let answer = exchange(path, &request, PATIENCE).map_err(|error| refused(path, error))?;
    let wrong = |why: String| SourceError::NotAPool { path: path.to_path_buf(), why: shortened(why) };
    if answer.len() as u64 > ANSWER_BYTES_MAX {
        return Err(wrong(format!("the answer is longer than {} MiB", ANSWER_BYTES_MAX >> 20)));
    }
    let mut answer: Answer<'_> = serde_json::from_slice(&answer).map_err(|error| wrong(error.to_string()))?;
    if let Some(error) = answer.remove("error") {
        let error: String = serde_json::from_str(error.get()).map_err(|error| wrong(error.to_string()))?;
        return Err(SourceError::Refused(shortened(error)));
    }
    if answer.remove("zonal").map(RawValue::get) != Some(&PROTOCOL_VERSION.to_string()) {
        return Err(wrong(format!("the version of its answers is not {PROTOCOL_VERSION}")));
    }
    let part = answer.remove(name).ok_or_else(|| wrong(format!("the answer has no member {name}")))?;
    serde_json::from_str(part.get()).map_err(|error| wrong(error.to_string()))
}

/// The members of an answer, which are not parsed until their types are known.
type Answer<'a> = HashMap<String, &'a RawValue>;

/// Returns the first line of the answer, or what is longer than an answer may be.
fn exchange(path: &Path, request: &Value, patience: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + patience;
    let mut pool = connect(path, deadline)?;
    pool.set_write_timeout(Some(patience))?;
    pool.write_all(format!("{request}\n").as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), vec![0; PART_BYTES]);
    loop {
        pool.set_read_timeout(Some(left(deadline)?))?;
        let read = match pool.read(&mut part) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        answer.extend_from_slice(&part[..read]);
        if read == 0 || part[..read].contains(&b'\n') || answer.len() as u64 > ANSWER_BYTES_MAX {
            return Ok(answer);
        }
    }
}

/// Connects to a socket. The kernel queues few connections, and a blocking one would wait for a place without a limit.
fn connect(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN | Errno::INTR) => thread::sleep(left(deadline)?.min(PAUSE)),
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    if zonal_linux::publisher_has_ended(&stream) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns the time that is left, or an error if there is none.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Returns a text of another program without control characters, and not longer than a line.
fn shortened(text: String) -> String {
    Excerpt::line(text).to_string()
}

fn refused(path: &Path, why: io::Error) -> SourceError {
    let path = path.to_path_buf();
    match why.kind() {
        io::ErrorKind::NotFound => SourceError::NoSocket(path),
        io::ErrorKind::ConnectionRefused if !is_socket(&path) => SourceError::NotASocket(path),
        io::ErrorKind::ConnectionRefused => SourceError::NoPool(path),
        io::ErrorKind::PermissionDenied => SourceError::Denied(path),
        io::ErrorKind::InvalidInput => SourceError::NotASocket(path),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            SourceError::Silent { path, seconds: PATIENCE.as_secs() }
        }
        _ if why.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error()) => SourceError::TooLong(path),
        _ => SourceError::Exchange { path, why },
    }
}

fn is_socket(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::sample::{Counter, ZoneSample};
    use zonal_linux::Pool;

    #[test]
    fn a_pool_that_publishes_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let pool = Pool::builder().size(64 << 20).fake_nodes(2).build().unwrap();
        let held: Vec<_> = (0..100).map(|_| pool.alloc(&zonal_linux::PoolRequest::page()).unwrap()).collect();
        let _published = pool.publish(&path).unwrap();
        let sample = PoolSource::new(path).read().unwrap();
        assert_eq!(sample.page_bytes, 4096);
        let program = sample.program.unwrap();
        assert!(program.ends_with(&format!("({})", std::process::id())), "{program}");
        assert!(sample.zones.iter().all(|zone| zone.reserve.len() == 4));
        assert_eq!(sample.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 1]);
        let used: u64 = sample.zones.iter().map(ZoneSample::used).sum();
        assert!(used >= held.len() as u64, "{used}");
        let locality = sample.zones.iter().filter_map(|zone| zone.locality);
        let hits: u64 = locality.map(|locality| locality.hit).sum();
        assert!(hits >= 100, "{hits}");
        assert!(sample.totals.get(Counter::Refills) > Some(0));
        assert!(sample.zones.iter().all(|zone| zone.free_blocks.len() == 11 && zone.high > zone.min));
        assert!(sample.pagesets.iter().any(|pageset| pageset.count > 0 && pageset.zone < sample.zones.len()));
    }

    #[test]
    fn what_is_not_a_pool_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let read = || PoolSource::new(path.clone()).read().unwrap_err();
        assert!(matches!(read(), SourceError::NoSocket(_)));
        for (answer, why) in [
            ("hello\n", "expected value"),
            ("{\"zonal\": 1}\n", "no member snapshot"),
            ("{\"zonal\": 2, \"snapshot\": {}}\n", "version"),
            ("{\"zonal\": 1, \"snapshot\": {\"page_bytes\": 1}}\n", "missing field"),
            ("{\"zonal\": 1, \"error\": \"no such request\"}\n", "no such request"),
            ("", "EOF"),
        ] {
            let listener = UnixListener::bind(&path).unwrap();
            let server = thread::spawn(move || {
                let (mut client, _) = listener.accept().unwrap();
                assert!(client.read(&mut [0; 1000]).unwrap() > 0);
                client.write_all(answer.as_bytes()).unwrap();
            });
            let error = read().to_string();
            server.join().unwrap();
            assert!(error.contains(why), "{answer}: {error}");
            assert!(matches!(read(), SourceError::NoPool(_)), "the socket that an ended program left");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_program_that_sends_too_slowly_is_silent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slow");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            while client.write_all(b"{").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let error = exchange(&path, &Value::Null, Duration::from_millis(100)).unwrap_err();
        assert!(matches!(refused(&path, error), SourceError::Silent { .. }));
        server.join().unwrap();
    }

    #[test]
    fn a_program_that_accepts_no_connection_is_silent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full");
        let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        net::listen(&socket, 0).unwrap();
        let soon = || Instant::now() + Duration::from_millis(50);
        let clients: Vec<_> = std::iter::from_fn(|| connect(&path, soon()).ok()).take(1000).collect();
        assert!(clients.len() < 1000, "the queue has no end");
        let error = connect(&path, soon()).unwrap_err();
        assert!(matches!(refused(&path, error), SourceError::Silent { .. }));
    }

    #[test]
    fn paths_without_a_socket_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [file.as_path(), folder.path()] {
            let error = PoolSource::new(path.to_path_buf()).read().unwrap_err();
            assert!(error.is_bad_input(), "{error}");
            assert!(matches!(error, SourceError::NotASocket(_) | SourceError::NoSocket(_)), "{error}");
        }
        for bytes in [110, 5000] {
            let error = PoolSource::new("x/".repeat(bytes / 2).into()).read().unwrap_err();
            assert!(error.is_bad_input(), "{error}");
            let expected = format!("has {bytes} bytes; the path of a socket has at most 107");
            assert!(error.to_string().ends_with(&expected), "{error}");
        }
        let error = PoolSource::new(format!("{}x", "x/".repeat(53)).into()).read().unwrap_err();
        assert!(matches!(error, SourceError::NoSocket(_)), "107 bytes are possible: {error}");
    }
}
