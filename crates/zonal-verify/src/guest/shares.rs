//! Compares where the kernel places a process's pages with where the allocator places them on a simulated machine that is
//! as full as this one.
//!
//! Related files: `zonal-lab` simulates, and `kernel.rs` asks for the node of each page.

use std::ffi::c_void;
use std::ptr;

use zonal::snapshot::ZoneSnapshot;
use zonal::units::{NodeId, Order, ZoneId};
use zonal::{NodeMask, Policy, Request};
use zonal_lab::sim::{Hardware, SimulatedMachine};
use zonal_lab::system::System;
use zonal_machine::state::CapturedState;

use super::kernel::{Mode, free_kib, nodes_with_cpus, on_cpu, page_places, read, set_policy, write};
use super::pages::{MIB, Tally, mask, needs_nodes, tally};
use super::verdict::{Found, Verdict, ensure, text};

/// Largest difference between the shares of a node, in points of percent.
const POINTS: f64 = 2.0;
/// What a process touches: so much more than its node has free, in MiB.
const BEYOND_MIB: u64 = 120;
/// The setting of node reclaim.
const RECLAIM: &str = "/proc/sys/vm/zone_reclaim_mode";
/// Whether the kernel moves pages to the nodes whose CPUs use them.
const BALANCING: &str = "/proc/sys/kernel/numa_balancing";

/// How a process is placed, and the setting of node reclaim.
const CASES: [(&str, Mode, u32); 4] = [
    ("default", Mode::Default, 0),
    ("bind", Mode::Bind, 0),
    ("interleave", Mode::Interleave, 0),
    ("node reclaim on", Mode::Default, 1),
];

/// Fills the first node and spills, under each policy.
pub(super) fn as_simulated() -> Verdict {
    needs_nodes!();
    let &(first, cpu) = nodes_with_cpus()?.first().ok_or("no node has CPUs")?;
    let (mut found, mut wrong) = (Vec::new(), 0);
    for (name, mode, reclaim) in CASES {
        // The simulated node has nothing to reclaim.
        write("/proc/sys/vm/drop_caches", 3)?;
        let before = (read(RECLAIM)?, read(BALANCING)?);
        write(RECLAIM, reclaim)?;
        write(BALANCING, 0)?;
        let compared = compared(name, mode, first, cpu);
        write(RECLAIM, before.0)?;
        write(BALANCING, before.1)?;
        let (text, differs) = compared?;
        found.push(text);
        wrong += usize::from(differs);
    }
    let found = found.join("; ");
    ensure!(wrong == 0, "{wrong} of {} differ by more than {POINTS} points: {found}", CASES.len());
    Ok(Found::Holds(found))
}

/// Returns the pages of each node, there and simulated, and whether a share differs too much.
fn compared(name: &str, mode: Mode, first: u16, cpu: u32) -> Result<(String, bool), String> {
    let nodes: Vec<u16> = match mode {
        Mode::Bind => vec![first, first + 1],
        Mode::Interleave => vec![first, first + 1, first + 2],
        _ => Vec::new(),
    };
    let (captured, _) = CapturedState::live().map_err(text)?;
    let bytes = match mode {
        // An interleaving process never needs more than a node has.
        Mode::Interleave => free_kib(first)? << 10,
        _ => (free_kib(first)? << 10) + BEYOND_MIB * MIB,
    };
    let pages = bytes / u64::from(captured.model.page_bytes);
    let (mut placed, kept) = on_cpu(cpu, || {
        set_policy(mode, &nodes)?;
        touched(pages, captured.model.page_bytes as usize, &|| in_pagesets(first, cpu))
    })?;
    let text = format!("{name}: {placed:?} with {kept} in the CPU's pagesets");
    if mode != Mode::Interleave {
        // The kernel checks the watermark before it looks into a pageset, and leaves these pages there; the allocator uses
        // them before it goes to the next node.
        *placed.entry(first).or_default() += kept;
        let next = placed.entry(first + 1).or_default();
        *next = next.saturating_sub(kept);
    }
    let simulated = simulated(&captured, mode, &nodes, pages, cpu)?;
    let share = |tally: &Tally, node: u16| {
        tally.get(&node).copied().unwrap_or(0) as f64 / tally.values().sum::<u64>().max(1) as f64 * 100.0
    };
    let most = captured
        .model
        .nodes
        .iter()
        .map(|node| node.id.get())
        .map(|node| share(&placed, node) - share(&simulated, node));
    let most = most.max_by(|one, other| one.abs().total_cmp(&other.abs())).unwrap_or(0.0);
    Ok((format!("{text}, simulated {simulated:?}, {most:+.1} points"), most.abs() > POINTS))
}

/// Returns how many of a node's pages a CPU's pagesets hold.
fn in_pagesets(node: u16, cpu: u32) -> Result<u64, String> {
    let (captured, _) = CapturedState::live().map_err(text)?;
    let sample = &captured.sample;
    let own = sample
        .pagesets
        .iter()
        .filter(|cached| cached.cpu == u64::from(cpu) && sample.zones[cached.zone].node == u64::from(node));
    Ok(own.map(|cached| cached.count).sum())
}

/// Touches new pages; returns how many are on each node, and what `after` returns while they are in use.
fn touched(
    pages: u64,
    page_bytes: usize,
    after: &dyn Fn() -> Result<u64, String>,
) -> Result<(Tally, u64), String> {
    let bytes = pages as usize * page_bytes;
    // SAFETY: a new private mapping, which nothing else uses.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    ensure!(memory != libc::MAP_FAILED, "mmap of {bytes} bytes: {}", std::io::Error::last_os_error());
    // Huge pages would be of another order than the simulated requests.
    // SAFETY: the range is the mapping.
    unsafe { libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE) };
    let addresses: Vec<*const u8> = (0..pages as usize)
        .map(|page| memory.cast::<u8>().cast_const().wrapping_add(page * page_bytes))
        .collect();
    for address in &addresses {
        // SAFETY: the address is within the mapping.
        unsafe { address.cast_mut().write_volatile(1) };
    }
    let (places, after) = (page_places(&addresses), after());
    unmap(memory, bytes);
    Ok((tally(&places?), after?))
}

fn unmap(memory: *mut c_void, bytes: usize) {
    // SAFETY: the mapping is ours, and no address of it is used from here on.
    unsafe { libc::munmap(memory, bytes) };
}

/// Returns how many pages each node has when the first simulated CPU allocates them.
fn simulated(
    captured: &CapturedState,
    mode: Mode,
    nodes: &[u16],
    pages: u64,
    cpu: u32,
) -> Result<Tally, String> {
    let machine = SimulatedMachine { model: captured.model.clone(), hardware: Hardware::default() };
    let allowed: NodeMask = mask(nodes.iter().copied());
    let ran = machine.simulate(&captured.model.config(), 1, |sim| {
        let system = System::new(sim);
        let used = system.occupy(&captured.sample, Order::PAGE);
        let allocator = sim.allocator;
        // What the CPU's pagesets hold is free for its next requests.
        let sample = &captured.sample;
        for cached in sample.pagesets.iter().filter(|cached| cached.cpu == u64::from(cpu)) {
            let is_of = |zone: &ZoneSnapshot| {
                sample
                    .zone(zone.node, zone.kind)
                    .is_some_and(|zone| ptr::eq(zone, &sample.zones[cached.zone]))
            };
            let zones: Vec<ZoneId> = allocator.zones().filter(is_of).map(|zone| zone.id).collect();
            let blocks = used.iter().filter(|block| zones.contains(&block.zone));
            for block in blocks.take(cached.count as usize) {
                allocator.free(block.first, block.order).map_err(text)?;
            }
        }
        let policy = match mode {
            Mode::Bind => Some(Policy::bind(allocator, allowed)),
            Mode::Interleave => Some(Policy::interleave(allocator, allowed)),
            _ => None,
        };
        let policy = policy.transpose().map_err(text)?;
        let mut tally = Tally::new();
        sim.world.free_of_charge(|| {
            for _ in 0..pages {
                let request = Request::page();
                let request = policy.as_ref().map_or(request, |policy| request.policy(policy));
                let block = allocator.alloc(&request).map_err(text)?;
                *tally.entry(NodeId::get(block.node)).or_default() += 1;
            }
            Ok::<_, String>(())
        })?;
        Ok(tally)
    });
    ran.map_err(text)?
}
