//! What sharing a pool costs: pairs of allocations and frees in a private pool, in one that processes share, with frees by
//! another process, and in an array of frame numbers under a lock that processes share; and how long a recovery takes when a process that held a tenth of the pool has died.
//!
//! `cargo run --release -p zonal-linux --example shared_costs -- [--short]`

use std::cell::{RefCell, UnsafeCell};
use std::mem::MaybeUninit;
use std::process::{Command, Stdio};
use std::time::Instant;

use zonal_linux::{Order, PageCount, Pfn, Pool, PoolRequest};

/// Orders of the blocks.
const ORDERS: [Order; 3] = [Order::PAGE, Order::new(3).expect("small"), Order::new(9).expect("small")];
/// Rounds of each measurement; the median counts.
const ROUNDS: usize = 15;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, mode, path, bytes] = arguments.as_slice()
        && mode == "--hold-a-tenth"
    {
        return hold_a_tenth(path, bytes.parse().expect("the parent passes a number"));
    }
    let is_short = arguments.iter().any(|one| one == "--short");
    let pairs = if is_short { 10_000 } else { 1_000_000 };
    let private = Pool::builder().size(1 << 30).build().expect("a pool");
    let shared = Pool::builder().size(1 << 30).shared_by_descriptor().build().expect("a shared pool");
    let bytes = |pool: &Pool| pool.metadata_bytes() as f64 / pool.frames().get() as f64;
    println!(
        "metadata for each frame: {:.2} B private, {:.2} B shared by up to 8",
        bytes(&private),
        bytes(&shared)
    );
    println!("medians of {ROUNDS} interleaved rounds with {pairs} pairs");
    for order in ORDERS {
        let (mut own, mut both) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            own.push(pair(&private, &private, order, pairs));
            both.push(pair(&shared, &shared, order, pairs));
        }
        let (own, both) = (median(own), median(both));
        println!(
            "order {order}: {own:.1} ns in a private pool, {both:.1} ns in a shared one, {:.2} times",
            both / own
        );
    }
    let array = Array::new();
    let pop_and_push = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        (0..pairs).for_each(|_| array.pair());
        begin.elapsed().as_nanos() as f64 / f64::from(pairs)
    });
    println!(
        "order 0: {:.1} ns from an array of frame numbers under a mutex for processes",
        median(pop_and_push.collect())
    );
    let other = Pool::join_file(shared.shared_file().expect("it is shared")).expect("a second member");
    for order in ORDERS {
        let foreign = (0..ROUNDS).map(|_| pair(&shared, &other, order, pairs / 10)).collect();
        println!("order {order}: {:.1} ns if another process frees", median(foreign));
    }
    for gib in if is_short { vec![1] } else { vec![1, 8, 64] } {
        recovery(gib << 30);
    }
}

fn pair(from: &Pool, to: &Pool, order: Order, pairs: u32) -> f64 {
    let request = PoolRequest::new(order);
    let begin = Instant::now();
    for _ in 0..pairs {
        let block = from.alloc_raw(&request).expect("the pool is large enough");
        // SAFETY: the block is not used.
        unsafe { to.free_raw(block.first, order) }.expect("it is allocated");
    }
    begin.elapsed().as_nanos() as f64 / f64::from(pairs)
}

/// The numbers of free frames, as a stack under a mutex that processes can share, and that survives the death of its holder.
struct Array {
    mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    numbers: RefCell<Vec<u32>>,
}

impl Array {
    fn new() -> Self {
        let mutex = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        let mut attributes = MaybeUninit::uninit();
        let attributes: *mut libc::pthread_mutexattr_t = attributes.as_mut_ptr();
        // SAFETY: the call initializes the attributes.
        assert_eq!(unsafe { libc::pthread_mutexattr_init(attributes) }, 0);
        let shared = libc::PTHREAD_PROCESS_SHARED;
        // SAFETY: they are initialized.
        assert_eq!(unsafe { libc::pthread_mutexattr_setpshared(attributes, shared) }, 0);
        let robust = libc::PTHREAD_MUTEX_ROBUST;
        // SAFETY: as above.
        assert_eq!(unsafe { libc::pthread_mutexattr_setrobust(attributes, robust) }, 0);
        // SAFETY: as above, and no thread uses the mutex yet.
        assert_eq!(unsafe { libc::pthread_mutex_init(mutex.get(), attributes) }, 0);
        Self { mutex, numbers: RefCell::new((0..1 << 18).collect()) }
    }

    fn pair(&self) {
        let number = self.locked(|numbers| numbers.pop().expect("it has numbers"));
        self.locked(|numbers| numbers.push(number));
    }

    #[inline(never)]
    fn locked<T>(&self, change: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        // SAFETY: the mutex is initialized.
        assert_eq!(unsafe { libc::pthread_mutex_lock(self.mutex.get()) }, 0);
        let done = change(&mut self.numbers.borrow_mut());
        // SAFETY: this thread has locked it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.mutex.get()) }, 0);
        done
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Measures how long a pool with so many bytes recovers from a process that held a tenth and died.
fn recovery(bytes: u64) {
    let pool = Pool::builder().size(bytes).shared_by_descriptor().build();
    let pool = match pool {
        Ok(pool) => pool,
        Err(error) => return println!("{} GiB: {error}", bytes >> 30),
    };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&pool.shared_file().expect("it is shared"));
    let link = format!("/proc/{}/fd/{fd}", std::process::id());
    let program = std::env::current_exe().expect("this program has a path");
    let mut child = Command::new(program)
        .args(["--hold-a-tenth", &link, &(bytes / 10).to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program can be started");
    let mut line = String::new();
    let output = child.stdout.take().expect("it is piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)
        .expect("the child prints a line");
    let held = pool.owners().iter().map(|owner| owner.held).sum::<PageCount>();
    child.kill().expect("it runs");
    child.wait().expect("it runs");
    let begin = Instant::now();
    // The pool's own thread may be faster, so what counts is when the frames are free.
    while pool.accounting().allocated > PageCount::ZERO {
        pool.recover_dead().expect("the table is not locked for long");
    }
    let time = begin.elapsed();
    let left = pool.accounting().allocated;
    println!(
        "{} GiB, {held} frames held by the dead: recovered in {time:.1?}, {left} frames allocated afterwards",
        bytes >> 30
    );
}

/// Joins the pool, allocates a tenth of it in single frames and blocks, prints a line, and waits to be killed.
fn hold_a_tenth(path: &str, bytes: u64) {
    let pool = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the parent has it open");
    let pool = Pool::join_file(std::os::fd::AsFd::as_fd(&pool)).expect("the parent has made it");
    let mut left = bytes / 4096;
    let mut frames = [Pfn::new(0); 512];
    while left > 1024 {
        let came = pool.alloc_bulk_raw(&PoolRequest::page(), &mut frames).expect("there is room");
        pool.alloc_raw(&PoolRequest::new(Order::new(9).expect("small"))).expect("there is room");
        left -= came as u64 + 512;
    }
    println!("held");
    loop {
        std::thread::park();
    }
}
