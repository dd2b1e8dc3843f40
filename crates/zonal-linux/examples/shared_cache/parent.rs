//! The parent: starts workers, kills some, and hands blocks from one to another.
//!
//! A message is older than the moment at which it is read: a worker that has given a block away may be dead by then, the block
//! free, and in use by another. So blocks go through the parent, which never takes one from a worker that it
//! has killed: it takes the block over while the worker lives, and then holds it until the next worker has taken it over.
//!
//! If that worker is killed before it answers, it may have taken the block or not. Such a block is in doubt until no worker is
//! left: then it is free, or the parent holds it still.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use zonal_linux::{Pfn, Pool};

use crate::Failure;
use crate::file::{BlockFile, BlockName, link_to};
use crate::worker::order_of;

/// Longest time that workers have to end, and the pool to recover.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long to run, and with how many workers.
pub(crate) struct Run {
    pub workers: usize,
    pub duration: Duration,
    pub kill_every: Duration,
}

/// Result of a run.
#[derive(Default)]
pub(crate) struct Summary {
    pub reads: u64,
    pub hand_overs: u64,
    pub deaths: u64,
    /// Frames that the killed workers held when they were killed.
    pub held_by_killed: u64,
    /// Blocks whose receiver was killed before it answered.
    pub in_doubt: usize,
    pub elapsed: Duration,
}

/// A block whose frames change hands.
#[derive(Clone, Copy)]
struct Parcel {
    name: BlockName,
    first: Pfn,
}

struct Worker {
    /// Distinguishes workers that had the same place one after the other.
    serial: u64,
    process: Child,
    orders: ChildStdin,
    /// Blocks on their way to this worker, in the order in which it answers.
    coming: VecDeque<Parcel>,
    is_done: bool,
}

/// A line of a worker, or `None` when it has ended.
type Event = (u64, Option<String>);

struct Parent<'p> {
    pool: &'p Pool,
    /// What a worker needs to start.
    arguments: Vec<String>,
    workers: Vec<Worker>,
    serial: u64,
    send: Sender<Event>,
    events: Receiver<Event>,
    in_doubt: Vec<Parcel>,
    is_stopping: bool,
    random: fastrand::Rng,
    summary: Summary,
}

impl Run {
    /// Runs the workers, waits until nothing is left of them, and returns what they did.
    pub(crate) fn go(&self, pool: &Pool, file: &BlockFile) -> Result<Summary, Failure> {
        let (send, events) = mpsc::channel();
        let pool_file = pool.shared_file().ok_or("the pool is not shared")?;
        let (file, seed) = file.for_children();
        // The rest is for what the workers cache as free, and for the dead that the pool has not recovered yet.
        let bytes = pool.frames().get() * pool.page_bytes() as u64;
        let cache_bytes = bytes * 3 / 4 / self.workers as u64;
        let mut parent = Parent {
            pool,
            arguments: vec![link_to(&pool_file), file, seed.to_string(), cache_bytes.to_string()],
            workers: Vec::new(),
            serial: 0,
            send,
            events,
            in_doubt: Vec::new(),
            is_stopping: false,
            random: fastrand::Rng::new(),
            summary: Summary::default(),
        };
        let result = parent.run(self);
        if result.is_err() {
            parent.workers.iter_mut().for_each(|worker| worker.process.kill().unwrap_or(()));
        }
        result?;
        Ok(parent.summary)
    }
}

impl Parent<'_> {
    fn run(&mut self, run: &Run) -> Result<(), Failure> {
        for _ in 0..run.workers {
            let worker = self.start()?;
            self.workers.push(worker);
        }
        let begin = Instant::now();
        let (end, mut next_kill) = (begin + run.duration, begin + run.kill_every);
        while Instant::now() < end {
            let until = end.min(next_kill);
            if let Some((serial, line)) = self.event_before(until)? {
                self.obey(serial, line)?;
            }
            if Instant::now() >= next_kill {
                self.kill_one()?;
                next_kill += run.kill_every;
            }
        }
        self.stop()?;
        self.recover()?;
        self.settle_doubts()?;
        self.summary.elapsed = begin.elapsed();
        Ok(())
    }

    fn start(&mut self) -> Result<Worker, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--as-worker").args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        self.serial += 1;
        let orders = process.stdin.take().ok_or("the worker has no input")?;
        let output = process.stdout.take().ok_or("the worker has no output")?;
        listen(self.serial, output, self.send.clone());
        Ok(Worker { serial: self.serial, process, orders, coming: VecDeque::new(), is_done: false })
    }

    fn event_before(&self, until: Instant) -> Result<Option<Event>, Failure> {
        match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Does what a worker's line asks for. Lines of killed workers are dropped.
    fn obey(&mut self, serial: u64, line: Option<String>) -> Result<(), Failure> {
        let Some(at) = self.workers.iter().position(|worker| worker.serial == serial) else { return Ok(()) };
        let worker = &mut self.workers[at];
        let Some(line) = line else { return Err("a worker ended by itself".into()) };
        match *line.split(' ').collect::<Vec<_>>() {
            ["read", blocks] => self.summary.reads += blocks.parse::<u64>()?,
            ["took"] => {
                worker.coming.pop_front().ok_or("a worker took what was not given")?;
                self.summary.hand_overs += 1;
            }
            ["give", number, bytes, first] => {
                let name = BlockName { number: number.parse()?, bytes: bytes.parse()? };
                self.hand_over(at, Parcel { name, first: Pfn::new(first.parse()?) })?;
            }
            ["done"] => worker.is_done = true,
            _ => return Err(format!("a worker printed `{line}`").into()),
        }
        Ok(())
    }

    /// Takes a block over from the worker at `giver`, and passes it to another; frees it if all are about to end.
    fn hand_over(&mut self, giver: usize, parcel: Parcel) -> Result<(), Failure> {
        let Parcel { name, first } = parcel;
        let order = order_of(self.pool, name.bytes)?;
        self.pool.take_over(first, order.pages())?;
        // Only a worker that lives still has held the block until now.
        if self.workers[giver].process.try_wait()?.is_some() {
            return Err("a worker ended by itself".into());
        }
        if self.is_stopping {
            // SAFETY: the parent holds the block, and the worker does not use it any more.
            return Ok(unsafe { self.pool.free_raw(first, order) }?);
        }
        let others: Vec<usize> = (0..self.workers.len()).filter(|&at| at != giver).collect();
        let receiver = &mut self.workers[*self.random.choice(&others).ok_or("there is no other worker")?];
        receiver.coming.push_back(parcel);
        writeln!(receiver.orders, "take {} {} {first}", name.number, name.bytes)?;
        Ok(())
    }

    /// Kills a worker at whatever instruction it is, and starts another in its place.
    fn kill_one(&mut self) -> Result<(), Failure> {
        let at = self.random.usize(..self.workers.len());
        let next = self.start()?;
        let mut worker = std::mem::replace(&mut self.workers[at], next);
        let pid = worker.process.id();
        let held =
            self.pool.owners().iter().find(|owner| owner.pid == pid).map_or(0, |owner| owner.held.get());
        worker.process.kill()?;
        worker.process.wait()?;
        self.summary.held_by_killed += held;
        self.summary.deaths += 1;
        self.in_doubt.extend(worker.coming);
        Ok(())
    }

    /// Ends all workers, in an order in which no block is lost that is on its way.
    fn stop(&mut self) -> Result<(), Failure> {
        self.is_stopping = true;
        for worker in &mut self.workers {
            writeln!(worker.orders, "stop")?;
        }
        let until = Instant::now() + PATIENCE;
        while self.workers.iter().any(|worker| !worker.is_done) {
            let (serial, line) = self.event_before(until)?.ok_or("a worker does not stop")?;
            self.obey(serial, line)?;
        }
        for Worker { mut process, orders, coming, .. } in self.workers.drain(..) {
            if !coming.is_empty() {
                return Err("a worker has not taken what it was given".into());
            }
            drop(orders); // the end of its input ends the worker
            if !process.wait()?.success() {
                return Err("a worker failed".into());
            }
        }
        Ok(())
    }

    /// Waits until the pool has given back what the killed workers held. It does so by itself.
    fn recover(&self) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        while self.pool.owners().len() > 1 {
            if Instant::now() > until {
                return Err("the pool does not recover from the death of a worker".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Frees the blocks in doubt that the parent holds still. The others are free, because no worker is left that could
    /// have them.
    fn settle_doubts(&mut self) -> Result<(), Failure> {
        self.summary.in_doubt = self.in_doubt.len();
        for Parcel { name, first } in self.in_doubt.drain(..) {
            let order = order_of(self.pool, name.bytes)?;
            // SAFETY: no process uses the block; the pool refuses to free what is free.
            unsafe { self.pool.free_raw(first, order) }.ok();
        }
        Ok(())
    }
}

/// Sends the lines of a worker, and `None` when there are no more.
fn listen(serial: u64, output: ChildStdout, send: Sender<Event>) {
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.map(Some).chain([None]).for_each(|line| send.send((serial, line)).unwrap_or(()));
    });
}
