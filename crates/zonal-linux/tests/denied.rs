//! Tests refusals by the kernel: of addresses, memory, huge pages, and threads. A pool then falls back with a
//! warning, or is not built and the error has the reason. Nothing is leaked, and the next pool works.
//!
//! The kernel really refuses the calls: the thread that builds the pool has a seccomp filter of system calls. Related
//! files: `address_limit.rs` lowers the address limit of a child process instead.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use zonal::error::AllocError;
use zonal::units::NodeId;
use zonal_linux::{
    HugePages, Pool, PoolBuilder, PoolError, PoolRequest, Prefault, SharedError, ShrinkError, TrimError,
    Warning,
};
use zonal_testing::{allowed_cpus, pin_to, skipped};

#[path = "common/pool_threads.rs"]
mod pool_threads;

use pool_threads::assert_no_pool_threads;

const MIB: u64 = 1 << 20;
const POOL_BYTES: u64 = 64 * MIB;
/// Number of refused builds after which resources are compared.
const BUILDS: usize = 8;

/// Lock that runs one test at a time, because the tests measure the mappings of the process.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the bytes of all mappings without a file on a disk.
fn mapped_bytes() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let sizes = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let path = fields.nth(4).unwrap_or("");
        let parse = |text| u64::from_str_radix(text, 16).unwrap();
        let is_memory = path.is_empty() || path.starts_with("[anon:") || path.starts_with("/memfd:");
        is_memory.then(|| parse(to) - parse(from))
    });
    sizes.sum()
}

/// Returns what pools may leak, after the end of their threads: bytes of mappings, and open files.
fn resources() -> [u64; 2] {
    assert_no_pool_threads();
    [mapped_bytes(), std::fs::read_dir("/proc/self/fd").unwrap().count() as u64]
}

/// A refusal of a system call by the kernel, restricted to calls with one given argument value if `when` is set.
struct Refusal {
    call: libc::c_long,
    when: Option<(u8, SeccompCmpOp, u64)>,
    error: i32,
}

impl Refusal {
    fn filter(&self) -> BpfProgram {
        let condition = |(argument, operator, value): &(u8, SeccompCmpOp, u64)| {
            SeccompCondition::new(*argument, SeccompCmpArgLen::Qword, operator.clone(), *value).unwrap()
        };
        let rules: Vec<_> =
            self.when.iter().map(|when| SeccompRule::new(vec![condition(when)]).unwrap()).collect();
        // On aarch64, the C library before glibc 2.38 starts threads only with the older call.
        let older = (self.call == libc::SYS_clone3).then(|| (libc::SYS_clone, rules.clone()));
        SeccompFilter::new(
            older.into_iter().chain([(self.call, rules)]).collect::<BTreeMap<_, _>>(),
            SeccompAction::Allow,
            SeccompAction::Errno(self.error as u32),
            std::env::consts::ARCH.try_into().unwrap(),
        )
        .and_then(TryInto::try_into)
        .unwrap()
    }

    /// Runs `work` on a new thread with this refusal. Threads that it starts inherit the refusal.
    fn during<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                seccompiler::apply_filter(&self.filter()).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }
}

/// Whether filters can be installed. If not, this is reported once and all tests in this file are skipped.
fn can_filter() -> bool {
    let harmless = Refusal { call: libc::SYS_acct, when: None, error: libc::EPERM };
    let installed = std::thread::scope(|scope| {
        scope.spawn(|| seccompiler::apply_filter(&harmless.filter()).is_ok()).join().unwrap()
    });
    if !installed {
        skipped!("this kernel installs no filters of system calls");
    }
    installed
}

/// Returns a builder for one node, so that the refused mappings have a known size on machines with several nodes too.
fn builder() -> PoolBuilder<'static> {
    Pool::builder().size(POOL_BYTES).nodes([NodeId::default()])
}

/// Allocates all frames and frees them.
fn use_up(pool: &Pool) {
    let mut held = Vec::new();
    let error = loop {
        match pool.alloc_raw(&PoolRequest::page().no_wait()) {
            Ok(block) => held.push(block),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
    assert!(held.len() as u64 * 4096 > POOL_BYTES / 10 * 9);
    for block in held {
        // SAFETY: the raw blocks were allocated above, and each is freed once.
        unsafe { pool.free_raw(block.first, block.order) }.unwrap();
    }
    let accounting = pool.verify().unwrap();
    assert!(accounting.balance() && accounting.allocated.get() == 0);
}

/// Builds several times under `refusal`, checks that each build fails without a leak, and returns the error's text.
fn fails(refusal: &Refusal, build: impl Fn() -> Result<Pool, PoolError> + Sync) -> String {
    // By default, the C library maps more addresses for its heap whenever more threads exist at once than ever
    // before.
    // SAFETY: the call sets a parameter of the C library's heap.
    assert_eq!(unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) }, 1);
    let text = || refusal.during(|| build().map(drop).expect_err("it was refused").to_string());
    let first = text();
    let left_by = |work: &dyn Fn()| {
        let before = resources();
        work();
        resources().iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect::<Vec<_>>()
    };
    // Each build leaks the same. Stacks that the C library keeps, and those of other tests' threads, come and go. A thread
    // whose signal stack stays, because the kernel refuses to unmap it, leaves that without a build, too.
    let leaks = |_: &usize| {
        let unavoidable = left_by(&|| refusal.during(|| ()));
        let left = left_by(&|| assert_eq!(text(), first));
        left.iter().zip(unavoidable).any(|(left, unavoidable)| *left > unavoidable)
    };
    let leaking = (0..BUILDS).filter(leaks).count();
    assert!(2 * leaking < BUILDS, "{leaking} of {BUILDS} builds leak: {first}");
    use_up(&build().expect("without the refusal it works"));
    first
}

/// Builds a pool under `refusal`, checks that it works, and returns its warnings.
fn warns(refusal: &Refusal, build: impl Fn() -> Result<Pool, PoolError> + Sync) -> Vec<Warning> {
    refusal.during(|| {
        let pool = build().expect("the pool falls back");
        use_up(&pool);
        pool.warnings().to_vec()
    })
}

const fn large_map(error: i32) -> Refusal {
    Refusal { call: libc::SYS_mmap, when: Some((1, SeccompCmpOp::Ge, POOL_BYTES)), error }
}

const fn advice(advice: i32, error: i32) -> Refusal {
    Refusal { call: libc::SYS_madvise, when: Some((2, SeccompCmpOp::Eq, advice as u64)), error }
}

#[test]
fn addresses_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let text = fails(&large_map(libc::ENOMEM), || builder().build());
    assert!(text.contains("refused to map 64 MiB for node 0"), "{text}");
    assert!(text.contains("Cannot allocate memory"), "{text}");
    let text = fails(&large_map(libc::EPERM), || builder().huge_pages(HugePages::Explicit).build());
    assert!(text.contains("not permitted"), "{text}");
    // The frames of the pool can be mapped, but the metadata cannot.
    let small = Refusal { call: libc::SYS_mmap, when: Some((1, SeccompCmpOp::Lt, MIB)), error: libc::ENOMEM };
    let text = fails(&small, || builder().build());
    assert!(text.contains("for metadata"), "{text}");
}

#[test]
fn memory_ahead_of_use_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let at_once = || builder().prefault(Prefault::AtOnce).build();
    for error in [libc::ENOMEM, libc::EPERM, libc::EFAULT, libc::EHWPOISON] {
        let text = fails(&advice(libc::MADV_POPULATE_WRITE, error), at_once);
        assert!(text.contains("node 0 could not be backed") && text.contains("leave prefault off"), "{text}");
    }
    // A kernel that does not support the advice returns `EINVAL`. The pool then touches the pages instead.
    assert_eq!(
        warns(&advice(libc::MADV_POPULATE_WRITE, libc::EINVAL), at_once),
        builder().build().unwrap().warnings()
    );
}

#[test]
fn huge_pages_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    for error in [libc::EINVAL, libc::EPERM] {
        let warnings = warns(&advice(libc::MADV_HUGEPAGE, error), || builder().build());
        assert!(matches!(warnings[..], [Warning::NoTransparentHugePages { .. }]), "{warnings:?}");
        let text = fails(&advice(libc::MADV_HUGEPAGE, error), || {
            let prefaulted = AtomicBool::new(false);
            let report = |_| {
                prefaulted.store(true, Relaxed);
                ControlFlow::Continue(())
            };
            let required = builder().require_huge_pages().prefault(Prefault::AtOnce);
            let built = required.on_progress(&report).build();
            assert_eq!(prefaulted.into_inner(), built.is_ok(), "a pool that is refused is not prefaulted");
            built
        });
        assert!(text.contains("required") && text.contains("huge pages are not available"), "{text}");
        let warnings =
            warns(&advice(libc::MADV_NOHUGEPAGE, error), || builder().huge_pages(HugePages::Never).build());
        assert!(warnings.is_empty(), "none were wanted: {warnings:?}");
    }
    let flag = u64::from(libc::MAP_HUGETLB.cast_unsigned());
    let huge = Refusal {
        call: libc::SYS_mmap,
        when: Some((3, SeccompCmpOp::MaskedEq(flag), flag)),
        error: libc::ENOMEM,
    };
    let warnings = warns(&huge, || builder().huge_pages(HugePages::Explicit).build());
    let [Warning::NoExplicitHugePages { needed: 32, .. }, ..] = warnings[..] else { panic!("{warnings:?}") };
    let text = warnings[0].to_string();
    assert!(text.contains("32 huge pages") && text.contains("vm.nr_hugepages"), "{text}");
    // Each attempt fails as if another thread had just mapped the range. The pool must not retry forever.
    let taken = Refusal { error: libc::EEXIST, ..huge };
    let warnings = warns(&taken, || builder().huge_pages(HugePages::Explicit).build());
    assert!(warnings[0].to_string().contains("File exists"), "{warnings:?}");
}

#[test]
fn files_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let create = Refusal { call: libc::SYS_memfd_create, when: None, error: libc::EPERM };
    let text = fails(&create, || builder().shared_memory().build());
    assert!(text.contains("refused to map 64 MiB for node 0") && text.contains("not permitted"), "{text}");
    // A kernel that does not support a flag returns `EINVAL`, and the pool does without the flag.
    let sealed = u64::from(8_u32); // MFD_NOEXEC_SEAL
    let when = Some((1, SeccompCmpOp::MaskedEq(sealed), sealed));
    let old = Refusal { call: libc::SYS_memfd_create, when, error: libc::EINVAL };
    warns(&old, || builder().shared_memory().build());
    // Huge pages are missing, and the error is only a warning.
    let huge = u64::from(libc::MFD_HUGETLB);
    let when = Some((1, SeccompCmpOp::MaskedEq(huge), huge));
    let huge = Refusal { call: libc::SYS_memfd_create, when, error: libc::ENOSYS };
    let warnings = warns(&huge, || builder().shared_memory().huge_pages(HugePages::Explicit).build());
    assert!(matches!(warnings[0], Warning::NoExplicitHugePages { needed: 32, .. }), "{warnings:?}");
    // The pool is built, and memory that leaves stays in its file.
    let hole = advice(libc::MADV_REMOVE, libc::EPERM);
    warns(&hole, || {
        let pool = builder().shared_memory().huge_pages(HugePages::Never).build()?;
        drop(pool.alloc(&PoolRequest::page().zeroed()).unwrap());
        let refused = pool.trim().unwrap_err();
        assert!(matches!(refused, TrimError::Refused { done: 0, .. }), "{refused}");
        let before = pool.accounting().managed.get();
        let Err(ShrinkError::NotReturned { done: 0, offline, .. }) = pool.shrink(1) else {
            panic!("memory was returned")
        };
        assert_eq!(offline, (before - pool.accounting().managed.get()) * pool.page_bytes() as u64);
        Ok(pool)
    });
}

/// The kernel then does not say which pages are in memory.
#[test]
fn queries_of_resident_memory_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let refusal = Refusal { call: libc::SYS_mincore, when: None, error: libc::EPERM };
    let pool = builder().huge_pages(HugePages::Never).build().unwrap();
    let mut pages: Vec<_> = (0..4096).map(|_| pool.alloc(&PoolRequest::page()).unwrap()).collect();
    pages.iter_mut().for_each(|page| page.fill(1));
    drop(pages);
    let absent = || pool.residency().unwrap().iter().map(|node| node.pages.absent).sum::<u64>();
    assert_eq!(absent(), POOL_BYTES - 4096 * 4096);
    assert!(refusal.during(|| pool.trim()).unwrap() >= 4096 * 4096);
    assert_eq!(absent(), POOL_BYTES);
}

/// Reserved addresses are many, so the kernel is asked for the nodes of pages only where some are in memory.
#[test]
fn queries_of_nodes_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let refusal = Refusal { call: libc::SYS_move_pages, when: None, error: libc::EPERM };
    let pool = builder().max_size(1 << 36).build().unwrap();
    let residency = refusal.during(|| pool.residency()).unwrap();
    assert_eq!(residency.iter().map(|node| node.pages.absent).sum::<u64>(), 1 << 36);
    pool.alloc(&PoolRequest::page()).unwrap().fill(1);
    assert_eq!(refusal.during(|| pool.residency()).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn threads_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    // The C library tries the older call only if the kernel does not support the newer one.
    let refusal = Refusal { call: libc::SYS_clone3, when: None, error: libc::EAGAIN };
    let text = fails(&refusal, || builder().build());
    assert!(text.contains("cannot start a background thread"), "{text}");
    let nodes = fails(&refusal, || Pool::builder().size(POOL_BYTES).fake_nodes(8).build());
    assert_eq!(nodes, text);
    // If no thread can be started for prefaulting, the calling thread prefaults.
    let error = refusal.during(|| builder().prefault(Prefault::AtOnce).build().map(drop).unwrap_err());
    assert!(matches!(error, PoolError::Thread(_)), "{error}");
}

#[test]
fn mapping_names_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let refusal = Refusal {
        call: libc::SYS_prctl,
        when: Some((0, SeccompCmpOp::Eq, 0x5356_4d41)),
        error: libc::EINVAL,
    };
    assert_eq!(warns(&refusal, || builder().build()), builder().build().unwrap().warnings());
}

/// The kernel may refuse to unmap because of the limit on mappings, or because of a seccomp filter.
#[test]
fn unmapping_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let unmap =
        |operator, error| Refusal { call: libc::SYS_munmap, when: Some((1, operator, POOL_BYTES)), error };
    for error in [libc::ENOMEM, libc::EPERM] {
        // The first refusal is of the unused margins around an aligned range.
        let text = fails(&unmap(SeccompCmpOp::Lt, error), || builder().build());
        assert!(text.contains("refused to map 64 MiB for node 0"), "{text}");
        // The second refusal is of the pool's memory when the pool is dropped. The addresses stay mapped, but without
        // memory.
        let before = mapped_bytes();
        let place = unmap(SeccompCmpOp::Ge, error).during(|| {
            let pool = builder().build().unwrap();
            let mut frames = pool.alloc(&PoolRequest::page()).unwrap();
            frames.fill(1);
            frames.as_ptr() as usize
        });
        assert!(mapped_bytes() >= before + POOL_BYTES, "what was refused was not called");
        let mut is_resident = 0_u8;
        let page = std::ptr::without_provenance_mut(place);
        // SAFETY: the call writes one byte for one page, and reads no memory.
        assert_eq!(unsafe { libc::mincore(page, 4096, &raw mut is_resident) }, 0, "it is mapped still");
        assert_eq!(is_resident & 1, 0, "the memory stayed");
    }
}

/// Where memory of a file is mapped, the addresses stay reserved until then, so that no other thread maps them.
#[test]
fn files_are_mapped_where_addresses_are_reserved() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let refusal =
        Refusal { call: libc::SYS_munmap, when: Some((1, SeccompCmpOp::Eq, POOL_BYTES)), error: libc::EPERM };
    let pool = refusal.during(|| builder().shared_memory().build()).unwrap();
    use_up(&pool);
}

#[test]
fn signal_masks_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let refusal = Refusal { call: libc::SYS_rt_sigprocmask, when: None, error: libc::EPERM };
    let text = fails(&refusal, || builder().build());
    assert!(text.contains("cannot start a background thread"), "{text}");
}

/// `membarrier` and the fallback from it are refused after the pool was built.
#[test]
fn barriers_refused() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let no_barrier = Refusal { call: libc::SYS_membarrier, when: None, error: libc::EPERM };
    let no_visit = Refusal { call: libc::SYS_sched_setaffinity, when: None, error: libc::EPERM };
    let cpus = allowed_cpus();
    let pool = builder().build().unwrap();
    let fill_pagesets = || on_each_cpu(&cpus, || drop(pool.alloc(&PoolRequest::page())));
    let in_pagesets = || pool.verify().unwrap().in_pagesets.get();

    fill_pagesets();
    assert!(in_pagesets() > 0);
    // Without `membarrier`, drains move to each CPU in turn, and so still reach the pagesets of all CPUs.
    no_barrier.during(|| {
        pool.drain_pagesets();
        assert_eq!(in_pagesets(), 0);
    });
    // A thread that cannot read its affinity may run on all CPUs afterwards.
    let no_telling = Refusal { call: libc::SYS_sched_getaffinity, when: None, error: libc::EPERM };
    fill_pagesets();
    no_barrier.during(|| no_telling.during(|| pool.drain_pagesets()));
    assert_eq!(in_pagesets(), 0);
    // If the move is refused too, drains skip the pagesets that they cannot reach. No drain panics, and no frame is
    // lost.
    fill_pagesets();
    no_barrier.during(|| no_visit.during(|| pool.drain_pagesets()));
    let left = in_pagesets();
    assert!(left > 0 || cpus.len() == 1 || !pool.uses_sequences(), "what was refused was not called");
    pool.drain_pagesets();
    assert_eq!(in_pagesets(), 0);
    use_up(&pool);
}

/// Runs `work` on each of these CPUs, one after another.
fn on_each_cpu(cpus: &[usize], work: impl Fn() + Sync) {
    for &cpu in cpus {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin_to(cpu);
                work();
            });
        });
    }
}

/// A refused lock of a shared pool's file is an error at once, and not another process that keeps it.
#[test]
fn refused_locks_of_files_are_named() {
    let _alone = ALONE.lock();
    if !can_filter() {
        return;
    }
    let pool = builder().shared_by_descriptor().build().unwrap();
    let set = libc::F_OFD_SETLK as u64;
    let locks =
        Refusal { call: libc::SYS_fcntl, when: Some((1, SeccompCmpOp::Eq, set)), error: libc::ENOLCK };
    let error = locks.during(|| Pool::join_file(pool.shared_file().unwrap()).unwrap_err());
    let source = match &error {
        PoolError::Shared { source: SharedError::Unusable { source }, .. } => source.raw_os_error(),
        _ => None,
    };
    assert_eq!(source, Some(libc::ENOLCK), "{error}");
    assert_eq!(pool.owners().len(), 1);
}
