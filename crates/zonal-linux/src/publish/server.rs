//! The thread that serves the clients of a published pool, one at a time.

use std::ffi::c_int;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use super::answer::{answer, refusal};
use super::socket::may_ask;
use crate::memory::pool_socket;
use crate::memory::shared_file::beyond_streams;
use crate::pool::Pool;

/// Maximum length of a request.
const REQUEST_BYTES_MAX: usize = 4096;
/// Time within which a client must send its request, and within which it must accept each part of the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for the whole answer.
const PATIENCE_IN_TOTAL: Duration = Duration::from_secs(5);
/// Pause after the system refused a connection, for example because the process has too many open files.
const REST: Duration = Duration::from_millis(100);

/// Serves clients until the other end of `stopped` is shut down.
pub(super) fn serve(pool: &Pool, listener: &UnixListener, stopped: &UnixStream) {
    let _counted = pool.count_thread();
    while let Ok(true) = wait(listener, stopped) {
        match listener.accept().and_then(|(client, _)| beyond_streams(client)) {
            // A client that fails receives no answer, and others are served.
            Ok(client) => converse(pool, client, stopped).unwrap_or(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => thread::sleep(REST),
        }
    }
}

/// Whether the thread must end.
fn must_end(stopped: &UnixStream) -> bool {
    poll([stopped.as_raw_fd()], 0).is_ok_and(|[ends]| ends)
}

/// Waits for a client. Returns `false` when the thread must end.
fn wait(listener: &UnixListener, stopped: &UnixStream) -> io::Result<bool> {
    poll([listener.as_raw_fd(), stopped.as_raw_fd()], -1).map(|[_, ends]| !ends)
}

/// Waits at most `milliseconds`, or without a limit if it is negative, until one of the open descriptors has input or an
/// end. Returns which ones have.
fn poll<const N: usize>(descriptors: [RawFd; N], milliseconds: c_int) -> io::Result<[bool; N]> {
    let mut wanted = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: the call reads and writes the `N` elements.
        if unsafe { libc::poll(wanted.as_mut_ptr(), N as libc::nfds_t, milliseconds) } >= 0 {
            return Ok(wanted.map(|one| one.revents != 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Reads a request, answers it, and ends the connection.
fn converse(pool: &Pool, mut client: UnixStream, stopped: &UnixStream) -> io::Result<()> {
    let served = if may_ask(&client) { serve_client(pool, &mut client, stopped) } else { Ok(()) };
    // Closing the descriptor is not enough: a child that was forked meanwhile has a copy of it.
    client.shutdown(Shutdown::Both).and(served)
}

fn serve_client(pool: &Pool, client: &mut UnixStream, stopped: &UnixStream) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let (answer, has_file) = match read_request(client)? {
        Some(request) => match pool.at_work(|| must_end(stopped), || answer(pool, &request)) {
            Some(answer) => answer,
            None => return Ok(()),
        },
        None => (refusal("the request is longer than 4096 bytes"), false),
    };
    let (mut rest, until) = (answer.as_bytes(), Instant::now() + PATIENCE_IN_TOTAL);
    if let Some(file) = pool.shared_file().filter(|_| has_file) {
        rest = &rest[pool_socket::send(client, rest, file)?..];
    }
    while !rest.is_empty() && Instant::now() < until {
        match client.write(rest) {
            Ok(0) => break,
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a line. Returns `None` if it is too long.
fn read_request(client: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + PATIENCE;
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let mut length = 0;
    while length < request.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        let part = match client.read(&mut request[length..]) {
            Ok(part) => part,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = request[length..length + part].iter().position(|&byte| byte == b'\n');
        length += part;
        if part == 0 || end.is_some() {
            request.truncate(length);
            return Ok(Some(request));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_end_although_a_child_has_copies_of_them() {
        let pool = Pool::builder().size(16 << 20).build().unwrap();
        let (_stop, stopped) = UnixStream::pair().unwrap();
        let (mut client, served) = UnixStream::pair().unwrap();
        let _of_child = served.try_clone().unwrap();
        client.write_all(b"hello\n").unwrap();
        converse(&pool, served, &stopped).unwrap();
        client.set_read_timeout(Some(10 * PATIENCE)).unwrap(); // without it, a failure would wait forever
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("not JSON"), "{answer}");
    }
}
