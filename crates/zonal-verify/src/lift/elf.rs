//! Reads the sections of an ELF file that contain sequences, with addresses as in memory.
//!
//! The sections of an object have no addresses yet, so each gets one here, and the relocations that sequences use are
//! applied. In a linked program, the addresses of descriptors may be left to the loader; these relocations are applied
//! as if the program were loaded where it was linked. Sources: ELF for the x86-64 and the Arm 64-bit architecture.
//!
//! Related files: `sequence.rs` reads descriptors from an image.

use std::collections::BTreeSet;

use object::elf;
use object::read::archive::ArchiveFile;
use object::{
    Architecture, File, Object, ObjectKind, ObjectSection, ObjectSymbol, Relocation, RelocationFlags,
    RelocationTarget, SectionIndex, SectionKind, SymbolKind,
};

/// Name of the section that contains the descriptors.
pub(super) const DESCRIPTORS: &str = "__rseq_cs";
/// Alignment of an object's sections, and the gap between them.
const SPACING: u64 = 4096;

/// The processor that executes the instructions of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Processor {
    X86_64,
    Aarch64,
}

/// The instructions and descriptors of a program, library or object.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) processor: Processor,
    sections: Vec<Section>,
    /// Addresses whose contents are known only after linking or loading.
    unresolved: BTreeSet<u64>,
    /// Functions: address and name, in the order of addresses.
    functions: Vec<(u64, String)>,
}

#[derive(Debug)]
struct Section {
    index: SectionIndex,
    is_descriptors: bool,
    address: u64,
    data: Vec<u8>,
}

/// Returns the images with descriptors in a file: a program, a library, an object, or an archive of objects.
pub(super) fn images(data: &[u8]) -> Result<Vec<Image>, object::Error> {
    let Ok(archive) = ArchiveFile::parse(data) else {
        return Ok(Image::of(&File::parse(data)?)?.into_iter().collect());
    };
    let mut images = Vec::new();
    for member in archive.members() {
        // Members that are not object files contain the compiler's own metadata.
        if let Ok(file) = File::parse(member?.data(data)?) {
            images.extend(Image::of(&file)?);
        }
    }
    Ok(images)
}

impl Image {
    /// Returns the image of a file, or `None` if it has no descriptors.
    fn of(file: &File<'_>) -> Result<Option<Self>, object::Error> {
        let processor = match file.architecture() {
            Architecture::X86_64 => Processor::X86_64,
            Architecture::Aarch64 => Processor::Aarch64,
            _ => return Ok(None),
        };
        if file.section_by_name(DESCRIPTORS).is_none() {
            return Ok(None);
        }
        let is_object = file.kind() == ObjectKind::Relocatable;
        let mut image = Self { processor, sections: vec![], unresolved: BTreeSet::new(), functions: vec![] };
        let mut next = SPACING;
        for section in file.sections() {
            let is_descriptors = section.name() == Ok(DESCRIPTORS);
            if is_descriptors || section.kind() == SectionKind::Text {
                let address = if is_object { next } else { section.address() };
                next = (next + section.size()).next_multiple_of(SPACING) + SPACING;
                let data = section.data()?.to_vec();
                image.sections.push(Section { index: section.index(), is_descriptors, address, data });
            }
        }
        if is_object {
            image.link(file);
        } else {
            image.load(file);
        }
        image.name_functions(file, is_object);
        Ok(Some(image))
    }

    fn name_functions(&mut self, file: &File<'_>, is_object: bool) {
        for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
            let address = if is_object { self.address_of(&symbol) } else { Some(symbol.address()) };
            if let (Some(address), Ok(name)) = (address, symbol.name()) {
                self.functions.push((address, name.to_owned()));
            }
        }
        self.functions.sort();
    }

    fn address_of<'a>(&self, symbol: &impl ObjectSymbol<'a>) -> Option<u64> {
        let index = symbol.section_index()?;
        let section = self.sections.iter().find(|section| section.index == index)?;
        Some(section.address + symbol.address())
    }

    /// Applies the relocations of an object.
    fn link(&mut self, file: &File<'_>) {
        for at in 0..self.sections.len() {
            let Section { index, address, .. } = self.sections[at];
            let Ok(section) = file.section_by_index(index) else { continue };
            for (offset, relocation) in section.relocations() {
                let target = match relocation.target() {
                    RelocationTarget::Symbol(symbol) => file.symbol_by_index(symbol).ok(),
                    _ => None,
                };
                let target = target.and_then(|symbol| self.address_of(&symbol));
                let place = address + offset;
                let value = target.map(|target| target.wrapping_add_signed(relocation.addend()));
                let data = self.sections[at].data.get_mut(offset as usize..);
                let applied = value.zip(data).and_then(|(value, data)| {
                    apply(self.processor, relocation_type(&relocation), place, value, data)
                });
                if applied.is_none() {
                    self.unresolved.insert(place);
                }
            }
        }
    }

    /// Applies the relocations that the loader of a program would apply to its descriptors.
    fn load(&mut self, file: &File<'_>) {
        let relative = match self.processor {
            Processor::X86_64 => elf::R_X86_64_RELATIVE,
            Processor::Aarch64 => elf::R_AARCH64_RELATIVE,
        };
        for (place, relocation) in file.dynamic_relocations().into_iter().flatten() {
            let section = self.sections.iter_mut().find(|section| section.contains(place));
            let Some(section) = section else { continue };
            let offset = (place - section.address) as usize;
            match section.data.get_mut(offset..offset + 8) {
                Some(data) if relocation_type(&relocation) == Some(relative) => {
                    data.copy_from_slice(&relocation.addend().to_le_bytes());
                }
                _ => {
                    self.unresolved.insert(place);
                }
            }
        }
    }

    /// Returns each descriptor section's address and bytes.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let sections = self.sections.iter().filter(|section| section.is_descriptors);
        sections.map(|section| (section.address, section.data.as_slice()))
    }

    /// Returns at most `count` bytes from an address on: fewer at the end of a section, and none outside of sections.
    pub(super) fn bytes(&self, address: u64, count: u64) -> &[u8] {
        let section = self.sections.iter().find(|section| section.contains(address));
        let data = section.and_then(|section| section.data.get((address - section.address) as usize..));
        let data = data.unwrap_or_default();
        &data[..data.len().min(count as usize)]
    }

    /// Whether all of these bytes are known.
    pub(super) fn is_resolved(&self, address: u64, count: u64) -> bool {
        self.unresolved.range(address..address + count).next().is_none()
    }

    /// Returns the name of the function that contains an address.
    pub(super) fn function(&self, address: u64) -> &str {
        let after = self.functions.partition_point(|&(start, _)| start <= address);
        self.functions[..after].last().map_or("a function without a name", |(_, name)| name)
    }
}

impl Section {
    fn contains(&self, address: u64) -> bool {
        (self.address..self.address + self.data.len() as u64).contains(&address)
    }
}

fn relocation_type(relocation: &Relocation) -> Option<elf::RelocationType> {
    match relocation.flags() {
        RelocationFlags::Elf { r_type } => Some(r_type),
        _ => None,
    }
}

/// Writes `value`, relative to `place` where the type says so, into the first bytes of `data`.
///
/// Returns `None` for types that no sequence needs.
fn apply(
    processor: Processor,
    r_type: Option<elf::RelocationType>,
    place: u64,
    value: u64,
    data: &mut [u8],
) -> Option<()> {
    let distance = value.wrapping_sub(place);
    match (processor, r_type?) {
        (Processor::X86_64, elf::R_X86_64_64) | (Processor::Aarch64, elf::R_AARCH64_ABS64) => {
            data.get_mut(..8)?.copy_from_slice(&value.to_le_bytes());
        }
        (Processor::X86_64, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32) => {
            data.get_mut(..4)?.copy_from_slice(&(distance as u32).to_le_bytes());
        }
        (Processor::X86_64, _) => return None,
        (Processor::Aarch64, r_type) => {
            let (value, bits, at) = match r_type {
                elf::R_AARCH64_JUMP26 | elf::R_AARCH64_CALL26 => (distance >> 2, 26, 0),
                elf::R_AARCH64_CONDBR19 => (distance >> 2, 19, 5),
                elf::R_AARCH64_ADD_ABS_LO12_NC => (value, 12, 10),
                elf::R_AARCH64_ADR_PREL_LO21 | elf::R_AARCH64_ADR_PREL_PG_HI21 => {
                    let pages = (value >> 12).wrapping_sub(place >> 12);
                    let distance = if r_type == elf::R_AARCH64_ADR_PREL_LO21 { distance } else { pages };
                    // The lowest two bits have a field of their own.
                    insert(data, distance, 2, 29)?;
                    (distance >> 2, 19, 5)
                }
                _ => return None,
            };
            insert(data, value, bits, at)?;
        }
    }
    Some(())
}

/// Replaces a field of an aarch64 instruction.
fn insert(data: &mut [u8], value: u64, bits: u32, at: u32) -> Option<()> {
    let word = data.first_chunk_mut()?;
    let mask = ((1 << bits) - 1) << at;
    *word = (u32::from_le_bytes(*word) & !mask | (value as u32) << at & mask).to_le_bytes();
    Some(())
}
