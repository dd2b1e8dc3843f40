//! The last requests to a published pool that failed, that stalled in direct reclaim, or that another node served.
//!
//! The entries are cells of a ring that is made when the pool is published first. Threads that allocate write them without
//! a lock or a heap, also in signal handlers, and a client reads them meanwhile. Only requests in the slow path come here.
//! Related files: `zonal/src/platform/recorder.rs` has the requests, `pool/step_words.rs` the form of steps.

use std::array;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use zonal::explain::{Step, ZoneName};
use zonal::platform::recorder::{Recorder, ServeObserved, SlowRequest};
use zonal::request::{PageKind, Urgency};
use zonal::units::{CpuId, NodeId, Order, PageCount, ZoneId, ZoneKind};

use super::step_words::{StepWords, decode, encode};

/// Number of requests that a pool keeps.
const REQUESTS: usize = 256;
/// Steps of a request that are kept: the first ones, and the last ones.
const FIRST_STEPS: usize = 16;
const LAST_STEPS: usize = 8;
const STEPS: usize = FIRST_STEPS + LAST_STEPS;
/// Words before those of the steps.
const HEAD: usize = 6;
const WORDS: usize = HEAD + 2 * STEPS;
/// How often a reader tries to read an entry that is being replaced.
const TRIES: usize = 8;

const URGENCIES: [Urgency; 4] = [Urgency::Normal, Urgency::High, Urgency::Atomic, Urgency::Reserve];

/// A request that was kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RecentRequest {
    /// How many requests were kept before.
    pub(crate) number: u64,
    pub(crate) request: SlowRequest,
    /// How long ago the request began.
    pub(crate) age: Duration,
    /// Time in the slow path if the request reclaimed directly, else zero.
    pub(crate) stalled: Duration,
    /// The zone that served the request; `None` if it failed.
    pub(crate) served_by: Option<ZoneName>,
    pub(crate) steps: Vec<Step>,
    /// Steps that are missing after the first [`FIRST_STEPS`].
    pub(crate) steps_left_out: u32,
}

/// The requests that a pool keeps.
pub(super) struct RecentRequests {
    /// Number of publications; without any, nothing is kept.
    publications: AtomicU32,
    ring: OnceLock<Ring>,
    zones: Box<[ZoneName]>,
    start: Instant,
}

impl RecentRequests {
    /// Creates an empty list for a machine with these zones, in the order of their ids.
    pub(super) fn new(zones: impl Iterator<Item = (NodeId, ZoneKind)>) -> Self {
        let ids = (0..).map_while(ZoneId::new);
        let zones = ids.zip(zones).map(|(id, (node, kind))| ZoneName { id, node, kind }).collect();
        Self { publications: AtomicU32::new(0), ring: OnceLock::new(), zones, start: Instant::now() }
    }

    /// Keeps requests from now on, until [`RecentRequests::end`] was called as often.
    pub(super) fn begin(&self) {
        self.ring.get_or_init(Ring::new);
        // Relaxed, here and below: the number orders nothing; the ring has been made when `get` returns it.
        self.publications.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.publications.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the recorder, if requests are kept now.
    #[inline]
    pub(super) fn recorder(&self) -> Option<&dyn Recorder> {
        if self.publications.load(Ordering::Relaxed) == 0 { None } else { Some(self) }
    }

    /// Returns the requests that are kept, the oldest first, and how many ever were.
    pub(super) fn read(&self) -> (Vec<RecentRequest>, u64) {
        let Some(ring) = self.ring.get() else { return (Vec::new(), 0) };
        let mut found: Vec<_> = ring.entries.iter().filter_map(|entry| self.request(entry.read()?)).collect();
        found.sort_unstable_by_key(|request| request.number);
        (found, ring.next.load(Ordering::Relaxed))
    }

    fn request(&self, (number, words): (u64, [u64; WORDS])) -> Option<RecentRequest> {
        let [at, stalled, of_request, of_cpu, frames, result] = *words.first_chunk::<HEAD>()?;
        let [order, kind, urgency, zone_limit, may_reclaim, ..] = of_request.to_le_bytes();
        let node = |bits: u64| NodeId::new((bits & 0xffff) as u16);
        let request = SlowRequest {
            cpu: CpuId::new(of_cpu as u32),
            node: node(of_cpu >> 32)?,
            preferred: node((of_cpu >> 48).wrapping_sub(1)),
            order: Order::new(order)?,
            frames: PageCount::new(frames),
            kind: *PageKind::ALL.get(usize::from(kind))?,
            urgency: *URGENCIES.get(usize::from(urgency))?,
            zone_limit: *ZoneKind::ALL.get(usize::from(zone_limit))?,
            may_reclaim: may_reclaim != 0,
        };
        let served_by =
            (result & 0xffff_ffff).checked_sub(1).map(|zone| self.zones.get(zone as usize).copied());
        let (count, words) = ((result >> 32) as usize, words[HEAD..].as_chunks::<2>().0);
        let last = if count > STEPS { FIRST_STEPS + (count - FIRST_STEPS) % LAST_STEPS } else { FIRST_STEPS };
        let order = (0..FIRST_STEPS).chain(last..STEPS).chain(FIRST_STEPS..last).take(count);
        Some(RecentRequest {
            number,
            request,
            age: self.start.elapsed().saturating_sub(Duration::from_nanos(at)),
            stalled: Duration::from_nanos(stalled),
            served_by: served_by.flatten(),
            steps: order.filter_map(|step| decode(words[step], &self.zones)).collect(),
            steps_left_out: count.saturating_sub(STEPS) as u32,
        })
    }

    fn keep(&self, request: &SlowRequest, begin: Instant, steps: &Steps, served: Option<ZoneId>) {
        let Some(ring) = self.ring.get() else { return };
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let of_request = [
            request.order.get(),
            request.kind as u8,
            index(&URGENCIES, request.urgency),
            request.zone_limit.index() as u8,
            request.may_reclaim.into(),
            0,
            0,
            0,
        ];
        let preferred = request.preferred.map_or(0, |node| u64::from(node.get()) + 1);
        let head = [
            ns(begin.saturating_duration_since(self.start)),
            if steps.reclaimed.get() { ns(begin.elapsed()) } else { 0 },
            u64::from_le_bytes(of_request),
            u64::from(request.cpu.get()) | u64::from(request.node.get()) << 32 | preferred << 48,
            request.frames.get(),
            served.map_or(0, |zone| zone.index() as u64 + 1) | u64::from(steps.count.get()) << 32,
        ];
        let words = head.into_iter().chain(steps.kept.iter().flat_map(Cell::get));
        ring.write(words);
    }
}

impl Recorder for RecentRequests {
    fn record(&self, request: &SlowRequest, serve: &mut ServeObserved<'_>) {
        let (begin, steps) = (Instant::now(), Steps::new());
        let served = serve(&|step| steps.push(step));
        let node = served.and_then(|zone| self.zones.get(zone.index())).map(|zone| zone.node);
        if node.is_none() || node != request.preferred || steps.reclaimed.get() {
            self.keep(request, begin, &steps, served);
        }
    }
}

fn index(all: &[Urgency], one: Urgency) -> u8 {
    all.iter().position(|&other| other == one).unwrap_or(0) as u8
}

/// The steps of a request in progress, on the stack of its thread: the first ones, and a ring of the last ones.
struct Steps {
    kept: [Cell<StepWords>; STEPS],
    count: Cell<u32>,
    /// Whether the request reclaimed directly.
    reclaimed: Cell<bool>,
}

impl Steps {
    fn new() -> Self {
        Self { kept: array::from_fn(|_| Cell::default()), count: Cell::new(0), reclaimed: Cell::new(false) }
    }

    fn push(&self, step: Step) {
        let at = self.count.get() as usize;
        let at = if at < FIRST_STEPS { at } else { FIRST_STEPS + (at - FIRST_STEPS) % LAST_STEPS };
        self.kept[at].set(encode(step));
        self.count.set(self.count.get().saturating_add(1));
        if matches!(step, Step::DirectReclaim { .. } | Step::RangeReclaimed { .. }) {
            self.reclaimed.set(true);
        }
    }
}

/// Entries that are replaced in turn.
struct Ring {
    entries: Box<[Entry]>,
    /// Number of the next request.
    next: AtomicU64,
}

impl Ring {
    fn new() -> Self {
        Self { entries: (0..REQUESTS).map(|_| Entry::new()).collect(), next: AtomicU64::new(0) }
    }

    fn write(&self, words: impl Iterator<Item = u64>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed); // relaxed: the numbers must only differ
        self.entries[(number % REQUESTS as u64) as usize].write(number, words);
    }
}

/// A request in words.
///
/// Invariant: the version is 0 without a request, `2n + 1` while request `n` is written, and then `2n + 2`.
struct Entry {
    version: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Entry {
    fn new() -> Self {
        Self { version: AtomicU64::new(0), words: array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Writes a request, unless a thread that was interrupted [`REQUESTS`] requests ago still writes, or this thread was and
    /// a later request is there.
    fn write(&self, number: u64, words: impl Iterator<Item = u64>) {
        let before = self.version.load(Ordering::Relaxed);
        let version = number.wrapping_mul(2).wrapping_add(1);
        let is_free = before.is_multiple_of(2) && before < version;
        // Acquire: takes the words of the earlier request; pairs with `write`.
        if !is_free
            || self.version.compare_exchange(before, version, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return;
        }
        // Release: publishes the odd version before any of the words; pairs with `read`.
        fence(Ordering::Release);
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        // Release: publishes the words; pairs with `read`.
        self.version.store(version + 1, Ordering::Release);
    }

    /// Returns the number and the words of the request, or `None` if there is none, or it is being replaced.
    fn read(&self) -> Option<(u64, [u64; WORDS])> {
        for _ in 0..TRIES {
            // Acquire: takes the words of the version; pairs with `write`.
            let version = self.version.load(Ordering::Acquire);
            if version == 0 {
                return None;
            }
            let words = array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
            // Acquire: takes the odd version of a writer whose words were loaded; pairs with `write`.
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return Some((version / 2 - 1, words));
            }
            std::thread::yield_now();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use zonal::rules::watermarks::Watermark;

    use super::*;

    fn node(id: u16) -> NodeId {
        NodeId::new(id).unwrap()
    }

    fn requests() -> RecentRequests {
        let recent = RecentRequests::new([0, 1].map(|id| (node(id), ZoneKind::Normal)).into_iter());
        recent.begin();
        recent
    }

    /// A request all of whose figures follow from one number.
    fn numbered(number: u64) -> SlowRequest {
        SlowRequest {
            cpu: CpuId::new(number as u32),
            node: node((number % 1000) as u16),
            preferred: (!number.is_multiple_of(3)).then(|| node((number % 777) as u16)),
            order: Order::new((number % 11) as u8).unwrap(),
            frames: PageCount::new(number),
            kind: PageKind::ALL[number as usize % 3],
            urgency: URGENCIES[number as usize % 4],
            zone_limit: ZoneKind::ALL[number as usize % 4],
            may_reclaim: number.is_multiple_of(2),
        }
    }

    fn drained(number: u64) -> Step {
        Step::PagesetsDrained { frames: PageCount::new(number) }
    }

    /// Records a request that fails after so many steps, each with its number.
    fn fail(recent: &RecentRequests, number: u64, steps: u64) {
        let recorder = recent.recorder().unwrap();
        recorder.record(&numbered(number), &mut |observer| {
            (0..steps).for_each(|step| observer(drained(number + step)));
            None
        });
    }

    #[test]
    fn the_last_requests_are_kept_in_order() {
        let recent = requests();
        (0..300).for_each(|number| fail(&recent, number, number % 3));
        let (found, total) = recent.read();
        assert_eq!((found.len(), total), (256, 300));
        for (request, number) in found.iter().zip(44..) {
            assert_eq!((request.number, request.request), (number, numbered(number)));
            assert_eq!(request.steps, (0..number % 3).map(|step| drained(number + step)).collect::<Vec<_>>());
            assert_eq!(
                (request.served_by, request.stalled, request.steps_left_out),
                (None, Duration::ZERO, 0)
            );
        }
    }

    #[test]
    fn the_first_and_the_last_steps_are_kept() {
        for count in 0..60 {
            let recent = requests();
            fail(&recent, 1000, count);
            let found = &recent.read().0[0];
            let kept = (0..count).filter(|&step| step < 16 || step + 8 >= count);
            assert_eq!(found.steps, kept.map(|step| drained(1000 + step)).collect::<Vec<_>>(), "{count}");
            assert_eq!(u64::from(found.steps_left_out), count.saturating_sub(24));
        }
    }

    #[test]
    fn requests_that_their_node_serves_at_once_are_not_kept() {
        let recent = requests();
        let zone = |index| ZoneId::new(index).unwrap();
        let name = recent.zones[1];
        let serves =
            Step::Zone { zone: name, watermark: Watermark::Low, outcome: zonal::explain::Outcome::Serves };
        let request = SlowRequest { preferred: Some(node(0)), ..numbered(1) };
        let record = |step, served| {
            recent.recorder().unwrap().record(&request, &mut |observer| {
                observer(step);
                Some(zone(served))
            });
        };
        record(serves, 0);
        assert!(recent.read().0.is_empty());
        record(serves, 1);
        record(Step::DirectReclaim { freed: PageCount::new(0) }, 0);
        let (found, _) = recent.read();
        assert_eq!(found.iter().map(|one| one.served_by.unwrap().node.get()).collect::<Vec<_>>(), [1, 0]);
        assert!(found[0].stalled.is_zero() && !found[1].stalled.is_zero());
    }

    #[test]
    fn nothing_is_kept_while_the_pool_is_not_published() {
        let recent = RecentRequests::new([(node(0), ZoneKind::Normal)].into_iter());
        assert!(recent.recorder().is_none() && recent.ring.get().is_none());
        recent.begin();
        recent.begin();
        recent.end();
        assert!(recent.recorder().is_some());
        recent.end();
        assert!(recent.recorder().is_none());
    }

    /// A reader and a writer nearly always meet in the middle.
    #[test]
    fn an_entry_is_not_read_while_it_is_replaced() {
        let (entry, ends) = (Entry::new(), AtomicBool::new(false));
        entry.write(0, std::iter::repeat(0));
        let mut seen_meanwhile = Vec::new();
        entry.write(1, std::iter::repeat_with(|| 1).inspect(|_| seen_meanwhile.push(entry.read())));
        assert_eq!(seen_meanwhile.len(), WORDS);
        assert!(seen_meanwhile.iter().all(Option::is_none));
        entry.write(1, std::iter::repeat(7));
        entry.write(0, std::iter::repeat(7));
        assert_eq!(entry.read(), Some((1, [1; WORDS])), "an earlier request does not replace a later one");
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 2;
                while !ends.load(Ordering::Relaxed) {
                    entry.write(number, std::iter::repeat(number));
                    number += 1;
                }
            });
            let mut seen = 0;
            while seen < if cfg!(miri) { 30 } else { 300_000 } {
                if let Some((number, words)) = entry.read() {
                    assert_eq!(words, [number; WORDS]);
                    seen += 1;
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
    }

    /// Each entry that a reader sees is a request as a whole.
    #[test]
    fn entries_are_read_whole_while_threads_write() {
        let (recent, ends) = (requests(), AtomicBool::new(false));
        thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    let recent = &recent;
                    scope.spawn(move || {
                        (0..if cfg!(miri) { 300 } else { 50_000 })
                            .for_each(|number| fail(recent, number * 4 + writer, 24));
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while !ends.load(Ordering::Relaxed) || seen == 0 {
                    for found in recent.read().0 {
                        let number = found.request.frames.get();
                        assert_eq!(found.request, numbered(number));
                        assert_eq!(
                            found.steps,
                            (0..24).map(|step| drained(number + step)).collect::<Vec<_>>()
                        );
                        seen += 1;
                    }
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            ends.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        let (found, total) = recent.read();
        assert!(found.len() == 256 && total >= 1200, "{} of {total}", found.len());
    }
}
