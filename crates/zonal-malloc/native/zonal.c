/*
 * What this library adds to mimalloc: the node of a thread, `fork`, the return of memory, and checks. `mimalloc.c`
 * includes this file last.
 */

/* --- The environment --- */

/* Reads a variable for an option of mimalloc. Ignores the environment of programs with set-user-id. */
static bool zonal_getenv(const char *name, char *result, size_t size)
{
	/* Options that this library sets itself, and those that end a program with other arenas or a late `free`. */
	static const char *const ignored[] = {"disallow_os_alloc", "limit_os_alloc", "arena_max_object_size",
					      "disallow_arena_alloc", "max_vabits", "destroy_on_exit"};
	for (size_t at = 0; at < sizeof(ignored) / sizeof(*ignored); at++)
		if (strcmp(name + strlen("mimalloc_"), ignored[at]) == 0)
			return false;
	return getauxval(AT_SECURE) == 0 && _mi_getenv(name, result, size);
}

/* --- Nodes --- */

/* The node of each CPU, or -1. Set before the program has threads. */
static const int *cpu_nodes;
static size_t cpu_count;

void zonal_malloc_set_nodes(const int *nodes, size_t count)
{
	cpu_nodes = nodes;
	cpu_count = count;
	/* The heap that all threads use prefers node 0 at first. Without a node, it prefers that of the thread. */
	mi_heap_set_numa_affinity(NULL, -1);
}

/* --- Memory that is returned --- */

enum {
	/* Blocks of this many slices (32 MiB) or more are discarded when they are freed, as the largest blocks of glibc are. */
	DISCARDED_SLICES = 512,
	/* Milliseconds between two purges, and the bytes of pages after which a thread purges. */
	PURGE_PAUSE = 10,
	PURGE_FROM = 64 << 20,
};

/*
 * The thread that purges arenas while the program is idle. By itself, mimalloc purges only when the program allocates. It
 * is started when the program has used `PURGE_FROM` bytes of pages in total, so small programs have no other thread.
 */
static bool has_purger;
static _Atomic(uintptr_t) is_purger_started;
static _Atomic(size_t) bytes_of_pages;
/* Whether the thread waits until memory is freed, as a futex. */
static _Atomic(uint32_t) is_purger_idle;

void zonal_malloc_purge_when_idle(void)
{
	has_purger = mi_arena_purge_delay() > 0;
}

/* Returns when the first arena is to be purged, or 0. */
static mi_msecs_t zonal_next_purge(void)
{
	mi_msecs_t next = 0;
	const size_t count = mi_arenas_get_count(&subproc_main);
	for (size_t at = 0; at < count; at++) {
		mi_arena_t *const arena = mi_arena_from_index(&subproc_main, at);
		const mi_msecs_t expire = arena == NULL ? 0 : mi_atomic_loadi64_relaxed(&arena->purge_expire);
		if (expire != 0 && (next == 0 || expire < next))
			next = expire;
	}
	return next;
}

static void *zonal_purge(void *unused)
{
	for (;;) {
		const mi_msecs_t next = zonal_next_purge();
		if (next == 0) {
			/* Pairs with the fence in `zonal_page_free`: this thread sees the expiration, or that one the flag. */
			mi_atomic_store_relaxed(&is_purger_idle, 1);
			mi_atomic(thread_fence)(mi_memory_order(seq_cst));
			if (zonal_next_purge() == 0)
				syscall(SYS_futex, &is_purger_idle, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
			mi_atomic_store_relaxed(&is_purger_idle, 0);
			continue;
		}
		const mi_msecs_t now = _mi_clock_now();
		const mi_msecs_t pause = next - now > PURGE_PAUSE ? next - now : PURGE_PAUSE;
		nanosleep(&(struct timespec){.tv_sec = pause / 1000, .tv_nsec = pause % 1000 * 1000000}, NULL);
		mi_arenas_try_purge(false, true, &subproc_main, 0);
	}
	return unused;
}

/* Starts the thread. If that fails, arenas are purged when the program allocates. */
static mi_decl_noinline void zonal_start_purger(void)
{
	const int error = errno;
	pthread_t thread;
	pthread_attr_t attributes;
	sigset_t all, before;
	sigfillset(&all);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, 256 << 10);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* the signals of the program are for its own threads */
	if (pthread_create(&thread, &attributes, zonal_purge, NULL) == 0)
		pthread_setname_np(thread, "zonal-purge");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	errno = error;
}

/* --- Pages --- */

/* Allocates a page on the node of the CPU. By itself, mimalloc knows the node on which a thread began. */
static mi_page_t *zonal_page_alloc(mi_theap_t *theap, size_t block_size, size_t alignment)
{
	if (has_purger && mi_atomic_load_relaxed(&is_purger_started) == 0 &&
	    mi_atomic_add_relaxed(&bytes_of_pages, _mi_align_up(block_size, MI_ARENA_SLICE_SIZE)) >= PURGE_FROM &&
	    mi_atomic_exchange_acq_rel(&is_purger_started, (uintptr_t)1) == 0)
		zonal_start_purger();
	if (cpu_nodes != NULL) {
		const int cpu = sched_getcpu();
		if (cpu >= 0 && (size_t)cpu < cpu_count && cpu_nodes[cpu] >= 0)
			theap->tld->numa_node = cpu_nodes[cpu];
	}
	return _mi_arenas_page_alloc(theap, block_size, alignment);
}

/* Returns the memory of a page to the kernel, and records that it is zero. */
static void zonal_discard(mi_page_t *page)
{
	size_t first, count;
	mi_arena_t *const arena = mi_arena_from_memid(page->memid, &first, &count);
	bool is_discarded;
	if (arena->commit_fun != NULL) {
		is_discarded = mi_arena_purge(arena, first, count);
	} else {
		const int error = errno;
		is_discarded = madvise(mi_arena_slice_start(arena, first), mi_size_of_slices(count), MADV_DONTNEED) == 0;
		errno = error;
	}
	if (is_discarded && arena->memid.initially_zero)
		mi_bitmap_clearN(arena->slices_dirty, first, count);
}

/* Frees a page. The memory of a large one is discarded, so that `calloc` need not clear it. */
static void zonal_page_free(mi_page_t *page, mi_theap_t *theap)
{
	const bool is_purged = page->memid.memkind == MI_MEM_ARENA && !page->memid.is_pinned;
	if (is_purged && page->memid.mem.arena.slice_count >= DISCARDED_SLICES && mi_arena_purge_delay() >= 0)
		zonal_discard(page);
	_mi_arenas_page_free(page, theap);
	if (is_purged && mi_atomic_load_relaxed(&is_purger_started) != 0) {
		mi_atomic(thread_fence)(mi_memory_order(seq_cst));
		if (mi_atomic_load_relaxed(&is_purger_idle) != 0) {
			mi_atomic_store_relaxed(&is_purger_idle, 0);
			syscall(SYS_futex, &is_purger_idle, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		}
	}
}

/* --- Invalid frees --- */

static mi_decl_noinline mi_decl_cold void zonal_die(const char *message)
{
	static const char prefix[] = "zonal-malloc: ";
	ssize_t written = write(STDERR_FILENO, prefix, sizeof(prefix) - 1);
	written = write(STDERR_FILENO, message, strlen(message));
	(void)written;
	abort();
}

/* Collects the free blocks of a page. With `force`, mimalloc follows the list of local blocks to its end. */
static void zonal_page_collect(mi_page_t *page, bool force)
{
	if (force) {
		size_t count = 0;
		for (mi_block_t *block = page->local_free; block != NULL; block = mi_block_next(page, block))
			if (++count > page->capacity)
				zonal_die("double free detected: the list of free blocks is a cycle\n");
	}
	_mi_page_free_collect(page, force);
}

/* --- fork --- */

/*
 * Waits until the bit is set, and clears it, except if no thread is claiming the page. Then the claim was that of a
 * thread that does not exist in this child of `fork`, and the bit stays clear.
 */
static void zonal_clear_once_set(mi_bitmap_t *bitmap, size_t index)
{
	while (!mi_bitmap_clear(bitmap, index)) {
		const size_t ended = mi_atomic_load_acquire(&claims_ended);
		const size_t begun = mi_atomic_load_acquire(&claims_begun);
		/* No thread was claiming, so none cleared the bit unless one has begun since. */
		if (begun == ended && !mi_bitmap_is_set(bitmap, index) &&
		    mi_atomic_load_acquire(&claims_begun) == begun)
			return;
		_mi_prim_thread_yield();
	}
}

/*
 * Releases the locks of threads that do not exist in a child of `fork`. The data that they protect changes in single
 * atomic steps, except for the list of the threads' heaps, of which only that of this thread is left.
 *
 * Nothing is locked before `fork`, so its other handlers may allocate, and so may threads that hold a lock of the C
 * library for which `fork` waits.
 */
static void zonal_in_child(void)
{
	mi_lock_init(&subprocs_lock);
	mi_lock_init(&subproc_main.arena_reserve_lock);
	mi_lock_init(&subproc_main.heaps_lock);
	mi_lock_init(&heap_main.theaps_lock);
	mi_lock_init(&heap_main.os_abandoned_pages_lock);
	mi_lock_init(&heap_main.arena_pages_lock);
	mi_lock_init(&mi_page_map_lock);
	mi_lock_init(&mi_thread_locals_lock);
	mi_lock_init(&out_buf_lock);
	mi_atomic_store_release(&purge_lock, (uintptr_t)0);
	/* A child that only calls `exec` needs no thread. */
	mi_atomic_store_relaxed(&is_purger_started, (uintptr_t)0);
	mi_atomic_store_relaxed(&bytes_of_pages, (size_t)0);
	mi_atomic_store_relaxed(&is_purger_idle, 0);
	mi_atomic_store_release(&claims_ended, mi_atomic_load_relaxed(&claims_begun));
	mi_theap_t *theap = _mi_theap_default();
	if (!mi_theap_is_initialized(theap))
		theap = NULL;
	else
		theap->hnext = theap->hprev = NULL;
	heap_main.theaps = theap;
}

/* --- Start --- */

/* Absent in test programs, which contain this file but do not start the library. */
extern __attribute__((weak)) void zonal_malloc_start(void);

/* Runs after the constructor of mimalloc, because it stands behind it in the file that is compiled. */
__attribute__((constructor)) static void zonal_constructor(void)
{
	pthread_atfork(NULL, NULL, zonal_in_child);
	if (zonal_malloc_start)
		zonal_malloc_start();
}
