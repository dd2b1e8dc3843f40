//! Finds sequences in the memory of the running program, from which the kernel reads their descriptors, and in
//! libraries that were built but not linked.

use std::fmt;

use object::read::archive::ArchiveFile;
use object::{Architecture, File, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex};

use crate::common::Sequence;
use crate::decode::Processor;

/// Size of a descriptor in bytes, and the offsets of its fields: `struct rseq_cs` of Linux `rseq(2)`.
const DESCRIPTOR_BYTES: u64 = 32;
const START_AT: u64 = 8;
const BYTES_AT: u64 = 16;
const ABORT_AT: u64 = 24;
/// Size in bytes of the signature before an abort.
pub(crate) const SIGNATURE_BYTES: usize = 4;

/// A sequence as it was assembled.
pub(crate) struct Found {
    pub(crate) processor: Processor,
    /// Address of the first instruction.
    pub(crate) start: u64,
    pub(crate) code: Vec<u8>,
    /// Address at which the kernel continues an aborted sequence, and the signature in front of that address.
    pub(crate) abort: u64,
    pub(crate) signature: [u8; SIGNATURE_BYTES],
    place: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the sequence at {:#x} of {}:", self.start, self.place)?;
        let instructions = self.processor.decode(self.start, &self.code);
        instructions.iter().try_for_each(|instruction| writeln!(f, "    {}", instruction.text))
    }
}

/// Returns the sequences that these descriptors describe.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn in_this_program(descriptors: &[Sequence]) -> Vec<Found> {
    let bytes = |start: u64, count: usize| {
        let start: *const u8 = std::ptr::with_exposed_provenance(start as usize);
        // SAFETY: the range is part of the program's own text, which is mapped readable and never changes.
        unsafe { std::slice::from_raw_parts(start, count) }.to_vec()
    };
    let found = |of: &Sequence| Found {
        processor: Processor::OWN,
        start: of.start,
        code: bytes(of.start, of.bytes as usize),
        abort: of.abort,
        signature: bytes(of.abort - SIGNATURE_BYTES as u64, SIGNATURE_BYTES).try_into().expect("four bytes"),
        place: "this program".into(),
    };
    descriptors.iter().map(found).collect()
}

/// Returns the sequences in an archive of object files.
pub(crate) fn in_library(library: &[u8]) -> Vec<Found> {
    let archive = ArchiveFile::parse(library).expect("a library");
    let members = archive.members().map(|member| member.expect("a member").data(library).expect("its bytes"));
    // Archive members that are not object files contain the compiler's own metadata.
    members.filter_map(|member| File::parse(member).ok()).flat_map(|file| in_object(&file)).collect()
}

fn in_object(file: &File<'_>) -> Vec<Found> {
    let processor = match file.architecture() {
        Architecture::X86_64 => Processor::X86_64,
        Architecture::Aarch64 => Processor::Aarch64,
        other => panic!("there are no sequences for {other:?}"),
    };
    let sections = file.sections().filter(|section| section.name() == Ok("__rseq_cs"));
    sections.flat_map(|section| in_section(file, processor, &section)).collect()
}

fn in_section<'a>(file: &File<'a>, processor: Processor, section: &impl ObjectSection<'a>) -> Vec<Found> {
    let data = section.data().expect("a section with data");
    let target = |at: u64| {
        let (_, relocation) =
            section.relocations().find(|&(offset, _)| offset == at).expect("addresses are relocated");
        let RelocationTarget::Symbol(symbol) = relocation.target() else { panic!("no symbol at {at}") };
        let symbol = file.symbol_by_index(symbol).expect("a symbol");
        let address = symbol.address().wrapping_add_signed(relocation.addend());
        (symbol.section_index().expect("a place in a section"), address)
    };
    let descriptors = (0..data.len() as u64).step_by(DESCRIPTOR_BYTES as usize);
    let found = |descriptor: u64| {
        let length = &data[(descriptor + BYTES_AT) as usize..][..8];
        let bytes = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
        let ((of_start, start), (of_abort, abort)) =
            (target(descriptor + START_AT), target(descriptor + ABORT_AT));
        let before_abort = abort - SIGNATURE_BYTES as u64;
        Found {
            processor,
            start,
            code: text(file, of_start, start, bytes),
            abort,
            signature: text(file, of_abort, before_abort, SIGNATURE_BYTES).try_into().expect("four bytes"),
            place: file.section_by_index(of_start).expect("a section").name().expect("a name").into(),
        }
    };
    descriptors.map(found).collect()
}

/// Returns `bytes` bytes of a section, from the address `start` on.
fn text(file: &File<'_>, section: SectionIndex, start: u64, bytes: usize) -> Vec<u8> {
    let data = file.section_by_index(section).expect("a section").data().expect("instructions");
    data[start as usize..][..bytes].to_vec()
}
