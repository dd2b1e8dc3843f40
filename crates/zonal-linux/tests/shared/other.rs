//! Another process of a shared pool, and what tests do in both.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal_linux::{FrameRange, Order, PageCount, Pfn, Pool, PoolRequest};

/// A path in a memory file system, whose file is removed when this is dropped.
pub(crate) struct Place(pub(crate) String);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        Self(format!("/dev/shm/zonal-test-{name}-{}", std::process::id()))
    }

    pub(crate) fn pool(&self) -> Pool {
        Pool::builder().size(64 << 20).shared(&self.0).processes(4).build().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Another process, which obeys lines: `pages N`, `more N` (as many as there are), `block ORDER`, `stay`, `cache N`, `run N`, `churn`.
pub(crate) struct Other {
    process: Child,
    orders: ChildStdin,
    answers: mpsc::Receiver<String>,
}

impl Other {
    pub(crate) fn start(place: &Place) -> Self {
        Self::start_as(place, "")
    }

    /// Starts a process with a name.
    pub(crate) fn start_as(place: &Place, name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["other::other_process", "--exact", "--nocapture"]);
        command.env("ZONAL_SHARED_POOL", &place.0).env("ZONAL_SHARED_NAME", name);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (send, answers) = mpsc::channel();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            let ours =
                lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("> ").map(String::from));
            ours.for_each(|line| send.send(line).unwrap_or(()));
        });
        let mut other = Self { orders: process.stdin.take().unwrap(), process, answers };
        assert_eq!(other.answer(), "joined");
        other
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.pass(order);
        self.answer()
    }

    pub(crate) fn pass(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        self.answers.recv_timeout(Duration::from_secs(60)).expect("the other process answers")
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: the process is a child that has not been waited for.
        unsafe { libc::kill(self.process.id() as libc::pid_t, signal) };
    }

    /// Returns the letter for the state of the process, as in `proc_pid_stat(5)`.
    pub(crate) fn state(&self) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        stat.rsplit(") ").next().unwrap()[..1].to_owned()
    }

    pub(crate) fn die(self) {}
}

impl Drop for Other {
    fn drop(&mut self) {
        let status = self.process.kill().and_then(|()| self.process.wait()).unwrap();
        let was_killed = status.signal() == Some(libc::SIGKILL);
        assert!(was_killed || std::thread::panicking(), "the other process ended before: {status}");
    }
}

/// A reclaimer that says that it was called, and never returns.
struct Stays;

impl Reclaimer for Stays {
    fn count(&self, _: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }

    fn reclaim(&self, _: &ReclaimRequest) -> PageCount {
        println!("> reclaiming");
        loop {
            std::thread::park();
        }
    }
}

/// The part of the other process; does nothing as a test.
#[test]
fn other_process() {
    let Ok(path) = std::env::var("ZONAL_SHARED_POOL") else { return };
    let pool = match std::env::var("ZONAL_SHARED_NAME").unwrap() {
        name if name.is_empty() => Pool::join(path).unwrap(),
        name => Pool::join_as(path, &name).unwrap(),
    };
    let mut kept: Vec<(Pfn, Order)> = Vec::new();
    let mut registrations = Vec::new();
    println!("> joined");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (what, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let number: u64 = number.parse().unwrap();
        match what {
            "pages" => kept.extend((0..number).map(|_| page(&pool))),
            "more" => {
                let more = (0..number).map_while(|_| pool.alloc_raw(&PoolRequest::page()).ok());
                kept.extend(more.map(|block| (block.first, Order::PAGE)));
                println!("> {}", kept.len());
                continue;
            }
            "stay" => registrations.push(pool.register_reclaimer(&Arc::new(Stays))),
            "block" => {
                let order = Order::new(number as u8).unwrap();
                kept.push((pool.alloc_raw(&PoolRequest::new(order)).unwrap().first, order));
            }
            "cache" => {
                let pages: Vec<_> = (0..number).map(|_| page(&pool)).collect();
                pages.iter().for_each(|&block| free(&pool, block));
            }
            "run" => {
                let bytes = number as usize * pool.page_bytes();
                let run = pool.alloc_bytes(&PoolRequest::page(), bytes).unwrap();
                let range = FrameRange { start: run.first(), count: PageCount::new(number) };
                pool.set_root("run", Some(range)).unwrap();
                // SAFETY: this process alone uses the run.
                unsafe { pool.ptr_of(range.start).unwrap().write_volatile(number as u8) };
                std::mem::forget(run);
            }
            _ => {
                println!("> churning");
                churn(&pool, number);
            }
        }
        println!("> {}", kept.last().map_or(0, |(first, _)| first.get()));
    }
}

pub(crate) fn page(pool: &Pool) -> (Pfn, Order) {
    (pool.alloc_raw(&PoolRequest::page()).unwrap().first, Order::PAGE)
}

pub(crate) fn free(pool: &Pool, (first, order): (Pfn, Order)) {
    // SAFETY: no test uses the contents of blocks.
    unsafe { pool.free_raw(first, order) }.unwrap();
}

/// Allocates and frees blocks of all orders until the process is killed.
fn churn(pool: &Pool, seed: u64) {
    let (mut random, mut held) = (fastrand::Rng::with_seed(seed), Vec::new());
    loop {
        let order = Order::new([0, 0, 0, 0, 1, 3, 5, 9, 10][random.usize(..9)]).unwrap();
        if held.len() < 300
            && let Ok(block) = pool.alloc_raw(&PoolRequest::new(order))
        {
            held.push((block.first, order));
        } else if !held.is_empty() {
            free(pool, held.swap_remove(random.usize(..held.len())));
        }
    }
}

/// Waits until the dead are recovered, by this call or the pool's own thread.
pub(crate) fn recover(pool: &Pool, left: usize) {
    while pool.owners().iter().filter(|owner| owner.is_alive || owner.name.is_none()).count() > left {
        pool.recover_dead().unwrap();
    }
}
