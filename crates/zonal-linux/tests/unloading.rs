//! Checks that a library that used a pool can be closed while its threads continue.

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
    // SAFETY: loading the library runs no code except that of the standard library.
    unsafe { libc::dlopen(name.as_ptr(), flags) }
}

/// # Safety
/// The library has the symbol, of this type.
unsafe fn symbol<T: Copy>(library: *mut c_void, name: &CStr) -> T {
    // SAFETY: the library is open.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is missing");
    // SAFETY: the caller guarantees the type.
    unsafe { std::mem::transmute_copy(&found) }
}

/// The kernel reads the descriptor that a thread used last at every preemption of the thread: it must still be
/// mapped when a library that used sequences has been closed.
#[test]
fn library_that_used_sequences_stays_loaded_for_its_threads() {
    let path = library();
    if !path.exists() {
        return skipped!("{} is built when all tests of the package are", path.display());
    }
    let name = CString::new(path.to_str().expect("a plain path")).expect("no zero byte");
    let handle = open(&name, libc::RTLD_NOW);
    assert!(!handle.is_null(), "{} does not load", path.display());
    // SAFETY: the library has these functions.
    let make: extern "C" fn() -> bool = unsafe { symbol(handle, c"zonal_open") };
    // SAFETY: as above.
    let pairs: extern "C" fn(u32) -> bool = unsafe { symbol(handle, c"zonal_pairs") };
    // SAFETY: as above.
    let close: extern "C" fn() = unsafe { symbol(handle, c"zonal_close") };

    // On separate threads that end: destructors of thread locals would keep the library loaded as well.
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
                std::hint::spin_loop(); // without a system call, which would clear the descriptor
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
    // While a thread exists whose thread locals the library would destroy, the library stays loaded in any case.
    // All such threads have ended, so nothing else keeps it when it is closed again.
    let is_loaded = || open(&name, libc::RTLD_NOW | libc::RTLD_NOLOAD);
    let again = is_loaded();
    if !again.is_null() {
        // SAFETY: nothing of the library is used any more.
        assert_eq!(unsafe { libc::dlclose(again) }, 0);
    }
    assert!(!is_loaded().is_null(), "the library was unloaded");
}
