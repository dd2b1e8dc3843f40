//! The thread that serves the clients of a published pool, one at a time.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use super::answer::{answer, refusal};
use super::socket::may_ask;
use crate::pool::Pool;
use crate::threads::attributes::{reset_scheduling, take_own_signals};

/// Maximum length of a request.
const REQUEST_BYTES_MAX: usize = 4096;
/// Time within which a client must send its request, and within which it must accept each part of the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for the whole answer.
const PATIENCE_IN_TOTAL: Duration = Duration::from_secs(5);
/// Pause after the system refused a connection, for example because the process has too many open files.
const REST: Duration = Duration::from_millis(100);

/// Serves clients until the other end of `stopped` is closed.
pub(super) fn serve(pool: &Pool, listener: &UnixListener, stopped: &UnixStream) {
    take_own_signals();
    reset_scheduling();
    let _counted = pool.count_thread();
    while let Ok(true) = wait(listener, stopped) {
        match listener.accept() {
            // A client that fails receives no answer, and others are served.
            Ok((client, _)) => converse(pool, client).unwrap_or(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => thread::sleep(REST),
        }
    }
}

/// Waits for a client. Returns `false` when the thread must end.
fn wait(listener: &UnixListener, stopped: &UnixStream) -> io::Result<bool> {
    let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [wanted(listener.as_raw_fd()), wanted(stopped.as_raw_fd())];
    loop {
        // SAFETY: the call reads and writes the two elements, whose descriptors are open.
        if unsafe { libc::poll(both.as_mut_ptr(), 2, -1) } >= 0 {
            return Ok(both[1].revents == 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Reads a request and answers it.
fn converse(pool: &Pool, mut client: UnixStream) -> io::Result<()> {
    if !may_ask(&client) {
        return Ok(());
    }
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let answer = match read_request(&mut client)? {
        Some(request) => pool.at_work(|| answer(pool, &request)),
        None => refusal("the request is longer than 4096 bytes"),
    };
    let (mut rest, until) = (answer.as_bytes(), Instant::now() + PATIENCE_IN_TOTAL);
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
