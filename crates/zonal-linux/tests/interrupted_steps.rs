//! Interrupts every instruction of every sequence once, with a tracer. An interrupted sequence must be undone as a
//! whole, the frame must be allocated on another path, and the accounting must stay exact.
//!
//! The test starts itself again as a child process, which allocates and frees on a traced thread.
//! `ZONAL_STRESS_SECONDS` makes the test repeat all interruptions.
#![cfg(target_arch = "x86_64")]

mod common;
#[path = "common/tracer.rs"]
mod tracer;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::{Sequence, check_all_free, ledger_of, sequences, stress_rounds};
use tracer::{Stop, Traced};
use zonal::request::PageKind;
use zonal::units::{Order, Pfn};
use zonal_linux::{Pool, PoolRequest};
use zonal_testing::{Ledger, skipped};

/// Environment variable that is set only in the child.
const CHILD: &str = "ZONAL_TEST_TRACED_CHILD";
/// Prefix of the child's messages in its test harness's output.
const MARK: &str = "@traced";
/// Flag that the tracer sets to 1 when the child may end.
static OVER: AtomicU64 = AtomicU64::new(0);
/// Offset of the current sequence's descriptor in a thread's area.
const DESCRIPTOR_AT: u64 = 8;
/// Number of single steps in `walk`: enough for a whole round of the child's work.
const STEPS: u32 = 20_000;

/// Returns the offset of a thread's area from its thread pointer.
fn area_offset() -> i64 {
    // SAFETY: the name ends in a zero byte.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    // SAFETY: the symbol is a `ptrdiff_t` of the C library, which exists where sequences are used.
    unsafe { symbol.cast::<i64>().read() }
}

/// Allocates and frees in every way: from the current pageset slot, past the pageset, and under the pageset's lock.
fn round(pool: &Pool, owners: &Ledger) {
    for kind in PageKind::ALL {
        let request = PoolRequest::page().kind(kind);
        let frames: Vec<Pfn> = (0..70)
            .map(|_| {
                let frame = pool.alloc_raw(&request).unwrap().first;
                owners.assign(frame.get(), 1, 1);
                frame
            })
            .collect();
        for frame in frames {
            owners.release(frame.get(), 1, 1);
            // SAFETY: this function owns the raw block, and frees it once.
            unsafe { pool.free_raw(frame, Order::PAGE) }.unwrap();
        }
    }
    let order = Order::new(2).unwrap();
    let block = pool.alloc_raw(&PoolRequest::new(order)).unwrap();
    owners.assign(block.first.get(), 4, 1);
    let mut bulk = [Pfn::new(0); 20];
    let came = pool.alloc_bulk_raw(&PoolRequest::page(), &mut bulk).unwrap();
    bulk[..came].iter().for_each(|&frame| owners.assign(frame.get(), 1, 1));
    bulk[..came].iter().for_each(|&frame| owners.release(frame.get(), 1, 1));
    owners.release(block.first.get(), 4, 1);
    // SAFETY: this function owns the raw block, and frees it once.
    unsafe { pool.free_raw(block.first, order) }.unwrap();
    // SAFETY: this function owns the raw blocks, and frees them once.
    unsafe { pool.free_bulk_raw(&bulk[..came]) }.unwrap();
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK} {text}").unwrap();
    out.flush().unwrap();
}

/// Stops the calling thread until the tracer continues it.
fn stop() {
    // SAFETY: the call only stops this thread, and the tracer, which is attached, continues it.
    unsafe { libc::raise(libc::SIGSTOP) };
}

fn be_the_child() {
    let pool = Pool::builder().size(16 << 20).build().unwrap();
    if !pool.uses_sequences() {
        return say("skip");
    }
    let owners = ledger_of(&pool);
    (0..3).for_each(|_| round(&pool, &owners));
    for sequence in sequences() {
        say(&format!("sequence {} {} {}", sequence.start, sequence.bytes, sequence.abort));
    }
    // SAFETY: the parent waits for this thread in order to trace it, and can do so from this call on.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    // SAFETY: the function has no preconditions.
    let thread = unsafe { libc::gettid() };
    say(&format!("thread {thread} {} {}", area_offset(), OVER.as_ptr().expose_provenance()));
    stop();
    // Relaxed: the tracer writes the flag while this thread is stopped.
    while OVER.load(Relaxed) == 0 {
        round(&pool, &owners);
        // If this thread stopped after the tracer had detached, it would never be continued.
        if OVER.load(Relaxed) == 0 {
            stop();
        }
    }
    check_all_free(&owners, &pool);
    say("well");
}

/// State of the tracer.
struct Trace {
    traced: Traced,
    sequences: Vec<(u64, u64, u64)>,
    descriptor: u64,
    over: u64,
}

impl Trace {
    /// Continues the thread until it reaches `place` in this round or the next. Returns `false` if it does not.
    fn reach(&self, place: u64) -> bool {
        self.traced.break_at(&[place]).expect("it was possible before");
        for _ in 0..2 {
            match self.traced.go_on() {
                Stop::Signal(libc::SIGTRAP) => {
                    assert_eq!(self.traced.at(), place);
                    return true;
                }
                Stop::Signal(libc::SIGSTOP) => {}
                other => panic!("the child {other:?}"),
            }
        }
        false
    }

    /// Returns the instructions that the next sequence executes. The sequence is single-stepped while no descriptor
    /// is registered with the kernel, so that it is not aborted.
    fn instructions(&self, start: u64, end: u64) -> BTreeSet<u64> {
        self.traced.break_at(&[]).unwrap();
        self.traced.write(self.descriptor, 0);
        let mut found = BTreeSet::new();
        while (start..end).contains(&self.traced.at()) {
            found.insert(self.traced.at());
            assert_eq!(self.traced.step(), Stop::Signal(libc::SIGTRAP));
        }
        found
    }

    /// Interrupts a sequence at one instruction, and checks that it continues at its abort address.
    fn interrupt(&self, place: u64, (start, bytes, abort): (u64, u64, u64)) -> bool {
        if !self.reach(place) {
            return false;
        }
        // The store is the last instruction. A sequence that has executed it cannot be undone.
        self.traced.break_at(&[abort, start + bytes]).unwrap();
        self.traced.heed_the_next();
        assert_eq!(self.traced.go_on(), Stop::Signal(libc::SIGTRAP));
        assert_eq!(self.traced.at(), abort, "interrupted {} bytes after the start", place - start);
        true
    }

    /// Interrupts every instruction. Returns how many sequences and instructions were interrupted.
    fn interrupt_all(&self) -> (usize, usize) {
        let (mut reached, mut interrupted) = (0, 0);
        for &sequence in &self.sequences {
            let (start, bytes, _) = sequence;
            if !self.reach(start) {
                continue;
            }
            reached += 1;
            for place in self.instructions(start, start + bytes) {
                interrupted += usize::from(self.interrupt(place, sequence));
            }
        }
        (reached, interrupted)
    }

    /// Single-steps the thread; each step is an interruption. Returns how many sequences were aborted and how many
    /// finished.
    fn walk(&self) -> (u32, u32) {
        self.traced.break_at(&[]).unwrap();
        let (mut aborted, mut done) = (0, 0);
        let mut inside = None;
        for _ in 0..STEPS {
            match self.traced.step() {
                Stop::Signal(libc::SIGTRAP | libc::SIGSTOP) => {}
                other => panic!("the child {other:?}"),
            }
            let at = self.traced.at();
            if let Some((start, bytes, _)) = inside {
                // A step that aborts has already executed the first instruction at the abort address.
                aborted += u32::from(!(start..=start + bytes).contains(&at));
                done += u32::from(at == start + bytes);
            }
            let of = |&&(start, bytes, _): &&(u64, u64, u64)| (start..start + bytes).contains(&at);
            inside = self.sequences.iter().find(of).copied();
        }
        (aborted, done)
    }
}

/// Reads the child's messages until its traced thread stops. Returns `None` if the child does not use sequences.
fn start(child: &mut std::process::Child) -> Option<Trace> {
    let mut sequences = Vec::new();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    loop {
        let line = lines.next().expect("the child says that it is ready").unwrap();
        let Some(text) = line.strip_prefix(MARK) else { continue };
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<i64>().unwrap();
        match words[0] {
            "sequence" => sequences.push((number(1) as u64, number(2) as u64, number(3) as u64)),
            "thread" => {
                let traced = Traced(number(1) as i32);
                assert_eq!(traced.wait(), Stop::Signal(libc::SIGSTOP));
                let area = traced.registers().fs_base.wrapping_add_signed(number(2));
                let (descriptor, over) = (area + DESCRIPTOR_AT, number(3) as u64);
                return Some(Trace { traced, sequences, descriptor, over });
            }
            _ => return None,
        }
    }
}

#[test]
fn every_sequence_can_be_interrupted_at_every_instruction() {
    if std::env::var_os(CHILD).is_some() {
        return be_the_child();
    }
    assert_eq!(size_of::<Sequence>(), 32);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "every_sequence_can_be_interrupted_at_every_instruction", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let Some(trace) = start(&mut child) else {
        child.wait().unwrap();
        return skipped!("no restartable sequences here");
    };
    if let Err(why) = trace.traced.break_at(&[trace.sequences[0].0]) {
        child.kill().unwrap();
        return skipped!("no breakpoints of the processor here: {why}");
    }
    for _ in stress_rounds() {
        let (reached, interrupted) = trace.interrupt_all();
        let (aborted, done) = trace.walk();
        eprintln!(
            "{reached} sequences, {interrupted} instructions interrupted; by steps {aborted} aborted, {done} done"
        );
        // There are at least a pop, a push and a lock, of about ten instructions each.
        assert!(reached >= 3 && interrupted >= 30, "{reached} sequences, {interrupted} instructions");
        assert!(aborted > 0 && done == 0, "every step interrupts: {aborted} aborted, {done} done");
    }
    trace.traced.break_at(&[]).unwrap();
    trace.traced.write(trace.over, 1);
    trace.traced.detach();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
