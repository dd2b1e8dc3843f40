//! A library with pools of its own, for `unloading.rs` to load and unload.

use std::sync::Mutex;

use zonal_linux::{Pool, PoolRequest};

/// The pool, while there is one.
static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// Makes the pool; whether there is one now.
// SAFETY: no other symbol of this name is in the library.
#[unsafe(no_mangle)]
extern "C" fn zonal_open() -> bool {
    let mut pool = POOL.lock().expect("no call failed");
    *pool = Pool::builder().size(16 << 20).build().ok();
    pool.is_some()
}

/// Allocates and frees a frame so many times; whether that went by restartable sequences.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn zonal_pairs(pairs: u32) -> bool {
    let pool = POOL.lock().expect("no call failed");
    let pool = pool.as_ref().expect("the pool is open");
    for _ in 0..pairs {
        drop(pool.alloc(&PoolRequest::page()));
    }
    pool.uses_sequences()
}

/// Closes the pool.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn zonal_close() {
    POOL.lock().expect("no call failed").take();
}
