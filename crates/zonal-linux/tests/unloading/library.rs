//! A library with its own pools, which `unloading.rs` loads and unloads.

use std::sync::Mutex;

use zonal_linux::{Pool, PoolRequest};

/// The pool, while it exists.
static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// Makes the pool, and returns whether it exists.
// SAFETY: the library has no other symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn zonal_open() -> bool {
    let mut pool = POOL.lock().expect("no call failed");
    *pool = Pool::builder().size(16 << 20).build().ok();
    pool.is_some()
}

/// Allocates and frees a frame the given number of times, and returns whether restartable sequences were used.
// SAFETY: the library has no other symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn zonal_pairs(pairs: u32) -> bool {
    let pool = POOL.lock().expect("no call failed");
    let pool = pool.as_ref().expect("the pool is open");
    for _ in 0..pairs {
        drop(pool.alloc(&PoolRequest::page()));
    }
    pool.uses_sequences()
}

/// Drops the pool.
// SAFETY: the library has no other symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn zonal_close() {
    POOL.lock().expect("no call failed").take();
}
