//! A process of a soak: uses the pool with all operations until it is killed or its input ends.

use std::io::BufRead;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use fastrand::Rng;
use zonal::Request;
use zonal_linux::{Order, PageCount, PageKind, Pfn, Pool, PoolRequest};

use super::held::Held;

/// The part of the pool's frames that a process holds at most, per mille.
const MOST: u64 = 90;

struct Worker {
    pool: Pool,
    random: Rng,
    held: Vec<Held>,
    operations: u64,
}

/// Joins the pool of the descriptor, and works until the input ends.
pub fn work(file: BorrowedFd<'_>, seed: u64) {
    let pool = Pool::join_file(file).expect("the pool can be joined");
    let mut worker = Worker { pool, random: Rng::with_seed(seed), held: Vec::new(), operations: 0 };
    let (send, orders) = mpsc::channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).all(|line| send.send(line).is_ok())
    });
    loop {
        match orders.try_recv() {
            Ok(line) => match line.strip_prefix("take ") {
                Some(text) => worker.take(Held::parse(text).expect("the parent names a block")),
                None if worker.pause(&orders) => {}
                None => return,
            },
            Err(TryRecvError::Empty) => worker.step(),
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

impl Worker {
    fn step(&mut self) {
        self.operations += 1;
        let most = self.pool.frames().get() * MOST / 1000;
        let is_full = self.held.iter().map(|held| held.count).sum::<u64>() > most;
        let pool = self.pool.clone();
        // SAFETY: only blocks that this process holds are freed and split.
        let allocator = unsafe { pool.allocator() };
        match self.random.u32(..1000) {
            0..450 if !is_full => self.allocate(),
            450..500 if !is_full => {
                let mut frames = vec![Pfn::new(0); self.random.usize(1..200)];
                let came = self.pool.alloc_bulk_raw(&PoolRequest::page(), &mut frames).unwrap_or(0);
                frames[..came].iter().for_each(|&first| self.keep(first, 1));
            }
            0..850 => _ = self.pick().map(|held| self.free(held)),
            850..880 => {
                let (pages, others): (Vec<_>, _) = self.held.drain(..).partition(|held| held.count == 1);
                self.held = others;
                let frames: Vec<_> = pages.iter().map(|page| page.check(&self.pool).first).collect();
                // SAFETY: this process holds the frames.
                unsafe { self.pool.free_bulk_raw(&frames) }.expect("it holds the frames");
            }
            880..930 => {
                let to = Order::new(self.random.u8(..4)).expect("small");
                if let Some(held) = self.pick() {
                    // A split fails only for a block that is small enough.
                    match allocator.split_frames(held.first, PageCount::new(held.count), to) {
                        Ok(()) => self.held.extend(held.parts(to)),
                        Err(_) if held.count <= to.pages().get() => self.held.push(held),
                        Err(error) => panic!("{held:?}: {error}"),
                    }
                }
            }
            930..980 => _ = self.pick().map(|held| println!("give {}", held.to_line())),
            980..985 => self.pool.drain_pagesets(),
            985..986 => _ = self.pool.trim().expect("a memfd has no limit"),
            986..990 => allocator.tick(),
            990..995 => self.pool.stat_refresh(),
            _ => {
                let factor = self.random.u32(10..200).to_string();
                self.pool.set_setting("watermark_scale_factor", &factor).expect("it is possible");
            }
        }
    }

    /// Allocates a page, a block, a run, or a range that was free a moment ago.
    fn allocate(&mut self) {
        let order = Order::new(if self.random.bool() { 0 } else { self.random.u8(..11) }).expect("small");
        let pool = self.pool.clone();
        // SAFETY: as in `step`.
        let allocator = unsafe { pool.allocator() };
        match self.random.u32(..10) {
            0..7 => {
                if let Ok(block) = self.pool.alloc_raw(&PoolRequest::new(order)) {
                    self.keep(block.first, order.pages().get());
                }
            }
            7..9 => {
                let count = PageCount::new(self.random.u64(1..100));
                if let Ok(run) = allocator.alloc_frames(&Request::page(), count) {
                    self.keep(run.range.start, count.get());
                }
            }
            _ => {
                if let Some(held) = self.pick() {
                    self.free(held);
                    if allocator.alloc_range(held.range(), PageKind::User).is_ok() {
                        self.keep(held.first, held.count);
                    }
                }
            }
        }
    }

    /// Takes over a block of the parent, or frees it without that.
    fn take(&mut self, held: Held) {
        let frames = PageCount::new(held.count);
        if self.random.bool() {
            self.pool.take_over(held.first, frames).expect("the parent holds the block");
            self.held.push(held.check(&self.pool));
        } else {
            self.free(held);
        }
        println!("got {}", held.to_line());
    }

    /// Reports what this process holds, and waits until the parent has checked it; returns whether to go on.
    fn pause(&mut self, orders: &Receiver<String>) -> bool {
        let expected: u64 = self.held.iter().map(|held| held.check(&self.pool).count).sum();
        // The pool's own threads may move frames to and from pagesets meanwhile.
        let counted = || self.pool.allocated_here().map_or(0, PageCount::get);
        assert!(super::soon(|| counted() == expected), "holds {expected} frames, and counts {}", counted());
        let blocks = self.held.iter().map(|held| format!(" {}:{}", held.first.get(), held.count));
        println!("table {}{}", std::mem::take(&mut self.operations), blocks.collect::<String>());
        orders.recv().is_ok()
    }

    fn keep(&mut self, first: Pfn, count: u64) {
        self.held.push(Held { first, count, tag: self.random.u64(..) }.fill(&self.pool));
    }

    fn pick(&mut self) -> Option<Held> {
        let at = self.random.usize(..self.held.len().max(1));
        (at < self.held.len()).then(|| self.held.swap_remove(at))
    }

    fn free(&self, held: Held) {
        let held = held.check(&self.pool);
        // SAFETY: this process holds the block, or its parent has passed it on.
        let allocator = unsafe { self.pool.allocator() };
        allocator.free_frames(held.first, PageCount::new(held.count)).expect("the block is allocated");
    }
}
