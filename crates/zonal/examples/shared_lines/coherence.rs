//! A model of a machine's caches, which tracks the CPUs that hold a copy of each line.
//!
//! A *transfer* is an access to a line that another CPU has written since this CPU last accessed it, which means that
//! this CPU's copy is no longer valid. An *invalidation* is a write to a line of which another CPU has a copy. A
//! *shared update* is a read-modify-write that is a transfer or an invalidation. Modelled caches never fill up, so the
//! model counts only sharing.
//!
//! Related files: `watched.rs` reports the accesses, and `measure.rs` adds up the counts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;

use zonal::layout::Place;

use crate::watched::{Access, Kind, Watch};

/// Bytes of a line.
pub(crate) const LINE_BYTES: usize = 64;

/// A set of CPUs.
type Cpus = u128;
/// Maximum number of CPUs.
pub(crate) const CPUS_MAX: usize = Cpus::BITS as usize;

thread_local! {
    static CACHES: RefCell<Caches> = RefCell::default();
}

/// Calls `work` with the caches of this thread.
pub(crate) fn with_caches<T>(work: impl FnOnce(&mut Caches) -> T) -> T {
    CACHES.with_borrow_mut(work)
}

/// Passes accesses to the caches of this thread.
pub(crate) struct Watcher;

impl Watch for Watcher {
    fn saw(access: Access) {
        with_caches(|caches| caches.saw(access));
    }

    fn took_lock(address: usize) {
        with_caches(|caches| caches.holds.push(Hold { address, accesses: 0, transfers: 0 }));
    }

    fn freed_lock(address: usize) {
        with_caches(|caches| caches.freed_lock(address));
    }
}

/// Counts of accesses.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) accesses: u64,
    pub(crate) transfers: u64,
    /// Transfers of lines that a CPU on another node wrote last.
    pub(crate) far_transfers: u64,
    pub(crate) invalidations: u64,
    pub(crate) shared_updates: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, more: &Self) {
        self.accesses += more.accesses;
        self.transfers += more.transfers;
        self.far_transfers += more.far_transfers;
        self.invalidations += more.invalidations;
        self.shared_updates += more.shared_updates;
    }
}

/// How often a place in the code accessed a line.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    pub(crate) site: usize,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// A line and its counts.
#[derive(Default)]
pub(crate) struct Line {
    holders: Cpus,
    last_writer: Option<u8>,
    /// CPUs that wrote the line. `users` are the CPUs that accessed it.
    pub(crate) writers: Cpus,
    pub(crate) users: Cpus,
    pub(crate) counts: Counts,
    pub(crate) uses: Vec<Use>,
}

/// A buffer of metadata.
pub(crate) struct Area {
    pub(crate) place: Place,
    first_line: usize,
    pub(crate) lines: Vec<Line>,
}

impl Area {
    /// Returns the address of the first line.
    pub(crate) fn address(&self) -> usize {
        self.first_line * LINE_BYTES
    }

    /// Returns all lines with their addresses.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().map(|(at, line)| ((self.first_line + at) * LINE_BYTES, line))
    }
}

/// A lock that is held.
struct Hold {
    address: usize,
    accesses: u64,
    transfers: u64,
}

/// Accesses to cells while a lock was held, except those to the lock itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct HoldCounts {
    pub(crate) taken: u64,
    pub(crate) accesses: u64,
    pub(crate) transfers: u64,
    pub(crate) longest: u64,
}

impl HoldCounts {
    pub(crate) fn add(&mut self, more: &Self) {
        self.taken += more.taken;
        self.accesses += more.accesses;
        self.transfers += more.transfers;
        self.longest = self.longest.max(more.longest);
    }
}

/// Places in the code.
pub(crate) struct Sites {
    all: Vec<&'static Location<'static>>,
    ids: HashMap<&'static Location<'static>, usize>,
    /// The places found most recently, indexed by a few bits of their address.
    recent: [Option<(&'static Location<'static>, usize)>; 256],
}

impl Default for Sites {
    fn default() -> Self {
        Self { all: Vec::new(), ids: HashMap::new(), recent: [None; 256] }
    }
}

impl Sites {
    /// Returns the place with an id.
    pub(crate) fn get(&self, id: usize) -> &'static Location<'static> {
        self.all[id]
    }

    fn id(&mut self, site: &'static Location<'static>) -> usize {
        let recent = &mut self.recent[core::ptr::from_ref(site).addr() / size_of::<Location<'_>>() % 256];
        if let Some((known, id)) = *recent
            && core::ptr::eq(known, site)
        {
            return id;
        }
        let all = &mut self.all;
        let id = *self.ids.entry(site).or_insert_with(|| {
            all.push(site);
            all.len() - 1
        });
        *recent = Some((site, id));
        id
    }
}

/// The lines of all metadata, and the CPUs that hold a copy of each.
#[derive(Default)]
pub(crate) struct Caches {
    pub(crate) areas: Vec<Area>,
    /// Node of each CPU.
    nodes: Vec<u16>,
    cpu: usize,
    measuring: bool,
    pub(crate) sites: Sites,
    holds: Vec<Hold>,
    /// Counts of each lock, by the address of the lock.
    pub(crate) hold_counts: HashMap<usize, HoldCounts>,
}

impl Caches {
    /// Creates empty caches of a machine whose CPUs are on `nodes`.
    pub(crate) fn new(nodes: Vec<u16>) -> Self {
        assert!(nodes.len() <= CPUS_MAX, "at most {CPUS_MAX} CPUs");
        Self { nodes, ..Self::default() }
    }

    /// Starts to watch a buffer.
    pub(crate) fn watch(&mut self, place: Place, address: usize, bytes: usize) {
        let first_line = address.div_ceil(LINE_BYTES); // cells begin at the start of a line
        let lines = (address + bytes).div_ceil(LINE_BYTES) - first_line;
        let lines = std::iter::repeat_with(Line::default).take(lines).collect();
        self.areas.push(Area { place, first_line, lines });
    }

    /// Drops all copies, as if everything written during preparation were only in memory.
    pub(crate) fn flush(&mut self) {
        for line in self.areas.iter_mut().flat_map(|area| &mut area.lines) {
            *line = Line::default();
        }
        self.hold_counts.clear();
    }

    /// Starts counting.
    pub(crate) fn start_measuring(&mut self) {
        self.measuring = true;
    }

    /// Stops counting.
    pub(crate) fn stop_measuring(&mut self) {
        self.measuring = false;
    }

    /// Switches to another CPU.
    pub(crate) fn run_on(&mut self, cpu: usize) {
        self.cpu = cpu;
    }

    /// Returns the current CPU.
    pub(crate) fn cpu(&self) -> usize {
        self.cpu
    }

    /// Returns the buffer and the line of an address.
    fn find(&self, address: usize) -> (usize, usize) {
        let line = address / LINE_BYTES;
        let holds = |area: &Area| (area.first_line..area.first_line + area.lines.len()).contains(&line);
        let area = self.areas.iter().position(holds).expect("cells lie in watched buffers");
        (area, line - self.areas[area].first_line)
    }

    fn saw(&mut self, access: Access) {
        let (area, line) = self.find(access.address);
        let line = &mut self.areas[area].lines[line];
        let seen = line.saw(self.cpu, &self.nodes, access.kind);
        if self.measuring {
            line.note_use(self.sites.id(access.site), access.kind);
            line.counts.add(&seen);
            line.users |= 1 << self.cpu;
            line.writers |= Cpus::from(access.kind != Kind::Read) << self.cpu;
        }
        for hold in &mut self.holds {
            hold.accesses += 1;
            hold.transfers += seen.transfers;
        }
    }

    fn freed_lock(&mut self, address: usize) {
        let at = self.holds.iter().rposition(|hold| hold.address == address).expect("the lock was taken");
        let hold = self.holds.remove(at);
        if self.measuring {
            let Hold { accesses, transfers, .. } = hold;
            let one = HoldCounts { taken: 1, accesses, transfers, longest: accesses };
            self.hold_counts.entry(address).or_default().add(&one);
        }
    }
}

impl Line {
    /// Returns how often the line moved between CPUs.
    pub(crate) fn heat(&self) -> u64 {
        self.counts.transfers + self.counts.invalidations
    }

    /// Updates the copies for an access, and returns the counts of this access.
    fn saw(&mut self, cpu: usize, nodes: &[u16], kind: Kind) -> Counts {
        let me: Cpus = 1 << cpu;
        let from = self.last_writer.map(usize::from).filter(|&from| from != cpu);
        let transferred = self.holders & me == 0 && from.is_some();
        let far = transferred && from.is_some_and(|from| nodes[from] != nodes[cpu]);
        let invalidated = kind != Kind::Read && self.holders & !me != 0;
        if kind == Kind::Read {
            self.holders |= me;
        } else {
            self.holders = me;
            self.last_writer = Some(cpu as u8);
        }
        Counts {
            accesses: 1,
            transfers: transferred.into(),
            far_transfers: far.into(),
            invalidations: invalidated.into(),
            shared_updates: (kind == Kind::ReadWrite && (transferred || invalidated)).into(),
        }
    }

    fn note_use(&mut self, site: usize, kind: Kind) {
        let (read, written) = (u64::from(kind != Kind::Write), u64::from(kind != Kind::Read));
        match self.uses.iter_mut().find(|used| used.site == site) {
            Some(used) => {
                used.reads += read;
                used.writes += written;
            }
            None => self.uses.push(Use { site, reads: read, writes: written }),
        }
    }
}
