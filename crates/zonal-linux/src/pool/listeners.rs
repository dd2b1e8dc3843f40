//! The callbacks of a pool for memory pressure, and the events that they have not received yet.
//!
//! A request that detects pressure only sets a bit, because it may run in a signal handler. The threads that run
//! background reclaim and the tick call the callbacks, and pass the events to subscribers of `tracing`. Related files: `pool/registry.rs` has the list of callbacks,
//! `pool/pressure.rs` the methods of `Pool`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use zonal::platform::pressure::{PressureEvent, PressureKind};
use zonal::units::NodeId;

use super::emit::{Level, is_on};
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
    /// Number of callbacks ever registered; without any, and without a subscriber, events are dropped at once.
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
            && (self.registered.load(Ordering::Relaxed) != 0 || is_on(Level::WARN))
        {
            // Relaxed here and below: the bits order no other memory accesses. A callback that is registered during the
            // call may miss the event.
            self.pending[node].1.fetch_or(1 << kind, Ordering::Relaxed);
        }
    }

    /// Registers a callback.
    pub(super) fn register(&self, callback: Arc<Callback>) -> Registration {
        let registration = self.list.register(callback);
        self.registered.fetch_add(1, Ordering::Relaxed); // relaxed: as in `record`
        registration
    }

    /// Passes recorded events to the callbacks, and each of them to `and_then` after that. `event` returns an event with
    /// the present state of a node.
    pub(super) fn pass(
        &self,
        event: impl Fn(NodeId, PressureKind) -> Option<PressureEvent>,
        and_then: impl Fn(&PressureEvent),
    ) {
        for (node, pending) in &self.pending {
            if pending.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let bits = pending.swap(0, Ordering::Relaxed);
            let entries = self.list.entries().unwrap_or_default();
            for kind in (0..KINDS.len()).filter(|kind| bits & (1 << kind) != 0) {
                let Some(event) = event(*node, KINDS[kind]) else { continue };
                for entry in entries.iter() {
                    let _ = self.list.guarded(entry, belongs_to, |call| call(&event));
                }
                and_then(&event);
            }
        }
    }
}
