//! A stream of a connection that counts as answering while the client has not taken what is written, and that fails if
//! the client takes nothing for too long.
//!
//! The record of a request (`open.rs`) ends when its whole body is in the buffer of the connection, which may be long
//! before it is sent.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::open::{Answering, Place};

/// Time in which a client must take some bytes.
const WRITE_PATIENCE: Duration = Duration::from_secs(20);

/// A stream and the place of its connection.
pub(super) struct Sending<S> {
    stream: S,
    place: Arc<Place>,
    /// Is there while a write waits, with the end of the client's time.
    waiting: Option<(Answering, Pin<Box<Sleep>>)>,
}

impl<S> Sending<S> {
    pub(super) fn new(stream: S, place: Arc<Place>) -> Self {
        Self { stream, place, waiting: None }
    }

    /// Takes the result of a write.
    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.waiting = None;
            return result;
        }
        let start = || (self.place.answers(), Box::pin(sleep(WRITE_PATIENCE)));
        let (_, end) = self.waiting.get_or_insert_with(start);
        end.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sending<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sending<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
