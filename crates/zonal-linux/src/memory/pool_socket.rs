//! The file of a shared pool, from the process that has published the pool on a socket.
//!
//! Related files: `publish/server.rs` answers, `memory/pool_file.rs` reads the file. Source: Linux `unix(7)`, `SCM_RIGHTS`.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg,
    sendmsg,
};
use serde_json::{Value, json};

use super::shared_file::beyond_streams;
use crate::error::SharedError;

/// Version of what published pools are asked and answer.
pub(crate) const PROTOCOL_VERSION: u64 = 1;
/// Time for the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to connect.
const NAP: Duration = Duration::from_millis(1);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 4096;

/// Requests the file of the pool that is published on the socket at `path`.
pub(crate) fn file_of(path: &Path) -> Result<OwnedFd, SharedError> {
    let (answer, file) = exchange(path).map_err(|source| SharedError::Open { path: path.into(), source })?;
    file.ok_or_else(|| {
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let why = answer["error"].as_str().unwrap_or("it has sent no file");
        SharedError::Refused { path: path.into(), why: why.into() }
    })
}

fn exchange(path: &Path) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let until = Instant::now() + PATIENCE;
    let mut stream = loop {
        match connect(path) {
            Err(Errno::AGAIN) if Instant::now() < until => thread::sleep(NAP), // its queue is full
            connected => break connected?,
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{}\n", json!({ "zonal": PROTOCOL_VERSION, "request": "join" })).as_bytes())?;
    let mut answer = Vec::new();
    while answer.len() < ANSWER_BYTES_MAX && !answer.contains(&b'\n') {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut part = [0; 512];
        let received = match recvmsg(
            &stream,
            &mut [IoSliceMut::new(&mut part)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            received => received?,
        };
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::MFILE.into()); // the kernel has dropped the file
        }
        answer.extend_from_slice(&part[..received.bytes]);
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let file = file.map(beyond_streams).transpose()?;
        if file.is_some() || received.bytes == 0 {
            return Ok((answer, file));
        }
    }
    Ok((answer, None))
}

/// Connects to a socket without waiting for a place in its queue.
pub(crate) fn connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let socket = beyond_streams(socket).map_err(|_| Errno::MFILE)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Sends the begin of an answer with a file; returns how many bytes were sent.
pub(crate) fn send(stream: &UnixStream, answer: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let parts = [IoSlice::new(answer)];
    Ok(retry_on_intr(|| sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL))?)
}
