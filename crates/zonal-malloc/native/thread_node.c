/*
 * The node that mimalloc prefers for new memory of the calling thread.
 *
 * mimalloc reads the node once, when a thread first allocates, and always takes node 0 for the main thread. It has no
 * function that changes it, so this file changes the field. The layout is that of the exact version in Cargo.toml.
 */
#include <mimalloc.h>
#include <mimalloc/types.h>
#include <mimalloc/internal.h>
#include <mimalloc/prim.h>

#if MI_MALLOC_VERSION != 30302
#error "this file is written for mimalloc 3.3.2: check mi_tld_t before you change the version"
#endif

/* The numbers in src/mimalloc.rs. */
_Static_assert(mi_option_disallow_os_alloc == 17, "MiOption::DisallowOsAlloc");
_Static_assert(mi_option_arena_reserve == 23, "MiOption::ArenaReserve");
_Static_assert(mi_option_minimal_purge_size == 44, "MiOption::MinimalPurgeSize");
_Static_assert(mi_option_arena_max_object_size == 45, "MiOption::ArenaMaxObjectSize");

/* Returns whether the calling thread has a description. */
int zonal_malloc_set_thread_node(int node)
{
	mi_theap_t *theap = _mi_theap_default();
	if (!mi_theap_is_initialized(theap))
		return 0;
	theap->tld->numa_node = node;
	return 1;
}
