//! The live state in a browser, as metrics, and as a document.
//!
//! One thread reads the source once per interval (`ticker.rs`). Requests only render its newest tick (`tick.rs`), at most
//! once for all clients. Everything else runs on one thread: `connections.rs` accepts connections and limits them,
//! `guard.rs` decides which requests are answered, `routes.rs` answers them with bodies of `content.rs`, `page/` and
//! `metrics.rs` render.
//!
//! A page has no rights to load anything else, and the server listens on the loopback interface. On other interfaces, it
//! requires a [`Token`].

mod connections;
mod content;
mod error;
mod guard;
mod metrics;
mod open;
mod page;
mod race;
mod routes;
mod sending;
mod tick;
mod ticker;
mod token;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::watch::Watch;
use race::race;

pub use error::ServeError;
pub use token::Token;

/// The address on which the server listens by default.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7070));
/// Maximum number of pages that are updated at the same time.
pub const CLIENTS_MAX: usize = 64;
/// Maximum number of one address's pages that are updated at the same time, so that the others have some, too.
pub const CLIENTS_OF_ADDRESS_MAX: usize = 48;

/// [`ServeOptions::patience`] of `zonal serve`. A page and `zonal top` thus report a silent source at the same time.
pub const PATIENCE: Duration = Duration::from_millis(1500);
/// Files that the process must be able to open: those of the runtime, which panics without them, and of some connections.
const FILES: usize = 16;

/// Which series the metrics have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MetricDetail {
    /// Pagesets are summed over CPUs, so that the number of series does not depend on how many CPUs there are.
    #[default]
    Zones,
    /// Each pageset has its own series, too.
    Cpus,
}

/// How the state is served.
#[derive(Debug)]
pub struct ServeOptions {
    /// Address and port; port 0 is any free port.
    pub listen: SocketAddr,
    /// Time between two readings of the source.
    pub interval: Duration,
    /// Time beyond the interval after which a reading is overdue: the metrics and pages then say that the source is down.
    pub patience: Duration,
    /// What clients must know. Without it, the address must be of the loopback interface.
    pub token: Option<Token>,
    /// Which series the metrics have.
    pub detail: MetricDetail,
}

/// Why a server ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// By Ctrl-C (`SIGINT`).
    Interrupted,
    /// By `SIGTERM`.
    Terminated,
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    options: ServeOptions,
    watch: Watch,
}

impl Server {
    /// Listens, without answering until [`Server::run`].
    ///
    /// # Errors
    /// When the address is in use or not allowed, or requires a token.
    pub fn bind(watch: Watch, options: ServeOptions) -> Result<Self, ServeError> {
        let listen = options.listen;
        if options.token.is_none() && !listen.ip().is_loopback() {
            return Err(ServeError::NoToken(listen));
        }
        let bound = TcpListener::bind(listen).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.map_err(|why| ServeError::of_bind(listen, why))?;
        Ok(Self { listener, address, options, watch })
    }

    /// Returns the address of the server. The port is known even if the options have port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the page, which includes a generated token.
    #[must_use]
    pub fn url(&self) -> String {
        let host = match self.address.ip().is_unspecified() {
            true => format!("{}:{}", host_name(), self.address.port()),
            false => self.address.to_string(),
        };
        let token = self.options.token.as_ref().and_then(Token::generated);
        let query = token.map_or_else(String::new, |token| format!("?token={token}"));
        format!("http://{host}/{query}")
    }

    /// Serves until the process receives `SIGINT` or `SIGTERM`. Calls `ready` when these end the server rather than the process.
    ///
    /// # Errors
    /// When the system lacks threads, memory or open files.
    pub fn run(self, ready: impl FnOnce()) -> Result<Ended, ServeError> {
        self.run_until(async {
            let (interrupt, terminate) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
            let (mut interrupt, mut terminate) = (interrupt?, terminate?);
            ready();
            let interrupted = async {
                interrupt.recv().await;
                Ended::Interrupted
            };
            let terminated = async {
                terminate.recv().await;
                Ended::Terminated
            };
            Ok(race(interrupted, terminated).await)
        })?
    }

    /// Serves until `stop` is ready, and returns its value.
    ///
    /// # Errors
    /// When the system lacks threads, memory or open files.
    pub fn run_until<T>(self, stop: impl Future<Output = T>) -> Result<T, ServeError> {
        check_files(&self.listener)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let ticks = ticker::start(self.watch, self.options.interval, self.options.patience)?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let guard = guard::Guard::new(self.options.token, self.address)?;
            Ok(connections::serve(listener, ticks, guard, self.options.detail, stop).await)
        })
    }
}

/// Checks that the process may open as many files as serving needs, by copies of the one that is open.
fn check_files(open: &TcpListener) -> Result<(), ServeError> {
    let copies: io::Result<Vec<TcpListener>> = (0..FILES).map(|_| open.try_clone()).collect();
    copies.map(drop).map_err(|why| ServeError::Files { needed: FILES, why })
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
