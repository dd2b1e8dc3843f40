//! A kernel with several CPUs and nodes that allocates its frames with zonal.
#![no_std]
#![no_main]
#![allow(dead_code)] // the files that were copied contain more than this kernel uses

mod boot;
mod console;
mod cpu;
mod firmware;
mod handlers;
mod local_apic;
mod memory;
mod memory_map;
mod platform;
mod smp;
mod sync;
mod tasks;

use core::fmt;
use core::panic::PanicInfo;

use pvh::start_info::reader::StartInfoReader;
use qemu_exit::{QEMUExit, X86};
use zonal::Allocator;
use zonal::units::CpuId;

use console::println;
use firmware::Firmware;
use memory_map::BootMemory;
use platform::pinned;

extern "C" fn kernel_main(start: u32) -> ! {
    smp::start_current(CpuId::new(0));
    local_apic::mask_old_controllers();
    console::start();
    // SAFETY: the boot protocol passes the address of this structure, and physical memory is mapped to the same
    // addresses.
    let start = unsafe { StartInfoReader::from_paddr_identity(start) }.expect("start information");
    let firmware = Firmware::read(&start, local_apic::id());
    let mut memory = BootMemory::new(&firmware);
    platform::start_allocator(&firmware, &mut memory);
    smp::start_others(&firmware, |_| ());
    smp::start_timer();
    let blocks = tasks::work();
    tasks::wait_for(firmware.processors.len());
    pinned(|allocator| println!("{}", allocator.snapshot().fallback_lists()));
    println!("the first CPU allocated {blocks} blocks");
    match pinned(Allocator::verify) {
        Ok(accounting) => println!("{accounting}\npassed"),
        Err(error) => fail(format_args!("{error}")),
    }
    // SAFETY: QEMU has the device at this port.
    unsafe { X86::new(0xF4, 33) }.exit_success()
}

fn fail(fault: fmt::Arguments<'_>) -> ! {
    console::print_at_once(format_args!("failed: {fault}\n"));
    // SAFETY: as above.
    unsafe { X86::new(0xF4, 33) }.exit_failure()
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    fail(format_args!("{info}"))
}

// SAFETY: this is the name of Rust's unwinding helper. A program that aborts on panic never calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
