//! The answers: the page, its updates, the metrics and the document.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{self, HeaderMap};
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::stream;
use tokio::sync::watch;

use super::guard::{self, Guard};
use super::metrics::{self, Format};
use super::open::{Full, Open, Place, Updating};
use super::tick::Tick;
use super::{CLIENTS_MAX, CLIENTS_OF_ADDRESS_MAX, MetricDetail};

/// Time without a tick after which a comment shows that the connection lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Start of an update stream: the time after which a browser reconnects, in milliseconds.
const STREAM_START: &str = "retry: 2000\n\n";
const COMMENT: &str = ":\n\n";

/// What all answers are made of.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) newest: watch::Receiver<Arc<Tick>>,
    pub(crate) detail: MetricDetail,
    /// Becomes true when the server ends.
    pub(crate) stop: watch::Receiver<bool>,
    pub(super) open: Arc<Open>,
}

impl Served {
    fn tick(&self) -> Arc<Tick> {
        Arc::clone(&self.newest.borrow())
    }
}

/// A client that is updated.
struct Client {
    newest: watch::Receiver<Arc<Tick>>,
    stop: watch::Receiver<bool>,
    is_new: bool,
    /// Limits the number of clients.
    _slot: Updating,
}

/// Returns all routes with their guard.
pub(crate) fn router(served: Served, guard: Guard) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/metrics", get(scrape))
        .route("/snapshot.json", get(document))
        .fallback(nothing)
        .with_state(served)
        .layer(from_fn_with_state(Arc::new(guard), guard::check))
}

async fn page(State(served): State<Served>) -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], served.tick().page()).into_response()
}

async fn document(State(served): State<Served>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], served.tick().document()).into_response()
}

async fn scrape(State(served): State<Served>, headers: HeaderMap) -> Response {
    let format = Format::accepted(headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()));
    let text = metrics::render(&served.tick(), served.open.updates(), served.detail, format);
    ([(header::CONTENT_TYPE, format.content_type())], text).into_response()
}

async fn events(State(served): State<Served>, Extension(place): Extension<Arc<Place>>) -> Response {
    let slot = match place.updates() {
        Ok(slot) => slot,
        Err(full) => {
            let pages = match full {
                Full::All => format!("{CLIENTS_MAX} pages"),
                Full::OfAddress => format!("{CLIENTS_OF_ADDRESS_MAX} pages of this address"),
            };
            let text = format!("{pages} are open already; close one of them.\n");
            return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "10")], text).into_response();
        }
    };
    let client = Client { newest: served.newest, stop: served.stop, is_new: true, _slot: slot };
    let updates = stream::unfold(client, |mut client| async {
        let bytes = client.next().await?;
        Some((Ok::<_, Infallible>(bytes), client))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(updates)).into_response()
}

async fn nothing(uri: Uri) -> Response {
    let path = zonal_machine::Excerpt::name(uri.path()).to_string();
    let text = format!("There is no {path}. There are /, /metrics and /snapshot.json.\n");
    (StatusCode::NOT_FOUND, text).into_response()
}

impl Client {
    /// Returns the next update: the newest tick, so that a slow client skips ticks. `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.is_new) {
            self.newest.mark_changed();
            return Some(STREAM_START.into());
        }
        tokio::select! {
            biased;
            _ = self.stop.changed() => None,
            changed = self.newest.changed() => {
                changed.ok()?;
                let tick = Arc::clone(&self.newest.borrow_and_update());
                Some(tick.event())
            }
            () = tokio::time::sleep(KEEP_ALIVE) => Some(COMMENT.into()),
        }
    }
}
