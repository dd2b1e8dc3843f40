//! Measures the cost of full nodes: the time of an allocation and its free when the nearest nodes are full.
//!
//! The machine has 1024 nodes of 1 GiB, and all requests come from a CPU of node 0. All nodes that are nearer than the
//! serving node are filled down to their watermark. The zonelist cache finds the serving node in a few probes, so the
//! time should not depend on the number of full nodes.
//!
//! Two cases without full nodes serve for comparison: the fast path, and a request that must scan the zonelist. In the
//! last cases no node is full, and cpusets allow only the farthest nodes.
//!
//! Run it with `cargo run --release -p zonal --example full_nodes`.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::alloc::{Layout as Bytes, alloc_zeroed};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::cpu_local::{Pinned, Quiesce};
use zonal::platform::{SpinLock, ZeroedCells};
use zonal::request::Urgency;
use zonal::units::{CpuId, Moment, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, NodeMask, Platform, Policy, Request};

/// Frames per node.
const NODE_FRAMES: u64 = 1 << 18;
const ORDERS: [u8; 3] = [0, 3, 9];

/// Measures the cost of full nodes before the serving one.
#[derive(Parser)]
struct Options {
    /// Number of full nodes; may be given several times [default: 0, 1, 3, 15, 63, 255, 1023].
    #[arg(long = "full")]
    full: Vec<u16>,
    /// Number of nodes that a cpuset allows, the farthest ones; may be given several times [default: 1, 8, 9, 64,
    /// 512, 1023].
    #[arg(long = "allowed")]
    allowed: Vec<u16>,
    /// Orders of the blocks; may be given several times [default: 0, 3, 9].
    #[arg(long = "order")]
    orders: Vec<u8>,
    /// The machine's node count [default: 1024].
    #[arg(long)]
    nodes: Option<u16>,
    /// Pairs of an allocation and a free in each round [default: 1000].
    #[arg(long)]
    pairs: Option<u64>,
    /// Number of rounds, whose median is reported [default: 801].
    #[arg(long)]
    rounds: Option<usize>,
    /// A short run: smaller defaults.
    #[arg(long)]
    short: bool,
}

/// One thread acts as all CPUs, so no operation is in progress on any CPU between two calls of the allocator.
struct OneThread;

impl Quiesce for OneThread {
    fn quiesce(&self, _cpu: CpuId) {}
}

/// A platform whose clock does not advance, so that no zonelist cache is cleared.
struct Still;

impl Platform for Still {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = Pinned<OneThread>;

    // SAFETY: these atomics, and the lock, which consists of one atomic, are plain integers that are zero when new.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(unsafe { ZeroedCells::promise() });

    fn current_cpu(&self) -> CpuId {
        CpuId::new(0)
    }

    fn cpu_local(&self) -> &Pinned<OneThread> {
        &Pinned(OneThread)
    }

    fn now(&self) -> Moment {
        Moment::from_ns(0)
    }
}

type World = Allocator<'static, Still>;

fn node(id: u16) -> NodeId {
    NodeId::new(id).expect("at most 1024 nodes")
}

/// Returns zeroed memory that is never freed.
fn zeroes(bytes: usize) -> Option<Buffer<'static>> {
    let layout = Bytes::from_size_align(bytes, 64).ok()?;
    // SAFETY: the allocator requests no buffer of zero bytes, so the size is not zero.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return None;
    }
    // SAFETY: the bytes were just allocated, and they are never freed or used elsewhere.
    let bytes = unsafe { core::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), bytes) };
    // SAFETY: `alloc_zeroed` returned zeroed memory, and nothing has written to it since.
    Some(unsafe { Buffer::zeroed(bytes) })
}

/// Builds a machine of `nodes` nodes, of which the nearest `full` nodes are at their watermark.
fn world(nodes: u16, full: u16) -> Result<World, Box<dyn Error>> {
    let cpu = [CpuId::new(0)];
    let rows: Vec<Vec<u8>> =
        (0..nodes).map(|row| (0..nodes).map(|to| if to == row { 10 } else { 20 }).collect()).collect();
    let spans: Vec<FrameRange> = (1..=u64::from(nodes))
        .map(|at| FrameRange { start: Pfn::new(at * NODE_FRAMES), count: PageCount::new(NODE_FRAMES) })
        .collect();
    let described: Vec<NodeDescription<'_>> = (0..nodes)
        .zip(&rows)
        .map(|(id, distances)| NodeDescription {
            id: node(id),
            cpus: if id == 0 { &cpu } else { &[] },
            distances,
        })
        .collect();
    let zones: Vec<ZoneDescription<'_>> = (0..nodes)
        .zip(&spans)
        .map(|(id, span)| ZoneDescription {
            node: node(id),
            kind: ZoneKind::Normal,
            span: *span,
            managed: core::slice::from_ref(span),
        })
        .collect();
    let machine = Machine::new(&described, &zones)?;
    let world = Allocator::new(Still, &machine, &Config::default(), |request| zeroes(request.bytes))?;
    for id in 0..full {
        let policy = Policy::bind(&world, NodeMask::from_iter([node(id)]))?;
        for order in (0..=Order::DEFAULT_MAX.get()).rev().filter_map(Order::new) {
            let request = Request::new(order).policy(&policy).urgency(Urgency::Atomic).no_wait();
            while world.alloc(&request).is_ok() {}
        }
    }
    Ok(world)
}

/// Returns the mean time of a pair, one allocation and one free, in nanoseconds.
fn time_ns(world: &World, request: &Request<'_>, pairs: u64) -> f64 {
    let start = Instant::now();
    for _ in 0..pairs {
        let block = world.alloc(black_box(request)).expect("a node has memory");
        world.free(black_box(block.first), block.order).expect("it was just allocated");
    }
    start.elapsed().as_secs_f64() * 1e9 / pairs as f64
}

/// A case and its times.
struct Case<'a> {
    name: String,
    /// The serving node.
    server: u16,
    world: &'a World,
    request: Request<'a>,
    times_ns: Vec<f64>,
    probes: f64,
}

impl<'a> Case<'a> {
    fn new(name: String, server: u16, world: &'a World, request: Request<'a>) -> Self {
        Self { name, server, world, request, times_ns: Vec::new(), probes: 0.0 }
    }

    fn prepare(&mut self, pairs: u64) -> Result<(), Box<dyn Error>> {
        let block = self.world.alloc(&self.request)?;
        assert_eq!(block.node, node(self.server), "the nearest node that may serve does");
        self.world.free(block.first, block.order)?;
        let before = self.world.events().probes;
        time_ns(self.world, &self.request, pairs);
        self.probes = (self.world.events().probes - before) as f64 / pairs as f64;
        Ok(())
    }

    fn median_ns(&mut self) -> f64 {
        self.times_ns.sort_by(f64::total_cmp);
        self.times_ns[self.times_ns.len() / 2]
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let (nodes, pairs, rounds) = if options.short { (64, 500, 3) } else { (1024, 1000, 801) };
    let nodes = options.nodes.unwrap_or(nodes);
    let (pairs, rounds) = (options.pairs.unwrap_or(pairs), options.rounds.unwrap_or(rounds).max(1));
    let mut full = options.full.clone();
    if full.is_empty() {
        full = [0, 1, 3, 15, 63, 255, 1023].into_iter().filter(|&full| full < nodes).collect();
    }
    let mut allowed = options.allowed.clone();
    if allowed.is_empty() {
        allowed = [1, 8, 9, 64, 512, 1023].into_iter().filter(|&allowed| allowed <= nodes).collect();
    }
    let cpusets: Vec<(u16, NodeMask)> =
        allowed.iter().map(|&count| (nodes - count, (nodes - count..nodes).map(node).collect())).collect();
    let empty = world(nodes, 0)?;
    let worlds = full.iter().map(|&full| world(nodes, full)).collect::<Result<Vec<_>, _>>()?;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["order", "case", "probes", "ns a pair", "of fast path", "of scan"]);
    let orders = if options.orders.is_empty() { &ORDERS[..] } else { &options.orders };
    for order in orders.iter().copied().filter_map(Order::new) {
        let request = Request::new(order);
        // Any zone limit, even one that excludes no zone, makes a request leave the fast path.
        let scanning = request.zone_limit(ZoneKind::Normal);
        let mut cases = Vec::new();
        for (&full, world) in full.iter().zip(&worlds) {
            if full == 0 {
                cases.push(Case::new("0 full, fast path".into(), full, world, request));
                cases.push(Case::new("0 full, scan".into(), full, world, scanning));
            } else {
                cases.push(Case::new(format!("{full} full"), full, world, request));
            }
        }
        for (nearest, mask) in &cpusets {
            let name = format!("{} allowed", nodes - nearest);
            cases.push(Case::new(name, *nearest, &empty, request.allowed(mask)));
        }
        for case in &mut cases {
            case.prepare(pairs)?;
        }
        for _ in 0..rounds {
            for case in &mut cases {
                case.times_ns.push(time_ns(case.world, &case.request, pairs));
            }
        }
        let medians: Vec<f64> = cases.iter_mut().map(Case::median_ns).collect();
        for (case, median) in cases.iter().zip(&medians) {
            let of = |base: usize| {
                medians.get(base).map_or_else(String::new, |base| format!("{:.2}", median / base))
            };
            table.add_row([
                order.to_string(),
                case.name.clone(),
                format!("{:.2}", case.probes),
                format!("{median:.1}"),
                of(0),
                of(1),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{}", table.trim_fmt());
    Ok(())
}
