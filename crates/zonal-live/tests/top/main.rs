//! Checks the view of `zonal top` without a terminal: what it shows, in which styles, and how events change it.
//!
//! Related files: `machine.rs` has the source, `screen.rs` draws and prints a screen, `snapshots.rs` compares screens
//! with files, `events.rs` checks keys and the mouse, `whole.rs` what is cut, and `any_size.rs` tries random sizes and events.

mod any_size;
mod events;
mod machine;
mod screen;
mod snapshots;
mod whole;
