//! `zonal run --shared`: starts the processes that share the pool, kills some, and verifies the pool when all have ended.
//!
//! Related files: `run/member.rs` is the work of each process, and `run/shared_report.rs` prints the report.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use zonal::config::OwnedBlocks;
use zonal::snapshot::Accounting;
use zonal::units::PageCount;
use zonal::verify::VerifyError;
use zonal_linux::Pool;
use zonal_workload::{Progress, Workload};

use super::{RunArgs, show, text};
use crate::outcome::Failure;
use crate::progress::ProgressLine;

/// Processes that share the pool, unless the user says otherwise.
const PROCESSES: u8 = 2;
/// Interval at which the processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest time in which a pool recovers from the death of its processes.
const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// The result of a run in several processes, and the state of the pool after it.
pub(super) struct SharedReport {
    pub(super) workload: Workload,
    pub(super) processes: u8,
    pub(super) threads: NonZeroUsize,
    pub(super) seed: u64,
    pub(super) elapsed: Duration,
    /// Pairs of all processes, without the last ones of those that were killed.
    pub(super) pairs: u64,
    /// Requests that found no block, without those of processes that were killed.
    pub(super) failed: u64,
    pub(super) deaths: u64,
    /// Frames that processes held when they were killed, and the pool got back.
    pub(super) given_back: u64,
    /// The longest time from a kill until the pool had the process's frames, including the kernel's teardown of its memory.
    pub(super) recovery: Duration,
    pub(super) accounting: Accounting,
    pub(super) fault: Option<VerifyError>,
}

/// One of the processes; it is killed when this is dropped.
struct Member {
    process: Child,
    counts: Arc<Counts>,
    reader: Option<JoinHandle<()>>,
}

/// What a process has reported.
#[derive(Default)]
struct Counts {
    ready: AtomicU64,
    pairs: AtomicU64,
    failed: AtomicU64,
}

/// The processes of a run.
struct Members<'a> {
    pool: &'a Pool,
    living: Vec<Member>,
    /// What the processes reported that were killed.
    dead: Vec<Arc<Counts>>,
    given_back: u64,
    recovery: Duration,
}

/// Returns the number of processes that do the work.
pub(super) fn processes(args: &RunArgs) -> u8 {
    args.processes.unwrap_or(PROCESSES)
}

/// Refuses options that do not suit a shared pool.
pub(super) fn check(args: &RunArgs) -> Result<(), Failure> {
    let config = args.allocator.config(None);
    let unsuitable = [
        (args.fake_nodes.is_some(), "--fake-nodes", "the nodes of this machine"),
        (args.machine.is_some(), "--machine", "the nodes of this machine"),
        (config.owned_blocks == OwnedBlocks::On, "--owned-blocks on", "--owned-blocks off"),
    ];
    let first = unsuitable.into_iter().find(|(is_given, _, _)| args.shared && *is_given);
    first.map_or(Ok(()), |(_, option, instead)| {
        Err(Failure::bad_input(format!("--shared does not work with {option}; use {instead}")))
    })
}

/// Runs the workload in several processes over the pool until its time is over or the user interrupts it.
pub(super) fn run(
    args: &RunArgs,
    pool: &Pool,
    threads: NonZeroUsize,
    interrupted: &AtomicBool,
) -> Result<SharedReport, Failure> {
    let (living, dead, recovery) = (Vec::new(), Vec::new(), Duration::ZERO);
    let mut members = Members { pool, living, dead, given_back: 0, recovery };
    for _ in 0..processes(args) {
        members.living.push(start(pool)?);
    }
    // Relaxed, as below: no data is published with the flag.
    while !members.living.iter().all(Member::is_ready) && !interrupted.load(Ordering::Relaxed) {
        members.look()?;
        thread::sleep(Duration::from_millis(1));
    }
    let line = ProgressLine::begin();
    let begin = Instant::now();
    let mut next_kill = args.kill_every;
    while begin.elapsed() < args.seconds && !interrupted.load(Ordering::Relaxed) {
        let next = next_kill.map_or(args.seconds, |next| next.min(args.seconds));
        thread::sleep(next.saturating_sub(begin.elapsed()).min(LOOK_EVERY));
        members.look()?;
        if let (Some(every), Some(next)) = (args.kill_every, next_kill)
            && (next..args.seconds).contains(&begin.elapsed())
        {
            members.kill_one()?;
            next_kill = Some(next + every);
        }
        let pairs = members.sum(|counts| &counts.pairs);
        show(&line, args, Progress { elapsed: begin.elapsed(), pairs });
    }
    drop(line);
    let elapsed = begin.elapsed();
    members.end()?;
    let verified = pool.verify();
    Ok(SharedReport {
        workload: args.workload,
        processes: processes(args),
        threads,
        seed: args.seed,
        elapsed,
        pairs: members.sum(|counts| &counts.pairs),
        failed: members.sum(|counts| &counts.failed),
        deaths: members.dead.len() as u64,
        given_back: members.given_back,
        recovery: members.recovery,
        accounting: pool.accounting(),
        fault: verified.err(),
    })
}

/// Starts a process with the same arguments as this one, as a member of the pool.
fn start(pool: &Pool) -> Result<Member, Failure> {
    let cannot = |error| Failure::failed(format!("cannot start a process: {error}"));
    let fd = pool.shared_file().expect("the pool is shared").as_raw_fd();
    // The first argument is `run`.
    let mut command = Command::new(env::current_exe().map_err(cannot)?);
    command.arg("run").arg("--member-of").arg(format!("/proc/{}/fd/{fd}", std::process::id()));
    command.args(env::args_os().skip(2)).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().map_err(cannot)?;
    let counts = Arc::new(Counts::default());
    let output = process.stdout.take().expect("the output is a pipe");
    let to = Arc::clone(&counts);
    let reader = thread::spawn(move || to.follow(output));
    Ok(Member { process, counts, reader: Some(reader) })
}

impl Counts {
    /// Keeps the numbers of the lines that a process prints, until it ends.
    fn follow(&self, output: ChildStdout) {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let (what, number) = line.split_once(' ').unwrap_or_default();
            let count = match what {
                "ready" => &self.ready,
                "pairs" => &self.pairs,
                _ => &self.failed,
            };
            // Relaxed: the numbers are independent; at the end, a join orders them.
            count.store(number.parse().unwrap_or_default(), Ordering::Relaxed);
        }
    }
}

impl Member {
    fn is_ready(&self) -> bool {
        self.counts.ready.load(Ordering::Relaxed) > 0
    }

    /// Waits until the process has ended and all its lines are read, and returns how it ended.
    fn wait(&mut self) -> Result<ExitStatus, Failure> {
        let status = self.process.wait().map_err(cannot_wait)?; // closes its input first
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
        Ok(status)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Members<'_> {
    /// Returns an error if a process has ended that was not killed.
    fn look(&mut self) -> Result<(), Failure> {
        for member in &mut self.living {
            if let Some(status) = member.process.try_wait().map_err(cannot_wait)? {
                return Err(ended_early(member.process.id(), status));
            }
        }
        Ok(())
    }

    /// Kills the process that is the oldest, and starts another.
    fn kill_one(&mut self) -> Result<(), Failure> {
        let mut oldest = self.living.remove(0);
        let pid = oldest.process.id();
        let held = self.pool.owners().iter().find(|owner| owner.pid == pid).map(|owner| owner.held);
        let begin = Instant::now();
        oldest.process.kill().map_err(|error| Failure::failed(format!("cannot kill a process: {error}")))?;
        oldest.wait()?;
        self.given_back += held.map_or(0, PageCount::get);
        self.wait_until_recovered(|| self.pool.owners().iter().all(|owner| owner.pid != pid))?;
        self.recovery = self.recovery.max(begin.elapsed());
        self.dead.push(Arc::clone(&oldest.counts));
        self.living.push(start(self.pool)?);
        Ok(())
    }

    /// Ends the processes, and waits until the pool has recovered from the deaths of others.
    fn end(&mut self) -> Result<(), Failure> {
        self.living.iter_mut().for_each(|member| drop(member.process.stdin.take()));
        for member in &mut self.living {
            let status = member.wait()?;
            if !status.success() {
                return Err(ended_early(member.process.id(), status));
            }
        }
        self.wait_until_recovered(|| self.pool.owners().len() == 1)
    }

    /// Waits until the pool has recovered from a death, which other processes notice.
    fn wait_until_recovered(&self, is_recovered: impl Fn() -> bool) -> Result<(), Failure> {
        let begin = Instant::now();
        while !is_recovered() {
            if begin.elapsed() > RECOVERY_MAX {
                return Err(Failure::failed("the pool does not recover from the death of a process"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn sum(&self, count: impl Fn(&Counts) -> &AtomicU64) -> u64 {
        let living = self.living.iter().map(|member| &member.counts);
        living.chain(&self.dead).map(|counts| count(counts).load(Ordering::Relaxed)).sum()
    }
}

fn cannot_wait(error: io::Error) -> Failure {
    Failure::failed(format!("cannot wait for a process: {error}"))
}

/// Returns the error for a process that this one has not killed.
fn ended_early(pid: u32, status: ExitStatus) -> Failure {
    Failure::failed(match status.signal() {
        Some(signal) => format!(
            "process {pid} of the run was killed from outside, by signal {signal}; start the run again"
        ),
        None => format!("process {pid} of the run ended by itself ({status}); its message precedes this one"),
    })
}

impl SharedReport {
    /// Returns how many frames are neither free nor cached, although no process holds any.
    pub(super) fn lost(&self) -> PageCount {
        let Accounting { managed, free, in_pagesets, .. } = self.accounting;
        managed.saturating_minus(free.plus(in_pagesets))
    }

    /// Whether every frame is accounted for, and none is held any more.
    pub(super) fn is_balanced(&self) -> bool {
        self.fault.is_none() && self.accounting.balance() && self.accounting.allocated == PageCount::ZERO
    }

    /// Returns an error if the pool is wrong, the user interrupted the run, or nothing was done.
    pub(super) fn judge(&self, interrupted: &AtomicBool) -> Result<(), Failure> {
        if !self.is_balanced() {
            let fault =
                self.fault.map_or_else(|| text::accounting(&self.accounting), |fault| fault.to_string());
            return Err(Failure::failed(format!("the accounting does not balance: {fault}")));
        }
        // Relaxed: no data is published with the flag.
        if interrupted.load(Ordering::Relaxed) {
            return Err(Failure::interrupted("interrupted; the accounting balances"));
        }
        if self.pairs == 0 {
            return Err(Failure::failed(format!(
                "no pair completed and {} requests failed; use a larger --pool, more --seconds or fewer --processes",
                self.failed
            )));
        }
        Ok(())
    }
}
