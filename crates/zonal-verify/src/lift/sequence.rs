//! Finds the sequences of a file by their descriptors, and executes their instructions.
//!
//! Besides the instructions from the start to the commit, those that store the descriptor's address in front of the
//! start, and those from the abort on, are executed. Sources: Linux `rseq(2)`, `struct rseq_cs`.
//!
//! Related files: `elf.rs` reads files, and `matching.rs` compares what the instructions do with the contract.

use std::rc::Rc;

use super::elf::{DESCRIPTORS, Image, Processor};
use super::machine::{Action, Event, Machine, Write};
use super::step::{Fault, Next, Step};
use super::{aarch64, x86_64};

/// Size of a descriptor in bytes.
const DESCRIPTOR_BYTES: usize = 32;
/// Size of an abort's signature, in bytes.
const SIGNATURE_BYTES: u64 = 4;
/// Size of the longest instruction, in bytes.
const INSTRUCTION_BYTES_MAX: u64 = 15;
/// Maximum number of instructions from an abort to where the sequence's caller continues.
const ABORT_INSTRUCTIONS_MAX: usize = 4;

/// A sequence in a file.
#[derive(Clone, Debug)]
pub struct Sequence {
    image: Rc<Image>,
    descriptor: Descriptor,
}

#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    version: u32,
    flags: u32,
    start: u64,
    commit_offset: u64,
    abort: u64,
}

/// What the instructions of a sequence do.
#[derive(Debug)]
pub struct Lifted {
    /// Address of the descriptor.
    pub(super) descriptor: u64,
    /// What is done before the start.
    pub(super) before: Vec<Event>,
    /// What is done from the start to the commit.
    pub(super) events: Vec<Event>,
    /// The last instruction before the commit address.
    pub(super) last: (u64, String),
    /// Writes to registers up to the commit, in their order.
    pub(super) writes: Vec<Write>,
    /// Address of the abort, its first instruction, and the registers that are written from there on.
    pub(super) abort: (u64, String),
    pub(super) abort_writes: Vec<Write>,
    /// Where the caller continues after a commit and after an abort.
    pub(super) continues: u64,
    pub(super) abort_continues: u64,
}

impl Lifted {
    /// Returns the steps from the one that stores the descriptor to the commit.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.before.iter().chain(&self.events)
    }
}

impl Processor {
    /// Returns the signature in front of each abort: `RSEQ_SIG` of the C library's `sys/rseq.h`.
    const fn signature(self) -> u32 {
        match self {
            Self::X86_64 => 0x5305_3053,
            Self::Aarch64 => 0xd428_bc00,
        }
    }

    fn step(self, machine: &mut Machine, at: u64, code: &[u8]) -> Result<Step, Fault> {
        match self {
            Self::X86_64 => x86_64::step(machine, at, code),
            Self::Aarch64 => aarch64::step(machine, at, code),
        }
    }

    /// Returns the numbers of bytes that the instructions that store the descriptor's address can have.
    ///
    /// x86-64: `lea` with a distance of 32 bits, and a `mov` that is a byte longer for some registers. aarch64: five
    /// instructions, also after the linker has replaced two of them.
    const fn lengths_before_start(self) -> &'static [u64] {
        match self {
            Self::X86_64 => &[12, 13],
            Self::Aarch64 => &[5 * aarch64::INSTRUCTION_BYTES],
        }
    }

    /// Returns how many bytes to skip where the code begins with instructions that the linker has replaced.
    fn replaced_by_linker(self, code: &[u8]) -> u64 {
        match self {
            Self::Aarch64 if aarch64::is_relaxed(code) => aarch64::INSTRUCTION_BYTES,
            Self::X86_64 | Self::Aarch64 => 0,
        }
    }
}

/// Returns the sequences of all images.
pub(super) fn sequences(images: Vec<Image>) -> Result<Vec<Sequence>, Fault> {
    let mut sequences = Vec::new();
    for image in images.into_iter().map(Rc::new) {
        for (address, data) in image.descriptors() {
            let (descriptors, rest) = data.as_chunks::<DESCRIPTOR_BYTES>();
            if !rest.is_empty() {
                return Err(Fault::new(address, DESCRIPTORS, format!("has {} bytes", data.len())));
            }
            for (at, descriptor) in (address..).step_by(DESCRIPTOR_BYTES).zip(descriptors) {
                let descriptor = Descriptor::read(at, descriptor);
                if !image.is_resolved(at, DESCRIPTOR_BYTES as u64) {
                    return Err(Fault::new(at, "descriptor", "has addresses that no known relocation sets"));
                }
                sequences.push(Sequence { image: Rc::clone(&image), descriptor });
            }
        }
    }
    Ok(sequences)
}

impl Descriptor {
    fn read(address: u64, bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let half =
            |at| u32::from_le_bytes(*bytes[at..].first_chunk().expect("the field is in the descriptor"));
        let word =
            |at| u64::from_le_bytes(*bytes[at..].first_chunk().expect("the field is in the descriptor"));
        Self {
            address,
            version: half(0),
            flags: half(4),
            start: word(8),
            commit_offset: word(16),
            abort: word(24),
        }
    }

    /// Returns what the kernel would refuse.
    fn fault(&self) -> Option<String> {
        let Self { version, flags, start, commit_offset, abort, .. } = *self;
        if (version, flags) != (0, 0) {
            return Some(format!("has version {version} and flags {flags}; both must be 0"));
        }
        let Some(commit) = start.checked_add(commit_offset).filter(|_| commit_offset > 0) else {
            return Some(format!("has a commit offset of {commit_offset:#x}"));
        };
        let is_inside = (start..commit).contains(&abort);
        is_inside
            .then(|| format!("has the abort {abort:#x} inside of the sequence, {start:#x} to {commit:#x}"))
    }
}

impl Sequence {
    /// Returns the address of the first instruction.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.descriptor.start
    }

    /// Returns the symbol of the function that contains the sequence.
    #[must_use]
    pub fn function(&self) -> &str {
        self.image.function(self.descriptor.start)
    }

    /// Executes the instructions.
    ///
    /// # Errors
    /// The first instruction, descriptor or signature that no sequence may have.
    pub fn lift(&self) -> Result<Lifted, Fault> {
        let Descriptor { address, start, commit_offset, abort, .. } = self.descriptor;
        if let Some(what) = self.descriptor.fault() {
            return Err(Fault::new(address, "descriptor", what));
        }
        let commit = start + commit_offset;
        self.check_signature()?;
        let mut machine = Machine::default();
        let before = self.run_before_start(&mut machine)?;
        let (mut events, mut last, mut at) = (Vec::new(), (start, String::new()), start);
        while at < commit {
            let step = self.step(&mut machine, at)?;
            match step.next {
                Next::Follows => {}
                Next::BranchesIf(relation, to) if to == abort => {
                    machine.abort_if(relation).map_err(|what| Fault::new(at, &step.text, what))?;
                }
                Next::BranchesIf(_, to) | Next::Jumps(to) => {
                    let what = format!(
                        "branches to {to:#x}; only conditional branches to the abort {abort:#x} are allowed"
                    );
                    return Err(Fault::new(at, &step.text, what));
                }
            }
            record(&mut machine, &mut events, at, &step.text);
            last = (at, step.text);
            at += step.bytes;
        }
        if at != commit {
            return Err(Fault::new(
                last.0,
                &last.1,
                format!("ends at {at:#x}, after the commit address {commit:#x}"),
            ));
        }
        let writes = machine.writes;
        let continues = match self.image.processor {
            Processor::X86_64 => commit,
            Processor::Aarch64 => self.jump(commit)?,
        };
        let (first, abort_writes, abort_continues) = self.run_abort(continues)?;
        let abort = (abort, first);
        Ok(Lifted {
            descriptor: address,
            before,
            events,
            last,
            writes,
            abort,
            abort_writes,
            continues,
            abort_continues,
        })
    }

    fn check_signature(&self) -> Result<(), Fault> {
        let (abort, wanted) = (self.descriptor.abort, self.image.processor.signature());
        let found = self.image.bytes(abort.wrapping_sub(SIGNATURE_BYTES), SIGNATURE_BYTES);
        if *found == wanted.to_le_bytes() {
            return Ok(());
        }
        let what = format!("follows the bytes {found:02x?}, not the signature {wanted:#x}");
        Err(Fault::new(abort, "abort", what))
    }

    /// Executes the instructions that store the descriptor's address, whose first address is not known: instructions
    /// cannot be decoded backwards.
    fn run_before_start(&self, machine: &mut Machine) -> Result<Vec<Event>, Fault> {
        let Descriptor { start, address, .. } = self.descriptor;
        for bytes in self.image.processor.lengths_before_start() {
            let (mut tried, mut events, mut at) =
                (Machine::default(), Vec::new(), start.wrapping_sub(*bytes));
            while at < start {
                at += self.image.processor.replaced_by_linker(self.image.bytes(at, INSTRUCTION_BYTES_MAX));
                let Ok(step) = self.step(&mut tried, at) else { break };
                record(&mut tried, &mut events, at, &step.text);
                at += step.bytes;
            }
            let stored = events.last().map(|event| &event.action);
            let is_descriptor = |action: &Action| matches!(action, Action::Store { value, .. } if value.as_constant() == Some(address));
            if at == start && stored.is_some_and(is_descriptor) {
                *machine = tried;
                return Ok(events);
            }
        }
        let what =
            format!("does not follow instructions that store the address {address:#x} of its descriptor");
        Err(Fault::new(start, "start", what))
    }

    /// Executes the instructions from the abort to a jump or to `continues`. Returns the first instruction, the writes
    /// to registers, and the address at which execution continues.
    fn run_abort(&self, continues: u64) -> Result<(String, Vec<Write>, u64), Fault> {
        let (mut machine, mut at, mut first) = (Machine::default(), self.descriptor.abort, None);
        for _ in 0..ABORT_INSTRUCTIONS_MAX {
            if at == continues {
                break;
            }
            let step = self.step(&mut machine, at)?;
            let fault = |what: &str| Err(Fault::new(at, &step.text, what));
            if !machine.actions.is_empty() {
                return fault("accesses memory after an abort");
            }
            let first = first.get_or_insert_with(|| step.text.clone());
            match step.next {
                Next::Follows => at += step.bytes,
                Next::Jumps(to) => return Ok((first.clone(), machine.writes, to)),
                Next::BranchesIf(..) => return fault("branches on a condition after an abort"),
            }
        }
        Ok((first.unwrap_or_default(), machine.writes, at))
    }

    /// Returns the target of the jump at an address.
    fn jump(&self, at: u64) -> Result<u64, Fault> {
        let step = self.step(&mut Machine::default(), at)?;
        match step.next {
            Next::Jumps(to) => Ok(to),
            _ => {
                Err(Fault::new(at, &step.text, "follows the commit, where a jump over the signature must be"))
            }
        }
    }

    fn step(&self, machine: &mut Machine, at: u64) -> Result<Step, Fault> {
        let step = self.image.processor.step(machine, at, self.image.bytes(at, INSTRUCTION_BYTES_MAX))?;
        if self.image.is_resolved(at, step.bytes) {
            return Ok(step);
        }
        Err(Fault::new(at, &step.text, "has an address that no known relocation sets"))
    }
}

/// Appends what an instruction did to the events.
fn record(machine: &mut Machine, events: &mut Vec<Event>, at: u64, text: &str) {
    let event = |action| Event { at, text: text.to_owned(), action };
    events.extend(machine.actions.drain(..).map(event));
}
