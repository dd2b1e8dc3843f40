//! Instructions as far as sequences need them: what is read, written, accessed, and where a branch goes.

mod aarch64;
mod x86_64;

/// A register, whatever part of it is used; numbered as the decoder of the processor does.
pub(crate) type Register = usize;

/// What instructions are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Processor {
    X86_64,
    Aarch64,
}

/// An instruction.
#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) text: String,
    /// Registers whose values count, except those of an address.
    pub(crate) reads: Vec<Register>,
    pub(crate) writes: Vec<Register>,
    pub(crate) sets_flags: bool,
    pub(crate) action: Action,
}

/// What an instruction does beside computing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Nothing,
    Accesses(Memory),
    /// Goes there if a condition holds.
    Branches(u64),
}

/// An access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    pub(crate) way: Way,
    pub(crate) bytes: usize,
    /// Whether the address is one from the thread pointer.
    pub(crate) in_thread: bool,
    pub(crate) base: Register,
    /// With what it is multiplied.
    pub(crate) index: Option<(Register, u32)>,
    pub(crate) offset: i64,
}

/// How memory is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Later accesses may come before it.
    Load,
    /// No later access comes before it.
    LoadAcquire,
    Store,
}

impl Processor {
    /// That of this program.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const OWN: Self = Self::X86_64;
    /// That of this program.
    #[cfg(target_arch = "aarch64")]
    pub(crate) const OWN: Self = Self::Aarch64;

    /// What stands before each abort: `RSEQ_SIG` of the C library's `sys/rseq.h`.
    pub(crate) const fn signature(self) -> u32 {
        match self {
            Self::X86_64 => 0x5305_3053,
            Self::Aarch64 => 0xd428_bc00,
        }
    }

    /// The instructions in `code`, which lies at `address`.
    ///
    /// # Panics
    /// At one that no sequence should need.
    pub(crate) fn decode(self, address: u64, code: &[u8]) -> Vec<Instruction> {
        match self {
            Self::X86_64 => x86_64::decode(address, code),
            Self::Aarch64 => aarch64::decode(address, code),
        }
    }
}
