//! Other allocators, each set up as its own documentation recommends.
//!
//! Each file has one allocator, or a family of allocators with the same interface. Their versions are constants,
//! which a test compares with the lock file. They need the cargo feature `peers`, and heaps written in C `c-peers`.

#[cfg(feature = "peers")]
mod at_order;
#[cfg(feature = "peers")]
mod bitmap;
#[cfg(feature = "peers")]
mod buddy_system;
#[cfg(feature = "c-peers")]
mod c_heaps;
#[cfg(feature = "peers")]
mod frame_alloc;
#[cfg(feature = "peers")]
mod regions;

use zonal::units::Order;

#[cfg(feature = "peers")]
use self::at_order::AtOrder;
use crate::contender::Entry;

/// Names of all peers, and the cargo feature of the builds in which they exist.
pub const PEERS: [(&str, &str); 7] = [
    ("frame-alloc", "peers"),
    ("buddy_system_allocator", "peers"),
    ("bitmap-allocator", "peers"),
    ("buddy-slab-allocator", "peers"),
    ("talc", "peers"),
    ("mimalloc", "c-peers"),
    ("jemalloc", "c-peers"),
];

/// Returns the entries of all peers in this build.
#[must_use]
pub fn peers() -> Vec<Entry> {
    vec![
        #[cfg(feature = "peers")]
        frame_alloc::entry(),
        #[cfg(feature = "peers")]
        buddy_system::entry(),
        #[cfg(feature = "peers")]
        bitmap::entry(),
        #[cfg(feature = "peers")]
        regions::buddy_slab(),
        #[cfg(feature = "peers")]
        regions::talc(),
        #[cfg(feature = "c-peers")]
        c_heaps::mimalloc(),
        #[cfg(feature = "c-peers")]
        c_heaps::jemalloc(),
    ]
}

/// Returns the peers that have larger blocks, for single-frame workloads that use `order` blocks instead.
///
/// An entry has the peer's name, a space, and the form.
#[cfg(feature = "peers")]
pub(crate) fn peers_at(order: Order) -> Vec<Entry> {
    let name = |peer: &str| format!("{peer} order-{}", order.get());
    let [depot, buddy] = [frame_alloc::entry(), buddy_system::entry()];
    vec![
        Entry::new(name(depot.name()), depot.version(), move |frames| {
            Ok(AtOrder(frame_alloc::make(frames)?, order))
        }),
        Entry::new(name(buddy.name()), buddy.version(), move |frames| {
            Ok(AtOrder(buddy_system::make(frames), order))
        }),
        bitmap::entry_at(name(bitmap::entry().name()), order),
    ]
}

/// Returns no peers.
#[cfg(not(feature = "peers"))]
pub(crate) fn peers_at(_order: Order) -> Vec<Entry> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the name of a peer's crate.
    fn package(peer: &str) -> &str {
        if peer == "jemalloc" { "tikv-jemallocator" } else { peer }
    }

    #[test]
    fn peers_are_those_of_the_build() {
        let features = [("peers", cfg!(feature = "peers")), ("c-peers", cfg!(feature = "c-peers"))];
        let is_built = |feature: &str| features.contains(&(feature, true));
        let expected = PEERS.into_iter().filter(|(_, feature)| is_built(feature)).map(|(name, _)| name);
        assert!(peers().iter().map(Entry::name).eq(expected));
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
