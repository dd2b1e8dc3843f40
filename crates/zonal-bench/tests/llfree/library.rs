//! A library with LLFree's C interface over a list of frames, which `llfree.rs` loads in place of LLFree.
//!
//! The structures are written again from the header `llfree.h`, so that a mistake in those of the contender is noticed:
//! arguments that arrive changed are refused.

use std::sync::Mutex;

/// Error codes.
const MEMORY: u8 = 1;
const ARGUMENT: u8 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct Number {
    present: bool,
    value: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Frame {
    present: bool,
    value: u64,
}

#[repr(C)]
struct Outcome {
    frame: u64,
    class: u8,
    error: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    order: u8,
    class: u8,
    local: Number,
}

#[repr(C)]
struct Policy {
    kind: i32,
    priority: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Class {
    class: u8,
    count: usize,
}

#[repr(C)]
struct Classing {
    classes: [Class; 8],
    num_classes: usize,
    default_class: u8,
    policy: extern "C" fn(u8, u8, usize) -> Policy,
}

#[repr(C)]
struct Sizes {
    llfree: usize,
    local: usize,
    trees: usize,
    lower: usize,
}

#[repr(C)]
struct Meta {
    local: *mut u8,
    trees: *mut u8,
    lower: *mut u8,
}

#[repr(C)]
struct Stats {
    free_frames: usize,
    free_huge: usize,
    free_trees: usize,
}

/// Allocators; the memory of an allocator has its place in this list.
static POOLS: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

struct Pool {
    /// The order + 1 of the block that begins at each frame; 0 for a frame of no block, `INSIDE` within a block.
    frames: Vec<u8>,
    /// Where the search for a free block begins.
    next: usize,
    locals: usize,
}

const INSIDE: u8 = u8::MAX;

impl Pool {
    /// Returns an error unless the request's class is that of its order, and its local slot exists.
    fn check(&self, request: Request) -> Result<usize, u8> {
        let class = u8::from(request.order >= 9);
        let is_right = request.class == class && request.local.present && request.local.value < self.locals;
        if is_right && request.order <= 12 { Ok(1 << request.order) } else { Err(ARGUMENT) }
    }

    fn get(&mut self, request: Request) -> Result<u64, u8> {
        let count = self.check(request)?;
        let (places, start) = (self.frames.len() / count, self.next / count);
        let is_free = |at: &usize| self.frames[at * count..(at + 1) * count].iter().all(|state| *state == 0);
        let found = (0..places).map(|step| (start + step) % places).find(is_free).ok_or(MEMORY)?;
        self.frames[found * count..(found + 1) * count].fill(INSIDE);
        self.frames[found * count] = request.order + 1;
        self.next = (found + 1) * count;
        Ok((found * count) as u64)
    }

    fn put(&mut self, frame: u64, request: Request) -> Result<u64, u8> {
        let (count, first) = (self.check(request)?, frame as usize);
        if self.frames.get(first) != Some(&(request.order + 1)) {
            return Err(ARGUMENT);
        }
        self.frames[first..first + count].fill(0);
        self.next = first;
        Ok(0)
    }
}

/// Calls `work` with the allocator in this memory.
fn on_pool(state: *const usize, work: impl FnOnce(&mut Pool) -> Result<u64, u8>) -> Outcome {
    // SAFETY: `llfree_init` has written the place.
    let at = unsafe { state.read() };
    let mut pools = POOLS.lock().expect("no call failed");
    match work(&mut pools[at]) {
        Ok(frame) => Outcome { frame, class: 0, error: 0 },
        Err(error) => Outcome { frame: 0, class: 0, error },
    }
}

// SAFETY: the library has no other symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn llfree_metadata_size(_classing: &Classing, frames: usize) -> Sizes {
    Sizes { llfree: size_of::<usize>(), local: 64, trees: frames / 64, lower: frames }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn llfree_init(
    state: *mut usize,
    frames: usize,
    init: u8,
    meta: Meta,
    classing: &Classing,
) -> Outcome {
    let [small, huge] = [classing.classes[0], classing.classes[1]];
    let is_right = classing.num_classes == 2
        && (small.class, huge.class, classing.default_class) == (0, 1, 1)
        && small.count == huge.count
        && (classing.policy)(0, 0, frames).kind == 0
        && (classing.policy)(1, 0, frames).kind == 1;
    if !is_right || init != 0 || frames < 512 {
        return Outcome { frame: 0, class: 0, error: ARGUMENT };
    }
    for (buffer, size) in [(meta.local, 64), (meta.trees, frames / 64), (meta.lower, frames)] {
        // SAFETY: the caller has allocated what `llfree_metadata_size` asked for.
        unsafe { buffer.write_bytes(0xa5, size) };
    }
    let mut pools = POOLS.lock().expect("no call failed");
    // SAFETY: as above.
    unsafe { state.write(pools.len()) };
    pools.push(Pool { frames: vec![0; frames], next: 0, locals: small.count });
    Outcome { frame: 0, class: 0, error: 0 }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn llfree_get(state: *const usize, frame: Frame, request: Request) -> Outcome {
    let any = !frame.present && frame.value == 0;
    on_pool(state, |pool| if any { pool.get(request) } else { Err(ARGUMENT) })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn llfree_put(state: *const usize, frame: u64, request: Request) -> Outcome {
    on_pool(state, |pool| pool.put(frame, request))
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn llfree_stats(state: *const usize) -> Stats {
    let free = on_pool(state, |pool| Ok(pool.frames.iter().filter(|state| **state == 0).count() as u64));
    let free_frames = free.frame as usize;
    Stats { free_frames, free_huge: free_frames / 512, free_trees: free_frames / 4096 }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn llfree_change_tree() -> Outcome {
    Outcome { frame: 0, class: 0, error: ARGUMENT }
}
