//! Administration at run time: settings, hotplug, the periodic tick, snapshots and verification.

mod hotplug;
mod metadata_regions;
mod rebuild_zonelists;
mod settings;
pub mod snapshot;
mod tick;
pub mod verify;
