/*
 * What this library adds to mimalloc: the node of a thread, `fork`, the return of memory, and checks. `mimalloc.c`
 * includes this file last.
 */

/* --- The environment --- */

/* Reads a variable for an option of mimalloc. Ignores the environment of programs with set-user-id. */
static bool zonal_getenv(const char *name, char *result, size_t size)
{
	/*
	 * Options that this library sets itself, those that end a program with other arenas or a late `free`, and one with which
	 * arenas do not learn what is committed.
	 */
	static const char *const ignored[] = {"disallow_os_alloc", "limit_os_alloc",  "arena_max_object_size", "disallow_arena_alloc",
					      "max_vabits",	   "destroy_on_exit", "page_commit_on_demand"};
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

/* --- The fast path --- */

/* The same as `mi_malloc`, in which compilers inline less because this file is large. */
void *zonal_malloc(size_t size)
{
#if MI_PADDING
	return mi_malloc(size);
#else
	mi_theap_t *const theap = _mi_theap_default();
	if (mi_likely(size <= MI_SMALL_SIZE_MAX)) {
		mi_page_t *const page = _mi_theap_get_free_small_page(theap, size);
		mi_block_t *const block = page->free;
		if (mi_likely(block != NULL)) {
			page->free = mi_block_next(page, block);
			page->used++;
			block->next = 0;
			return block;
		}
	}
	return _mi_malloc_generic(theap, size, 0, NULL);
#endif
}

/* --- Memory that is returned --- */

enum {
	/* Blocks of this many slices (32 MiB) or more are discarded when they are freed, as the largest blocks of glibc are. */
	DISCARDED_SLICES = 512,
	/* Milliseconds between two purges, and the bytes of pages after which the thread starts. */
	PURGE_PAUSE = 10,
	PURGE_FROM = 64 << 20,
	/* Nanoseconds between two attempts to allocate while memory is returned. */
	RETRY_PAUSE = 100000,
};

/*
 * The thread that purges arenas while the program is idle. By itself, mimalloc purges only when the program allocates. It
 * is started when the program has allocated and freed `PURGE_FROM` bytes of pages in total, so that small programs have no
 * other thread.
 */
static bool has_purger;
static size_t purger_stack;
static _Atomic(uintptr_t) is_purger_started;
static _Atomic(size_t) bytes_of_pages;
/* Whether the thread waits until memory is freed, as a futex. */
static _Atomic(uint32_t) is_purger_idle;

void zonal_malloc_purge_when_idle(size_t stack)
{
	purger_stack = stack;
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
	pthread_attr_setstacksize(&attributes, purger_stack);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* the signals of the program are for its own threads */
	if (pthread_create(&thread, &attributes, zonal_purge, NULL) == 0)
		pthread_setname_np(thread, "zonal-purge");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	errno = error;
}

/*
 * Counts allocated and freed memory. Returns whether it is enough for the thread, which only an allocation starts: the C
 * library frees the thread-locals of ended threads while it holds a lock that `pthread_create` needs.
 */
static bool zonal_count(size_t bytes)
{
	zonal_after_fork();
	return has_purger && mi_atomic_load_relaxed(&is_purger_started) == 0 &&
	       mi_atomic_add_relaxed(&bytes_of_pages, bytes) >= PURGE_FROM;
}

/* --- Pages --- */

/*
 * Allocates a page outside the arenas, or fails, only while no arena is purged: memory that is returned to the kernel is not
 * free until that is done. The thread that purges allocates nothing meanwhile.
 */
static mi_page_t *zonal_page_or_wait(mi_theap_t *theap, size_t block_size, size_t alignment)
{
	const int error = errno;
	uintptr_t expected = 0;
	mi_page_t *page;
	is_within_arenas = true;
	while ((page = _mi_arenas_page_alloc(theap, block_size, alignment)) == NULL &&
	       !mi_atomic_cas_strong_acq_rel(&purge_lock, &expected, (uintptr_t)1)) {
		expected = 0;
		/* A function of the C library would be a point of cancellation. */
		syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = RETRY_PAUSE}, NULL);
		zonal_after_fork();
	}
	is_within_arenas = false;
	errno = error;
	if (page == NULL) {
		page = _mi_arenas_page_alloc(theap, block_size, alignment);
		mi_atomic_store_release(&purge_lock, (uintptr_t)0);
	}
	return page;
}

/* Allocates a page on the node of the CPU. By itself, mimalloc knows the node on which a thread began. */
static mi_page_t *zonal_page_alloc(mi_theap_t *theap, size_t block_size, size_t alignment)
{
	if (zonal_count(_mi_align_up(block_size, MI_ARENA_SLICE_SIZE)) &&
	    mi_atomic_exchange_acq_rel(&is_purger_started, (uintptr_t)1) == 0)
		zonal_start_purger();
	if (cpu_nodes != NULL) {
		const int cpu = KEEPING_ERRNO(sched_getcpu());
		if (cpu >= 0 && (size_t)cpu < cpu_count && cpu_nodes[cpu] >= 0)
			theap->tld->numa_node = cpu_nodes[cpu];
	}
	/* Arenas have no larger alignments. */
	if (alignment > MI_PAGE_MAX_OVERALLOC_ALIGN)
		return _mi_arenas_page_alloc(theap, block_size, alignment);
	return zonal_page_or_wait(theap, block_size, alignment);
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
	if (is_purged)
		(void)zonal_count(mi_size_of_slices(page->memid.mem.arena.slice_count));
	if (is_purged && page->memid.mem.arena.slice_count >= DISCARDED_SLICES && mi_arena_purge_delay() >= 0)
		zonal_discard(page);
	_mi_arenas_page_free(page, theap);
	if (is_purged && mi_atomic_load_relaxed(&is_purger_started) != 0) {
		mi_atomic(thread_fence)(mi_memory_order(seq_cst));
		if (mi_atomic_load_relaxed(&is_purger_idle) != 0) {
			mi_atomic_store_relaxed(&is_purger_idle, 0);
			(void)KEEPING_ERRNO(syscall(SYS_futex, &is_purger_idle, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
		}
	}
}

/* --- Large blocks that are hardly written --- */

enum {
	/* From this size on, it is worth the system calls to find out which pages have contents. */
	SPARSE_FROM = 1 << 20,
	/* Pages about which the kernel is asked at once. The answers are on the stack. */
	ENTRIES = 512,
};

/* What the kernel says about adjacent pages. The system calls are not points of cancellation, as functions would be. */
typedef struct {
	long map; /* the file */
	uintptr_t first;
	size_t count;
	uint64_t entries[ENTRIES];
} zonal_pages_t;

/* Whether a page is present, swapped out or in some other state that has contents, or the kernel does not say. */
static bool zonal_has_contents(zonal_pages_t *pages, uintptr_t page)
{
	/* A page without contents can still have this bit, which says that it changed since a program cleared the bit. */
	const uint64_t is_changed = (uint64_t)1 << 55;
	if (page - pages->first >= pages->count) {
		const size_t size = sizeof(pages->entries[0]);
		const long bytes = syscall(SYS_pread64, pages->map, pages->entries, sizeof(pages->entries), page * size);
		pages->first = page;
		pages->count = bytes > 0 ? (size_t)bytes / size : 0;
		if (pages->count == 0)
			return true;
	}
	return (pages->entries[page - pages->first] & ~is_changed) != 0;
}

/* Returns the end of the part of a range that is in its first page. */
static char *zonal_part_end(const char *from, const char *end)
{
	const uintptr_t page_end = ((uintptr_t)from / _mi_os_page_size() + 1) * _mi_os_page_size();
	return (char *)(page_end < (uintptr_t)end ? page_end : (uintptr_t)end);
}

/* Whether memory is zero, as that of a page that was only read, which would need memory of its own if it were written. */
static bool zonal_is_zero(const char *from, size_t bytes)
{
	return from[0] == 0 && memcmp(from, from + 1, bytes - 1) == 0;
}

static void zonal_clear_pages(zonal_pages_t *pages, char *from, const char *end)
{
	for (char *next; from < end; from = next) {
		next = zonal_part_end(from, end);
		const size_t part = (size_t)(next - from);
		if (zonal_has_contents(pages, (uintptr_t)from / _mi_os_page_size()) && !zonal_is_zero(from, part))
			memset(from, 0, part);
	}
}

/* Reads and writes only pages that have contents, so a block that is hardly written stays so when `realloc` moves it. */
static void zonal_copy_pages(zonal_pages_t *source, zonal_pages_t *target, char *block, const char *old, size_t bytes)
{
	const bool is_zero = _mi_ptr_page(block)->free_is_zero;
	const char *const end = old + bytes;
	for (const char *from = old, *next; from < end; from = next) {
		next = zonal_part_end(from, end);
		char *const to = block + (from - old);
		const size_t part = (size_t)(next - from);
		if (zonal_has_contents(source, (uintptr_t)from / _mi_os_page_size()) && !zonal_is_zero(from, part))
			memcpy(to, from, part);
		else if (!is_zero)
			zonal_clear_pages(target, to, to + part);
	}
}

/*
 * Opens what the kernel says about the pages of a large block. Older kernels do not say it while pinned pages move. Returns a
 * negative number if it is not to be used.
 */
static long zonal_open_pages(const void *block)
{
	if (_mi_ptr_page(block)->memid.is_pinned)
		return -1;
	return syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
}

static mi_decl_noinline void zonal_copy_large(void *block, const void *old, size_t bytes)
{
	const int error = errno;
	const long map = _mi_ptr_page(block)->memid.is_pinned ? -1 : zonal_open_pages(old);
	if (map >= 0) {
		zonal_pages_t source, target;
		source.map = target.map = map;
		source.count = target.count = 0;
		zonal_copy_pages(&source, &target, block, old, bytes);
		syscall(SYS_close, map);
	} else {
		memcpy(block, old, bytes);
	}
	errno = error;
}

static mi_decl_noinline void zonal_clear_large(void *block, size_t bytes)
{
	const int error = errno;
	const long map = zonal_open_pages(block);
	if (map >= 0) {
		zonal_pages_t pages;
		pages.map = map;
		pages.count = 0;
		zonal_clear_pages(&pages, block, (char *)block + bytes);
		syscall(SYS_close, map);
	} else {
		memset(block, 0, bytes);
	}
	errno = error;
}

/* Copies to a new block. */
static inline void zonal_copy(void *block, const void *old, size_t bytes)
{
	if (bytes < SPARSE_FROM)
		_mi_memcpy(block, old, bytes);
	else
		zonal_copy_large(block, old, bytes);
}

/* Clears a new block. */
static inline void zonal_clear(void *block, size_t bytes)
{
	if (bytes < SPARSE_FROM)
		_mi_memzero_aligned(block, bytes);
	else
		zonal_clear_large(block, bytes);
}

/* --- Invalid frees --- */

/* Needs no memory of the heap, which may be damaged. */
mi_decl_noinline mi_decl_cold void zonal_malloc_die(const char *message)
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
				zonal_malloc_die("a block was freed twice: the list of free blocks is a cycle\n");
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
	zonal_after_fork();
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

/* The number of this process, which a child that the kernel did not tell apart compares with its own. */
static pid_t process;
static bool is_child;

/* Maps the page of `begun_word`. A kernel before 4.14 has none, and `zonal_in_child` sets the word. */
static void zonal_watch_forks(void)
{
	const size_t size = _mi_os_page_size();
	void *const page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mi_atomic_store_release(&word_without_page, (uint32_t)BEGUN);
	process = getpid();
	if (page == MAP_FAILED)
		return;
	if (madvise(page, size, MADV_WIPEONFORK) != 0) {
		munmap(page, size);
		return;
	}
	begun_word = page;
	mi_atomic_store_release(begun_word, (uint32_t)BEGUN);
}

/*
 * Releases the locks of threads that do not exist in a child of `fork`. The data that they protect changes in single
 * atomic steps, except for the list of the threads' heaps, of which only that of this thread is left.
 *
 * Nothing is locked before `fork`, so its other handlers may allocate, and so may threads that hold a lock of the C
 * library for which `fork` waits.
 */
static mi_decl_noinline mi_decl_cold void zonal_begin_child(void)
{
	uint32_t expected = 0;
	if (!mi_atomic_cas_strong_acq_rel(begun_word, &expected, (uint32_t)BEGINNING)) {
		/* Another thread of the child, which an earlier handler started, or a request before the constructor. */
		while (mi_atomic_load_acquire(begun_word) == BEGINNING)
			_mi_prim_thread_yield();
		return;
	}
	if (process != 0) {
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
		heap_main.theaps = NULL;
		is_child = true;
	}
	mi_atomic_store_release(begun_word, (uint32_t)BEGUN);
}

/* Keeps the heap of the thread that called `fork`, the only one that a child has at first. */
static void zonal_in_child(void)
{
	if (process != getpid()) {
		process = getpid();
		mi_atomic_store_relaxed(&word_without_page, 0);
	}
	zonal_after_fork();
	mi_theap_t *const own = _mi_theap_default();
	if (!mi_theap_is_initialized(own))
		return;
	mi_lock(&heap_main.theaps_lock) {
		/* A thread that began since, if an earlier handler started one, is in the list. */
		mi_theap_t *theap = heap_main.theaps;
		while (theap != NULL && theap != own)
			theap = theap->hnext;
		if (theap == NULL) {
			own->hprev = NULL;
			own->hnext = heap_main.theaps;
			if (own->hnext != NULL)
				own->hnext->hprev = own;
			heap_main.theaps = own;
		}
	}
}

/* Whether this process is a child of the one that loaded the library, made by `fork`. */
bool zonal_malloc_is_child(void)
{
	zonal_after_fork();
	return is_child;
}

/* --- The report --- */

/*
 * Writes everything, or returns false and sets `errno`. The signals that end a program when a write fails are blocked and
 * removed: the reader of a pipe has gone, or a file exceeds `RLIMIT_FSIZE`.
 */
bool zonal_malloc_write(int descriptor, const char *text, size_t bytes)
{
	sigset_t blocked, before, pending;
	sigemptyset(&blocked);
	sigpending(&pending);
	/* Signals that were pending before are the program's. */
	if (!sigismember(&pending, SIGPIPE))
		sigaddset(&blocked, SIGPIPE);
	if (!sigismember(&pending, SIGXFSZ))
		sigaddset(&blocked, SIGXFSZ);
	pthread_sigmask(SIG_BLOCK, &blocked, &before);
	ssize_t written = 0;
	for (; bytes > 0; text += written, bytes -= (size_t)written) {
		do
			written = write(descriptor, text, bytes);
		while (written < 0 && errno == EINTR);
		if (written < 0)
			break;
	}
	const int error = errno;
	while (sigtimedwait(&blocked, NULL, &(struct timespec){0}) > 0)
		;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = error;
	return written >= 0;
}

/* --- Start --- */

/* Absent in test programs, which contain this file but do not start the library. */
extern __attribute__((weak)) void zonal_malloc_start(void);

/* Runs after the constructor of mimalloc, because it stands behind it in the file that is compiled. */
__attribute__((constructor)) static void zonal_constructor(void)
{
	zonal_watch_forks();
	pthread_atfork(NULL, NULL, zonal_in_child);
	if (zonal_malloc_start)
		zonal_malloc_start();
}
