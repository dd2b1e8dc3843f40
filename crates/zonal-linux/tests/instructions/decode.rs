//! Decodes the parts of instructions that the checks need: registers read and written, memory accesses, and branch
//! targets.

mod aarch64;
mod x86_64;

/// A register, whichever part is used. The number is that of the processor's decoder.
pub(crate) type Register = usize;

/// The processor that executes the instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Processor {
    X86_64,
    Aarch64,
}

/// An instruction.
#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) text: String,
    /// Registers whose values are used, except the registers of an address.
    pub(crate) reads: Vec<Register>,
    pub(crate) writes: Vec<Register>,
    pub(crate) sets_flags: bool,
    pub(crate) action: Action,
}

/// Effect of an instruction besides computing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Nothing,
    Accesses(Memory),
    /// A conditional branch to this address.
    Branches(u64),
}

/// An access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    pub(crate) way: Way,
    pub(crate) bytes: usize,
    /// Whether the address is relative to the thread pointer.
    pub(crate) in_thread: bool,
    pub(crate) base: Register,
    /// Index register and its scale.
    pub(crate) index: Option<(Register, u32)>,
    pub(crate) offset: i64,
}

/// How memory is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// A load that may be reordered with later accesses.
    Load,
    /// A load that is not reordered with later accesses.
    LoadAcquire,
    Store,
}

impl Processor {
    /// The processor for which this program is built.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const OWN: Self = Self::X86_64;
    /// The processor for which this program is built.
    #[cfg(target_arch = "aarch64")]
    pub(crate) const OWN: Self = Self::Aarch64;

    /// Returns the signature before each abort: `RSEQ_SIG` of the C library's `sys/rseq.h`.
    pub(crate) const fn signature(self) -> u32 {
        match self {
            Self::X86_64 => 0x5305_3053,
            Self::Aarch64 => 0xd428_bc00,
        }
    }

    /// Decodes the instructions in `code`, whose first byte is at `address`.
    ///
    /// # Panics
    /// Panics if an instruction is of a kind that no sequence should contain.
    pub(crate) fn decode(self, address: u64, code: &[u8]) -> Vec<Instruction> {
        match self {
            Self::X86_64 => x86_64::decode(address, code),
            Self::Aarch64 => aarch64::decode(address, code),
        }
    }
}
