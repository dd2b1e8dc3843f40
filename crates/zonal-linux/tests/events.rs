//! Tests of the events for `tracing` subscribers: which calls emit them, and that a subscriber may use the pool.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, Once};
use std::thread::{self, ThreadId};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use zonal_linux::{
    Frames, Order, PageCount, Pfn, Pool, PoolRequest, ReclaimRequest, Reclaimer, ZonelistCache,
};
use zonal_testing::{eventually, within_patience};

/// An event: the thread, the level, and the fields with the message.
#[derive(Clone, Debug)]
struct Seen {
    thread: ThreadId,
    level: Level,
    fields: BTreeMap<&'static str, String>,
}

impl Seen {
    fn message(&self) -> &str {
        &self.fields["message"]
    }
}

/// A subscriber that holds its lock while it uses a pool, as one that stores its events in the pool would.
struct Recorder;

static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());
/// Threads that are or were about to take the lock of [`SEEN`], each with the number of a pool.
static ENTERED: LazyLock<Mutex<HashSet<(ThreadId, String)>>> = LazyLock::new(Mutex::default);
/// The pool that the subscriber uses in each event.
static USED: Mutex<Option<Pool>> = Mutex::new(None);
/// The value of a setting at which the subscriber panics, and how often it did.
const MISTAKE: &str = "13";
static MISTAKES: AtomicU64 = AtomicU64::new(0);

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "zonal"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = *event.metadata().level();
        let seen = Seen { thread: thread::current().id(), level, fields: fields.0 };
        let mistake = seen.fields.get("value").is_some_and(|value| value.contains(MISTAKE));
        ENTERED.lock().unwrap().insert((seen.thread, seen.fields["pool"].clone()));
        let mut all = SEEN.lock().unwrap();
        if let Some(pool) = &*USED.lock().unwrap() {
            // Requests that wait, and are refused when the pool has no memory left.
            drop((pool.alloc(&PoolRequest::page()), pool.alloc_bytes(&PoolRequest::page(), 9 << 20)));
        }
        all.push(seen);
        drop(all);
        MISTAKES.fetch_add(u64::from(mistake), Relaxed);
        assert!(!mistake, "a subscriber's own mistake, on purpose");
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// Builds a pool while the subscriber is installed; returns its number in events too.
fn pool() -> (Pool, String) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(Recorder).unwrap());
    let pool = Pool::builder().size(16 << 20).max_size(32 << 20).fake_nodes(1).build().unwrap();
    let built = on_this_thread().into_iter().rfind(|seen| seen.message() == "pool built").unwrap();
    (pool, built.fields["pool"].clone())
}

fn on_this_thread() -> Vec<Seen> {
    let here = thread::current().id();
    SEEN.lock().unwrap().iter().filter(|seen| seen.thread == here).cloned().collect()
}

/// Whether an event with this message was emitted for a pool on another thread.
fn came(pool: &str, message: &str) -> bool {
    let here = thread::current().id();
    let seen = SEEN.lock().unwrap();
    seen.iter().any(|seen| seen.thread != here && seen.fields["pool"] == pool && seen.message() == message)
}

fn exhaust(pool: &Pool) -> Vec<Frames> {
    std::iter::from_fn(|| pool.alloc(&PoolRequest::page().no_wait()).ok()).collect()
}

#[test]
fn calls_that_change_a_pool_emit_events_on_the_calling_thread() {
    let (pool, number) = pool();
    let directory = tempfile::tempdir().unwrap();
    pool.set_setting("zone_reclaim_mode", "1").unwrap();
    assert!(pool.set_setting("zone_reclaim_mode", "9").is_err());
    pool.set_zonelist_cache(ZonelistCache::Off).unwrap();
    pool.grow(4 << 20).unwrap();
    pool.shrink(2 << 20).unwrap();
    drop(pool.alloc(&PoolRequest::new(Order::DEFAULT_MAX).zeroed()).unwrap());
    assert!(pool.trim().unwrap() > 0);
    let published = pool.publish(directory.path().join("pool")).unwrap();
    let all = exhaust(&pool);
    let error = pool.alloc(&PoolRequest::page()).unwrap_err();
    drop((all, published));
    let events = on_this_thread();
    assert!(events.iter().all(|seen| seen.fields["pool"] == number));
    let of = |message: &str| {
        let mut found = events.iter().filter(|seen| seen.message() == message);
        let first = found.next().unwrap_or_else(|| panic!("no event `{message}`: {events:?}"));
        (first.level, first.fields.clone())
    };
    let (level, built) = of("pool built");
    assert_eq!(
        (level, built["bytes"].as_str(), built["page_bytes"].as_str()),
        (Level::INFO, "33554432", "4096")
    );
    let changes = events.iter().filter(|seen| seen.message() == "setting changed");
    let changes: Vec<_> =
        changes.map(|seen| (seen.fields["name"].as_str(), seen.fields["value"].as_str())).collect();
    assert_eq!(changes, [("\"zone_reclaim_mode\"", "\"1\""), ("\"zonelist_cache\"", "Off")]);
    assert_eq!(of("pool grown").1["bytes"], (4 << 20).to_string());
    assert_eq!(of("pool shrunk").1["bytes"], (2 << 20).to_string());
    assert_eq!(of("memory offline").0, Level::DEBUG);
    assert_eq!(of("memory online").1["frames"], "512");
    assert!(of("pool published").1["path"].ends_with("/pool"));
    of("memory of free frames returned");
    assert_eq!(of("request refused").1["error"], error.error().to_string());
}

/// Memory runs short on several threads. The subscriber's own requests are refused too, while it holds its lock.
#[test]
fn a_subscriber_may_use_the_pool_that_emits() {
    within_patience("events of a pool that the subscriber uses", || {
        let (pool, number) = pool();
        *USED.lock().unwrap() = Some(pool.clone());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let pages = exhaust(&pool);
                    for _ in 0..20 {
                        drop(pool.alloc(&PoolRequest::page()));
                        pool.set_setting("zone_reclaim_mode", "0").unwrap();
                    }
                    drop(pages);
                });
            }
        });
        let pages = exhaust(&pool);
        for _ in 0..3 {
            assert!(pool.alloc(&PoolRequest::page()).is_err());
        }
        eventually("a thread of the pool reports", || came(&number, "requests refused"));
        eventually("and pressure", || came(&number, "requests fail"));
        eventually("and stalls", || came(&number, "requests stalled in direct reclaim"));
        *USED.lock().unwrap() = None;
        drop(pages);
        eventually("and recovery", || came(&number, "node above its watermark high again"));
    });
}

/// Changes a setting when it is called, and then panics.
struct Changes {
    pool: Pool,
    calls: AtomicU64,
}

impl Reclaimer for Changes {
    fn count(&self, _: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }
    fn reclaim(&self, _: &ReclaimRequest) -> PageCount {
        self.calls.fetch_add(1, Relaxed);
        self.pool.set_setting("zone_reclaim_mode", "0").unwrap();
        panic!("a reclaimer's own mistake, on purpose");
    }
}

#[test]
fn other_calls_emit_nothing() {
    let (pool, number) = pool();
    let before = on_this_thread().len();
    let pages = exhaust(&pool);
    let reclaimer = Arc::new(Changes { pool: pool.clone(), calls: AtomicU64::new(0) });
    let registration = pool.register_reclaimer(&reclaimer);
    assert!(pool.alloc_raw(&PoolRequest::page()).is_err());
    assert!(pool.alloc_raw(&PoolRequest::page().no_wait()).is_err());
    assert!(pool.alloc_bulk_raw(&PoolRequest::page(), &mut [Pfn::default(); 2]).is_err());
    assert!(reclaimer.calls.load(Relaxed) > 0);
    assert!(pool.alloc(&PoolRequest::page().no_wait()).is_err());
    assert!(pool.alloc_bytes(&PoolRequest::page().no_wait(), 9 << 20).is_err());
    drop(registration);
    drop(reclaimer);
    eventually("the tick reports", || {
        came(&number, "reclaimers panicked") && came(&number, "requests refused")
    });
    drop((pages, pool));
    assert_eq!(on_this_thread().len(), before);
}

/// A reclaimer that uses another pool, which is full.
struct Uses(Pool);

impl Reclaimer for Uses {
    fn count(&self, _: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }
    fn reclaim(&self, _: &ReclaimRequest) -> PageCount {
        assert!(self.0.alloc(&PoolRequest::page()).is_err());
        PageCount::ZERO
    }
}

/// The program may hold a lock of the subscriber while it calls `alloc_raw`, whatever the reclaimers do.
#[test]
fn a_reclaimer_that_uses_another_pool_emits_nothing() {
    let ((pool, _), (other, _)) = (pool(), pool());
    let full = (exhaust(&pool), exhaust(&other));
    let before = on_this_thread().len();
    let reclaimer = Arc::new(Uses(other.clone()));
    let registration = pool.register_reclaimer(&reclaimer);
    assert!(pool.alloc_raw(&PoolRequest::page()).is_err());
    assert_eq!(on_this_thread().len(), before);
    assert!(other.alloc(&PoolRequest::page()).is_err());
    assert_eq!(on_this_thread().len(), before + 1, "outside of reclaimers, the same request emits");
    drop((registration, full));
}

#[test]
fn a_pool_can_be_dropped_under_the_subscribers_lock() {
    within_patience("dropping a pool under the lock of the subscriber", || {
        let (pool, number) = pool();
        let here = thread::current().id();
        let held = SEEN.lock().unwrap();
        drop(exhaust(&pool)); // the last request is refused
        eventually("a thread of the pool waits for the lock", || {
            ENTERED.lock().unwrap().iter().any(|(thread, pool)| *thread != here && *pool == number)
        });
        drop(pool);
        drop(held);
    });
}

#[test]
fn retired_frames_are_reported_by_a_thread_of_the_pool() {
    let (pool, number) = pool();
    let frame = pool.ranges().next().unwrap().frames.start;
    // SAFETY: only a frame is retired.
    unsafe { pool.allocator() }.retire(frame).unwrap();
    eventually("the tick reports", || came(&number, "frames retired"));
}

#[test]
fn changes_of_clients_are_reported_although_a_subscriber_panics() {
    let (pool, number) = pool();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let published = pool.publish(&path).unwrap();
    let set = |name: &str, value: &str| {
        let mut client = UnixStream::connect(&path).unwrap();
        let request = serde_json::json!({ "zonal": 1, "request": "set", "name": name, "value": value });
        client.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).unwrap();
        assert!(!answer.contains("error"), "{answer}");
    };
    // Two changes that the same tick reports, unless it comes between them.
    set("min_unmapped_ratio", MISTAKE);
    set("zone_reclaim_mode", "4");
    eventually("the change after the panic is reported too", || {
        let seen = SEEN.lock().unwrap();
        seen.iter().any(|seen| {
            seen.fields["pool"] == number && seen.fields.get("value").is_some_and(|value| value == "\"4\"")
        })
    });
    set("min_unmapped_ratio", MISTAKE);
    let before = MISTAKES.load(Relaxed);
    eventually("the subscriber panics", || {
        MISTAKES.load(Relaxed) > before || came(&number, "setting changed")
    });
    set("zone_reclaim_mode", "1");
    let frame = pool.ranges().next().unwrap().frames.start;
    // SAFETY: only a frame is retired.
    unsafe { pool.allocator() }.retire(frame).unwrap();
    eventually("the tick still reports", || came(&number, "frames retired"));
    drop(published);
}
