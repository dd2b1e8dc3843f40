//! Compares where the kernel places a process's pages with where the allocator places them on a simulated machine that is
//! as full as this one.
//!
//! Related files: `zonal-lab` simulates, and `kernel.rs` asks for the node of each page.

use std::ffi::c_void;

use zonal::units::{NodeId, Order};
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
    let mut found = Vec::new();
    for (name, mode, reclaim) in CASES {
        let before = read(RECLAIM)?;
        write(RECLAIM, reclaim)?;
        let compared = compared(name, mode, first, cpu);
        write(RECLAIM, before)?;
        found.push(compared?);
    }
    Ok(Found::Holds(found.join("; ")))
}

fn compared(name: &str, mode: Mode, first: u16, cpu: u32) -> Result<String, String> {
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
    let placed = on_cpu(cpu, || {
        set_policy(mode, &nodes)?;
        touched(pages, captured.model.page_bytes as usize)
    })?;
    let simulated = simulated(&captured, mode, &nodes, pages)?;
    let share = |tally: &Tally, node: u16| {
        tally.get(&node).copied().unwrap_or(0) as f64 / tally.values().sum::<u64>().max(1) as f64 * 100.0
    };
    for node in captured.model.nodes.iter().map(|node| node.id.get()) {
        let (there, here) = (share(&placed, node), share(&simulated, node));
        let differs = (there - here).abs() > POINTS;
        ensure!(
            !differs,
            "{name}: node {node} has {there:.1} % of the kernel's pages, and {here:.1} % when simulated: {placed:?}, \
             {simulated:?}"
        );
    }
    Ok(format!("{name}: {placed:?}, simulated {simulated:?}"))
}

/// Touches new pages, and returns how many are on each node.
fn touched(pages: u64, page_bytes: usize) -> Result<Tally, String> {
    let bytes = pages as usize * page_bytes;
    // SAFETY: a new private mapping, which nothing else uses.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
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
    let places = page_places(&addresses);
    unmap(memory, bytes);
    Ok(tally(&places?))
}

fn unmap(memory: *mut c_void, bytes: usize) {
    // SAFETY: the mapping is ours, and no address of it is used from here on.
    unsafe { libc::munmap(memory, bytes) };
}

/// Returns how many pages each node has when the first simulated CPU allocates them.
fn simulated(captured: &CapturedState, mode: Mode, nodes: &[u16], pages: u64) -> Result<Tally, String> {
    let machine = SimulatedMachine { model: captured.model.clone(), hardware: Hardware::default() };
    let allowed: NodeMask = mask(nodes.iter().copied());
    let ran = machine.simulate(&captured.model.config(), 1, |sim| {
        let system = System::new(sim);
        system.occupy(&captured.sample, Order::DEFAULT_MAX);
        let allocator = sim.allocator;
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
