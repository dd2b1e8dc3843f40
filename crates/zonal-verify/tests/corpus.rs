//! Replays the corpus of every fuzz target, and then runs each target on random mutations of corpus files.
//!
//! `ZONAL_FUZZ_SEED` and `ZONAL_FUZZ_ROUNDS` set the seed and the number of mutated inputs. A failure prints the bytes
//! of the input. A file with these bytes in `corpus/TARGET` is replayed with the others.

use std::fs;
use std::path::Path;

use fastrand::Rng;
use zonal_verify::targets::{ALL, Target};

/// Maximum length of a mutated input, in bytes.
const BYTES_MAX: usize = 8192;
/// Pieces of text that are significant to some target.
const WORDS: [&[u8]; 12] = [
    b"0",
    b"18446744073709551615",
    b"4294967296",
    b"-1",
    b"1024",
    b"nan",
    b"1e300",
    b"null",
    b"{}",
    b"[]",
    b"\n",
    b"\0",
];

/// Returns the files of a target's corpus with their names, in order.
fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    assert!(files.len() >= 5, "{} has {} files", folder.display(), files.len());
    files
}

/// The current input, which is printed if its target panics.
struct Input<'i> {
    target: &'i Target,
    data: &'i [u8],
    origin: &'i str,
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let name = self.target.name;
            let hex: String = self.data.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("target {name} failed on {}, {} bytes:\n{hex}", self.origin, self.data.len());
            eprintln!(
                "to replay: echo HEX | xxd -r -p > crates/zonal-verify/corpus/{name}/NEW && \
                 cargo test -p zonal-verify --test corpus"
            );
        }
    }
}

fn run(target: &Target, data: &[u8], origin: &str) {
    let input = Input { target, data, origin };
    (target.run)(input.data);
}

/// Returns a file of the corpus with a few changes.
fn changed(random: &mut Rng, files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut data = files[random.usize(..files.len())].1.clone();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..=data.len());
        let end = (at + random.usize(..16)).min(data.len());
        match random.u8(..7) {
            0 if at < data.len() => data[at] ^= 1 << random.u8(..8),
            1 if at < data.len() => data[at] = random.u8(..),
            2 => drop(data.splice(at..end, [])),
            3 => drop(data.splice(at..end, WORDS[random.usize(..WORDS.len())].iter().copied())),
            4 => data.truncate(at.max(1)),
            5 => {
                let other = &files[random.usize(..files.len())].1;
                let from = random.usize(..=other.len());
                drop(data.splice(at.., other[from..].iter().copied()));
            }
            _ => {
                let again = data[at..end].to_vec();
                drop(data.splice(at..at, again));
            }
        }
    }
    data.truncate(BYTES_MAX);
    data
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

fn replay_and_change(name: &str, rounds: u64) {
    let target = ALL.iter().find(|target| target.name == name).unwrap();
    let files = corpus(target);
    files.iter().for_each(|(file, data)| run(target, data, file));
    let seed = from_environment("ZONAL_FUZZ_SEED").unwrap_or(1);
    let rounds = from_environment("ZONAL_FUZZ_ROUNDS").unwrap_or(rounds);
    let mut random = Rng::with_seed(seed);
    for round in 0..rounds {
        let data = changed(&mut random, &files);
        run(target, &data, &format!("round {round} of seed {seed}"));
    }
    println!("{name}: {} files replayed, {rounds} changed ones", files.len());
}

#[test]
fn operations() {
    replay_and_change("operations", 200);
}

#[test]
fn machine_files() {
    replay_and_change("machine_file", 800);
}

#[test]
fn kernel_logs() {
    replay_and_change("kernel_log", 400);
}

#[test]
fn captured_trees() {
    replay_and_change("captured_tree", 120);
}

#[test]
fn experiment_files() {
    replay_and_change("experiment_file", 120);
}

#[test]
fn traces() {
    replay_and_change("trace_file", 800);
}

#[test]
fn every_target_has_a_corpus_and_no_other_is_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let entries = fs::read_dir(folder).unwrap();
    let mut found: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    let mut known = ALL.map(|target| target.name);
    known.sort_unstable();
    assert_eq!(found, known);
}
