//! Checks that a library that has used a pool can be closed while threads that used it continue.

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use zonal_testing::{eventually, skipped};

/// Returns the path of the library `unloading/library.rs`, an example of this package.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("the test has a file");
    let folder = program.parent().and_then(|deps| deps.parent()).expect("the target's folder");
    folder.join("examples/libunloading_library.so")
}

fn open(name: &CStr, flags: c_int) -> *mut c_void {
    // SAFETY: loading the library runs no code except the standard library's initialization.
    unsafe { libc::dlopen(name.as_ptr(), flags) }
}

/// # Safety
/// The library must have the symbol, with the type `T`.
unsafe fn symbol<T: Copy>(library: *mut c_void, name: &CStr) -> T {
    // SAFETY: the library is open.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is missing");
    // SAFETY: the caller guarantees the symbol's type.
    unsafe { std::mem::transmute_copy(&found) }
}

/// At every preemption of a thread, the kernel reads the descriptor of the thread's last sequence. The descriptor
/// must still be mapped after the library that contains it was closed.
#[test]
fn library_that_used_sequences_stays_loaded_for_its_threads() {
    let path = library();
    if !path.exists() {
        return skipped!("{} is built when all tests of the package are", path.display());
    }
    let name = CString::new(path.to_str().expect("a plain path")).expect("no zero byte");
    let handle = open(&name, libc::RTLD_NOW);
    assert!(!handle.is_null(), "{} does not load", path.display());
    // SAFETY: the library has a function of this name and type.
    let make: extern "C" fn() -> bool = unsafe { symbol(handle, c"zonal_open") };
    // SAFETY: the library has a function of this name and type.
    let pairs: extern "C" fn(u32) -> bool = unsafe { symbol(handle, c"zonal_pairs") };
    // SAFETY: the library has a function of this name and type.
    let close: extern "C" fn() = unsafe { symbol(handle, c"zonal_close") };

    // The functions run on separate threads that end, because destructors of thread locals would also keep the
    // library loaded.
    let apart = |work: &(dyn Fn() -> bool + Sync)| {
        std::thread::scope(|scope| scope.spawn(work).join()).expect("the pool opens and closes")
    };
    assert!(apart(&|| make()), "no pool");
    let (done, closed) = (AtomicBool::new(false), AtomicBool::new(false));
    let used = std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            let used = pairs(1000);
            done.store(true, Ordering::Release); // pairs with the acquire below
            while !closed.load(Ordering::Acquire) {
                std::hint::spin_loop(); // no system call, because that would clear the descriptor
            }
            std::thread::yield_now();
            used
        });
        eventually("pairs are done", || done.load(Ordering::Acquire));
        apart(&|| {
            close();
            true
        });
        // SAFETY: no code of the library runs any more.
        assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        closed.store(true, Ordering::Release); // pairs with the acquire above
        user.join().expect("the user of the pool lives on")
    });
    if !used {
        return skipped!("no restartable sequences here");
    }
    // While a thread exists with thread locals whose destructors are in the library, the library stays loaded in any
    // case. All such threads have ended, so only the request of the pool keeps the library loaded now.
    let is_loaded = || open(&name, libc::RTLD_NOW | libc::RTLD_NOLOAD);
    let again = is_loaded();
    if !again.is_null() {
        // SAFETY: no function or value of the library is used any more.
        assert_eq!(unsafe { libc::dlclose(again) }, 0);
    }
    assert!(!is_loaded().is_null(), "the library was unloaded");
}
