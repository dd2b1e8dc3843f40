//! A small kernel that uses zonal as its frame allocator. It boots under QEMU, on several CPUs and nodes.
//!
//! It is an example of an embedding, complete and as short as possible. Read the files in this order:
//!
//! - `boot.rs`: the first instructions of each CPU;
//! - `firmware.rs` and `memory_map.rs`: the machine, as the firmware describes it and as the allocator needs it;
//! - `platform.rs`: what the allocator needs from the kernel. With `smp.rs`, `sync.rs` and `cpu.rs` this is the whole
//!   embedding;
//! - `handlers.rs`, `local_apic.rs` and `tasks.rs`: a timer that preempts tasks at any instruction;
//! - `race.rs`, `upkeep.rs`, `owners.rs`, `page_cache.rs` and `paging.rs`: tasks that use the allocator on all CPUs at
//!   once, and check every frame;
//! - `conformance.rs`: the scenarios that test the embedding before the tasks start;
//! - `report.rs` and `measure.rs`: what it prints, and calls whose instructions are counted.
#![no_std]
#![no_main]

mod boot;
mod conformance;
mod console;
mod cpu;
mod firmware;
mod handlers;
mod local_apic;
mod measure;
mod memory;
mod memory_map;
mod owners;
mod page_cache;
mod paging;
mod platform;
mod race;
mod report;
mod smp;
mod sync;
mod tasks;
mod upkeep;

use core::ffi::CStr;
use core::fmt;
use core::panic::PanicInfo;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use pvh::start_info::reader::StartInfoReader;
use qemu_exit::{QEMUExit, X86};
use x86_64::instructions::{hlt, interrupts};
use zonal::Allocator;
use zonal::snapshot::Accounting;
use zonal::units::{CpuId, NodeId};

use console::println;
use firmware::Firmware;
use memory_map::BootMemory;
use platform::pinned;
use race::Count;

/// Port of QEMU's device that ends the machine, and the status of success.
const EXIT_PORT: u16 = 0xF4;
const SUCCESS: u32 = 33;

/// Tasks of the race for each CPU.
const WORKERS_PER_CPU: usize = 3;
/// A race of this many seconds does everything that it can do at least once.
const COMPLETE_SECONDS: u64 = 20;

/// Starts the kernel on the first CPU. `start` is the address of the start information.
extern "C" fn kernel_main(start: u32) -> ! {
    smp::start_current(CpuId::new(0));
    local_apic::mask_old_controllers();
    console::start();
    // SAFETY: the boot protocol passes the address of this structure, and physical memory is mapped to the same
    // addresses.
    let start = unsafe { StartInfoReader::from_paddr_identity(start) }.expect("start information");
    let seconds = option(start.cmdline(), "seconds").unwrap_or(10);
    let measures = option(start.cmdline(), "measure").is_some();
    let firmware = Firmware::read(&start, local_apic::id());
    let mut memory = BootMemory::new(&firmware);
    owners::start(&firmware, &mut memory);
    platform::start_allocator(&firmware, &mut memory);
    owners::reserve(&memory);
    smp::start_others(&firmware, |stack| {
        owners::claim_unstamped(stack.range(), Some(stack.node), owners::STACK);
    });
    let before = State { accounting: pinned(Allocator::accounting), owned: owners::owned() };
    println!(
        "zonal: {} CPUs, {} nodes, {} frames, {} bytes of metadata",
        firmware.processors.len(),
        firmware.nodes,
        before.accounting.managed,
        pinned(|allocator| allocator.metadata_bytes())
    );
    if measures {
        measure::run();
        exit();
    }
    conformance::run(firmware.processors.len());
    run(firmware.processors.len(), seconds);
    report::print_counts();
    report::print_files();
    check(&before, &firmware, seconds);
    exit()
}

/// The state of memory before the race, which must be the same after it.
struct State {
    accounting: Accounting,
    owned: usize,
}

/// Reports success and ends the machine.
fn exit() -> ! {
    println!("passed");
    // SAFETY: QEMU has the device at this port, or the write has no effect.
    unsafe { X86::new(EXIT_PORT, SUCCESS) }.exit_success()
}

/// Runs the race for some seconds. All tasks have ended then, and only this CPU runs.
fn run(cpus: usize, seconds: u64) {
    // The clock stands still until this CPU's timer starts, so the tasks find the end of the race set.
    race::end_after(seconds);
    (0..cpus * WORKERS_PER_CPU).for_each(|_| tasks::spawn(race::work));
    let upkeep: [tasks::Code; 5] =
        [upkeep::keep_house, upkeep::exhaust, upkeep::move_memory, upkeep::move_cpus, upkeep::map_pages];
    upkeep.into_iter().for_each(tasks::spawn);
    smp::start_timer();
    tasks::wait_for_all();
    smp::park_others(cpus);
    tasks::free_stacks();
}

/// Checks that everything was freed, that the allocator's structures agree, and that the race did all that it is for.
fn check(before: &State, firmware: &Firmware, seconds: u64) {
    let State { accounting: before, owned } = before;
    for node in (0..firmware.nodes as u16).filter_map(NodeId::new) {
        pinned(|allocator| allocator.shrink_caches(node, before.managed));
    }
    let after = match pinned(Allocator::verify) {
        Ok(accounting) => accounting,
        Err(error) => fail(format_args!("the allocator's structures do not agree: {error}")),
    };
    println!("{after}");
    assert!(owners::owned() == *owned, "{} frames have an owner, before {owned}", owners::owned());
    assert!(after.balance(), "the frames do not balance");
    assert!(after.managed == before.managed, "{} frames were managed before", before.managed);
    assert!(after.allocated == before.allocated, "{} frames were allocated before", before.allocated);
    let cpus = firmware.processors.len();
    let [preempted, migrated] = tasks::switches();
    assert!(preempted > 0, "the timer has preempted no task");
    assert!(migrated > 0 || cpus == 1, "no task has changed its CPU");
    let is_expected = |name| cpus > 1 || name != Count::CpusLeft.name();
    let missing = race::counts().find(|&(name, count)| count == 0 && is_expected(name));
    assert!(seconds < COMPLETE_SECONDS || missing.is_none(), "the race is not complete: {missing:?}");
}

/// Returns an option's value on the kernel's command line, such as `seconds=30`.
fn option(line: Option<&CStr>, name: &str) -> Option<u64> {
    let words = line?.to_str().ok()?.split_ascii_whitespace();
    let value = words.filter_map(|word| word.split_once('=')).find(|&(key, _)| key == name)?.1;
    Some(value.parse().unwrap_or_else(|_| fail(format_args!("option {name} is not a number: {value}"))))
}

/// Reports a fault and ends the machine. If reporting it is another fault, ends the machine at once.
fn fail(fault: fmt::Arguments<'_>) -> ! {
    const NONE: u32 = u32::MAX;
    static FAILING: AtomicU32 = AtomicU32::new(NONE);
    interrupts::disable();
    let id = cpu::current_id().get();
    // Relaxed: only the number itself is read.
    match FAILING.compare_exchange(NONE, id, Relaxed, Relaxed) {
        Ok(_) => {}
        Err(first) if first == id => {
            // SAFETY: as below.
            unsafe { X86::new(EXIT_PORT, SUCCESS) }.exit_failure()
        }
        Err(_) => loop {
            hlt(); // the first CPU that failed ends the machine
        },
    }
    console::print_at_once(format_args!("failed on CPU {id}: {fault}\n"));
    // SAFETY: QEMU has the device at this port, or the write has no effect.
    unsafe { X86::new(EXIT_PORT, SUCCESS) }.exit_failure()
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    fail(format_args!("{info}"))
}

/// Provides the symbol to which the unwind tables of the prebuilt `core` refer. This program never unwinds.
// SAFETY: this is the name of Rust's unwinding helper. A program that aborts on panic never calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
