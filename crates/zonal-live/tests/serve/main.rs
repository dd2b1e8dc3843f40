//! The server, over real connections: pages, updates, metrics, limits, and which requests are answered.
//!
//! Related files: `client.rs` has a server with a source that reads when a test permits it, and a client of HTTP.

mod answers;
mod client;
mod dashboard;
mod hostile;
mod limits;
mod metrics;
mod open_metrics;
mod refusals;
mod updates;
