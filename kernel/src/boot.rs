//! The first instructions of each CPU, from the mode in which the CPU starts to 64-bit code with a stack.
//!
//! The boot CPU starts in 32-bit mode, as the PVH protocol defines, with the address of the start information in `ebx`.
//! The other CPUs start in 16-bit mode at [`TRAMPOLINE`], where [`copy_trampoline`] puts their first instructions. Both
//! paths load the same page table, which maps the first 512 GiB of physical memory to the same virtual addresses, in
//! pages of 1 GiB. A physical address is therefore a valid pointer.

use core::arch::global_asm;
use core::sync::atomic::AtomicU64;

use crate::kernel_main;
use crate::smp::other_cpu_main;

/// Address of the first instruction for CPUs other than the boot CPU. It is a page below 1 MiB.
pub(crate) const TRAMPOLINE: u64 = 0x8000;
/// Bytes of the stack on which each CPU starts. It becomes the stack of the CPU's idle loop.
pub(crate) const STACK_BYTES: usize = 64 << 10;

/// Address of the stack end for the CPU that starts next. Only one CPU starts at a time.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
static NEXT_STACK: AtomicU64 = AtomicU64::new(0);

/// A page table of one level.
#[repr(C, align(4096))]
struct Table([u64; 512]);

/// Maps the first 512 GiB. Bits: present, writable, page of 1 GiB.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
static GIGABYTES: Table = {
    let mut table = [0; 512];
    let mut at = 0;
    while at < table.len() {
        table[at] = (at as u64) << 30 | 0b1000_0011;
        at += 1;
    }
    Table(table)
};

pvh::xen_elfnote_phys32_entry!(pvh_start);

// SAFETY: the symbols are those of the instructions below.
unsafe extern "C" {
    fn pvh_start() -> !;
    static trampoline_start: [u8; 0];
    static trampoline_end: [u8; 0];
}

/// Sets the stack end for the CPU that starts next.
pub(crate) fn set_next_stack(end: u64) {
    // SeqCst: orders the stack before the interrupt that starts the CPU; pairs with the trampoline's instructions.
    NEXT_STACK.store(end, core::sync::atomic::Ordering::SeqCst);
}

/// Copies the first instructions of the other CPUs to [`TRAMPOLINE`].
pub(crate) fn copy_trampoline() {
    let (from, end) = (&raw const trampoline_start, &raw const trampoline_end);
    let bytes = end.addr() - from.addr();
    assert!(bytes <= 4096, "the trampoline has one page");
    // SAFETY: the symbols enclose the instructions. The page of the trampoline is conventional memory that the kernel
    // uses for nothing else.
    unsafe { core::ptr::copy_nonoverlapping(from.cast::<u8>(), TRAMPOLINE as *mut u8, bytes) };
}

global_asm!(
    r#"
    .pushsection .text.boot, "ax"

    # The boot CPU. ebx: physical address of the start information.
    .code32
    .global pvh_start
pvh_start:
    cld
    movl $GIGABYTES + 3, top_table
    movl $boot_stack_end, %esp
    movl $start_boot_cpu, %edi
    jmp to_64_bits

    # Switches to 64-bit mode and jumps to the address in edi. Preserves ebx and esp.
to_64_bits:
    movl $0x620, %eax               # cr4: physical address extension, SSE, SSE exceptions
    movl %eax, %cr4
    movl $top_table, %eax
    movl %eax, %cr3
    movl $0xC0000080, %ecx          # EFER: 64-bit mode, no-execute pages
    rdmsr
    orl $0x900, %eax
    wrmsr
    movl $0x80010013, %eax          # cr0: paging, write protection, extension type, monitor, protected mode
    movl %eax, %cr0
    lgdt boot_gdt_pointer
    ljmpl $0x08, $1f
    .code64
1:  xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %eax, %fs
    movl %eax, %gs
    movl %edi, %edi                 # clears the upper halves, which are undefined
    movl %esp, %esp
    jmpq *%rdi

start_boot_cpu:
    movl %ebx, %edi
    xorl %ebp, %ebp
    call {kernel_main}
    ud2

start_other_cpu:
    movq NEXT_STACK, %rsp
    xorl %ebp, %ebp
    call {other_cpu_main}
    ud2

    # Another CPU. It runs a copy of these instructions, so they use no addresses relative to themselves.
    .code16
    .global trampoline_start
trampoline_start:
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl ({trampoline} + trampoline_gdt_pointer - trampoline_start)
    movl $0x11, %eax                # cr0: protected mode
    movl %eax, %cr0
    ljmpl $0x18, $other_cpu_32
trampoline_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
    .global trampoline_end
trampoline_end:

    .code32
other_cpu_32:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %ss
    movl $start_other_cpu, %edi
    jmp to_64_bits
    .code64                         # for the assembly that follows in the same unit
    .popsection

    .pushsection .data.boot, "aw"
    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00AF9A000000FFFF        # 0x08: 64-bit code
    .quad 0x00CF92000000FFFF        # 0x10: data
    .quad 0x00CF9A000000FFFF        # 0x18: 32-bit code
boot_gdt_end:
boot_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
    .popsection

    .pushsection .bss.boot, "aw", @nobits
    .balign 4096
top_table:
    .skip 4096
boot_stack:
    .skip {stack_bytes}
boot_stack_end:
    .popsection
    "#,
    kernel_main = sym kernel_main,
    other_cpu_main = sym other_cpu_main,
    trampoline = const TRAMPOLINE,
    stack_bytes = const STACK_BYTES,
    options(att_syntax)
);
