/*
 * mimalloc, compiled as one file with the parts that this library adds.
 *
 * mimalloc has no functions for the node of a running thread, for `fork`, or for the return of memory from an idle
 * process. They need its internal state, so this file includes its sources, in the order of its own `static.c`, and
 * renames some calls between them. All symbols are hidden: calls within the library need no table.
 *
 * The sources are those of the exact version in Cargo.toml.
 */
#define _DEFAULT_SOURCE
#define _GNU_SOURCE
#include <mimalloc.h>
#include <mimalloc/internal.h>
#include <mimalloc/prim.h>

#include <errno.h>

#if MI_MALLOC_VERSION != 30302
#error "this file is written for mimalloc 3.3.2: compare static.c and the renamed functions before you change the version"
#endif

/* The numbers in src/mimalloc.rs. */
_Static_assert(mi_option_disallow_os_alloc == 17, "MiOption::DisallowOsAlloc");
_Static_assert(mi_option_arena_reserve == 23, "MiOption::ArenaReserve");
_Static_assert(mi_option_allow_thp == 43, "MiOption::AllowThp");
_Static_assert(mi_option_minimal_purge_size == 44, "MiOption::MinimalPurgeSize");
_Static_assert(mi_option_arena_max_object_size == 45, "MiOption::ArenaMaxObjectSize");
/* `zonal_page_free` discards the memory of a page before it reads the page's description. */
_Static_assert(MI_PAGE_META_IS_SEPARATED, "descriptions of pages are outside the pages");

/*
 * Claims of abandoned pages. `mi_bitmap_try_find_and_claim` clears the bit of a page while it claims the page, and a
 * thread that frees the page waits until the bit is set again. In a child of `fork`, a claim of another thread never ends.
 * Invariant: `claims_ended` <= `claims_begun`, and they are equal if no thread is claiming a page.
 */
static _Atomic(size_t) claims_begun;
static _Atomic(size_t) claims_ended;
/*
 * Held by the thread that purges arenas, or that finds them full in `zonal_page_or_wait`. In mimalloc, it is a local variable,
 * which a child of `fork` cannot release.
 */
static mi_atomic_guard_t purge_lock;

static mi_page_t *zonal_page_alloc(mi_theap_t *theap, size_t block_size, size_t alignment);
static void zonal_page_free(mi_page_t *page, mi_theap_t *theap);
static void zonal_page_collect(mi_page_t *page, bool force);
static bool zonal_getenv(const char *name, char *result, size_t size);
static void zonal_begin_child(void);
static inline void zonal_copy(void *block, const void *old, size_t bytes);
static inline void zonal_clear(void *block, size_t bytes);

/*
 * Zero in a child of `fork` until it has released the locks of threads that it does not have, then `BEGUN`. The kernel
 * fills the page of the word with zeros in a child.
 */
static _Atomic(uint32_t) word_without_page;
static _Atomic(uint32_t) *begun_word = &word_without_page;
enum { BEGUN = 1, BEGINNING = 2 };

/* Called before a lock is acquired, because the handlers of `fork` run in the order of their registration. */
static inline void zonal_after_fork(void)
{
	if (mi_unlikely(mi_atomic_load_acquire(begun_word) != BEGUN))
		zonal_begin_child();
}

#define mi_lock_acquire(lock) (zonal_after_fork(), (mi_lock_acquire)(lock))
#define _mi_arenas_page_free zonal_page_free
#define _mi_memcpy zonal_copy
#define _mi_memzero_aligned zonal_clear
#include "alloc.c"
#undef _mi_arenas_page_free
#undef _mi_memcpy
#undef _mi_memzero_aligned
#include "alloc-aligned.c"
#include "alloc-posix.c"
#include "bitmap.h"

static void zonal_clear_once_set(mi_bitmap_t *bitmap, size_t index);

static bool zonal_claim(mi_bitmap_t *bitmap, size_t start, size_t *index, mi_claim_fun_t *claim, mi_arena_t *arena)
{
	zonal_after_fork();
	mi_atomic_increment_acq_rel(&claims_begun);
	const bool is_found = mi_bitmap_try_find_and_claim(bitmap, start, index, claim, arena);
	mi_atomic_increment_acq_rel(&claims_ended);
	return is_found;
}

#define mi_bitmap_clear_once_set zonal_clear_once_set
#define mi_bitmap_try_find_and_claim zonal_claim
#undef mi_atomic_guard
#define mi_atomic_guard(unused)                                                                    \
	(void)(unused);                                                                            \
	zonal_after_fork();                                                                        \
	uintptr_t _mi_guard_expected = 0;                                                          \
	for (bool _mi_guard_once = true;                                                           \
	     _mi_guard_once && mi_atomic_cas_strong_acq_rel(&purge_lock, &_mi_guard_expected, (uintptr_t)1); \
	     (mi_atomic_store_release(&purge_lock, (uintptr_t)0), _mi_guard_once = false))

/* Whether this thread may only use the arenas that there are. */
static __thread bool is_within_arenas;

static bool zonal_is_enabled(mi_option_t option)
{
	return (option == mi_option_disallow_os_alloc && is_within_arenas) || mi_option_is_enabled(option);
}

#define mi_option_is_enabled zonal_is_enabled
#include "arena.c"
#undef mi_option_is_enabled
#undef mi_bitmap_clear_once_set
#undef mi_bitmap_try_find_and_claim
#include "arena-meta.c"
#include "bitmap.c"
#include "heap.c"
#include "init.c"
#include "libc.c"
#define _mi_getenv zonal_getenv
#include "options.c"
#undef _mi_getenv
/*
 * A `malloc` that succeeds and every `free` leave `errno` as it is. Steps that the kernel refuses set it, although mimalloc
 * goes on without them: the names of mappings (kernels before 5.17, or without CONFIG_ANON_VMA_NAME), advice, and the
 * node of a CPU. Where mimalloc does not go on, it calls the error handler, which sets `errno`.
 */
#define KEEPING_ERRNO(call)                                                                        \
	({                                                                                         \
		const int saved = errno;                                                           \
		const __typeof__(call) result = (call);                                            \
		errno = saved;                                                                     \
		result;                                                                            \
	})
#define _mi_prim_alloc(...) KEEPING_ERRNO((_mi_prim_alloc)(__VA_ARGS__))
#define _mi_prim_alloc_huge_os_pages(...) KEEPING_ERRNO((_mi_prim_alloc_huge_os_pages)(__VA_ARGS__))
#define _mi_prim_free(...) KEEPING_ERRNO((_mi_prim_free)(__VA_ARGS__))
#define _mi_prim_commit(...) KEEPING_ERRNO((_mi_prim_commit)(__VA_ARGS__))
#define _mi_prim_decommit(...) KEEPING_ERRNO((_mi_prim_decommit)(__VA_ARGS__))
#define _mi_prim_reset(...) KEEPING_ERRNO((_mi_prim_reset)(__VA_ARGS__))
#define _mi_prim_reuse(...) KEEPING_ERRNO((_mi_prim_reuse)(__VA_ARGS__))
#define _mi_prim_protect(...) KEEPING_ERRNO((_mi_prim_protect)(__VA_ARGS__))
#define _mi_prim_numa_node() KEEPING_ERRNO((_mi_prim_numa_node)())
#define _mi_prim_numa_node_count() KEEPING_ERRNO((_mi_prim_numa_node_count)())
#include "os.c"
#undef _mi_prim_numa_node
#undef _mi_prim_numa_node_count
#undef _mi_prim_alloc
#undef _mi_prim_alloc_huge_os_pages
#undef _mi_prim_free
#undef _mi_prim_commit
#undef _mi_prim_decommit
#undef _mi_prim_reset
#undef _mi_prim_reuse
#undef _mi_prim_protect
#define _mi_arenas_page_alloc zonal_page_alloc
#define _mi_arenas_page_free zonal_page_free
/* Compilers inline it in mimalloc alone, but not in this larger file. */
static inline __attribute__((always_inline)) mi_page_t *mi_find_page(mi_theap_t *theap, size_t size, size_t huge_alignment);
#include "page.c"
#undef _mi_arenas_page_alloc
#undef _mi_arenas_page_free
#include "page-map.c"
#define _mi_prim_random_buf(...) KEEPING_ERRNO((_mi_prim_random_buf)(__VA_ARGS__))
#include "random.c"
#undef _mi_prim_random_buf
#include "stats.c"
#define _mi_page_free_collect zonal_page_collect
#include "theap.c"
#undef _mi_page_free_collect
#include "threadlocal.c"
#include "prim/prim.c"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "zonal.c"
