//! Soak of a shared pool: processes use it with all operations, and one is killed about every 200 ms, at any moment.
//!
//! Blocks pass from process to process through the parent, which does not die: it takes a block over from a process that lives,
//! and holds it until another has taken it. Every few seconds is a *pause*: the processes stop and name their blocks, and then no frame may be lost
//! or in two blocks, and all counts must be exact. Related files: `worker.rs` is a process, `held.rs` has the contents.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use fastrand::Rng;
use zonal_linux::{PageCount, Pool};

use super::held::Held;
use super::soon;

const POOL_BYTES: u64 = 64 << 20;
/// Mean time between two deaths, in milliseconds.
const KILL_EVERY: u64 = 200;
const PAUSE_EVERY: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);
/// Blocks that the parent holds between two processes.
const HELD_MAX: usize = 16;

/// What a soak has done so far. Operations are those up to the last pause, without the last ones of killed processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Processes that were killed.
    pub deaths: u64,
    /// Processes that left.
    pub ended: u64,
    /// Blocks that the parent has passed on.
    pub passed: u64,
    /// Blocks of another process that the parent has freed without taking them over.
    pub freed_for_others: u64,
    /// Blocks whose receiver ended before it answered.
    pub in_doubt: u64,
    /// Pauses.
    pub pauses: u64,
    /// Blocks that were in use during pauses, all checked.
    pub blocks: u64,
    /// Operations of the processes.
    pub operations: u64,
}

struct Process {
    serial: u64,
    child: Child,
    orders: Option<ChildStdin>,
    /// Blocks on their way to this process.
    coming: Vec<Held>,
    table: Option<Vec<(u64, u64)>>,
}

struct Parent {
    pool: Pool,
    random: Rng,
    serial: u64,
    processes: Vec<Process>,
    send: Sender<(u64, Option<String>)>,
    events: Receiver<(u64, Option<String>)>,
    held: Vec<Held>,
    /// Blocks that a process may have taken before it died, or not.
    doubts: Vec<Held>,
    tally: Tally,
}

/// Runs `count` processes for some time; calls `report` after each pause.
///
/// # Errors
/// Returns the first failed check.
pub fn soak(count: u8, time: Duration, seed: u64, mut report: impl FnMut(&Tally)) -> Result<Tally, String> {
    let builder = Pool::builder().size(POOL_BYTES).shared_by_descriptor().processes(2 * count + 1);
    let pool = builder.build().map_err(|error| error.to_string())?;
    let (send, events) = mpsc::channel();
    let random = Rng::with_seed(seed);
    let (processes, held, doubts) = (Vec::new(), Vec::new(), Vec::new());
    let mut parent =
        Parent { pool, random, serial: 0, processes, send, events, held, doubts, tally: Tally::default() };
    (0..count).try_for_each(|_| parent.start())?;
    let end = Instant::now() + time;
    let (mut next_kill, mut next_pause) = (Instant::now(), Instant::now() + PAUSE_EVERY);
    while Instant::now() < end {
        parent.event_before(next_kill.min(next_pause))?;
        parent.pass_on();
        if Instant::now() >= next_kill {
            parent.end_one()?;
            next_kill = Instant::now() + Duration::from_millis(parent.random.u64(..2 * KILL_EVERY));
        }
        if Instant::now() >= next_pause {
            parent.pause()?;
            report(&parent.tally);
            next_pause = Instant::now() + PAUSE_EVERY;
        }
    }
    while !parent.processes.is_empty() {
        parent.pause()?;
        parent.end(0, false)?;
    }
    parent.pause()?;
    let free = |held: &Held| parent.free(*held);
    parent.held.iter().try_for_each(free)?;
    let left = parent.pool.verify().map_err(|fault| fault.to_string())?.allocated;
    if left == PageCount::ZERO { Ok(parent.tally) } else { Err(format!("{left} are allocated at the end")) }
}

impl Parent {
    fn start(&mut self) -> Result<(), String> {
        self.serial += 1;
        let file = self.pool.shared_file().expect("the pool is shared").as_raw_fd();
        let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
        command.arg(format!("--worker=/proc/{}/fd/{file}", std::process::id()));
        command.arg(format!("--seed={}", self.random.u64(..)));
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| error.to_string())?;
        let (serial, send) = (self.serial, self.send.clone());
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        std::thread::spawn(move || {
            lines.map(Some).chain([None]).all(|line| send.send((serial, line)).is_ok());
        });
        let orders = child.stdin.take();
        self.processes.push(Process { serial, child, orders, coming: Vec::new(), table: None });
        Ok(())
    }

    /// Obeys the next line of a process that lives.
    fn event_before(&mut self, until: Instant) -> Result<(), String> {
        let time = until.saturating_duration_since(Instant::now());
        let Ok((serial, line)) = self.events.recv_timeout(time) else { return Ok(()) };
        let Some(at) = self.processes.iter().position(|one| one.serial == serial) else { return Ok(()) };
        let line = line.ok_or("a process has ended by itself; its message precedes this one")?;
        let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match (what, Held::parse(rest)) {
            ("give", Some(held)) if self.random.u8(..3) == 0 => {
                self.tally.freed_for_others += 1;
                self.free(held)?;
            }
            ("give", Some(held)) => {
                let taken = self.pool.take_over(held.first, PageCount::new(held.count));
                taken.map_err(|error| format!("{held:?} of a process that lives: {error}"))?;
                self.held.push(held.check(&self.pool));
            }
            ("got", Some(held)) => {
                self.processes[at].coming.retain(|coming| *coming != held);
                self.tally.passed += 1;
            }
            _ => {
                let mut words = rest.split(' ');
                self.tally.operations += words.next().and_then(|count| count.parse().ok()).unwrap_or(0);
                let block = |word: &str| {
                    let (first, count) = word.split_once(':')?;
                    Some((first.parse().ok()?, count.parse().ok()?))
                };
                self.processes[at].table = Some(words.map_while(block).collect());
            }
        }
        Ok(())
    }

    fn free(&self, held: Held) -> Result<(), String> {
        let held = held.check(&self.pool);
        // SAFETY: the parent holds the block, or the process that does has given it away.
        let freed = unsafe { self.pool.allocator() }.free_frames(held.first, PageCount::new(held.count));
        freed.map_err(|error| format!("{held:?}: {error}"))
    }

    fn pass_on(&mut self) {
        while self.held.len() > HELD_MAX {
            let held = self.held.swap_remove(self.random.usize(..self.held.len()));
            let at = self.random.usize(..self.processes.len());
            let process = &mut self.processes[at];
            process.coming.push(held);
            process.order(&format!("take {}", held.to_line()));
        }
    }

    /// Kills a process, or lets it leave, and starts another.
    fn end_one(&mut self) -> Result<(), String> {
        let (at, is_killed) = (self.random.usize(..self.processes.len()), self.random.u8(..8) > 0);
        self.end(at, is_killed)?;
        self.start()
    }

    fn end(&mut self, at: usize, is_killed: bool) -> Result<(), String> {
        let mut process = self.processes.remove(at);
        drop(process.orders.take());
        if is_killed {
            process.child.kill().map_err(|error| error.to_string())?;
        }
        let status = process.child.wait().map_err(|error| error.to_string())?;
        // A process may have left before it was killed.
        let is_killed = is_killed && status.signal() == Some(libc::SIGKILL);
        if !is_killed && !status.success() {
            return Err(format!("a process failed: {status}"));
        }
        self.tally.deaths += u64::from(is_killed);
        self.tally.ended += u64::from(!is_killed);
        self.doubts.append(&mut process.coming);
        Ok(())
    }

    fn pause(&mut self) -> Result<(), String> {
        self.processes.iter_mut().for_each(|process| process.order("pause"));
        let until = Instant::now() + PATIENCE;
        while self.processes.iter().any(|process| process.table.is_none()) {
            if Instant::now() > until {
                return Err("a process does not stop".into());
            }
            self.event_before(until)?;
        }
        if !soon(|| self.pool.owners().len() == self.processes.len() + 1) {
            return Err(format!("not recovered: {:?}", self.pool.owners()));
        }
        let mut blocks: Vec<_> =
            self.processes.iter_mut().flat_map(|process| process.table.take().unwrap_or_default()).collect();
        blocks.extend(self.held.iter().map(|held| (held.first.get(), held.count)));
        self.tally.in_doubt += self.doubts.len() as u64;
        for held in std::mem::take(&mut self.doubts) {
            // The parent holds it still, or the dead process had taken it, and it is free or part of another block.
            if !blocks.iter().any(|&block| held.overlaps(block)) {
                // SAFETY: no process uses the block.
                _ = unsafe { self.pool.allocator() }.free_frames(held.first, PageCount::new(held.count));
            }
        }
        blocks.sort_unstable();
        if let Some(pair) = blocks.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            return Err(format!("these blocks overlap: {pair:?}"));
        }
        let expected: u64 = blocks.iter().map(|&(_, count)| count).sum();
        let own: u64 = self.held.iter().map(|held| held.check(&self.pool).count).sum();
        // Ticks of the processes may move frames while the pool is verified.
        let mut found = String::new();
        let is_right = soon(|| {
            let (verified, here) = (self.pool.verify(), self.pool.allocated_here());
            found = format!("{verified:?}, {here:?}; {expected} frames are held, {own} of them here");
            verified.is_ok_and(|all| all.allocated.get() == expected) && here == Some(PageCount::new(own))
        });
        self.tally.pauses += 1;
        self.tally.blocks += blocks.len() as u64;
        self.processes.iter_mut().for_each(|process| process.order("go"));
        if is_right { Ok(()) } else { Err(found) }
    }
}

impl Process {
    fn order(&mut self, line: &str) {
        // A process that has failed is noticed by its last line.
        _ = self.orders.as_mut().map(|orders| writeln!(orders, "{line}"));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
