//! Administration at run time: settings, hotplug, the periodic tick, snapshots and verification.

mod hotplug;
mod metadata_regions;
mod rebuild_zonelists;
mod settings;
mod settings_by_name;
pub mod snapshot;
mod tick;
pub mod verify;
