//! Accepts connections and limits them: the size and the time of their requests, and the time of writes. `open.rs` limits
//! their number.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::MetricDetail;
use super::guard::Guard;
use super::open::Open;
use super::race::race;
use super::routes::Served;
use super::sending::Sending;
use super::ticker::Ticks;

/// Maximum size of a request's head.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Time that a client may take to send the head of a request.
const HEADER_PATIENCE: Duration = Duration::from_secs(10);
/// Time for requests in progress when the server ends.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Pause after the system has no file descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `end` is ready, and returns its value.
pub(crate) async fn serve<T>(
    listener: TcpListener,
    ticks: Ticks,
    guard: Guard,
    detail: MetricDetail,
    end: impl Future<Output = T>,
) -> T {
    let (stop, stopped) = watch::channel(false);
    let graceful = GracefulShutdown::new();
    let open = Arc::new(Open::default());
    let served =
        Arc::new(Served { newest: ticks.newest(), detail, stop: stopped, open: Arc::clone(&open), guard });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_PATIENCE).max_buf_size(REQUEST_BYTES_MAX);
    let accept = async {
        loop {
            let Ok((stream, client)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // A connection for which there is no place is closed.
            let Some(place) = open.admit(client.ip().to_canonical()) else { continue };
            let place = Arc::new(place);
            let (served, of_request) = (Arc::clone(&served), Arc::clone(&place));
            let service = service_fn(move |request| {
                let answering = of_request.answers();
                let mut response = served.respond(&request, &of_request);
                response.body_mut().answering = Some(answering);
                ready(Ok::<_, Infallible>(response))
            });
            // Updates are larger than a packet; waiting to fill one would delay their last bytes.
            let _ = stream.set_nodelay(true);
            let stream = TokioIo::new(Sending::new(stream, Arc::clone(&place)));
            let connection = graceful.watch(builder.serve_connection(stream, service));
            tokio::spawn(async move {
                let served = async {
                    let _ = connection.await; // an error is that of a client that has gone or that broke a limit
                };
                race(served, place.is_needed()).await;
            });
        }
    };
    let overdue = async {
        ticks.report_overdue().await;
        unreachable!("the loop has no end")
    };
    let ended = race(end, race(accept, overdue)).await;
    drop(listener);
    stop.send_replace(true);
    let _ = tokio::time::timeout(END_PATIENCE, graceful.shutdown()).await;
    ended
}
