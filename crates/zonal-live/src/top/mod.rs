//! The live view in a terminal: the command `zonal top`.
//!
//! [`App`] is the state, which events change and [`draw`] renders; both are independent of a terminal. [`run`] connects
//! them with this terminal and with a thread that reads the source.

mod app;
mod draw;
mod heat;
mod keys;
mod reading;
mod rows;
mod run;
mod terminal;
mod theme;
pub mod units;

pub use app::{App, Drawn, Pane, check_node, parse_nodes};
pub use draw::draw;
pub use keys::Action;
pub use reading::Reading;
pub use run::{End, Options, run};
pub use theme::{Colours, words};
