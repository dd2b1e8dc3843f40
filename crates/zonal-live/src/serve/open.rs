//! The open connections: how many there are and whose, which one is closed in favour of a new one, and which ones update
//! pages.
//!
//! A connection is *idle* while no request on it is being answered, and no write waits for the client (`sending.rs`). If
//! there is no place for a new connection, the one that has been idle longest is closed, so that clients that only hold
//! connections cannot shut others out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{CLIENTS_MAX, CLIENTS_OF_ADDRESS_MAX};

/// Maximum number of connections. Those of updated pages are limited to fewer, so that open pages do not use them up.
const CONNECTIONS_MAX: usize = 256;
/// Maximum number of connections for one address, so that the others have places too.
const OF_ADDRESS_MAX: usize = 192;

/// All open connections, by numbers that grow.
#[derive(Default)]
pub(super) struct Open(Mutex<Table>);

#[derive(Default)]
struct Table {
    connections: BTreeMap<u64, Connection>,
    /// The next number of a connection, and of the order in which connections became idle.
    next: u64,
}

struct Connection {
    address: IpAddr,
    /// Number of requests that are being answered, and one more while a write waits.
    requests: usize,
    /// Number of pages that are updated: one at most, because a connection answers its requests in turn.
    updates: usize,
    idle_since: u64,
    close: Arc<Notify>,
}

/// The place of a connection. Dropping it frees the place.
pub(super) struct Place {
    open: Arc<Open>,
    number: u64,
    close: Arc<Notify>,
}

impl Open {
    /// Returns a place for a new connection from an address, or `None` if no other connection is idle.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut table = self.table();
        let own = table.count_of(address);
        if own == OF_ADDRESS_MAX {
            table.close_idle_of(address)?;
        } else if table.connections.len() == CONNECTIONS_MAX {
            // The address with the most connections has to give one up.
            let addresses = table.connections.values().map(|connection| connection.address);
            let most = addresses.max_by_key(|&address| table.count_of(address))?;
            table.close_idle_of(most)?;
        }
        let (number, close) = (table.number(), Arc::new(Notify::new()));
        let connection =
            Connection { address, requests: 0, updates: 0, idle_since: number, close: Arc::clone(&close) };
        table.connections.insert(number, connection);
        drop(table);
        Some(Place { open: Arc::clone(self), number, close })
    }

    /// Returns the number of pages that are updated.
    pub(super) fn updates(&self) -> usize {
        self.table().updates_of(|_| true)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // each change of the table is complete
    }
}

impl Table {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn count_of(&self, address: IpAddr) -> usize {
        self.connections.values().filter(|connection| connection.address == address).count()
    }

    /// Returns how many pages are updated for a kind of address.
    fn updates_of(&self, is_counted: impl Fn(IpAddr) -> bool) -> usize {
        let counted = self.connections.values().filter(|connection| is_counted(connection.address));
        counted.map(|connection| connection.updates).sum()
    }

    /// Closes the connection of an address that has been idle longest, and forgets it.
    fn close_idle_of(&mut self, address: IpAddr) -> Option<()> {
        let idle = self.connections.iter().filter(|(_, one)| one.requests == 0 && one.address == address);
        let (&number, _) = idle.min_by_key(|(_, one)| one.idle_since)?;
        self.connections.remove(&number)?.close.notify_one();
        Some(())
    }
}

impl Place {
    /// Waits until another connection needs the place.
    pub(super) async fn is_needed(&self) {
        self.close.notified().await;
    }

    /// Records that a request is being answered, or that its answer is being sent, until the result is dropped.
    pub(super) fn answers(self: &Arc<Self>) -> Answering {
        if let Some(connection) = self.open.table().connections.get_mut(&self.number) {
            connection.requests += 1;
        }
        Answering(Arc::clone(self))
    }

    /// Records that a page is updated, until the result is dropped.
    ///
    /// # Errors
    /// When too many pages are updated already.
    pub(super) fn updates(self: &Arc<Self>) -> Result<Updating, Full> {
        let mut table = self.open.table();
        let address = table.connections.get(&self.number).map(|connection| connection.address);
        if table.updates_of(|_| true) >= CLIENTS_MAX {
            return Err(Full::All);
        }
        if table.updates_of(|other| Some(other) == address) >= CLIENTS_OF_ADDRESS_MAX {
            return Err(Full::OfAddress);
        }
        if let Some(connection) = table.connections.get_mut(&self.number) {
            connection.updates += 1;
        }
        Ok(Updating(Arc::clone(self)))
    }
}

/// Why no more pages are updated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// There are as many as the server updates.
    All,
    /// There are as many as one address may have.
    OfAddress,
}

/// A page that is updated.
pub(super) struct Updating(Arc<Place>);

impl Drop for Updating {
    fn drop(&mut self) {
        if let Some(connection) = self.0.open.table().connections.get_mut(&self.0.number) {
            connection.updates -= 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.table().connections.remove(&self.number);
    }
}

/// A request that is being answered.
pub(super) struct Answering(Arc<Place>);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut table = self.0.open.table();
        let number = table.number();
        if let Some(connection) = table.connections.get_mut(&self.0.number) {
            connection.requests -= 1;
            connection.idle_since = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    /// Returns whether a place has been given to another connection.
    fn is_closed(place: &Place) -> bool {
        !place.open.table().connections.contains_key(&place.number)
    }

    #[test]
    fn the_connection_that_was_idle_longest_goes_first() {
        let open = Arc::new(Open::default());
        let places: Vec<_> = (0..OF_ADDRESS_MAX).map(|_| Arc::new(open.admit(address(1)).unwrap())).collect();
        drop(places[0].answers()); // it is idle since now
        let busy = places[1].answers();
        let more: Vec<_> = (0..3).map(|_| open.admit(address(1)).unwrap()).collect();
        let closed: Vec<usize> = (0..places.len()).filter(|&at| is_closed(&places[at])).collect();
        assert_eq!(closed, [2, 3, 4]);
        assert!(more.iter().all(|place| !is_closed(place)));
        drop(busy);
        assert_eq!(open.table().connections.len(), OF_ADDRESS_MAX);
        drop((places, more));
        assert!(open.table().connections.is_empty());
    }

    #[test]
    fn one_address_cannot_have_all_updates() {
        let open = Arc::new(Open::default());
        let place = |last| Arc::new(open.admit(address(last)).unwrap());
        let own: Vec<_> = (0..CLIENTS_OF_ADDRESS_MAX).map(|_| place(1).updates().unwrap()).collect();
        assert_eq!(place(1).updates().err(), Some(Full::OfAddress));
        let rest = CLIENTS_MAX - CLIENTS_OF_ADDRESS_MAX;
        let others: Vec<_> = (0..rest).map(|_| place(2).updates().unwrap()).collect();
        assert_eq!((place(2).updates().err(), open.updates()), (Some(Full::All), CLIENTS_MAX));
        drop(own);
        assert!(open.updates() == rest && place(1).updates().is_ok());
        drop(others);
        assert_eq!(open.updates(), 0);
    }

    #[test]
    fn the_address_with_the_most_connections_gives_one_up() {
        let open = Arc::new(Open::default());
        let place = |last| Arc::new(open.admit(address(last)).unwrap());
        let few: Vec<_> = (0..CONNECTIONS_MAX - OF_ADDRESS_MAX).map(|_| place(1)).collect();
        let many: Vec<_> = (0..OF_ADDRESS_MAX).map(|_| place(2)).collect();
        let new = place(3);
        assert!(is_closed(&many[0]) && !is_closed(&new) && few.iter().all(|place| !is_closed(place)));
    }

    #[test]
    fn without_an_idle_connection_there_is_no_place() {
        let open = Arc::new(Open::default());
        let places: Vec<_> = (0..OF_ADDRESS_MAX).map(|_| Arc::new(open.admit(address(1)).unwrap())).collect();
        let busy: Vec<_> = places.iter().map(Place::answers).collect();
        assert!(open.admit(address(1)).is_none() && open.admit(address(2)).is_some());
        drop(busy);
        assert!(open.admit(address(1)).is_some());
    }
}
