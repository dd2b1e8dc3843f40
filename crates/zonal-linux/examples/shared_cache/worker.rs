//! A worker: reads blocks through a cache of its own, hands some over to other workers, and takes those that come.
//!
//! It prints a line for each event, and obeys lines on its standard input: `take NUMBER BYTES FIRST` and `stop`. The end of the
//! input ends it.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::slice;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use zonal_linux::{Order, Pfn, Pool, PoolRequest};

use crate::Failure;
use crate::file::{BlockFile, BlockName};

/// Blocks that are read between two reports.
const REPORT_EVERY: u64 = 256;
/// One block in this many is handed over after it was read.
const HAND_OVER_EVERY: u64 = 40;
/// Longest time for which a request may find no frames.
const PATIENCE: Duration = Duration::from_secs(20);

/// A block of frames that this process holds, and frees when it is dropped.
struct Held<'p> {
    pool: &'p Pool,
    first: Pfn,
    order: Order,
}

impl<'p> Held<'p> {
    /// Takes over a block that another process holds and does not use any more.
    fn take(pool: &'p Pool, first: Pfn, order: Order) -> Result<Self, Failure> {
        pool.take_over(first, order.pages())?;
        Ok(Self { pool, first, order })
    }

    /// Leaves the block to another process, which takes it over. Until then it is freed if this process dies.
    fn forget(self) -> Pfn {
        let first = self.first;
        std::mem::forget(self);
        first
    }

    fn len(&self) -> usize {
        self.order.pages().get() as usize * self.pool.page_bytes()
    }

    fn address(&self) -> *mut u8 {
        self.pool.ptr_of(self.first).expect("the frame is in the pool").as_ptr()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the frames are mapped, and as their holder this value alone decides who uses them.
        unsafe { slice::from_raw_parts(self.address(), self.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the value is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.address(), self.len()) }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: this process holds the block, and no reference to it is left.
        unsafe { self.pool.free_raw(self.first, self.order) }.expect("the block is allocated");
    }
}

/// A bounded cache, which evicts the blocks that came first.
struct Cache<'p> {
    pool: &'p Pool,
    file: &'p BlockFile,
    blocks: HashMap<BlockName, Held<'p>>,
    order: VecDeque<BlockName>,
    bytes: usize,
    bytes_max: usize,
}

impl<'p> Cache<'p> {
    /// Reads a block and checks its contents.
    fn read(&mut self, name: BlockName) -> Result<(), Failure> {
        if let Some(held) = self.blocks.get(&name) {
            return self.check(name, held);
        }
        let mut held = self.allocate(name.bytes)?;
        self.file.read(name, &mut held.bytes_mut()[..name.bytes])?;
        self.check(name, &held)?;
        self.insert(name, held);
        Ok(())
    }

    fn check(&self, name: BlockName, held: &Held<'_>) -> Result<(), Failure> {
        if self.file.is_block(name, &held.bytes()[..name.bytes]) {
            return Ok(());
        }
        Err(format!("{name:?} in frame {} does not have the contents of the file", held.first).into())
    }

    fn allocate(&mut self, bytes: usize) -> Result<Held<'p>, Failure> {
        let order = order_of(self.pool, bytes)?;
        let since = Instant::now();
        loop {
            let error = match self.pool.alloc_raw(&PoolRequest::new(order)) {
                Ok(block) => return Ok(Held { pool: self.pool, first: block.first, order }),
                Err(error) => error,
            };
            // The pool is short until the frames of a killed worker are back, or others evict.
            if !self.evict() {
                thread::sleep(Duration::from_millis(1));
            }
            if since.elapsed() > PATIENCE {
                return Err(error.into());
            }
        }
    }

    fn insert(&mut self, name: BlockName, held: Held<'p>) {
        self.bytes += name.bytes;
        self.order.push_back(name);
        self.blocks.insert(name, held);
        while self.bytes > self.bytes_max && self.evict() {}
    }

    /// Evicts the oldest block; returns whether there was one.
    fn evict(&mut self) -> bool {
        let Some(name) = self.order.pop_front() else { return false };
        self.bytes -= name.bytes;
        self.blocks.remove(&name);
        true
    }

    /// Removes a block from the cache without freeing it.
    fn remove(&mut self, name: BlockName) -> Option<Held<'p>> {
        let held = self.blocks.remove(&name)?;
        self.order.retain(|&one| one != name);
        self.bytes -= name.bytes;
        Some(held)
    }
}

/// Reads blocks until the parent stops this worker.
pub(crate) fn run(pool: &Pool, file: &BlockFile, bytes_max: usize) -> Result<(), Failure> {
    let orders = orders();
    let mut cache = Cache { pool, file, blocks: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max };
    let mut random = fastrand::Rng::new();
    let mut output = io::stdout().lock();
    for read in 1_u64.. {
        match orders.try_recv() {
            Ok(order) if order == "stop" => break,
            Ok(order) => {
                take(&mut cache, &order)?;
                writeln!(output, "took")?;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()), // the parent has ended
        }
        let name = file.random_block(&mut random);
        cache.read(name)?;
        if read % REPORT_EVERY == 0 {
            writeln!(output, "read {REPORT_EVERY}")?;
        }
        if read % HAND_OVER_EVERY == 0
            && let Some(held) = cache.remove(name)
        {
            // From here on this process neither uses nor frees the block, but stays its holder until the other takes it over.
            writeln!(output, "give {} {} {}", name.number, name.bytes, held.forget())?;
        }
    }
    // What was given last must be taken over before this process leaves the pool.
    writeln!(output, "done")?;
    while orders.recv().is_ok() {}
    Ok(())
}

/// Takes over the block that a line names, and checks its contents.
fn take(cache: &mut Cache<'_>, line: &str) -> Result<(), Failure> {
    let unknown = || format!("the order `{line}` is unknown");
    let numbers = line.strip_prefix("take ").ok_or_else(unknown)?;
    let numbers: Vec<u64> = numbers.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [number, bytes, first] = numbers[..] else { return Err(unknown().into()) };
    let name = BlockName { number, bytes: bytes as usize };
    let held = Held::take(cache.pool, Pfn::new(first), order_of(cache.pool, name.bytes)?)?;
    cache.check(name, &held)?;
    // A worker that has the block already frees these frames.
    if !cache.blocks.contains_key(&name) {
        cache.insert(name, held);
    }
    Ok(())
}

pub(crate) fn order_of(pool: &Pool, bytes: usize) -> Result<Order, Failure> {
    pool.order_holding(bytes).ok_or_else(|| "the block is too large for the pool".into())
}

/// Returns the lines of the standard input as they come.
fn orders() -> Receiver<String> {
    let (send, orders) = mpsc::channel();
    thread::spawn(move || {
        let lines = io::stdin().lines().map_while(Result::ok);
        lines.for_each(|line| send.send(line).unwrap_or(()));
    });
    orders
}
