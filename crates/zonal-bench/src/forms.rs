//! The forms of requests: a pair of one block out and one back, for each way in which programs ask for memory.
//!
//! Each form is an entry, so that a bench runs all forms in the same rounds. Every form has a pool of its own, and its
//! request is built before the measured part. Related files: `ours.rs` has the plain request, `contender.rs` measures.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use zonal::Allocator;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{Order, PageCount, Pfn, ZoneKind};
use zonal_linux::{
    Config, Frames, Lease, LinuxPlatform, Pool, PoolBuilder, PoolPolicy, PoolRequest, PoolWeights, Topology,
};
use zonal_workload::{PageSource, Workload};

use crate::bench::{Bench, Progress};
use crate::contender::{Contender, Entry, Reason};
use crate::floor::area;
use crate::ours::{self, bytes};
use crate::peers::{peers, peers_at};
use crate::report::{Report, Row};
use crate::spread::Spread;

/// Row name of the plain request, with which all others are compared.
const PLAIN: &str = "plain";
/// Row name of bulk calls: the time of a frame that one call allocates with others and another call frees.
const BULK_NAME: &str = "bulk";
/// Row names of blocks that are owned by values.
const OWNED: &str = "owned";
const LEASE: &str = "lease";
/// Largest order of the forms.
const ORDER_MAX: u8 = 10;

/// One way to request memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    ZoneLimit,
    ThisNode,
    Cpuset,
    Bind,
    Preferred,
    Interleave,
    Weighted,
    NoWait,
    Stepwise,
    /// Interleaving over [`FAKE_NODES`] emulated nodes.
    InterleaveNodes,
    /// Binding to an emulated node without CPUs, so that each CPU uses its pageset of another node.
    OtherNode,
    Block(Order),
}

/// Emulated nodes of [`Form::InterleaveNodes`].
const FAKE_NODES: usize = 4;

impl Form {
    /// Returns all forms with raw blocks, in the order of the report.
    fn all() -> impl Iterator<Item = Self> {
        let single = [
            Self::ZoneLimit,
            Self::ThisNode,
            Self::Cpuset,
            Self::Bind,
            Self::Preferred,
            Self::Interleave,
            Self::Weighted,
            Self::NoWait,
            Self::Stepwise,
            Self::InterleaveNodes,
            Self::OtherNode,
        ];
        single.into_iter().chain(orders().map(Self::Block))
    }

    fn name(self) -> String {
        match self {
            Self::ZoneLimit => "zone-limit".into(),
            Self::ThisNode => "this-node".into(),
            Self::Cpuset => "cpuset".into(),
            Self::Bind => "bind".into(),
            Self::Preferred => "preferred".into(),
            Self::Interleave => "interleave".into(),
            Self::Weighted => "weighted".into(),
            Self::NoWait => "no-wait".into(),
            Self::Stepwise => "stepwise".into(),
            Self::InterleaveNodes => "interleave-nodes".into(),
            Self::OtherNode => "other-node".into(),
            Self::Block(order) => order_name(order),
        }
    }

    const fn order(self) -> Order {
        match self {
            Self::Block(order) => order,
            _ => Order::PAGE,
        }
    }

    fn builder(self, frames: PageCount) -> PoolBuilder<'static> {
        let tuning = if self == Self::Stepwise { PagesetTuning::Stepwise } else { PagesetTuning::default() };
        let size = bytes(frames);
        let builder =
            Pool::builder().size(size).config(Config { tuning, ..Pool::default_config(Some(size)) });
        match self {
            Self::InterleaveNodes => builder.fake_nodes(FAKE_NODES),
            Self::OtherNode => {
                let cpus: usize = Topology::live().nodes().iter().map(|node| node.cpus.len()).sum();
                builder.fake_nodes(cpus + 1)
            }
            _ => builder,
        }
    }
}

fn orders() -> impl Iterator<Item = Order> {
    (1..=ORDER_MAX).filter_map(Order::new)
}

fn order_name(order: Order) -> String {
    format!("order-{}", order.get())
}

/// A pool with what the request of one form refers to.
struct Formed {
    pool: Pool,
    form: Form,
    /// Nodes with memory.
    nodes: zonal_linux::NodeMask,
    policy: Option<PoolPolicy<'static>>,
    /// Offset of the threads' areas in a processor simulator; see [`ours::zonal_in_simulator`].
    simulated: Option<isize>,
}

impl Formed {
    fn new(form: Form, pool: Pool, simulated: Option<isize>) -> Result<Self, Reason> {
        let nodes = pool.memory_nodes();
        let first = nodes.nth(0).ok_or("the pool has no memory")?;
        let policy = match form {
            Form::Bind => Some(pool.bind(nodes)),
            Form::OtherNode => {
                let bare = pool.topology().nodes().iter().filter(|node| node.cpus.is_empty());
                Some(pool.bind(bare.map(|node| node.id).collect()))
            }
            Form::Preferred => Some(pool.preferred(first)),
            Form::Interleave | Form::InterleaveNodes => Some(pool.interleave(nodes)),
            Form::Weighted => {
                // The weights live as long as the process, because the policy is stored beside its pool.
                let weights: &'static PoolWeights = Box::leak(Box::new(PoolWeights::new()));
                nodes.iter().for_each(|node| weights.set(node, 2));
                Some(pool.weighted_interleave(nodes, weights))
            }
            _ => None,
        };
        let policy = policy.transpose().map_err(|error| error.to_string())?;
        Ok(Self { pool, form, nodes, policy, simulated })
    }

    fn request(&self) -> PoolRequest<'_> {
        let request = PoolRequest::new(self.form.order());
        if let Some(policy) = &self.policy {
            return request.policy(policy);
        }
        match self.form {
            Form::ZoneLimit => request.zone_limit(ZoneKind::Normal),
            Form::ThisNode => request.this_node(),
            Form::Cpuset => request.allowed(&self.nodes),
            Form::NoWait => request.no_wait(),
            _ => request,
        }
    }
}

/// A thread's interface that uses the request of a form, whatever order the workload asks for.
struct Source<'a> {
    allocator: &'a Allocator<'static, LinuxPlatform>,
    request: PoolRequest<'a>,
    order: Order,
}

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline(always)]
    fn alloc(&mut self, _order: Order) -> Option<Pfn> {
        self.allocator.alloc(&self.request).ok().map(|block| block.first)
    }

    #[inline(always)]
    fn free(&mut self, page: Pfn, _order: Order) {
        self.allocator.free(page, self.order).expect("the block was allocated");
    }
}

/// Sets the calling thread's area to CPU 0 if the areas are simulated.
fn set_simulated_cpu(offset: Option<isize>) {
    if let Some(offset) = offset {
        // SAFETY: as in `ours::zonal_in_simulator`, whose promises the caller of `forms_in_simulator` has made.
        unsafe { area::set_simulated_cpu(offset) };
    }
}

impl Contender for Formed {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        set_simulated_cpu(self.simulated);
        // SAFETY: no frames of the pool are ever owned in another way, and no memory goes offline.
        let allocator = unsafe { self.pool.allocator() };
        Source { allocator, request: self.request(), order: self.form.order() }
    }
}

/// A pool whose blocks are owned by values, as most users of the library use it.
struct Owning<const LEASED: bool> {
    pool: Pool,
    /// As in [`Formed`].
    simulated: Option<isize>,
}

/// Holds the block of the pair that is under way.
struct OwnedSource<'a> {
    pool: &'a Pool,
    held: Option<Frames>,
}

struct LeasedSource<'a> {
    pool: &'a Pool,
    held: Option<Lease<'a>>,
}

impl PageSource for OwnedSource<'_> {
    type Page = Pfn;

    #[inline(always)]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        self.held = self.pool.alloc(&PoolRequest::new(order)).ok();
        self.held.as_ref().map(Frames::first)
    }

    #[inline(always)]
    fn free(&mut self, _page: Pfn, _order: Order) {
        self.held = None;
    }
}

impl PageSource for LeasedSource<'_> {
    type Page = Pfn;

    #[inline(always)]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        self.held = self.pool.lease(&PoolRequest::new(order)).ok();
        self.held.as_ref().map(Lease::first)
    }

    #[inline(always)]
    fn free(&mut self, _page: Pfn, _order: Order) {
        self.held = None;
    }
}

impl Contender for Owning<false> {
    type Source<'a> = OwnedSource<'a>;

    fn source(&self) -> OwnedSource<'_> {
        set_simulated_cpu(self.simulated);
        OwnedSource { pool: &self.pool, held: None }
    }
}

impl Contender for Owning<true> {
    type Source<'a> = LeasedSource<'a>;

    fn source(&self) -> LeasedSource<'_> {
        set_simulated_cpu(self.simulated);
        LeasedSource { pool: &self.pool, held: None }
    }
}

/// Frames per bulk call.
const BULK: usize = 512;

/// A pool from which frames are allocated and to which they are freed in bulk.
struct InBulk {
    pool: Pool,
    /// As in [`Formed`].
    simulated: Option<isize>,
}

/// Serves single frames from a bulk call, and frees them by another one when all were given back.
struct BulkSource<'a> {
    allocator: &'a Allocator<'static, LinuxPlatform>,
    /// Frames of the last bulk call, of which `frames[..out]` are out or wait for the next bulk call, which frees all.
    frames: [Pfn; BULK],
    out: usize,
}

impl PageSource for BulkSource<'_> {
    type Page = Pfn;

    #[inline(always)]
    fn alloc(&mut self, _order: Order) -> Option<Pfn> {
        if self.out == self.frames.len() {
            self.allocator.free_bulk(&self.frames).expect("the frames were allocated");
            let came = self.allocator.alloc_bulk(&PoolRequest::page(), &mut self.frames);
            assert_eq!(came, Ok(BULK), "the pool is much larger");
            self.out = 0;
        }
        self.out += 1;
        Some(self.frames[self.out - 1])
    }

    #[inline(always)]
    fn free(&mut self, _page: Pfn, _order: Order) {}
}

impl Drop for BulkSource<'_> {
    fn drop(&mut self) {
        self.allocator.free_bulk(&self.frames).expect("the frames were allocated");
    }
}

impl Contender for InBulk {
    type Source<'a> = BulkSource<'a>;

    fn source(&self) -> BulkSource<'_> {
        set_simulated_cpu(self.simulated);
        // SAFETY: as in `Formed::source`.
        let allocator = unsafe { self.pool.allocator() };
        let mut frames = [Pfn::default(); BULK];
        let came = allocator.alloc_bulk(&PoolRequest::page(), &mut frames);
        assert_eq!(came, Ok(BULK), "the pool is much larger");
        BulkSource { allocator, frames, out: 0 }
    }
}

fn in_bulk() -> Entry {
    Entry::new(BULK_NAME, env!("CARGO_PKG_VERSION"), |frames| {
        let pool = ours::pool(frames).map_err(|error| error.to_string())?;
        Ok(InBulk { pool, simulated: None })
    })
}

fn own<const LEASED: bool>(name: &str) -> Entry
where
    Owning<LEASED>: Contender,
{
    Entry::new(name, env!("CARGO_PKG_VERSION"), |frames| {
        let pool = ours::pool(frames).map_err(|error| error.to_string())?;
        Ok(Owning::<LEASED> { pool, simulated: None })
    })
}

/// Returns the entry of blocks owned by values, for simulators.
///
/// # Safety
/// As for [`zonal_in_simulator`](crate::zonal_in_simulator).
unsafe fn own_in_simulator<const LEASED: bool>(name: &str) -> Entry
where
    Owning<LEASED>: Contender,
{
    Entry::new(name, env!("CARGO_PKG_VERSION"), |frames| {
        // SAFETY: the caller makes the same promises.
        let (pool, offset) = unsafe { ours::pool_in_simulator(Pool::builder().size(bytes(frames))) }?;
        Ok(Owning::<LEASED> { pool, simulated: Some(offset) })
    })
}

fn entry(form: Form) -> Entry {
    Entry::new(form.name(), env!("CARGO_PKG_VERSION"), move |frames| {
        let pool = form.builder(frames).build().map_err(|error| error.to_string())?;
        Formed::new(form, pool, None)
    })
}

/// Returns the entries of all forms, for simulators that do not support restartable sequences.
///
/// # Safety
/// As for [`zonal_in_simulator`](crate::zonal_in_simulator).
#[must_use]
pub unsafe fn forms_in_simulator() -> Vec<Entry> {
    let entry = |form: Form| {
        Entry::new(form.name(), env!("CARGO_PKG_VERSION"), move |frames| {
            // SAFETY: the caller makes the same promises.
            let (pool, offset) = unsafe { ours::pool_in_simulator(form.builder(frames)) }?;
            Formed::new(form, pool, Some(offset))
        })
    };
    let in_bulk = Entry::new(BULK_NAME, env!("CARGO_PKG_VERSION"), |frames| {
        // SAFETY: the caller makes the same promises.
        let (pool, offset) = unsafe { ours::pool_in_simulator(Pool::builder().size(bytes(frames))) }?;
        Ok(InBulk { pool, simulated: Some(offset) })
    });
    // SAFETY: the caller makes the same promises.
    let owned = unsafe { own_in_simulator::<false>(OWNED) };
    // SAFETY: as above.
    let leased = unsafe { own_in_simulator::<true>(LEASE) };
    Form::all().map(entry).chain([owned, leased, in_bulk]).collect()
}

/// Returns the entries of all forms.
#[must_use]
pub fn form_entries() -> Vec<Entry> {
    Form::all().map(entry).chain([own::<false>(OWNED), own::<true>(LEASE), in_bulk()]).collect()
}

/// Returns the names of all forms.
#[must_use]
pub fn form_names() -> Vec<String> {
    Form::all().map(Form::name).chain([OWNED.into(), LEASE.into(), BULK_NAME.into()]).collect()
}

/// One form of request.
#[derive(Clone, PartialEq, Debug)]
pub struct FormRow {
    /// The form's name in scripts.
    pub form: String,
    /// CPU time of a pair in nanoseconds.
    pub cpu_ns: Spread,
    /// Instructions of a pair in user space, if they can be counted.
    pub instructions: Option<f64>,
    /// CPU time as a multiple of the plain request's time in the same round, as the median over the rounds.
    pub ratio_to_plain: Option<f64>,
    /// The fastest peer that has this form, and the form's CPU time as a multiple of the peer's time.
    pub fastest_peer: Option<(String, f64)>,
    /// Number of measured rounds.
    pub rounds: usize,
}

/// Measures all forms, and the peers at the forms that they have, as `bench` says; its workloads are not used.
///
/// # Errors
/// Returns an error if the system refuses a thread.
pub fn forms(
    bench: &Bench,
    threads: NonZeroUsize,
    stop: &AtomicBool,
    on_progress: impl FnMut(Progress<'_>),
) -> std::io::Result<(Vec<FormRow>, Report)> {
    let bench = Bench { workloads: vec![Workload::Pair], threads: vec![threads], ..bench.clone() };
    let ours = [ours::zonal()].into_iter().chain(form_entries());
    let peers = peers().into_iter().chain(orders().flat_map(peers_at));
    let entries: Vec<Entry> = ours.chain(peers).collect();
    let report = bench.run(&entries, stop, on_progress)?;
    let is_peer = |row: &&Row| entries[PEERS_FROM..].iter().any(|entry| entry.name() == row.contender);
    let peers: Vec<&Row> = report.rows.iter().filter(is_peer).collect();
    let ours = report.rows.iter().filter(|row| !is_peer(row));
    Ok((ours.map(|row| form_row(row, &peers)).collect(), report))
}

/// Entries before those of the peers: the plain request, eleven forms, the orders, two forms that own blocks, and bulk
/// calls.
const PEERS_FROM: usize = 1 + 11 + ORDER_MAX as usize + 3;

fn form_row(row: &Row, peers: &[&Row]) -> FormRow {
    let form = if row.contender == ours::NAME { PLAIN } else { &row.contender };
    let at_order = |peer: &Row| peer.contender.split_once(' ').map_or(PLAIN, |(_, order)| order) == form;
    let of_form = peers.iter().filter(|peer| at_order(peer));
    let fastest = of_form.min_by(|a, b| a.cpu_ns.median.total_cmp(&b.cpu_ns.median));
    FormRow {
        form: form.to_owned(),
        cpu_ns: row.cpu_ns,
        instructions: row.instructions,
        ratio_to_plain: row.ratio_to_zonal,
        // Both ratios are to the plain request in the same rounds, so a slow round affects both.
        fastest_peer: fastest.and_then(|peer| {
            let name = peer.contender.split(' ').next().unwrap_or_default();
            Some((name.to_owned(), row.ratio_to_zonal? / peer.ratio_to_zonal?))
        }),
        rounds: row.rounds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[cfg_attr(not(feature = "peers"), ignore = "needs the feature `peers`")]
    #[test]
    fn every_form_is_measured_and_compared_with_peers_of_its_order() {
        let bench = Bench {
            workloads: Vec::new(),
            threads: Vec::new(),
            rounds: NonZeroUsize::MIN,
            round_time: Duration::from_millis(1),
            warm_up: Duration::ZERO,
            frames: PageCount::new(1 << 14),
            seed: 1,
        };
        let stop = AtomicBool::new(false);
        let (rows, report) = forms(&bench, NonZeroUsize::MIN, &stop, |_| ()).unwrap();
        assert!(report.skipped.is_empty(), "{:?}", report.skipped);
        let names: Vec<&str> = rows.iter().map(|row| &*row.form).collect();
        assert_eq!(names[..3], ["plain", "zone-limit", "this-node"]);
        assert_eq!(names[names.len() - 4..], ["order-10", "owned", "lease", "bulk"]);
        for row in rows {
            assert!(row.cpu_ns.median > 0.0 && row.ratio_to_plain.is_some_and(|ratio| ratio > 0.0));
            let has_peer = row.form == PLAIN || row.form.starts_with("order-");
            assert_eq!(row.fastest_peer.is_some(), has_peer, "{}", row.form);
        }
    }

    #[test]
    fn requests_of_all_forms_are_served() {
        let sequences = ours::pool(PageCount::new(1 << 14)).unwrap().uses_sequences();
        for form in Form::all() {
            let pool = form.builder(PageCount::new(1 << 14)).build().unwrap();
            let formed = Formed::new(form, pool, None).unwrap();
            let block = formed.pool.alloc_raw(&formed.request()).unwrap();
            assert_eq!(block.order, form.order());
            assert_eq!(formed.pool.uses_sequences(), sequences, "{form:?}");
            let nodes = formed.pool.topology().nodes();
            let has_cpu = nodes.iter().any(|node| node.id == block.node && !node.cpus.is_empty());
            assert!(form != Form::OtherNode || !has_cpu);
            // SAFETY: no value owns the block.
            unsafe { formed.pool.free_raw(block.first, block.order) }.unwrap();
        }
    }
}
