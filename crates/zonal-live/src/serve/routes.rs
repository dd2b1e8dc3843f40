//! The answers: the page, its updates, the metrics and the document.

use std::mem;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use tokio::sync::watch;

use super::content::{Client, Content, Response, response};
use super::guard::Guard;
use super::metrics::{self, Format};
use super::open::{Full, Open, Place};
use super::tick::Tick;
use super::{CLIENTS_MAX, CLIENTS_OF_ADDRESS_MAX, MetricDetail};

pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// What all answers are made of.
pub(crate) struct Served {
    pub(crate) newest: watch::Receiver<Arc<Tick>>,
    pub(crate) detail: MetricDetail,
    /// Becomes true when the server ends.
    pub(crate) stop: watch::Receiver<bool>,
    pub(super) open: Arc<Open>,
    pub(super) guard: Guard,
}

impl Served {
    /// Answers a request that came on the connection at `place`.
    pub(super) fn respond(&self, request: &Request<Incoming>, place: &Arc<Place>) -> Response {
        let mut response = self.guard.check(request, || self.route(request, place));
        if request.method() == Method::HEAD {
            // Only the length of the body is sent.
            let content = mem::replace(response.body_mut(), Content::from(""));
            if let Some(length) = hyper::body::Body::size_hint(&content).exact() {
                response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
            }
        }
        response
    }

    fn route(&self, request: &Request<Incoming>, place: &Arc<Place>) -> Response {
        let path = request.uri().path();
        if !super::guard::PATHS.contains(&path) {
            let path = if path.is_empty() { "path in the request" } else { path };
            let path = zonal_machine::Excerpt::name(path).to_string();
            let text = format!("There is no {path}. There are /, /metrics and /snapshot.json.\n");
            return response(StatusCode::NOT_FOUND, TEXT, text);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "");
            refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,HEAD"));
            return refused;
        }
        match path {
            "/events" => self.events(place),
            "/metrics" => self.scrape(request.headers()),
            "/snapshot.json" => response(StatusCode::OK, "application/json", self.tick().document()),
            _ => response(StatusCode::OK, "text/html; charset=utf-8", self.tick().page()),
        }
    }

    fn scrape(&self, headers: &HeaderMap) -> Response {
        let format = Format::accepted(headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()));
        let text = metrics::render(&self.tick(), self.open.updates(), self.detail, format);
        response(StatusCode::OK, format.content_type(), text)
    }

    fn events(&self, place: &Arc<Place>) -> Response {
        let slot = match place.updates() {
            Ok(slot) => slot,
            Err(full) => {
                let pages = match full {
                    Full::All => format!("{CLIENTS_MAX} pages"),
                    Full::OfAddress => format!("{CLIENTS_OF_ADDRESS_MAX} pages of this address"),
                };
                let text = format!("{pages} are open already; close one of them.\n");
                let mut refused = response(StatusCode::SERVICE_UNAVAILABLE, TEXT, text);
                refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
                return refused;
            }
        };
        // The first update is the newest tick.
        let mut newest = self.newest.clone();
        newest.mark_changed();
        let client = Client { newest, stop: self.stop.clone(), _slot: slot };
        response(StatusCode::OK, "text/event-stream", Content::updates(client))
    }

    fn tick(&self) -> Arc<Tick> {
        Arc::clone(&self.newest.borrow())
    }
}
