//! Interrupts and exceptions: the timer, which preempts tasks, requests of other CPUs, and faults.
//!
//! Every handler runs with interrupts off, on a stack of its own (`cpu.rs` says why). The entry code of an interrupt
//! saves all registers in a [`Context`] on this stack and restores them at its end. `tasks.rs` switches tasks by
//! exchanging the saved registers.

use core::arch::global_asm;
use core::mem::offset_of;

use spin::Once;
use x86_64::VirtAddr;
use x86_64::registers::control::Cr2;
use x86_64::structures::idt::InterruptDescriptorTable;

use crate::cpu::{EXCEPTION_STACK, INTERRUPT_STACK};
use crate::{cpu, fail, local_apic, tasks};

/// Vector of the timer.
pub(crate) const TIMER: u8 = 0x20;
/// Vector of other CPUs' requests.
pub(crate) const REQUEST: u8 = 0x21;
/// Vector with which a task gives up its CPU.
pub(crate) const YIELD: u8 = 0x22;
/// Vector of interrupts that the interrupt controller withdrew. They need no answer.
pub(crate) const SPURIOUS: u8 = 0xFF;

/// Number of exceptions that the processor defines.
const EXCEPTIONS: u8 = 32;

/// The registers of interrupted code, in the order in which the processor and the entry code push them.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub(crate) struct Context {
    /// Registers of the floating-point unit and SSE, as `fxsave64` writes them.
    pub(crate) floating: [u8; 512],
    /// r15 to r8, rbp, rdi, rsi, rdx, rcx, rbx and rax.
    general: [u64; 15],
    pub(crate) instruction: u64,
    pub(crate) code_segment: u64,
    pub(crate) flags: u64,
    pub(crate) stack: u64,
    pub(crate) stack_segment: u64,
}

impl Context {
    /// Returns the registers of code that starts at `instruction` with a new stack and interrupts on. `argument` is
    /// its first argument.
    pub(crate) const fn new(instruction: u64, stack: u64, argument: u64) -> Self {
        let mut floating = [0; 512];
        [floating[0], floating[1]] = 0x037F_u16.to_le_bytes(); // the control word after reset
        [floating[24], floating[25]] = 0x1F80_u16.to_le_bytes(); // MXCSR after reset
        let mut general = [0; 15];
        general[RDI] = argument;
        Self {
            floating,
            general,
            instruction,
            code_segment: 0x08,
            flags: 0x202, // interrupts on
            stack,
            stack_segment: 0,
        }
    }
}

/// Place of the register rdi in [`Context`].
const RDI: usize = 9;

global_asm!(
    r#"
    .macro interrupt name, handler
    .global \name
\name:
    push rax
    push rbx
    push rcx
    push rdx
    push rsi
    push rdi
    push rbp
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    sub rsp, {floating}
    fxsave64 [rsp]
    mov rdi, rsp
    cld
    call \handler
    fxrstor64 [rsp]
    add rsp, {floating}
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    iretq
    .endm

    interrupt timer_entry, {timer}
    interrupt request_entry, {request}
    interrupt yield_entry, {yield_}

    .global spurious_entry
spurious_entry:
    iretq

    # One entry of 16 bytes for each exception. Each pushes its number and never returns.
    .balign 16
    .global exception_entries
exception_entries:
    .set number, 0
    .rept {exceptions}
    .balign 16
    .byte 0x6A, number              # push
    jmp exception_common
    .set number, number + 1
    .endr
exception_common:
    cld
    mov rdi, rsp
    and rsp, -16
    call {exception}
    ud2
    "#,
    floating = const offset_of!(Context, general),
    exceptions = const EXCEPTIONS,
    timer = sym on_timer,
    request = sym on_request,
    yield_ = sym on_yield,
    exception = sym on_exception,
);

// SAFETY: the symbols are those of the instructions above.
unsafe extern "C" {
    fn timer_entry();
    fn request_entry();
    fn yield_entry();
    fn spurious_entry();
    static exception_entries: [[u8; 16]; EXCEPTIONS as usize];
}

extern "C" fn on_timer(context: &mut Context) {
    local_apic::end_interrupt();
    tasks::on_tick(context);
}

extern "C" fn on_request(_: &mut Context) {
    local_apic::end_interrupt();
    cpu::current().answer();
}

extern "C" fn on_yield(context: &mut Context) {
    tasks::switch(context);
}

/// Reports an exception, which is always a fault of the kernel. `pushed` points to the number of the exception. An
/// error code may follow, then the address of the instruction.
extern "C" fn on_exception(pushed: &[u64; 6]) -> ! {
    let address = Cr2::read_raw();
    fail(format_args!("exception {} at {:#x?}, address {address:#x}", pushed[0], &pushed[1..]));
}

/// The code that the processor runs at an interrupt.
// SAFETY: only the processor calls it.
type Entry = unsafe extern "C" fn();

static TABLE: Once<InterruptDescriptorTable> = Once::new();

/// Loads the table of handlers on the calling CPU.
pub(crate) fn load_table() {
    let table = TABLE.call_once(|| {
        let mut table = InterruptDescriptorTable::new();
        let entry =
            |vector: u8| VirtAddr::from_ptr(&raw const exception_entries).as_u64() + 16 * u64::from(vector);
        let own = [
            (TIMER, timer_entry as Entry),
            (REQUEST, request_entry),
            (YIELD, yield_entry),
            (SPURIOUS, spurious_entry),
        ];
        // SAFETY: the entries are code for interrupts, and the stacks are those of `cpu.rs`.
        unsafe {
            set_exceptions(&mut table, entry);
            for (vector, handler) in own {
                let address = VirtAddr::new(handler as *const () as u64);
                table[vector].set_handler_addr(address).set_stack_index(INTERRUPT_STACK);
            }
        }
        table
    });
    table.load();
}

/// Sets the handlers of all exceptions that a kernel without user programs can cause.
///
/// # Safety
/// `entry` must return the addresses of code for exceptions.
unsafe fn set_exceptions(table: &mut InterruptDescriptorTable, entry: impl Fn(u8) -> u64) {
    macro_rules! set {
        ($($field:ident: $vector:literal),*) => {$(
            // SAFETY: guaranteed by the caller.
            unsafe {
                table.$field.set_handler_addr(VirtAddr::new(entry($vector))).set_stack_index(EXCEPTION_STACK);
            }
        )*};
    }
    set!(
        divide_error: 0, debug: 1, non_maskable_interrupt: 2, breakpoint: 3, overflow: 4, bound_range_exceeded: 5,
        invalid_opcode: 6, device_not_available: 7, double_fault: 8, invalid_tss: 10, segment_not_present: 11,
        stack_segment_fault: 12, general_protection_fault: 13, page_fault: 14, x87_floating_point: 16,
        alignment_check: 17, machine_check: 18, simd_floating_point: 19
    );
}
