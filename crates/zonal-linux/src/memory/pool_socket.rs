//! The file of a shared pool, from the process that has published the pool on a socket.
//!
//! Related files: `publish/server.rs` answers, `memory/pool_file.rs` reads the file. Source: Linux `unix(7)`, `SCM_RIGHTS`.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde_json::{Value, json};

use crate::error::SharedError;

/// Version of what published pools are asked and answer.
pub(crate) const PROTOCOL_VERSION: u64 = 1;
/// Time for the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4096;

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
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{}\n", json!({ "zonal": PROTOCOL_VERSION, "request": "join" })).as_bytes())?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut answer = vec![0; 512];
    let received =
        recvmsg(&stream, &mut [IoSliceMut::new(&mut answer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    answer.truncate(received.bytes);
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok((answer, file))
}

/// Sends the begin of an answer with a file; returns how many bytes were sent.
pub(crate) fn send(stream: &UnixStream, answer: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    Ok(sendmsg(stream, &[IoSlice::new(answer)], &mut control, SendFlags::NOSIGNAL)?)
}
