//! Other allocators, each set up as its own documentation recommends.
//!
//! Each file has one allocator, or a family of allocators with the same interface. Their versions are constants,
//! which a test compares with the lock file. Heaps written in C need the cargo feature `c-peers`.

mod bitmap;
mod buddy_system;
#[cfg(feature = "c-peers")]
mod c_heaps;
mod frame_alloc;

use crate::contender::Entry;

/// Names of the peers that exist only in builds with the cargo feature `c-peers`.
pub const C_PEERS: [&str; 2] = ["mimalloc", "jemalloc"];

/// Returns the entries of all peers in this build.
#[must_use]
pub fn peers() -> Vec<Entry> {
    vec![
        frame_alloc::entry(),
        buddy_system::entry(),
        bitmap::entry(),
        #[cfg(feature = "c-peers")]
        c_heaps::mimalloc(),
        #[cfg(feature = "c-peers")]
        c_heaps::jemalloc(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the name of a peer's crate.
    fn package(peer: &str) -> &str {
        if peer == "jemalloc" { "tikv-jemallocator" } else { peer }
    }

    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
        let lock = std::fs::read_to_string(lock).unwrap();
        for peer in peers() {
            let name = package(peer.name());
            let entry = format!("[[package]]\nname = \"{name}\"\nversion = \"{}\"\n", peer.version());
            assert!(lock.contains(&entry), "{name} is not {}", peer.version());
        }
    }
}
