//! Other allocators, each set up as its own documentation recommends.
//!
//! Each file has one allocator, or a family of allocators with the same interface. Their versions are constants,
//! which a test compares with the lock file. Heaps written in C need the cargo feature `c-peers`.

mod bitmap;
mod buddy_system;
#[cfg(feature = "c-peers")]
mod c_heaps;
mod frame_alloc;
mod regions;

use zonal::units::Order;
use zonal_workload::PageSource;

use crate::contender::{Contender, Entry};

/// Names of the peers that exist only in builds with the cargo feature `c-peers`.
pub const C_PEERS: [&str; 2] = ["mimalloc", "jemalloc"];

/// Returns the entries of all peers in this build.
#[must_use]
pub fn peers() -> Vec<Entry> {
    vec![
        frame_alloc::entry(),
        buddy_system::entry(),
        bitmap::entry(),
        regions::buddy_slab(),
        regions::talc(),
        #[cfg(feature = "c-peers")]
        c_heaps::mimalloc(),
        #[cfg(feature = "c-peers")]
        c_heaps::jemalloc(),
    ]
}

/// A peer that allocates blocks of one order, whatever order the workload asks for.
struct AtOrder<C>(C, Order);

struct AtOrderSource<S>(S, Order);

impl<S: PageSource> PageSource for AtOrderSource<S> {
    type Page = S::Page;

    #[inline(always)]
    fn alloc(&mut self, _order: Order) -> Option<S::Page> {
        self.0.alloc(self.1)
    }

    #[inline(always)]
    fn free(&mut self, page: S::Page, _order: Order) {
        self.0.free(page, self.1);
    }
}

impl<C: Contender> Contender for AtOrder<C> {
    type Source<'a> = AtOrderSource<C::Source<'a>>;

    fn source(&self) -> Self::Source<'_> {
        AtOrderSource(self.0.source(), self.1)
    }
}

/// Returns the peers that have larger blocks, for workloads of single frames that use blocks of `order` instead.
///
/// The name of an entry is that of the peer, a space, and the form.
pub(crate) fn peers_at(order: Order) -> [Entry; 3] {
    let name = |peer: &str| format!("{peer} order-{}", order.get());
    let [depot, buddy] = [frame_alloc::entry(), buddy_system::entry()];
    [
        Entry::new(name(depot.name()), depot.version(), move |frames| {
            Ok(AtOrder(frame_alloc::make(frames)?, order))
        }),
        Entry::new(name(buddy.name()), buddy.version(), move |frames| {
            Ok(AtOrder(buddy_system::make(frames), order))
        }),
        bitmap::entry_at(name(bitmap::entry().name()), order),
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
