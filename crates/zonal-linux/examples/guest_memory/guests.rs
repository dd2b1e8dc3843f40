//! Virtual machines whose memory consists of 2 MiB blocks, each placed by a different policy.
//!
//! The order of events matters: the first guest fills a node, the next two show how other policies handle the full
//! node, and the last two what happens after the first guest's memory is freed.

use std::error::Error;
use std::fs;

use comfy_table::{CellAlignment, Table};
use zonal_linux::{
    AllocFailure, Frames, NodeId, NodeMask, Order, Pfn, Pool, PoolPolicy, PoolRequest, PoolWeights,
};

use crate::Check;

/// Order of a 2 MiB block of 4 KiB frames.
const HUGE: Order = match Order::new(9) {
    Some(order) => order,
    None => unreachable!(),
};
const HUGE_MIB: usize = 2;
/// Bytes between two stamps: one for each page that a guest could use.
const STAMP_STEP: usize = 4096;
/// For comparisons: comparing whole slices is fast even in unoptimized builds.
const ZEROS: [u8; 4096] = [0; 4096];
/// Weights of nodes, repeated, as for memory of different speeds.
const WEIGHTS: [u8; 4] = [1, 4, 2, 1];

/// Boots guests under each policy, prints where their memory came from, and checks it.
pub(crate) fn run(pool: &Pool) -> Result<Vec<Check>, Box<dyn Error>> {
    let mut host = Host::new(pool);
    let mut checks = Vec::new();
    let bound = host.fill_a_node(&mut checks)?;
    let mut guests = host.go_around_it(&mut checks)?;
    let intact = bound.is_intact();
    let given_back: Vec<Pfn> = bound.blocks.iter().map(Frames::first).collect();
    drop(bound);
    guests.extend(host.use_it_again(&given_back, &mut checks)?);
    println!("\n{}\n", host.table);
    print_backing();
    checks.push(("no guest sees what another one left", host.all_came_zeroed));
    checks.push(("every page holds what its guest wrote", intact && guests.iter().all(Guest::is_intact)));
    Ok(checks)
}

/// Allocates the memory of guests, and keeps a list of them.
struct Host<'p> {
    pool: &'p Pool,
    nodes: Vec<NodeId>,
    /// Node that is filled, and its number of huge blocks.
    full: NodeId,
    share: usize,
    table: Table,
    all_came_zeroed: bool,
}

impl<'p> Host<'p> {
    fn new(pool: &'p Pool) -> Self {
        let nodes: Vec<NodeId> = pool.memory_nodes().iter().collect();
        let full = nodes[1];
        let zones = pool.ranges().filter(|zone| zone.node == full);
        let share = zones.map(|zone| zone.frames.count.get() / HUGE.pages().get()).sum::<u64>() as usize;
        let table = table(&nodes);
        Self { pool, nodes, full, share, table, all_came_zeroed: true }
    }

    /// Allocates with bind: this node and no other. It fails when the node is full, and reports the state of each
    /// zone.
    fn fill_a_node(&mut self, checks: &mut Vec<Check>) -> Result<Guest, Box<dyn Error>> {
        let bind = self.pool.bind(NodeMask::from_iter([self.full]))?;
        let bound = self.boot("bound", &format!("bind {}", self.full), &bind, self.share + 4);
        if let Some(failure) = &bound.failure {
            println!("\nguest `bound` has {} blocks, and no more can be had:\n{failure}", bound.blocks.len());
        }
        let fails = bound.failure.is_some() && bound.on(self.full) == bound.blocks.len();
        checks.push(("bind fails when its node is full, and never leaves it", fails));
        Ok(bound)
    }

    /// Allocates with preferred and interleave: the full node is skipped.
    fn go_around_it(&mut self, checks: &mut Vec<Check>) -> Result<Vec<Guest>, Box<dyn Error>> {
        let full = self.full;
        let preferred = self.pool.preferred(full)?;
        let preferring = self.boot("preferring", &format!("preferred {full}"), &preferred, self.share / 4);
        let interleave = self.pool.interleave(self.pool.memory_nodes())?;
        let spread = self.boot("spread", "interleave all", &interleave, self.share / 2);
        let around = |guest: &Guest| guest.failure.is_none() && guest.on(full) == 0;
        checks.push(("preferred falls back where its node is full", around(&preferring)));
        checks.push(("interleave goes on without a full node", around(&spread)));
        Ok(vec![preferring, spread])
    }

    /// Allocates after the node's guest is dropped.
    fn use_it_again(&mut self, freed: &[Pfn], checks: &mut Vec<Check>) -> Result<Vec<Guest>, Box<dyn Error>> {
        let bind = self.pool.bind(NodeMask::from_iter([self.full]))?;
        let next = self.boot("next", &format!("bind {} again", self.full), &bind, self.share / 4);
        let reused = next.failure.is_none() && next.blocks.iter().all(|block| freed.contains(&block.first()));
        let weights = PoolWeights::new();
        for (&node, weight) in self.nodes.iter().zip(WEIGHTS.into_iter().cycle()) {
            weights.set(node, weight);
        }
        let weighted = self.pool.weighted_interleave(self.pool.memory_nodes(), &weights)?;
        let by_weight = self.boot("by weight", "weights 1, 4, 2, 1", &weighted, self.share / 2);
        let all_hits = by_weight.failure.is_none() && by_weight.misses == 0;
        checks.push(("frames given back are used again", reused));
        checks.push(("where all nodes have room, each gets its weight", all_hits));
        Ok(vec![next, by_weight])
    }

    /// Boots a guest and records where its memory came from.
    fn boot(&mut self, name: &'static str, how: &str, policy: &PoolPolicy<'_>, wanted: usize) -> Guest {
        let mut guest = Guest::take(self.pool, name, policy, wanted);
        self.all_came_zeroed &= guest.is_all_zero();
        guest.stamp();
        let mib = |blocks: usize| (blocks * HUGE_MIB).to_string();
        let mut row = vec![name.to_owned(), how.to_owned(), mib(wanted), mib(guest.blocks.len())];
        row.extend(self.nodes.iter().map(|&node| mib(guest.on(node))));
        row.extend([guest.hits.to_string(), guest.misses.to_string()]);
        self.table.add_row(row);
        guest
    }
}

/// A virtual machine's memory: its blocks are its addresses, in order.
struct Guest {
    name: &'static str,
    blocks: Vec<Frames>,
    /// Why there are fewer blocks than wanted, if so.
    failure: Option<AllocFailure>,
    /// Blocks from the node that the policy wanted at that moment, and from another one.
    hits: u64,
    misses: u64,
}

impl Guest {
    /// Allocates as many of `wanted` blocks as possible under `policy`.
    fn take(pool: &Pool, name: &'static str, policy: &PoolPolicy<'_>, wanted: usize) -> Self {
        // Zeroed: otherwise frames contain their previous data.
        let request = PoolRequest::new(HUGE).policy(policy).zeroed();
        let before = pool.locality();
        let (mut blocks, mut failure) = (Vec::new(), None);
        while blocks.len() < wanted && failure.is_none() {
            match pool.alloc(&request) {
                Ok(block) => blocks.push(block),
                Err(why) => failure = Some(why),
            }
        }
        let after = pool.locality();
        Self { name, blocks, failure, hits: after.hit - before.hit, misses: after.miss - before.miss }
    }

    fn on(&self, node: NodeId) -> usize {
        self.blocks.iter().filter(|block| block.node() == node).count()
    }

    fn is_all_zero(&self) -> bool {
        self.blocks.iter().all(|block| block.chunks_exact(ZEROS.len()).all(|bytes| bytes == ZEROS))
    }

    fn stamp(&mut self) {
        for (at, block) in self.blocks.iter_mut().enumerate() {
            for (page, bytes) in block.chunks_exact_mut(STAMP_STEP).enumerate() {
                let stamp = stamp(self.name, at, page);
                bytes[..stamp.len()].copy_from_slice(stamp.as_bytes());
            }
        }
    }

    fn is_intact(&self) -> bool {
        self.blocks.iter().enumerate().all(|(at, block)| {
            let mut pages = block.chunks_exact(STAMP_STEP).enumerate();
            pages.all(|(page, bytes)| bytes.starts_with(stamp(self.name, at, page).as_bytes()))
        })
    }
}

/// Returns what a page of a guest begins with, different for every page of every guest.
fn stamp(name: &str, block: usize, page: usize) -> String {
    format!("{name}, block {block}, page {page};")
}

fn table(nodes: &[NodeId]) -> Table {
    let mut headers: Vec<String> = ["guest", "policy", "asked MiB", "got"].map(Into::into).into();
    headers.extend(nodes.iter().map(|node| format!("node {node}")));
    headers.extend(["hits", "misses"].map(Into::into));
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(headers);
    table.column_iter_mut().skip(2).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

/// Prints what the kernel actually backs this process with.
fn print_backing() {
    let smaps = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let mib = |name: &str| {
        let line = smaps.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().ok()?;
        Some(kib / 1024)
    };
    match (mib("Anonymous"), mib("AnonHugePages"), mib("Private_Hugetlb")) {
        (Some(all), Some(transparent), Some(explicit)) => println!(
            "memory in use by the process: {} MiB, of which {transparent} MiB are transparent huge pages \
             and {explicit} MiB explicit ones",
            all + explicit
        ),
        _ => println!("the kernel does not say which pages back the pool (no /proc/self/smaps_rollup)"),
    }
}
