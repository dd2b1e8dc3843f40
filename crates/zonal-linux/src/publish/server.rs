//! The thread that serves the clients of a published pool, one at a time.

use std::ffi::{c_int, c_short};
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

/// Maximum length of a request. Policies and cpusets with all node ids fit.
const REQUEST_BYTES_MAX: usize = 16 << 10;
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
    poll([(stopped.as_raw_fd(), libc::POLLIN)], 0).is_ok_and(|[ends]| ends)
}

/// Waits for a client. Returns `false` when the thread must end.
fn wait(listener: &UnixListener, stopped: &UnixStream) -> io::Result<bool> {
    let descriptors = [listener.as_raw_fd(), stopped.as_raw_fd()];
    poll(descriptors.map(|fd| (fd, libc::POLLIN)), -1).map(|[_, ends]| !ends)
}

/// Waits at most `milliseconds`, or without a limit if it is negative, until one of the open descriptors has its event or
/// an end. Returns which ones have.
fn poll<const N: usize>(descriptors: [(RawFd, c_short); N], milliseconds: c_int) -> io::Result<[bool; N]> {
    let mut wanted = descriptors.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
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

/// Waits until the client has sent something or can accept more, as `event` says.
///
/// # Errors
/// `ConnectionAborted` when the thread must end, and `TimedOut` after `until`.
fn wait_for(client: &UnixStream, event: c_short, stopped: &UnixStream, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    let milliseconds = c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX).max(1);
    let descriptors = [(client.as_raw_fd(), event), (stopped.as_raw_fd(), libc::POLLIN)];
    match poll(descriptors, milliseconds)? {
        [_, true] => Err(ErrorKind::ConnectionAborted.into()),
        // The caller tries again, and comes back if the time is over.
        _ => Ok(()),
    }
}

fn serve_client(pool: &Pool, client: &mut UnixStream, stopped: &UnixStream) -> io::Result<()> {
    client.set_nonblocking(true)?;
    let (answer, has_file) = match read_request(client, stopped)? {
        Some(request) => match pool.at_work(|| must_end(stopped), || answer(pool, &request)) {
            Some(answer) => answer,
            None => return Ok(()),
        },
        None => (refusal(&format!("the request is longer than {REQUEST_BYTES_MAX} bytes")), false),
    };
    let mut rest = answer.as_bytes();
    if let Some(file) = pool.shared_file().filter(|_| has_file) {
        rest = &rest[pool_socket::send(client, rest, file)?..];
    }
    write_answer(client, rest, stopped)
}

fn write_answer(client: &mut UnixStream, mut rest: &[u8], stopped: &UnixStream) -> io::Result<()> {
    let until = Instant::now() + PATIENCE_IN_TOTAL;
    let mut until_part = until.min(Instant::now() + PATIENCE);
    while !rest.is_empty() {
        match client.write(rest) {
            Ok(0) => break,
            Ok(written) => {
                rest = &rest[written..];
                until_part = until.min(Instant::now() + PATIENCE);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_for(client, libc::POLLOUT, stopped, until_part)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a line. Returns `None` if it is too long.
fn read_request(client: &mut UnixStream, stopped: &UnixStream) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + PATIENCE;
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let mut length = 0;
    while length < request.len() {
        wait_for(client, libc::POLLIN, stopped, until)?;
        let part = match client.read(&mut request[length..]) {
            Ok(part) => part,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => continue,
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

    /// One client sends nothing, and one reads nothing.
    #[test]
    fn the_end_does_not_wait_for_clients() {
        let pool = Pool::builder().size(16 << 20).build().unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (_client, mut served) = UnixStream::pair().unwrap();
        stop.shutdown(Shutdown::Both).unwrap();
        let silent = serve_client(&pool, &mut served, &stopped).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::ConnectionAborted);
        let deaf = write_answer(&mut served, &vec![0; 64 << 20], &stopped).unwrap_err();
        assert_eq!(deaf.kind(), ErrorKind::ConnectionAborted);
    }
}
