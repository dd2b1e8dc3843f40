//! `bitmap-allocator`: a tree of bitmaps that allocates the lowest free frame. It has no lock of its own, so this
//! contender puts it under a spin lock.

use std::thread;

use bitmap_allocator::{BitAlloc, BitAlloc1M, BitAlloc16M};
use spin::mutex::SpinMutex;
use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use super::at_order::AtOrder;
use crate::contender::{Contender, Entry, Reason};

/// Version of the crate.
const VERSION: &str = "0.4.6";

/// Stack size in bytes. It is enough even for an unoptimised build to create the largest tree, of 2.3 MiB.
const STACK_BYTES: usize = 64 << 20;

struct Bitmap<B>(SpinMutex<Box<B>>);

struct Source<'a, B>(&'a Bitmap<B>);

impl<B: BitAlloc> PageSource for Source<'_, B> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let mut bits = self.0.0.lock();
        let first = match order {
            Order::PAGE => bits.alloc(),
            _ => bits.alloc_contiguous(None, order.pages().get() as usize, usize::from(order.get())),
        };
        first.map(|first| Pfn::new(first as u64))
    }

    #[inline]
    fn free(&mut self, page: Pfn, order: Order) {
        let mut bits = self.0.0.lock();
        let first = page.get() as usize;
        let taken = match order {
            Order::PAGE => bits.dealloc(first),
            _ => bits.dealloc_contiguous(first, order.pages().get() as usize),
        };
        debug_assert!(taken, "the block was allocated");
    }
}

impl<B: BitAlloc + Send + 'static> Contender for Bitmap<B> {
    type Source<'a> = Source<'a, B>;

    fn source(&self) -> Source<'_, B> {
        Source(self)
    }
}

/// Returns the entry. Its pool has frame numbers from 0, and the smallest tree that has enough bits.
pub(super) fn entry() -> Entry {
    Entry::of_any("bitmap-allocator", VERSION, |frames| {
        let count = frames.get() as usize;
        if count <= BitAlloc1M::CAP {
            Ok(Box::new(make::<BitAlloc1M>(count)?))
        } else if count <= BitAlloc16M::CAP {
            Ok(Box::new(make::<BitAlloc16M>(count)?))
        } else {
            Err(too_many(frames))
        }
    })
}

/// Returns an entry for single-frame workloads that use `order` blocks instead.
pub(super) fn entry_at(name: String, order: Order) -> Entry {
    Entry::of_any(name, VERSION, move |frames| {
        let count = frames.get() as usize;
        if count <= BitAlloc1M::CAP {
            Ok(Box::new(AtOrder(make::<BitAlloc1M>(count)?, order)))
        } else {
            Err(too_many(frames))
        }
    })
}

fn too_many(frames: PageCount) -> Reason {
    format!("its trees hold at most {} frames, not {frames}", BitAlloc16M::CAP)
}

fn make<B: BitAlloc + Send + 'static>(count: usize) -> Result<Bitmap<B>, Reason> {
    // The crate creates its trees on the stack, so a thread with a large stack creates the tree.
    let make = thread::Builder::new().stack_size(STACK_BYTES).spawn(Box::<B>::default);
    let tree = make.map_err(|error| format!("cannot start a thread to build its tree: {error}"))?.join();
    let mut tree = tree.map_err(|_| "its tree could not be built")?;
    tree.insert(0..count);
    Ok(Bitmap(SpinMutex::new(tree)))
}
