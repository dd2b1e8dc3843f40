/* The C interface of zonal: pools of memory on chosen NUMA nodes, with huge pages.
 *
 * Functions return a status. zonal_last_error() returns the message of the last failed call of the thread. All functions
 * can be called by any number of threads at the same time, and from callbacks. Structures begin with their size, which the
 * caller sets, also in structures that a function fills. This file is generated from the sources.
 */

#ifndef ZONAL_H
#define ZONAL_H

#include <stddef.h>
#include <stdint.h>

/**
 * Which huge pages back a pool: as the kernel likes.
 */
#define ZONAL_HUGE_PAGES_TRANSPARENT 0

/**
 * Which huge pages back a pool: none.
 */
#define ZONAL_HUGE_PAGES_NEVER 1

/**
 * Which huge pages back a pool: reserved ones of 2 MiB.
 */
#define ZONAL_HUGE_PAGES_2M 2

/**
 * Which huge pages back a pool: reserved ones of 1 GiB.
 */
#define ZONAL_HUGE_PAGES_1G 3

/**
 * Flag of a pool: provide all memory while the pool is built.
 */
#define ZONAL_POOL_PREFAULT 1

/**
 * Flag of a pool: fail without the huge pages that were asked for.
 */
#define ZONAL_POOL_REQUIRE_HUGE_PAGES 2

/**
 * Flag of a pool: fail if the memory cannot be bound to its nodes.
 */
#define ZONAL_POOL_REQUIRE_BINDING 4

/**
 * Flag of a pool: memory in files that other processes can map.
 */
#define ZONAL_POOL_SHARED_MEMORY 8

/**
 * Flag of a request: do not wait for memory.
 */
#define ZONAL_REQUEST_NO_WAIT 1

/**
 * Flag of a request: use the node of the calling CPU only.
 */
#define ZONAL_REQUEST_THIS_NODE 2

/**
 * Flag of a request: fill the block with zeros.
 */
#define ZONAL_REQUEST_ZEROED 4

/**
 * Nodes of a request: start at the calling CPU's node.
 */
#define ZONAL_POLICY_LOCAL 0

/**
 * Nodes of a request: start at the first of `nodes`, and use others if it is full.
 */
#define ZONAL_POLICY_PREFERRED 1

/**
 * Nodes of a request: use only `nodes`.
 */
#define ZONAL_POLICY_BIND 2

/**
 * Flag of closing: close the pool although blocks are allocated. Their memory is unmapped.
 */
#define ZONAL_CLOSE_WITH_BLOCKS 1

/**
 * The result of a call.
 */
typedef enum {
  /**
   * The call succeeded.
   */
  ZONAL_OK = 0,
  /**
   * An argument is not valid: null, a wrong structure size, an unknown value.
   */
  ZONAL_INVALID_ARGUMENT = 1,
  /**
   * The handle is not that of a pool, or the pool has been closed.
   */
  ZONAL_NOT_A_POOL = 2,
  /**
   * The pool could not be built: a size, a node or a setting is not possible, or the kernel refused a call.
   */
  ZONAL_BUILD_FAILED = 3,
  /**
   * What was required (huge pages, binding to nodes) is not available.
   */
  ZONAL_REQUIREMENT_FAILED = 4,
  /**
   * The progress callback stopped the build.
   */
  ZONAL_INTERRUPTED = 5,
  /**
   * Memory ran out. The message has the state of every zone.
   */
  ZONAL_OUT_OF_MEMORY = 6,
  /**
   * The block cannot be freed: it is not allocated, or not as stated. Nothing has changed.
   */
  ZONAL_NOT_ALLOCATED = 7,
  /**
   * The pool cannot be closed now: blocks are allocated, or the call comes from within a call of the pool.
   */
  ZONAL_BUSY = 8,
  /**
   * The structures of the pool do not agree.
   */
  ZONAL_INCONSISTENT = 9,
  /**
   * Too many calls of this thread are in progress: calls from callbacks of calls.
   */
  ZONAL_REENTERED = 10,
  /**
   * A fault of the library itself. The pool may be unusable.
   */
  ZONAL_INTERNAL = 11,
  /**
   * The pool cannot grow or shrink as much as was asked for.
   */
  ZONAL_RESIZE_FAILED = 12,
} zonal_status;

/**
 * Called while memory is provided. Several threads may call it. A result other than 0 stops the build. It must return: an
 * exception or `longjmp` must not leave it.
 */
typedef int32_t (*zonal_progress)(void *context, uint64_t done, uint64_t total);

/**
 * Options of a pool. Zero in every field but the first is the default.
 */
typedef struct {
  /**
   * `sizeof(zonal_pool_options)`.
   */
  size_t struct_size;
  /**
   * Bytes of the pool. Default: 1 GiB, or half of the available memory.
   */
  uint64_t size;
  /**
   * Bytes to which the pool may grow. Default: `size`.
   */
  uint64_t max_size;
  /**
   * Numbers of the nodes to use. Default: all.
   */
  const uint16_t *nodes;
  /**
   * Number of entries of `nodes`.
   */
  size_t nodes_len;
  /**
   * Number of emulated nodes, for tests. Default: the nodes of the machine.
   */
  uint32_t fake_nodes;
  /**
   * One of `ZONAL_HUGE_PAGES_*`.
   */
  uint32_t huge_pages;
  /**
   * `ZONAL_POOL_*`, or-ed.
   */
  uint32_t flags;
  /**
   * Must be 0.
   */
  uint32_t reserved;
  /**
   * Called with the progress of `ZONAL_POOL_PREFAULT`, or null.
   */
  zonal_progress progress;
  /**
   * First argument of `progress`.
   */
  void *progress_context;
} zonal_pool_options;

/**
 * A pool. A handle stays valid to pass after the pool was closed, and is then refused.
 */
typedef struct {
  /**
   * Number of the pool. Zero is no pool.
   */
  uint64_t id;
} zonal_pool;

/**
 * The pages of a pool. `managed` is the sum of the other three.
 */
typedef struct {
  /**
   * `sizeof(zonal_accounting)`, which the caller sets.
   */
  size_t struct_size;
  /**
   * Bytes of a page.
   */
  uint64_t page_bytes;
  /**
   * Pages that the pool manages.
   */
  uint64_t managed;
  /**
   * Free pages.
   */
  uint64_t free;
  /**
   * Free pages in the caches of CPUs.
   */
  uint64_t in_pagesets;
  /**
   * Allocated pages.
   */
  uint64_t allocated;
} zonal_accounting;

/**
 * A request for a block. Zero in every field but the first is the default: a page near the calling CPU.
 */
typedef struct {
  /**
   * `sizeof(zonal_request)`.
   */
  size_t struct_size;
  /**
   * Number of bytes, rounded up to whole pages. Default: one page.
   */
  size_t bytes;
  /**
   * `ZONAL_REQUEST_*`, or-ed.
   */
  uint32_t flags;
  /**
   * One of `ZONAL_POLICY_*`.
   */
  uint32_t policy;
  /**
   * Numbers of the nodes of the policy.
   */
  const uint16_t *nodes;
  /**
   * Number of entries of `nodes`.
   */
  size_t nodes_len;
} zonal_request;

/**
 * A block of memory that was allocated.
 */
typedef struct {
  /**
   * `sizeof(zonal_block)`, which the caller sets.
   */
  size_t struct_size;
  /**
   * The memory, aligned to a page. If `bytes` is a power of two of at most 4 MiB, it is aligned to `bytes`.
   */
  void *address;
  /**
   * Number of bytes, which are whole pages.
   */
  size_t bytes;
  /**
   * Number of the first page of the block in the pool.
   */
  uint64_t frame;
  /**
   * Node of the memory.
   */
  uint16_t node;
  /**
   * Reserved.
   */
  uint16_t reserved[3];
} zonal_block;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the message of the last call of this thread that failed: an empty text if none has failed.
 *
 * The text is valid until the next call of this thread fails.
 */
const char *zonal_last_error(void);

/**
 * Builds a pool, and stores its handle in `pool`. If it fails, `pool` becomes no pool.
 *
 * # Safety
 * `options` must be null, for the defaults, or point to options. `pool` must point to a handle. The progress callback
 * must return, and may be called by several threads.
 */
zonal_status zonal_pool_build(const zonal_pool_options *options,
                              zonal_pool *pool);

/**
 * Closes a pool, after other threads' calls of it have ended, and unmaps its memory. The handle is refused afterwards.
 *
 * Fails with `ZONAL_BUSY`, and changes nothing, if blocks are allocated and `flags` has no `ZONAL_CLOSE_WITH_BLOCKS`, or if
 * a callback of the pool makes the call.
 */
zonal_status zonal_pool_close(zonal_pool pool,
                              uint32_t flags);

/**
 * Stores the numbers of pages of a pool. They balance if no thread allocates or frees during the call.
 *
 * # Safety
 * `accounting` must point to a structure whose `struct_size` is set.
 */
zonal_status zonal_pool_accounting(zonal_pool pool, zonal_accounting *accounting);

/**
 * Checks all structures of a pool. No thread may allocate or free during the call.
 */
zonal_status zonal_pool_verify(zonal_pool pool);

/**
 * Stores whether the memory of a pool is bound to its nodes: 1 if so, 0 if the kernel refused it, 2 if the nodes are
 * emulated.
 *
 * # Safety
 * `placement` must point to a number.
 */
zonal_status zonal_pool_placement(zonal_pool pool,
                                  uint32_t *placement);

/**
 * Writes the warnings of building a pool as text, a line for each, and stores the length of the whole text in `needed`
 * if that is not null.
 *
 * The text in `buffer` is cut to `len - 1` bytes and ends with a zero.
 *
 * # Safety
 * `buffer` must be null, or have room for `len` bytes. `needed` must be null, or point to a number.
 */
zonal_status zonal_pool_warnings(zonal_pool pool,
                                 char *buffer,
                                 size_t len,
                                 size_t *needed);

/**
 * Allocates a block and stores it in `block`. If it fails, the address of `block` becomes null.
 *
 * # Safety
 * `request` must be null, for one page near the calling CPU, or point to a request. `block` must point to a structure whose
 * `struct_size` is set.
 */
zonal_status zonal_alloc(zonal_pool pool,
                         const zonal_request *request,
                         zonal_block *block);

/**
 * Frees a block. `address` and `bytes` must be those of the block.
 *
 * A free of memory that is not allocated, or was allocated in another size, is refused with `ZONAL_NOT_ALLOCATED` and changes
 * nothing.
 *
 * # Safety
 * No code may access the memory afterwards.
 */
zonal_status zonal_free(zonal_pool pool,
                        void *address,
                        size_t bytes);

/**
 * Allocates up to `len` single pages near the calling CPU, stores their addresses in `addresses`, and stores how many it
 * allocated in `count`.
 *
 * It allocates fewer only if memory is short, and fails if there is none.
 *
 * # Safety
 * `addresses` must have room for `len` addresses, and `count` must point to a number.
 */
zonal_status zonal_alloc_pages(zonal_pool pool,
                               void **addresses,
                               size_t len,
                               size_t *count);

/**
 * Frees single pages, in order, and stores in `freed` how many it freed if that is not null.
 *
 * It stops at the first page that is not an allocated page of the pool.
 *
 * # Safety
 * `addresses` must point to `len` addresses, and `freed` must be null or point to a number. No code may access the memory
 * afterwards.
 */
zonal_status zonal_free_pages(zonal_pool pool,
                              void *const *addresses,
                              size_t len,
                              size_t *freed);

/**
 * Brings `bytes` more of a pool's `max_size` into use, and stores in `done` how many, if that is not null.
 *
 * # Safety
 * `done` must be null, or point to a number.
 */
zonal_status zonal_pool_grow(zonal_pool pool, uint64_t bytes, uint64_t *done);

/**
 * Returns `bytes` of a pool's free memory to the kernel, and stores in `done` how many, if that is not null.
 *
 * If less could be returned, because too much is in use, the call fails with `ZONAL_RESIZE_FAILED`. What was returned stays
 * returned. `zonal_pool_grow` brings it back.
 *
 * # Safety
 * `done` must be null, or point to a number.
 */
zonal_status zonal_pool_shrink(zonal_pool pool,
                               uint64_t bytes,
                               uint64_t *done);

/**
 * Writes the value of a setting as text into `buffer`, and stores the length of the whole text in `needed` if that is not
 * null.
 *
 * Settings have the names of Linux's sysctls where Linux has them, such as `min_free_kbytes`. A wrong name is answered with
 * all names.
 *
 * # Safety
 * `name` must be a text that ends with a zero. `buffer` must be null, or have room for `len` bytes. `needed` must be null, or
 * point to a number.
 */
zonal_status zonal_pool_setting(zonal_pool pool,
                                const char *name,
                                char *buffer,
                                size_t len,
                                size_t *needed);

/**
 * Changes a setting, whose value is given as text. A wrong name or value is refused with the right ones, and changes
 * nothing.
 *
 * # Safety
 * `name` and `value` must be texts that end with a zero.
 */
zonal_status zonal_pool_set_setting(zonal_pool pool,
                                    const char *name,
                                    const char *value);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ZONAL_H */
