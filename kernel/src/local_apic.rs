//! The interrupt controller of each CPU: interrupts to other CPUs, and the timer.
//!
//! The registers are at the same address on every CPU, and each CPU sees its own. Intel SDM, volume 3, "Advanced
//! Programmable Interrupt Controller".

use x86_64::instructions::port::Port;

use crate::boot::TRAMPOLINE;
use crate::handlers::{SPURIOUS, TIMER};
use crate::smp::wait_a_little;

/// Address of the registers. The firmware leaves it at this value.
const BASE: u64 = 0xFEE0_0000;

const ID: u64 = 0x20;
const END_OF_INTERRUPT: u64 = 0xB0;
const SPURIOUS_VECTOR: u64 = 0xF0;
const COMMAND_LOW: u64 = 0x300;
const COMMAND_HIGH: u64 = 0x310;
const TIMER_VECTOR: u64 = 0x320;
const TIMER_INITIAL: u64 = 0x380;
const TIMER_CURRENT: u64 = 0x390;
const TIMER_DIVISOR: u64 = 0x3E0;

/// Bits of the register `SPURIOUS_VECTOR`: the controller is on.
const ON: u32 = 1 << 8;
/// Bits of the register `COMMAND_LOW`.
const DELIVERY_PENDING: u32 = 1 << 12;
const ASSERT: u32 = 1 << 14;
const INIT: u32 = 0x500;
const START_UP: u32 = 0x600;
/// Bits of the register `TIMER_VECTOR`.
const PERIODIC: u32 = 1 << 17;
const MASKED: u32 = 1 << 16;
/// Value of the register `TIMER_DIVISOR`: 16.
const BY_16: u32 = 0b0011;

/// Rate of a PC's timer, in Hz, and the ports of its channel 2, which is otherwise for the speaker.
const PIT_HZ: u32 = 1_193_182;
const PIT_CHANNEL_2: u16 = 0x42;
const PIT_COMMAND: u16 = 0x43;
const PIT_ENABLE: u16 = 0x61;
/// Mask registers of a PC's two interrupt controllers.
const OLD_CONTROLLER_MASKS: [u16; 2] = [0x21, 0xA1];

fn read(register: u64) -> u32 {
    // SAFETY: the register of the controller can be read.
    unsafe { ((BASE + register) as *const u32).read_volatile() }
}

fn write(register: u64, value: u32) {
    // SAFETY: writing the registers above changes only which interrupts arrive, and all of them have handlers.
    unsafe { ((BASE + register) as *mut u32).write_volatile(value) };
}

/// Returns the id of the calling CPU's controller.
pub(crate) fn id() -> u32 {
    read(ID) >> 24
}

/// Turns on the controller of the calling CPU.
pub(crate) fn turn_on() {
    write(SPURIOUS_VECTOR, ON | u32::from(SPURIOUS));
}

/// Turns off the interrupts of the controllers that a PC has besides those in the CPUs.
pub(crate) fn mask_old_controllers() {
    for port in OLD_CONTROLLER_MASKS {
        // SAFETY: this only masks interrupts.
        unsafe { Port::new(port).write(0xFF_u8) };
    }
}

/// Ends an interrupt, so that the next one can arrive.
pub(crate) fn end_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

fn command(controller: u32, command: u32) {
    write(COMMAND_HIGH, controller << 24);
    write(COMMAND_LOW, command);
    while read(COMMAND_LOW) & DELIVERY_PENDING != 0 {
        wait_a_little();
    }
}

/// Sends an interrupt to another CPU. The caller must have interrupts off, because a command has two parts.
pub(crate) fn send(controller: u32, vector: u8) {
    command(controller, ASSERT | u32::from(vector));
}

/// Starts another CPU at [`TRAMPOLINE`].
pub(crate) fn start_cpu(controller: u32) {
    command(controller, ASSERT | INIT);
    wait_ms(10);
    for _ in 0..2 {
        command(controller, ASSERT | START_UP | (TRAMPOLINE >> 12) as u32);
        wait_ms(1);
    }
}

/// Waits with the timer of the PC, whose rate is known.
pub(crate) fn wait_ms(ms: u32) {
    let count = PIT_HZ * ms / 1000;
    assert!(count <= 0xFFFF, "the timer counts to 54 ms");
    let [low, high, ..] = count.to_le_bytes();
    // SAFETY: only this function uses channel 2, and the speaker stays off.
    unsafe {
        let mut enable = Port::<u8>::new(PIT_ENABLE);
        let before = enable.read() & !0b11;
        enable.write(before);
        Port::new(PIT_COMMAND).write(0b1011_0000_u8); // channel 2, both bytes, mode 0
        Port::new(PIT_CHANNEL_2).write(low);
        Port::new(PIT_CHANNEL_2).write(high);
        enable.write(before | 1);
        while enable.read() & 0x20 == 0 {
            wait_a_little();
        }
        enable.write(before);
    }
}

/// Returns by how much the timer of the controller counts in a millisecond.
pub(crate) fn timer_counts_per_ms() -> u32 {
    write(TIMER_DIVISOR, BY_16);
    write(TIMER_VECTOR, MASKED);
    write(TIMER_INITIAL, u32::MAX);
    wait_ms(10);
    let left = read(TIMER_CURRENT);
    write(TIMER_INITIAL, 0);
    (u32::MAX - left) / 10
}

/// Starts the timer of the calling CPU, which interrupts it after each `counts`.
pub(crate) fn start_timer(counts: u32) {
    write(TIMER_DIVISOR, BY_16);
    write(TIMER_VECTOR, PERIODIC | u32::from(TIMER));
    write(TIMER_INITIAL, counts.max(1));
}
