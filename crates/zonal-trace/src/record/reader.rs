//! A thread that reads the ring buffer of one CPU, and packs its events into blocks.
//!
//! Related files: `ring.rs` reads pages, `record/mod.rs` starts the threads and writes their blocks.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use zonal::units::{CpuId, Moment};

use crate::block::{BlockEncoder, EncodedBlock};
use crate::event::{Action, Tid};
use crate::ring::{Page, PageLayout};
use crate::tracepoint::Layouts;

/// Time between two looks at an empty ring buffer.
const PERIOD: Duration = Duration::from_millis(20);
/// Pages read before the writer learns how far a busy CPU is.
const PAGES_MAX: usize = 1024;
/// An event's moment is taken before the event can be read. A virtual machine may stop the CPU in between.
const DELIVERY_NS: u64 = 10_000_000;
/// Events of a quiet CPU are packed after this time.
const PACKED_AFTER_NS: u64 = 200_000_000;
/// Fewer events than this wait for more.
const PACKED_FROM: usize = 4096;

/// What a reader sends to the writer.
#[derive(Debug)]
pub(super) enum Message {
    /// A block of events.
    Block(EncodedBlock),
    /// All events of a CPU before this moment were sent.
    Complete {
        /// The CPU's place among the recorded ones.
        place: usize,
        /// The moment.
        until: Moment,
    },
    /// The pages of a CPU could not be read.
    Failed(io::Error),
}

/// A request to end, for which threads can wait.
#[derive(Default, Debug)]
pub(super) struct End {
    is_requested: Mutex<bool>,
    changed: Condvar,
}

impl End {
    /// Requests the end.
    pub(super) fn request(&self) {
        *self.is_requested.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits at most `period`. Returns whether the end was requested.
    fn wait(&self, period: Duration) -> bool {
        let requested = self.is_requested.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(requested, period, |requested| !*requested);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Returns the moment of the clock that instances use.
pub(super) fn now() -> Moment {
    let now = clock_gettime(ClockId::Monotonic);
    Moment::from_ns(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// The priority of readers, as `nice` has it: on a busy machine, events are overwritten unless readers run soon.
const NICE: i32 = -10;

/// Raises the priority of the calling thread, as far as that is permitted. Returns the thread's id.
pub(super) fn begin() -> i32 {
    let thread = gettid();
    let _ = setpriority_process(Some(thread), NICE);
    thread.as_raw_nonzero().get()
}

/// Reads the ring buffer of one CPU.
#[derive(Debug)]
pub(super) struct CpuReader<'r> {
    pub(super) place: usize,
    pub(super) cpu: CpuId,
    pub(super) pages: File,
    pub(super) layout: PageLayout,
    pub(super) layouts: &'r Layouts,
    pub(super) to: SyncSender<Message>,
}

/// Whether a reader found the ring buffer empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    Empty,
    More,
}

impl CpuReader<'_> {
    /// Reads until the end is requested and nothing is left. Returns the number of records that were skipped.
    pub(super) fn run(mut self, end: &End) -> u64 {
        let mut state = State {
            encoder: BlockEncoder::new(self.cpu),
            latest: Moment::default(),
            skipped: 0,
            writer_is_gone: false,
        };
        let mut page = vec![0; self.layout.bytes()];
        loop {
            // Events after this moment may be missing from what is read now.
            let started = now();
            let is_ending = end.wait(Duration::ZERO);
            let rest = match self.drain(&mut state, &mut page) {
                Ok(rest) => rest,
                Err(error) => {
                    let _ = self.to.send(Message::Failed(error));
                    return state.skipped;
                }
            };
            let is_last = is_ending && rest == Rest::Empty;
            self.report(&mut state, started, rest, is_last);
            if is_last || state.writer_is_gone {
                return state.skipped;
            }
            if rest == Rest::Empty {
                end.wait(PERIOD);
            }
        }
    }

    fn drain(&mut self, state: &mut State, page: &mut [u8]) -> io::Result<Rest> {
        for _ in 0..PAGES_MAX {
            let bytes = match self.pages.read(page) {
                Ok(0) => return Ok(Rest::Empty),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Rest::Empty),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.take(state, &page[..bytes]);
            if state.writer_is_gone {
                break;
            }
        }
        Ok(Rest::More)
    }

    /// Adds the events of a page.
    fn take(&self, state: &mut State, page: &[u8]) {
        let Some(mut page) = Page::new(page, self.layout) else {
            state.skipped += 1;
            return;
        };
        if let Some(missed) = page.missed() {
            let lost = Action::Lost { events: missed.events };
            self.push(state, page.at(), Tid::default(), lost);
        }
        for (at, record) in &mut page {
            match self.layouts.read(record) {
                Some((thread, action)) => self.push(state, at, thread, action),
                None => state.skipped += 1,
            }
        }
        state.skipped += u64::from(page.is_malformed());
    }

    fn push(&self, state: &mut State, at: Moment, thread: Tid, action: Action) {
        state.latest = state.latest.max(at);
        let block = state.encoder.push(at, thread, action);
        self.send(state, block);
    }

    fn send(&self, state: &mut State, block: Option<EncodedBlock>) {
        if let Some(block) = block {
            state.writer_is_gone |= self.to.send(Message::Block(block)).is_err();
        }
    }

    /// Packs what has waited long enough, and reports to the writer how far this CPU is.
    fn report(&self, state: &mut State, started: Moment, rest: Rest, is_last: bool) {
        let waited = state.encoder.first().map_or(0, |first| started.ns_since(first));
        if is_last || state.encoder.waiting() >= PACKED_FROM || waited > PACKED_AFTER_NS {
            let block = state.encoder.finish();
            self.send(state, block);
        }
        let read_until = match rest {
            Rest::Empty => Moment::from_ns(started.ns().saturating_sub(DELIVERY_NS)),
            Rest::More => state.latest,
        };
        let until = state.encoder.first().map_or(read_until, |first| first.min(read_until));
        state.writer_is_gone |= self.to.send(Message::Complete { place: self.place, until }).is_err();
    }
}

/// What a reader knows between two looks at the ring buffer.
#[derive(Debug)]
struct State {
    encoder: BlockEncoder,
    latest: Moment,
    skipped: u64,
    writer_is_gone: bool,
}
