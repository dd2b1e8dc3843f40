//! Methods of `Pool` about memory pressure.
//!
//! Related file: `pool/listeners.rs` passes events to callbacks.

use std::sync::Arc;

use zonal::platform::pressure::{PressureEvent, StallShares};
use zonal::units::NodeId;

use super::handle::Pool;
use super::registry::Registration;

impl Pool {
    /// Registers a callback for events of memory pressure, until the returned registration is dropped.
    ///
    /// A thread of the pool calls it, within about a second of the event: usually at once, because it also wakes for
    /// background reclaim. It receives the node's state at the time of the call, and at most one event of each kind per
    /// second and node. Several events of a kind before a call count as one. The callback may use the pool, except
    /// [`Pool::verify`] and [`Pool::stat_refresh`]; while it runs, the node has no background reclaim. Panics of
    /// callbacks are caught. In a shared pool, each process receives events of what its own calls detect.
    ///
    /// ```
    /// use zonal_linux::{Pool, PoolRequest, PressureKind};
    ///
    /// let pool = Pool::builder().size(16 << 20).fake_nodes(1).build()?;
    /// let (sender, events) = std::sync::mpsc::channel();
    /// let registration = pool.on_pressure(move |event| {
    ///     let _ = sender.send((event.node, event.kind));
    /// });
    /// let mut pages = Vec::new();
    /// while let Ok(page) = pool.alloc(&PoolRequest::page().no_wait()) {
    ///     pages.push(page);
    /// }
    /// let (node, kind) = events.recv()?;
    /// assert_eq!((node.get(), kind), (0, PressureKind::BelowLow));
    /// drop(registration);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_pressure(&self, callback: impl Fn(&PressureEvent) + Send + Sync + 'static) -> Registration {
        self.core.platform().listeners.register(Arc::new(callback))
    }

    /// Returns how much of the recent time direct reclaim stalled callers that prefer `node`, or `None` if the machine
    /// has no such node.
    ///
    /// ```
    /// # use zonal_linux::{NodeId, Pool};
    /// let pool = Pool::builder().size(16 << 20).fake_nodes(2).build()?;
    /// let stalled = pool.stall_shares(NodeId::default()).expect("node 0 exists");
    /// println!("{stalled}"); // avg10=0.00 avg60=0.00 avg300=0.00
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stall_shares(&self, node: NodeId) -> Option<StallShares> {
        self.core.allocator().stall_shares(node)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use zonal::platform::pressure::PressureKind;

    use super::*;
    use crate::pool::request::PoolRequest;

    /// A process whose tick comes first must not take the event away that another waits for.
    #[test]
    fn a_process_that_is_below_low_is_above_high_again() {
        let pool = Pool::builder().size(16 << 20).shared_by_descriptor().build().unwrap();
        let other = Pool::join_file(pool.shared_file().unwrap()).unwrap();
        let (sender, events) = channel();
        let (other_sender, other_events) = channel();
        let _registrations = [
            pool.on_pressure(move |event| sender.send(event.kind).unwrap()),
            other.on_pressure(move |event| other_sender.send(event.kind).unwrap()),
        ];
        let blocks: Vec<_> = std::iter::from_fn(|| pool.alloc(&PoolRequest::page().no_wait()).ok()).collect();
        drop(blocks);
        pool.core.allocator().drain_pagesets();
        other.core.allocator().tick();
        let mut levels = Vec::new();
        while levels.last() != Some(&PressureKind::AboveHigh) {
            let kind = events.recv_timeout(Duration::from_secs(20)).unwrap();
            levels.extend(Some(kind).filter(|&kind| kind != PressureKind::Failing));
        }
        assert_eq!(levels, [PressureKind::BelowLow, PressureKind::AboveHigh]);
        assert_eq!(other_events.try_iter().count(), 0);
    }
}
