//! Tests that the notes of a linked program describe each static probe: provider, name, arguments and a `nop`.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::collections::BTreeMap;

use object::{Object, ObjectSection, SectionKind};
use zonal_linux::{Pool, PoolRequest};

/// The probes, with the number of their arguments.
const PROBES: [(&str, usize); 7] = [
    ("drain", 4),
    ("reclaim_begin", 4),
    ("reclaim_end", 4),
    ("refill", 4),
    ("refusal", 4),
    ("remote_drain", 3),
    ("retired", 5),
];

/// A note of a probe.
#[derive(Debug)]
struct Note {
    location: u64,
    base: u64,
    semaphore: u64,
    provider: String,
    name: String,
    arguments: Vec<String>,
}

/// Splits notes: the lengths of the owner's name and the description, a type, and both padded to four bytes.
fn notes(mut section: &[u8]) -> Vec<Note> {
    let mut found = Vec::new();
    while !section.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(section[at..at + 4].try_into().unwrap()) as usize;
        let (owner, description, kind) = (word(0), word(4), word(8));
        assert_eq!((&section[12..12 + owner], kind), (&b"stapsdt\0"[..], 3));
        let start = 12 + owner.next_multiple_of(4);
        found.push(note(&section[start..start + description]));
        section = &section[start + description.next_multiple_of(4)..];
    }
    found
}

fn note(description: &[u8]) -> Note {
    let address = |at: usize| u64::from_ne_bytes(description[8 * at..8 * at + 8].try_into().unwrap());
    let texts = description[24..].split(|&byte| byte == 0);
    let mut texts = texts.map(|text| std::str::from_utf8(text).unwrap().to_owned());
    let mut text = || texts.next().unwrap();
    let (provider, name) = (text(), text());
    let arguments = text().split_whitespace().map(str::to_owned).collect();
    Note { location: address(0), base: address(1), semaphore: address(2), provider, name, arguments }
}

/// Uses the pool, so that the program contains its code.
fn use_pool() {
    let pool = Pool::builder().size(16 << 20).fake_nodes(1).build().unwrap();
    drop(pool.alloc(&PoolRequest::page()).unwrap());
}

#[test]
fn every_probe_has_notes_with_its_arguments() {
    use_pool();
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let program = object::File::parse(&*program).unwrap();
    let section = program.section_by_name(".note.stapsdt").expect("the program has notes of probes");
    let base = program.section_by_name(".stapsdt.base").expect("tools need the base of the notes").address();
    let notes = notes(section.data().unwrap());
    let mut found = BTreeMap::new();
    for note in notes.iter().filter(|note| note.provider == "zonal") {
        let twice = found.insert(note.name.as_str(), note.arguments.len());
        assert_eq!(twice, None, "a probe is at one place: {note:?}");
        assert!(note.arguments.iter().all(|argument| argument.starts_with("-8@")), "{note:?}");
        assert_eq!((note.base, note.semaphore), (base, 0), "{note:?}");
        check_nop(&program, note.location);
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), PROBES);
}

/// Checks that the instruction at an address is a `nop`, which is all that a probe costs.
fn check_nop(program: &object::File<'_>, address: u64) {
    let nop: &[u8] = if cfg!(target_arch = "x86_64") { &[0x90] } else { &[0x1f, 0x20, 0x03, 0xd5] };
    let mut texts = program.sections().filter(|section| section.kind() == SectionKind::Text);
    let bytes = texts.find_map(|section| section.data_range(address, nop.len() as u64).ok().flatten());
    assert_eq!(bytes, Some(nop), "at {address:#x}");
}
