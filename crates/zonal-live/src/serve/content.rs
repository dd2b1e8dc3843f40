//! The bodies of responses: whole texts, and the updates of a page.

use std::convert::Infallible;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::sync::watch;

use super::open::{Answering, Updating};
use super::race::race;
use super::tick::Tick;

/// Time without a tick after which a comment shows that the connection lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Start of an update stream: the time after which a browser reconnects, in milliseconds.
const STREAM_START: &str = "retry: 2000\n\n";
const COMMENT: &str = ":\n\n";

pub(super) type Response = hyper::Response<Content>;

/// The body of a response.
pub(super) struct Content {
    source: Source,
    /// The record of the request, which stays until all of the body is in the connection's buffer.
    pub(super) answering: Option<Answering>,
}

enum Source {
    Text(Bytes),
    Updates(Pin<Box<dyn Future<Output = Option<Update>> + Send>>),
}

/// An update of a page, and the page that waits for the next one.
type Update = (Bytes, Client);

impl Content {
    /// Returns the body of an update stream.
    pub(super) fn updates(client: Client) -> Self {
        let start = async { Some((STREAM_START.into(), client)) };
        Self { source: Source::Updates(Box::pin(start)), answering: None }
    }
}

impl<T: Into<Bytes>> From<T> for Content {
    fn from(text: T) -> Self {
        Self { source: Source::Text(text.into()), answering: None }
    }
}

/// Returns a response of text.
pub(super) fn response(
    status: StatusCode,
    content_type: &'static str,
    content: impl Into<Content>,
) -> Response {
    let mut response = Response::new(content.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut self.source {
            Source::Text(text) => mem::take(text),
            Source::Updates(next) => match ready!(next.as_mut().poll(context)) {
                Some((bytes, client)) => {
                    *next = Box::pin(client.next());
                    bytes
                }
                None => {
                    self.source = Source::Text(Bytes::new());
                    Bytes::new()
                }
            },
        };
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.source, Source::Text(text) if text.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Text(text) => SizeHint::with_exact(text.len() as u64),
            Source::Updates(_) => SizeHint::default(),
        }
    }
}

/// A page that is updated.
pub(super) struct Client {
    pub(super) newest: watch::Receiver<Arc<Tick>>,
    pub(super) stop: watch::Receiver<bool>,
    /// Limits the number of clients.
    pub(super) _slot: Updating,
}

impl Client {
    /// Returns the next update: the newest tick, so that a slow client skips ticks. `None` ends the stream.
    async fn next(mut self) -> Option<Update> {
        let stopped = async {
            let _ = self.stop.changed().await; // an error means that the server has gone
            None
        };
        let changed = async {
            self.newest.changed().await.ok()?;
            let tick = Arc::clone(&self.newest.borrow_and_update());
            Some(tick.event())
        };
        let quiet = async {
            tokio::time::sleep(KEEP_ALIVE).await;
            Some(COMMENT.into())
        };
        let bytes = race(stopped, race(changed, quiet)).await?;
        Some((bytes, self))
    }
}
