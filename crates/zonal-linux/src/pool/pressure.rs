//! Callbacks for memory pressure, which the pool's threads call.
//!
//! A request that detects pressure only sets a bit, because it may run in a signal handler. The threads that run
//! background reclaim and the tick call the callbacks. Related file: `pool/registry.rs` has the list of callbacks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use zonal::platform::pressure::{PressureEvent, PressureKind, StallShares};
use zonal::units::NodeId;

use super::core::PoolCore;
use super::handle::Pool;
use super::key::PoolKey;
use super::reclaimers::belongs_to;
use super::registry::{Registration, Registry};
use crate::threads::presence::Presence;

type Callback = dyn Fn(&PressureEvent) + Send + Sync;

/// The kinds of events, by their bits in [`Listeners::pending`].
const KINDS: [PressureKind; 4] =
    [PressureKind::BelowLow, PressureKind::Stalling, PressureKind::Failing, PressureKind::AboveHigh];

/// The callbacks of one pool, and the events that they have not received yet.
pub(super) struct Listeners {
    list: Arc<Registry<Callback>>,
    /// Number of callbacks ever registered; without any, events are dropped at once.
    registered: AtomicUsize,
    /// Nodes with memory in the pool, each with a bit for each kind of event to pass on.
    pending: Box<[(NodeId, AtomicU8)]>,
}

impl Listeners {
    pub(super) fn new(key: PoolKey, presence: Arc<Presence>, nodes: impl Iterator<Item = NodeId>) -> Self {
        Self {
            list: Arc::new(Registry::new(key, presence)),
            registered: AtomicUsize::new(0),
            pending: nodes.map(|node| (node, AtomicU8::new(0))).collect(),
        }
    }

    /// Records an event. A signal handler may call this function.
    pub(super) fn record(&self, event: &PressureEvent) {
        let kind = KINDS.iter().position(|&kind| kind == event.kind);
        let node = self.pending.binary_search_by_key(&event.node, |(node, _)| *node);
        if let (Some(kind), Ok(node)) = (kind, node)
            && self.registered.load(Ordering::Relaxed) != 0
        {
            // Relaxed here and below: the bits order no other memory accesses. A callback that is registered during the
            // call may miss the event.
            self.pending[node].1.fetch_or(1 << kind, Ordering::Relaxed);
        }
    }
}

impl PoolCore {
    /// Passes recorded events to the callbacks.
    pub(super) fn pass_pressure(&self) {
        let listeners = &self.platform().listeners;
        for (node, pending) in &listeners.pending {
            if pending.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let bits = pending.swap(0, Ordering::Relaxed);
            let entries = listeners.list.entries().unwrap_or_default();
            for kind in (0..KINDS.len()).filter(|kind| bits & (1 << kind) != 0) {
                let Some(event) = self.allocator().pressure_event(*node, KINDS[kind]) else { continue };
                for entry in entries.iter() {
                    let _ = listeners.list.guarded(entry, belongs_to, |call| call(&event));
                }
            }
        }
    }
}

impl Pool {
    /// Registers a callback for events of memory pressure, until the returned registration is dropped.
    ///
    /// A thread of the pool calls it, within about a second of the event: usually at once, because it also wakes for
    /// background reclaim. It receives the state of the node at the time of the call, and at most one event of each kind
    /// per second and node. Several events of a kind before a call count as one. The callback may use the pool, except
    /// [`Pool::verify`] and [`Pool::stat_refresh`]; while it runs, the node has no background reclaim. Panics of callbacks
    /// are caught.
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
        let listeners = &self.core.platform().listeners;
        let registration = listeners.list.register(Arc::new(callback));
        listeners.registered.fetch_add(1, Ordering::Relaxed); // relaxed: as in `record`
        registration
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
