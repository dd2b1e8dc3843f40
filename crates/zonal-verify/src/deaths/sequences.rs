//! Where this program's restartable sequences are.

use object::{Object, ObjectSection};

/// A restartable sequence: the addresses of its instructions in the program file, and of what follows them.
pub(super) struct Sequence {
    /// The first two instructions store the descriptor. A thread that is stopped after them is restarted.
    pub(super) instructions: Vec<u64>,
    pub(super) end: u64,
    /// Where the kernel continues a thread that it has interrupted in the sequence.
    pub(super) abort: u64,
}

/// Returns all sequences of this program. None where the processor is not an x86-64.
pub(super) fn all() -> Vec<Sequence> {
    let program =
        std::fs::read(std::env::current_exe().expect("this program has a path")).expect("it can be read");
    let file = object::File::parse(&*program).expect("it is an executable");
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    let Some(descriptors) = file.section_by_name("__rseq_cs") else { return Vec::new() };
    let text = file.section_by_name(".text").expect("a program has code");
    let (text_at, code) = (text.address(), text.data().expect("code can be read"));
    // In a position-independent program, the addresses in descriptors are in relocations.
    let mut starts = std::collections::BTreeMap::new();
    for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
        starts.insert(at, relocation.addend() as u64);
    }
    let data = descriptors.data().expect("descriptors can be read");
    let mut all = Vec::new();
    for (at, descriptor) in (descriptors.address()..).step_by(32).zip(data.chunks_exact(32)) {
        let word =
            |from: usize| u64::from_le_bytes(descriptor[from..from + 8].try_into().expect("eight bytes"));
        let start = starts.get(&(at + 8)).copied().unwrap_or(word(8));
        let Some(offset) = start.checked_sub(text_at).filter(|&at| at < code.len() as u64) else { continue };
        // A `lea` with seven bytes and a store with five or six precede the sequence.
        let is_lea = |before: &u64| matches!(code[(offset - before) as usize..], [0x48 | 0x4c, 0x8d, ..]);
        let before =
            [12, 13].into_iter().find(is_lea).expect("a sequence follows the store of its descriptor");
        let bytes = &code[(offset - before) as usize..][..(before + word(16)) as usize];
        let decoder = iced_x86::Decoder::with_ip(64, bytes, start - before, iced_x86::DecoderOptions::NONE);
        let instructions = decoder.into_iter().map(|instruction| instruction.ip()).collect();
        let abort = starts.get(&(at + 24)).copied().unwrap_or(word(24));
        all.push(Sequence { instructions, end: start + word(16), abort });
    }
    all
}
