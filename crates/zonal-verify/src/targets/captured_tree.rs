//! Fuzz target: bytes are changes to a tree of `/proc` and `/sys` files, which is then captured.
//!
//! The initial tree is that of a valid machine (`captured_tree/base_tree.txt`). Each group of bytes selects a file and
//! a change: the file is removed or truncated, or its text or one of its numbers is replaced. A capture must return a
//! machine that reads back as an equal machine, or an error.
//!
//! Related files: `machine_file.rs` checks the machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use zonal_machine::{Capture, capture};

use super::errors::check_error;
use super::machine_file;
use crate::choices::Choices;

const BASE: &str = include_str!("captured_tree/base_tree.txt");
/// Text before the name of each file in the initial tree.
const HEADING: &str = "=== ";
/// Files that the initial tree lacks, but that a capture reads.
const OTHERS: [&str; 13] = [
    "proc/self/auxv",
    "proc/cpuinfo",
    "proc/stat",
    "proc/sys/vm/percpu_pagelist_fraction",
    "dmesg.txt",
    "var/log/dmesg",
    "sys/devices/system/node/node2/cpumap",
    "sys/devices/system/node/node2/distance",
    "sys/devices/system/node/node2/meminfo",
    "sys/devices/system/node/node1023/cpulist",
    "sys/devices/system/node/node2000/cpulist",
    "sys/devices/system/node/node0/cpu7/online",
    "sys/devices/system/node/has_cpu",
];
/// Numbers near the bounds of some value.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    10,
    255,
    256,
    1023,
    1024,
    1 << 20,
    u32::MAX as u64,
    1 << 32,
    1 << 52,
    (1 << 52) + 1,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];
/// Maximum number of changes to a tree.
const CHANGES_MAX: usize = 64;
/// Maximum length of a file, in bytes.
const FILE_BYTES_MAX: usize = 1 << 16;

type Files = BTreeMap<&'static str, Vec<u8>>;

/// Captures the initial tree with the changes in `data`.
pub fn target(data: &[u8]) {
    let mut choices = Choices::new(data);
    let mut files = base();
    let names: Vec<&'static str> = files.keys().copied().chain(OTHERS).collect();
    for _ in 0..CHANGES_MAX {
        if choices.is_empty() {
            break;
        }
        let name = names[choices.small(names.len())];
        change(&mut files, name, &mut choices);
    }
    let root = tempfile::tempdir().expect("a directory can be made");
    for (name, text) in &files {
        write(root.path(), name, text);
    }
    match capture(root.path()) {
        Ok(Capture { model, notes, .. }) => {
            assert!(notes.iter().all(|note| !note.is_empty() && !note.contains('\n')), "{notes:?}");
            machine_file::check(&model);
        }
        Err(error) => check_error(&error, &root.path().display().to_string()),
    }
}

fn base() -> Files {
    let sections = BASE.split(HEADING).skip(1).filter_map(|section| section.split_once('\n'));
    sections.map(|(name, text)| (name, text.as_bytes().to_vec())).collect()
}

fn write(root: &Path, name: &str, text: &[u8]) {
    let path = root.join(name);
    let directory = path.parent().expect("every file is in a directory");
    fs::create_dir_all(directory).expect("a directory can be made");
    fs::write(&path, text).expect("a file can be written");
}

fn change(files: &mut Files, name: &'static str, choices: &mut Choices<'_>) {
    let what = choices.small(8);
    if what == 0 {
        files.remove(name);
        return;
    }
    let text = files.entry(name).or_default();
    let at = choices.below(text.len() as u64 + 1) as usize;
    match what {
        1 => text.truncate(at),
        2 | 3 => replace_number(text, at, &number(choices)),
        4 => {
            let (gone, length) = (choices.small(16), choices.small(64));
            let end = (at + gone).min(text.len());
            text.splice(at..end, choices.bytes(length).iter().copied());
        }
        5 => {
            let count = choices.small(256);
            *text = choices.bytes(count).to_vec();
        }
        6 => *text = [number(choices), b"\n".to_vec()].concat(),
        _ => {
            // Repeat the rest of the file, as kernels repeat headings and logs repeat lines.
            let rest = text[at..].to_vec();
            text.extend(rest);
        }
    }
    text.truncate(FILE_BYTES_MAX);
}

fn number(choices: &mut Choices<'_>) -> Vec<u8> {
    let choice = choices.small(2 * NUMBERS.len());
    let number = NUMBERS.get(choice).copied().unwrap_or_else(|| choices.below(1 << 16));
    number.to_string().into_bytes()
}

/// Replaces the first number at or after `at`.
fn replace_number(text: &mut Vec<u8>, at: usize, number: &[u8]) {
    let Some(start) = text[at..].iter().position(u8::is_ascii_digit) else { return };
    let start = at + start;
    let digits = text[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    text.splice(start..start + digits, number.iter().copied());
}
