//! Virtual machines whose memory consists of 2 MiB blocks. Each has a different memory policy.
//!
//! The order matters. The first guest fills a node. The next two show how other policies handle the full node. The
//! last two show allocation after the first guest's memory is freed.

use std::error::Error;
use std::fs;

use comfy_table::{CellAlignment, Table};
use zonal_linux::{
    AllocFailure, Frames, NodeId, NodeMask, Order, Pfn, Pool, PoolPolicy, PoolRequest, PoolWeights,
};

use crate::Check;

/// Order of a 2 MiB block with 4 KiB frames.
const HUGE: Order = match Order::new(9) {
    Some(order) => order,
    None => unreachable!(),
};
const HUGE_MIB: usize = 2;
/// Distance of stamps in bytes: one stamp for each page that a guest could use.
const STAMP_STEP: usize = 4096;
/// A page of zeros to compare with. Comparing whole slices is fast even in unoptimized builds.
const ZEROS: [u8; 4096] = [0; 4096];
/// Weights of nodes, as for memory of different speeds. They repeat if there are more nodes.
const WEIGHTS: [u8; 4] = [1, 4, 2, 1];

/// Boots guests under each policy, prints the nodes that their memory came from, and checks its contents.
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

/// Allocates the memory of guests, and collects a table of the results.
struct Host<'p> {
    pool: &'p Pool,
    nodes: Vec<NodeId>,
    /// The node that is filled, and its number of huge blocks.
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

    /// Allocates with policy *bind*, which allows only the one node. The request fails when the node is full, and its
    /// error reports the state of each zone.
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

    /// Allocates with policies *preferred* and *interleave*, which skip the full node.
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

    /// Allocates from the node after the memory of its guest was freed.
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

    /// Boots a guest and records the nodes that its memory came from.
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

/// A virtual machine's memory. The blocks have the order of the guest's addresses.
struct Guest {
    name: &'static str,
    blocks: Vec<Frames>,
    /// The error of the request that failed, if there are fewer blocks than requested.
    failure: Option<AllocFailure>,
    /// Number of blocks from the node that the policy selected, and from other nodes.
    hits: u64,
    misses: u64,
}

impl Guest {
    /// Allocates as many of `wanted` blocks as possible under `policy`.
    fn take(pool: &Pool, name: &'static str, policy: &PoolPolicy<'_>, wanted: usize) -> Self {
        // Blocks are requested zeroed, because frames otherwise contain their previous data.
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

/// Returns the stamp at the start of a page, which is different for every page of every guest.
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

/// Prints the memory with which the kernel actually backs this process.
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
