//! Refills and drains: events that belong together because they happened under one hold of a zone's lock.
//!
//! A refill is reported block by block, and so is a drain. Events of the same thread and CPU are one run if no event
//! from a request or a free lies between them. A run may have several holds of the lock, which traces do not show.
//!
//! Related files: `info/` counts runs, and `export/perfetto.rs` draws them.

use zonal::units::{CpuId, Moment, PageCount};

use crate::event::{Action, Event, Tid};

/// What a run does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunKind {
    /// Blocks go from the free areas of a zone to a pageset.
    Refill,
    /// Blocks go from a pageset to the free areas of a zone.
    Drain,
}

/// A refill or a drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Which of the two.
    pub kind: RunKind,
    /// The CPU.
    pub cpu: CpuId,
    /// The thread.
    pub thread: Tid,
    /// The moment of the first event.
    pub first: Moment,
    /// The moment of the last event.
    pub last: Moment,
    /// The number of blocks.
    pub blocks: u64,
    /// The number of frames.
    pub pages: PageCount,
}

/// What is known of a CPU's current run and request.
#[derive(Clone, Copy, Default, Debug)]
struct Cpu {
    run: Option<Run>,
    /// The thread whose next request follows an event under the zone's lock.
    locked: Option<Tid>,
}

/// What an event ended or was.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Noticed {
    /// The run that ended before the event.
    pub run: Option<Run>,
    /// Whether the event is a request that needed a zone's lock.
    pub needed_lock: bool,
}

/// Finds runs in events that come in the order of their moments.
#[derive(Debug)]
pub struct Runs(Vec<Cpu>);

impl Runs {
    /// Creates a finder for a number of CPUs.
    #[must_use]
    pub fn new(cpus: usize) -> Self {
        Self(vec![Cpu::default(); cpus])
    }

    /// Takes an event. `place` is its CPU's place in the trace.
    pub fn take(&mut self, place: usize, event: &Event) -> Noticed {
        let cpu = &mut self.0[place];
        let kind = match &event.action {
            Action::ZoneLocked { page, is_refill, .. } => {
                cpu.locked = Some(event.thread);
                (*is_refill && page.is_some()).then_some(RunKind::Refill)
            }
            Action::Drain { .. } => Some(RunKind::Drain),
            Action::Alloc { .. } | Action::Free { .. } | Action::FreeBatched { .. } | Action::Lost { .. } => {
                None
            }
            // These happen within refills, or have nothing to do with them.
            _ => return Noticed::default(),
        };
        let is_alloc = matches!(event.action, Action::Alloc { .. });
        let needed_lock = is_alloc && cpu.locked.take_if(|thread| *thread == event.thread).is_some();
        let pages = event.action.order().map_or(0, |order| order.pages().get());
        if let (Some(kind), Some(run)) = (kind, &mut cpu.run)
            && run.kind == kind
            && run.thread == event.thread
        {
            run.last = run.last.max(event.at);
            run.blocks += 1;
            run.pages = run.pages.plus(PageCount::new(pages));
            return Noticed { run: None, needed_lock };
        }
        let next = kind.map(|kind| Run {
            kind,
            cpu: event.cpu,
            thread: event.thread,
            first: event.at,
            last: event.at,
            blocks: 1,
            pages: PageCount::new(pages),
        });
        Noticed { run: std::mem::replace(&mut cpu.run, next), needed_lock }
    }

    /// Returns the runs that the end of the trace ends.
    pub fn finish(&mut self) -> impl Iterator<Item = Run> + '_ {
        self.0.iter_mut().filter_map(|cpu| cpu.run.take())
    }
}
