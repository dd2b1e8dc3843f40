//! The data of each CPU: its number, its mailbox for other CPUs' requests, and its descriptor tables.
//!
//! The register GS points to the data of the current CPU. Reading it is one load, and it is right as long as the code
//! cannot be preempted. `smp.rs` starts the CPUs and sends the requests, and `handlers.rs` has the interrupt stacks.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::registers::model_specific::GsBase;
use x86_64::registers::segmentation::SegmentSelector;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;
use zonal::units::CpuId;

/// The largest number of CPUs that this kernel uses.
pub(crate) const CPUS_MAX: usize = 16;
/// Bytes of each interrupt stack.
const INTERRUPT_STACK_BYTES: usize = 32 << 10;
/// Places in the table of interrupt stacks for the interrupt stack and the exception stack.
///
/// Interrupt handlers run with interrupts off, so at most one interrupt and one exception use the stacks of a CPU. They
/// need stacks of their own because the compiler uses 128 bytes below the stack pointer without moving it (the *red
/// zone*), and an interrupt on the same stack would overwrite them.
pub(crate) const INTERRUPT_STACK: u16 = 0;
pub(crate) const EXCEPTION_STACK: u16 = 1;

/// The CPU runs: it can be executing code of the allocator.
pub(crate) const RUNNING: u64 = 1;
/// One request of another CPU.
pub(crate) const REQUEST: u64 = 2;

#[repr(C, align(64))]
struct InterruptStack(UnsafeCell<[u8; INTERRUPT_STACK_BYTES]>);

/// Descriptor tables, which must stay where they are while the CPU uses them.
struct Tables {
    segments: GlobalDescriptorTable,
    task_state: TaskStateSegment,
}

/// The data of a CPU.
#[repr(C, align(128))]
pub(crate) struct Cpu {
    /// Number of the CPU. It is the first field, which `current` reads.
    id: AtomicU32,
    /// Id of the CPU's interrupt controller.
    pub(crate) controller: AtomicU32,
    /// Twice the number of requests so far, plus [`RUNNING`] while the CPU runs. It is changed only by
    /// read-modify-write operations, so a CPU that starts after a request sees everything written before the request.
    pub(crate) asked: AtomicU64,
    /// Number of requests answered. Only the CPU itself writes it.
    pub(crate) answered: AtomicU64,
    /// Whether the CPU should stop running tasks, and whether it has.
    pub(crate) should_park: AtomicBool,
    pub(crate) is_parked: AtomicBool,
    /// Whether the code on this CPU is reclaiming.
    pub(crate) is_reclaiming: AtomicBool,
    /// Place of the task that the CPU runs, or [`NO_TASK`].
    pub(crate) task: AtomicUsize,
    tables: UnsafeCell<Tables>,
    stacks: [InterruptStack; 2],
}

/// Value of [`Cpu::task`] while the CPU runs no task.
pub(crate) const NO_TASK: usize = usize::MAX;

// SAFETY: only the CPU itself accesses `tables` and `stacks`, and it writes `tables` once, before it loads them.
unsafe impl Sync for Cpu {}

static CPUS: [Cpu; CPUS_MAX] = [const { Cpu::new() }; CPUS_MAX];

const _: () = assert!(offset_of!(Cpu, id) == 0);

impl Cpu {
    const fn new() -> Self {
        Self {
            id: AtomicU32::new(0),
            controller: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            should_park: AtomicBool::new(false),
            is_parked: AtomicBool::new(false),
            is_reclaiming: AtomicBool::new(false),
            task: AtomicUsize::new(NO_TASK),
            tables: UnsafeCell::new(Tables {
                segments: GlobalDescriptorTable::new(),
                task_state: TaskStateSegment::new(),
            }),
            stacks: [const { InterruptStack(UnsafeCell::new([0; INTERRUPT_STACK_BYTES])) }; 2],
        }
    }

    /// Returns the number of the CPU.
    pub(crate) fn id(&self) -> CpuId {
        CpuId::new(self.id.load(Relaxed)) // relaxed: it is written once, before the CPU runs tasks
    }

    /// Answers all requests so far.
    pub(crate) fn answer(&self) {
        // Acquire: takes what was written before the request; pairs with `Requests::quiesce`.
        let asked = self.asked.load(Acquire) / REQUEST;
        // Relaxed: no other CPU writes `answered`.
        if self.answered.load(Relaxed) != asked {
            // Release: publishes what was written before the answer; pairs with `Requests::quiesce`.
            self.answered.store(asked, Release);
        }
    }
}

/// Returns the data of a CPU.
pub(crate) fn of(id: CpuId) -> &'static Cpu {
    &CPUS[id.index()]
}

/// Returns the data of the current CPU. The caller must have interrupts off, or it may run on another CPU when it uses
/// the result.
#[inline(always)]
pub(crate) fn current() -> &'static Cpu {
    &CPUS[current_id().index()]
}

/// Returns the number of the current CPU, with the condition of [`current`].
#[inline(always)]
pub(crate) fn current_id() -> CpuId {
    let id: u32;
    // SAFETY: `start` has set GS to the data of this CPU, whose first field is the number.
    unsafe { asm!("mov {id:e}, gs:[0]", id = out(reg) id, options(nostack, preserves_flags, readonly)) };
    CpuId::new(id)
}

/// Makes the calling CPU the CPU `id`: loads its descriptor tables and sets GS.
pub(crate) fn start(id: CpuId, controller: u32) {
    let cpu = of(id);
    cpu.id.store(id.get(), Relaxed); // relaxed: read by this CPU, or by others after they know that it runs
    cpu.controller.store(controller, Relaxed); // relaxed: as above
    // SAFETY: only this CPU accesses its tables, and it does so once. They are static.
    let tables: &'static mut Tables = unsafe { &mut *cpu.tables.get() };
    for (place, stack) in cpu.stacks.iter().enumerate() {
        let end = stack.0.get().addr() + INTERRUPT_STACK_BYTES;
        tables.task_state.interrupt_stack_table[place] = VirtAddr::new(end as u64);
    }
    let code = tables.segments.append(Descriptor::kernel_code_segment());
    let task_state = tables.segments.append(Descriptor::tss_segment(&tables.task_state));
    tables.segments.load();
    // SAFETY: the selectors are those of the table that was just loaded. A data segment is not needed in 64-bit mode.
    unsafe {
        CS::set_reg(code);
        SS::set_reg(SegmentSelector::NULL);
        load_tss(task_state);
    }
    GsBase::write(VirtAddr::from_ptr(cpu));
}
