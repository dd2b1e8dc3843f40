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
 * Flag of a pool: overwrite freed pages with a pattern, and check it when they are allocated again.
 */
#define ZONAL_POOL_POISON 16

/**
 * Flag of a pool: fill every block with zeros when it is allocated.
 */
#define ZONAL_POOL_ZEROED 32

/**
 * Flag of a pool: several processes share it, in a file without a path; the others join it with `zonal_pool_join_fd`.
 */
#define ZONAL_POOL_SHARED_BY_DESCRIPTOR 64

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
 * Nodes of a created policy: each request starts at the next of `nodes`.
 */
#define ZONAL_POLICY_INTERLEAVE 3

/**
 * Nodes of a created policy: as many requests in turn start at each of `nodes` as its weight says.
 */
#define ZONAL_POLICY_WEIGHTED_INTERLEAVE 4

/**
 * Nodes of a created policy: use `nodes` in their order, and others if they are full.
 */
#define ZONAL_POLICY_PREFERRED_MANY 5

/**
 * Flag of closing: close the pool although blocks are allocated. Their memory is unmapped.
 */
#define ZONAL_CLOSE_WITH_BLOCKS 1

/**
 * Text of a snapshot: the state of the pool as JSON.
 */
#define ZONAL_SNAPSHOT_JSON 0

/**
 * Text of a snapshot: zones in the format of `/proc/zoneinfo`.
 */
#define ZONAL_SNAPSHOT_ZONEINFO 1

/**
 * Text of a snapshot: free blocks by order in the format of `/proc/buddyinfo`.
 */
#define ZONAL_SNAPSHOT_BUDDYINFO 2

/**
 * Text of a snapshot: counters in the format of `/proc/vmstat`.
 */
#define ZONAL_SNAPSHOT_VMSTAT 3

/**
 * Text of a snapshot: the fallback order of each node, as Linux prints it when it boots.
 */
#define ZONAL_SNAPSHOT_FALLBACK_LISTS 4

/**
 * Why a reclaimer is called: a near node's memory is preferred to free memory of far ones. It must be quick.
 */
#define ZONAL_RECLAIM_NODE 0

/**
 * Why a reclaimer is called: a request cannot be served otherwise, and waits.
 */
#define ZONAL_RECLAIM_DIRECT 1

/**
 * Why a reclaimer is called: free memory is below the watermark `low`; no request waits.
 */
#define ZONAL_RECLAIM_BACKGROUND 2

/**
 * Why a reclaimer is called: a range of pages is needed as a whole, to allocate it or to return it to the kernel.
 */
#define ZONAL_RECLAIM_RANGE 3

/**
 * Why a reclaimer is called: `zonal_pool_reclaim`.
 */
#define ZONAL_RECLAIM_SHRINK 4

/**
 * Flag of a request to a reclaimer: contents may be written to storage.
 */
#define ZONAL_RECLAIM_MAY_WRITE 1

/**
 * Flag of a request to a reclaimer: pages that are mapped somewhere may be unmapped.
 */
#define ZONAL_RECLAIM_MAY_UNMAP 2

/**
 * Kind of a memory pressure event: a request found a zone of the node below its watermark `low`.
 */
#define ZONAL_PRESSURE_BELOW_LOW 0

/**
 * Kind of a memory pressure event: all zones of the node are above their watermark `high` again.
 */
#define ZONAL_PRESSURE_ABOVE_HIGH 1

/**
 * Kind of a memory pressure event: reclaim begins to stall requests that prefer the node.
 */
#define ZONAL_PRESSURE_STALLING 2

/**
 * Kind of a memory pressure event: a request that prefers the node is about to fail.
 */
#define ZONAL_PRESSURE_FAILING 3

/**
 * Kind of a memory pressure event: one that a later version of the library added.
 */
#define ZONAL_PRESSURE_OTHER 4

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
   * The pool could not be built or joined: a size, a node, a setting or a file is not possible, or the kernel refused a call.
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
   * Not possible now: blocks are allocated, the call comes from a callback, or another thread was in a call of the pool when
   * this child was made.
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
  /**
   * The kernel does not say what was asked for.
   */
  ZONAL_UNKNOWN = 13,
  /**
   * The pool cannot be published at the path.
   */
  ZONAL_PUBLISH_FAILED = 14,
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
   * Number of entries in `nodes`.
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
   * Number of threads for `ZONAL_POOL_PREFAULT`. Default: the CPUs that the program may use, at most 16.
   */
  uint32_t prefault_threads;
  /**
   * Bytes of a page: a power of two, at least the kernel's page. Default: 4096.
   */
  uint32_t page_bytes;
  /**
   * Pages that the quarantine of each node delays after they were freed. Default: none.
   */
  uint32_t quarantine_pages;
  /**
   * Bytes of the largest block that is aligned to its size: a power of two, 1024 to 262144 pages. Default: 1024 pages.
   */
  uint64_t block_bytes_max;
  /**
   * Settings by name, as `name=value` in lines or separated by semicolons; `zonal_pool_setting` has the names. Or null.
   */
  const char *settings;
  /**
   * Called with the progress of `ZONAL_POOL_PREFAULT`, or null.
   */
  zonal_progress progress;
  /**
   * First argument of `progress`.
   */
  void *progress_context;
  /**
   * Path of a new file in a memory file system, such as `/dev/shm` or hugetlbfs, in which several processes share the pool, or null.
   * The others join it with `zonal_pool_join`.
   */
  const char *shared_path;
  /**
   * Number of processes that can share a shared pool at once, at most 64. Default: 8.
   */
  uint32_t processes;
  /**
   * Reserved.
   */
  uint32_t reserved;
  /**
   * Name under which this process takes part in a shared pool, so that its blocks outlive it, or null: see
   * `zonal_pool_join_as`.
   */
  const char *process_name;
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
 * The pages of a pool. `managed` is the sum of the next four.
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
   * Pages of blocks that the program has.
   */
  uint64_t allocated;
  /**
   * Pages of freed blocks that are not free yet or never will be: those in quarantine, and those that were found damaged.
   */
  uint64_t unavailable;
} zonal_accounting;

/**
 * A block of memory that was allocated.
 */
typedef struct {
  /**
   * `sizeof(zonal_block)`, which the caller sets.
   */
  size_t struct_size;
  /**
   * The memory, aligned as the request says.
   */
  void *address;
  /**
   * Number of bytes, which are whole pages.
   */
  size_t bytes;
  /**
   * Number of the block's first page in the pool.
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

/**
 * A process that takes part in a shared pool.
 */
typedef struct {
  /**
   * `sizeof(zonal_owner)`, which the caller sets.
   */
  size_t struct_size;
  /**
   * Number of the process in the pool, from 1.
   */
  uint32_t process;
  /**
   * Id of the process, in its own namespace.
   */
  uint32_t pid;
  /**
   * Number of processes that have had the number `process`.
   */
  uint64_t epoch;
  /**
   * Pages that it has allocated or taken over. The number may be out of date.
   */
  uint64_t held;
  /**
   * 1 for the calling process, else 0.
   */
  uint32_t is_this;
  /**
   * 1 for a process that lives, else 0.
   */
  uint32_t is_alive;
  /**
   * Name of a process whose blocks outlive it, with a zero after it; empty for others.
   */
  char name[40];
} zonal_owner;

/**
 * A function that is called with a block. It must return: an exception or `longjmp` must not leave it.
 */
typedef void (*zonal_on_block)(void *context, const zonal_block *block);

/**
 * A policy of requests. A handle stays valid to pass after the policy was destroyed, and is then refused.
 */
typedef struct {
  /**
   * Number of the policy. Zero is no policy.
   */
  uint64_t id;
} zonal_policy;

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
   * Alignment of the block in bytes: a power of two up to the largest block. Default: a page, or `bytes` if that is a
   * power of two up to the largest block.
   */
  size_t alignment;
  /**
   * `ZONAL_REQUEST_*`, or-ed.
   */
  uint32_t flags;
  /**
   * One of `ZONAL_POLICY_*`.
   */
  uint32_t policy;
  /**
   * Numbers of the policy's nodes.
   */
  const uint16_t *nodes;
  /**
   * Number of entries in `nodes`.
   */
  size_t nodes_len;
  /**
   * A policy of `zonal_policy_create`, instead of `policy` and `nodes`. Zero is none.
   */
  zonal_policy policy_handle;
} zonal_request;

/**
 * Options of a policy.
 */
typedef struct {
  /**
   * `sizeof(zonal_policy_options)`.
   */
  size_t struct_size;
  /**
   * One of `ZONAL_POLICY_*`.
   */
  uint32_t policy;
  /**
   * Must be 0.
   */
  uint32_t reserved;
  /**
   * Numbers of the nodes.
   */
  const uint16_t *nodes;
  /**
   * Number of entries in `nodes`.
   */
  size_t nodes_len;
  /**
   * A weight for each of `nodes`, for `ZONAL_POLICY_WEIGHTED_INTERLEAVE`. A node with weight 0 is left out.
   */
  const uint8_t *weights;
} zonal_policy_options;

/**
 * A function that runs while the threads of a pool pause. `in_reclaimers` is the number of those that do not, because they
 * are in a reclaimer.
 */
typedef void (*zonal_while_paused)(void *context, size_t in_reclaimers);

/**
 * What a reclaimer should free.
 */
typedef struct {
  /**
   * `sizeof(zonal_reclaim_request)` of the library.
   */
  size_t struct_size;
  /**
   * One of `ZONAL_RECLAIM_NODE` to `ZONAL_RECLAIM_SHRINK`.
   */
  uint32_t reason;
  /**
   * `ZONAL_RECLAIM_MAY_*`, or-ed.
   */
  uint32_t flags;
  /**
   * Node whose pages are wanted.
   */
  uint16_t node;
  /**
   * Reserved.
   */
  uint16_t reserved[3];
  /**
   * Number of pages wanted.
   */
  uint64_t pages;
  /**
   * Bytes of the block that is needed. Pages that do not form such a block help less.
   */
  uint64_t block_bytes;
  /**
   * First page of the range that is wanted, if `range_pages` is not 0.
   */
  uint64_t range_frame;
  /**
   * Number of pages in the only range that is wanted, or 0 if any page of the node helps.
   */
  uint64_t range_pages;
} zonal_reclaim_request;

/**
 * A function of a reclaimer. It returns a number of pages, and must return: an exception or `longjmp` must not leave it.
 */
typedef uint64_t (*zonal_reclaim)(void *context, const zonal_reclaim_request *request);

/**
 * Something that can free pages of a pool when memory is short, such as a cache.
 */
typedef struct {
  /**
   * `sizeof(zonal_reclaimer)`.
   */
  size_t struct_size;
  /**
   * Returns how many pages `reclaim` could free for the request.
   */
  zonal_reclaim count;
  /**
   * Frees pages for the request with `zonal_free`, and returns how many.
   */
  zonal_reclaim reclaim;
  /**
   * First argument of both.
   */
  void *context;
} zonal_reclaimer;

/**
 * A registered reclaimer or callback. A handle stays valid to pass after it was unregistered, and is then refused.
 */
typedef struct {
  /**
   * Number of the registration. Zero is none.
   */
  uint64_t id;
} zonal_registration;

/**
 * An event of memory pressure, with the state of the node when the callback is called. Counts are in pages.
 */
typedef struct {
  /**
   * `sizeof(zonal_pressure_event)` of the library.
   */
  size_t struct_size;
  /**
   * One of `ZONAL_PRESSURE_*`.
   */
  uint32_t kind;
  /**
   * Node whose memory is short.
   */
  uint16_t node;
  /**
   * Reserved.
   */
  uint16_t reserved;
  /**
   * Free pages of the node.
   */
  uint64_t free;
  /**
   * Sum of its zones' `low` watermarks.
   */
  uint64_t low;
  /**
   * Sum of its zones' `high` watermarks.
   */
  uint64_t high;
  /**
   * Share of the last 10, 60 and 300 seconds in which reclaim stalled requests, in hundredths of a percent.
   */
  uint16_t stalled[3];
  /**
   * Reserved.
   */
  uint16_t reserved_2;
} zonal_pressure_event;

/**
 * A callback for events of memory pressure. It must return: an exception or `longjmp` must not leave it.
 */
typedef void (*zonal_on_pressure)(void *context, const zonal_pressure_event *event);

/**
 * A place in the memory of a pool.
 */
typedef struct {
  /**
   * `sizeof(zonal_location)`, which the caller sets.
   */
  size_t struct_size;
  /**
   * Address of the page's first byte.
   */
  void *address;
  /**
   * Number of the page in the pool.
   */
  uint64_t frame;
  /**
   * Offset of the page in `file`.
   */
  uint64_t file_offset;
  /**
   * Descriptor of the file that holds the page, or -1: only pools with `ZONAL_POOL_SHARED_MEMORY` have files. The pool
   * owns the descriptor; duplicate it to use it after the pool was closed.
   */
  int32_t file;
  /**
   * Node of the memory.
   */
  uint16_t node;
  /**
   * Reserved.
   */
  uint16_t reserved;
} zonal_location;

/**
 * The state of a zone: the memory of a node, or the movable part of it. Counts are in pages.
 */
typedef struct {
  /**
   * `sizeof(zonal_zone)`, which the caller sets.
   */
  size_t struct_size;
  /**
   * Node of the zone.
   */
  uint16_t node;
  /**
   * Reserved.
   */
  uint16_t reserved[3];
  /**
   * Address of its first byte.
   */
  void *address;
  /**
   * Number of its first page in the pool.
   */
  uint64_t first_frame;
  /**
   * Number of pages from the first to the last.
   */
  uint64_t spanned;
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
   * Watermark `min`: ordinary requests leave this many pages free.
   */
  uint64_t watermark_min;
  /**
   * Watermark `low`: background reclaim begins below it.
   */
  uint64_t watermark_low;
  /**
   * Watermark `high`: background reclaim ends at it.
   */
  uint64_t watermark_high;
  /**
   * Blocks that were served here and should have been: `numa_hit`.
   */
  uint64_t hits;
  /**
   * Blocks that were served here but were meant for another node: `numa_miss`.
   */
  uint64_t misses;
  /**
   * Blocks that were meant for this node but served by another: `numa_foreign`.
   */
  uint64_t foreign;
} zonal_zone;

/**
 * Where the kernel has put a pool's memory on a node, in bytes. `bytes` is the sum of the next four.
 */
typedef struct {
  /**
   * `sizeof(zonal_residency)`, which the caller sets.
   */
  size_t struct_size;
  /**
   * Bytes that the pool has mapped for the node, including memory that is offline.
   */
  uint64_t bytes;
  /**
   * Bytes that are in memory on the node.
   */
  uint64_t on_node;
  /**
   * Bytes that are in memory on other nodes.
   */
  uint64_t misplaced;
  /**
   * Bytes that are not in memory yet.
   */
  uint64_t absent;
  /**
   * Bytes whose place the kernel does not say.
   */
  uint64_t unknown;
} zonal_residency;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the message of this thread's last call that failed: an empty text if none has failed.
 *
 * The text has at most 4095 bytes, and is valid until the next call of this thread fails.
 */
const char *zonal_last_error(void);

/**
 * Returns the version of the library, for example `0.1.0`.
 */
const char *zonal_version(void);

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
 * a callback makes the call. While it waits, calls of other threads are delayed by up to 2 ms. In a child made by `fork`, a
 * pool that other threads were using can only be closed with `ZONAL_CLOSE_WITH_BLOCKS`. In a pool that processes share, only the
 * blocks that this process holds count, and are freed.
 */
zonal_status zonal_pool_close(zonal_pool pool,
                              uint32_t flags);

/**
 * Stores a pool's page counts, for all processes if it is shared. They balance if no thread allocates or frees during the
 * call.
 *
 * # Safety
 * `accounting` must point to a structure whose `struct_size` is set.
 */
zonal_status zonal_pool_accounting(zonal_pool pool,
                                   zonal_accounting *accounting);

/**
 * Checks all structures of a pool. No thread, of any process, may allocate or free during the call. Fails with `ZONAL_BUSY` from within a
 * callback.
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
 * Joins the pool that another process shares at `path`, or has published on a socket there, and stores its handle in `pool`. If
 * it fails, `pool` becomes no pool.
 *
 * Every process allocates and frees as in a pool of its own, and may free what another has allocated. When a process ends, in
 * whatever way, what it holds is freed. Pages have the same numbers in all processes, and other addresses:
 * `zonal_pool_locate` and `zonal_pool_locate_frame` convert them.
 *
 * # Safety
 * `path` must be a text that ends with a zero. `pool` must point to a handle.
 */
zonal_status zonal_pool_join(const char *path,
                             zonal_pool *pool);

/**
 * Joins the pool whose file a descriptor of `zonal_pool_shared_fd` has, which this process has inherited or received, like
 * `zonal_pool_join`. The descriptor may be closed afterwards.
 *
 * # Safety
 * `pool` must point to a handle.
 */
zonal_status zonal_pool_join_fd(int32_t fd,
                                zonal_pool *pool);

/**
 * Stores in `fd` the descriptor of a shared pool's file, with which other processes can join, or -1 for a pool that is not
 * shared. The pool owns the descriptor, which a program that is executed does not inherit (`FD_CLOEXEC`).
 *
 * # Safety
 * `fd` must point to a number.
 */
zonal_status zonal_pool_shared_fd(zonal_pool pool,
                                  int32_t *fd);

/**
 * Makes this process the holder of a block that any process in a shared pool has allocated, and stores in `block` where it
 * is in this process, if that is not null. The block is then not freed when its former holder ends.
 *
 * `frame` and `bytes` are those of the block. Another block, or a part of one, is refused with `ZONAL_NOT_ALLOCATED` and
 * changes nothing. In a pool that is not shared, nothing changes either.
 *
 * # Safety
 * `block` must be null, or point to a structure whose `struct_size` is set.
 */
zonal_status zonal_pool_take_over(zonal_pool pool,
                                  uint64_t frame,
                                  size_t bytes,
                                  zonal_block *block);

/**
 * Stores how many processes take part in a shared pool: 0 for a pool that is not shared. A process that has died counts until
 * what it held is freed.
 *
 * # Safety
 * `count` must point to a number.
 */
zonal_status zonal_pool_owners(zonal_pool pool,
                               size_t *count);

/**
 * Stores what a process in a shared pool holds. Processes have the indices from 0, which change when one joins or leaves;
 * beyond the last one, the call fails with `ZONAL_INVALID_ARGUMENT` and a message with their number. It reads a byte for each
 * page of the pool.
 *
 * # Safety
 * `owner` must point to a structure whose `struct_size` is set.
 */
zonal_status zonal_pool_owner(zonal_pool pool,
                              size_t index,
                              zonal_owner *owner);

/**
 * Frees what processes of a shared pool held that have died, and stores in `pages` how many pages, if that is not null:
 * 0 if another thread or process has done so, for which the call waits. The pool does so itself once the kernel has torn down the process.
 * Fails with `ZONAL_BUSY` if another process has the table of processes locked for ten seconds.
 *
 * # Safety
 * `pages` must be null, or point to a number.
 */
zonal_status zonal_pool_recover_dead(zonal_pool pool,
                                     uint64_t *pages);

/**
 * Joins a pool like `zonal_pool_join`, under a name with which blocks outlive the process: they stay allocated, with their
 * contents, when it ends in whatever way, and the next process that joins under the name has them.
 *
 * It finds them by `zonal_pool_root` and `zonal_pool_for_each_held`. An operation that was under way when the process died may be
 * done or not. A name has 1 to 32 bytes; while a process of this name lives, no other can join under it.
 *
 * # Safety
 * `path` and `name` must be texts that end with a zero. `pool` must point to a handle.
 */
zonal_status zonal_pool_join_as(const char *path,
                                const char *name,
                                zonal_pool *pool);

/**
 * Joins the pool of a descriptor like `zonal_pool_join_fd`, under a name like `zonal_pool_join_as`.
 *
 * # Safety
 * `name` must be a text that ends with a zero. `pool` must point to a handle.
 */
zonal_status zonal_pool_join_fd_as(int32_t fd, const char *name, zonal_pool *pool);

/**
 * Names a block of a shared pool, so that other processes find it with `zonal_pool_root`; with 0 `bytes`, removes the name. This process becomes the holder of the block.
 *
 * The root lasts until it is set again, or until this process ends; if the process has a name, until what is kept for it is
 * discarded. Remove a root before its block is freed. A pool has at most 127 roots.
 *
 * # Safety
 * `name` must be a text that ends with a zero.
 */
zonal_status zonal_pool_set_root(zonal_pool pool,
                                 const char *name,
                                 uint64_t frame,
                                 size_t bytes);

/**
 * Stores where the block of a root is in this process; 0 bytes, and a null address, if there is no such root.
 *
 * # Safety
 * `name` must be a text that ends with a zero. `block` must point to a structure whose `struct_size` is set.
 */
zonal_status zonal_pool_root(zonal_pool pool, const char *name, zonal_block *block);

/**
 * Calls `each` with each block that this process has allocated or taken over in a shared pool and not freed, those of processes
 * that had its name before included; with none for a pool that is not shared. Complete if no other thread allocates or frees.
 *
 * # Safety
 * `each` must not be null, and may be called with `context`. It may free the block with which it is called.
 */
zonal_status zonal_pool_for_each_held(zonal_pool pool,
                                      zonal_on_block each,
                                      void *context);

/**
 * Frees what a shared pool keeps for a process of this name that has ended, and stores in `pages` how many pages, if that is not
 * null. Fails with `ZONAL_BUSY` while a process of this name lives.
 *
 * # Safety
 * `name` must be a text that ends with a zero. `pages` must be null, or point to a number.
 */
zonal_status zonal_pool_discard(zonal_pool pool,
                                const char *name,
                                uint64_t *pages);

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
 * Checks that exactly this block, or this piece of a block that was split, is allocated: that `zonal_free` would free it.
 *
 * Nothing changes, and other threads may free the block at any time. Fails with `ZONAL_NOT_ALLOCATED` as `zonal_free` does.
 */
zonal_status zonal_check_block(zonal_pool pool,
                               void *address,
                               size_t bytes);

/**
 * Splits a block into pieces of `piece_bytes`, which must be a power of two and at least a page. Each piece is then freed on
 * its own. If the block is not a multiple of `piece_bytes`, or is not aligned to it, there are smaller pieces, as many as
 * necessary so that each is aligned to its size.
 *
 * A wrong block is refused with `ZONAL_NOT_ALLOCATED`, and a block that would be a single piece with
 * `ZONAL_INVALID_ARGUMENT`. Nothing has changed then.
 */
zonal_status zonal_split(zonal_pool pool,
                         void *address,
                         size_t bytes,
                         size_t piece_bytes);

/**
 * Allocates up to `len` single pages, stores their addresses in `addresses`, and stores how many it
 * allocated in `count`.
 *
 * It allocates fewer only if memory is short, and fails if there is none. The request says where and how; its size must be that
 * of a page.
 *
 * # Safety
 * `request` must be null, for pages near the calling CPU, or point to a request. `addresses` must have room for `len` addresses, and `count` must point to a number.
 */
zonal_status zonal_alloc_pages(zonal_pool pool,
                               const zonal_request *request,
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
 * Creates a policy for requests to a pool, which name it in `policy_handle`, and stores its handle in `policy`.
 *
 * Several threads may use it at the same time. A policy that interleaves continues with the next node in every request. A
 * policy is destroyed with its pool at the latest.
 *
 * # Safety
 * `options` must point to options. `policy` must point to a handle.
 */
zonal_status zonal_policy_create(zonal_pool pool,
                                 const zonal_policy_options *options,
                                 zonal_policy *policy);

/**
 * Destroys a policy. Requests that are using it finish first; its handle is refused at once.
 */
zonal_status zonal_policy_destroy(zonal_policy policy);

/**
 * Brings `bytes` more of a pool's `max_size` into use, and stores in `done` how many, if that is not null.
 *
 * If the kernel has less memory, the call fails with `ZONAL_RESIZE_FAILED`. What came into use stays in use.
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
 * nothing. A callback cannot set `stat_refresh`, which fails with `ZONAL_BUSY`.
 *
 * # Safety
 * `name` and `value` must be texts that end with a zero.
 */
zonal_status zonal_pool_set_setting(zonal_pool pool,
                                    const char *name,
                                    const char *value);

/**
 * Returns the memory of a pool's free pages to the kernel, and stores in `bytes` how many bytes, if that is not null. The pages
 * stay free for the pool, and the kernel provides zeroed memory on their next use. Explicit huge pages are not returned. In a
 * shared pool, the number is 0 while another thread of any process trims. If the kernel refuses to take some of it, the call
 * fails with `ZONAL_RESIZE_FAILED`; what was returned before stays returned.
 *
 * # Safety
 * `bytes` must be null, or point to a number.
 */
zonal_status zonal_pool_trim(zonal_pool pool,
                             uint64_t *bytes);

/**
 * Runs a function while the threads of a pool pause, so that it can `fork` a child that uses the pool.
 *
 * The child may use the pool if `in_reclaimers` is 0 and no other thread is in a call of the pool. Otherwise the pool's
 * functions fail there with `ZONAL_BUSY`, and the child can only close it.
 *
 * # Safety
 * `function` must be null, which is refused, or do what its type says with `context`.
 */
zonal_status zonal_pool_pause_threads(zonal_pool pool,
                                      zonal_while_paused function,
                                      void *context);

/**
 * Registers a reclaimer, which the pool calls when memory is short, and stores its handle in `registration`.
 *
 * Any thread may call it: threads that allocate, and threads of the pool. It may free and allocate blocks of the pool. It must
 * not acquire a lock that a thread holds while it makes a request without `ZONAL_REQUEST_NO_WAIT`, unregisters the
 * reclaimer, or calls `zonal_pool_close`, `zonal_pool_reclaim`, `zonal_pool_shrink` or `zonal_pool_verify`. A thread holds no
 * lock of the library while it calls a reclaimer. A callback cannot close or verify pools, unregister callbacks, or set
 * `stat_refresh`.
 *
 * # Safety
 * `reclaimer` must point to a reclaimer, whose functions must do what their types say until it is unregistered or the pool is
 * closed. `registration` must point to a handle.
 */
zonal_status zonal_reclaimer_register(zonal_pool pool,
                                      const zonal_reclaimer *reclaimer,
                                      zonal_registration *registration);

/**
 * Registers a callback for events of memory pressure, and stores its handle in `registration`.
 *
 * A thread of the pool calls it, at most once a second for each node and kind of event. It may call the library, as reclaimers
 * may.
 *
 * # Safety
 * `callback` must do what its type says until it is unregistered or the pool is closed. `registration` must point to a handle.
 */
zonal_status zonal_pressure_register(zonal_pool pool,
                                     zonal_on_pressure callback,
                                     void *context,
                                     zonal_registration *registration);

/**
 * Publishes a pool on a Unix socket at `path`, and stores a handle in `registration`. Until it is unregistered or the pool is
 * closed, `zonal settings --pool PATH` and other tools of this user read its state and change its settings.
 *
 * # Safety
 * `path` must be a text that ends with a zero. `registration` must point to a handle.
 */
zonal_status zonal_pool_publish(zonal_pool pool,
                                const char *path,
                                zonal_registration *registration);

/**
 * Unregisters a reclaimer or a callback, and waits until no thread runs it, or ends a publication. Closing its pool does the
 * same.
 *
 * Fails with `ZONAL_BUSY` from within any callback, and changes nothing then.
 */
zonal_status zonal_unregister(zonal_registration registration);

/**
 * Calls a pool's reclaimers to free `pages` pages of a node, and stores in `freed` how many they freed, if that is not
 * null.
 *
 * # Safety
 * `freed` must be null, or point to a number.
 */
zonal_status zonal_pool_reclaim(zonal_pool pool,
                                uint16_t node,
                                uint64_t pages,
                                uint64_t *freed);

/**
 * Stores what is known about the page that contains an address of a pool, whether it is allocated or not.
 *
 * # Safety
 * `location` must point to a structure whose `struct_size` is set. The address is not accessed.
 */
zonal_status zonal_pool_locate(zonal_pool pool, const void *address, zonal_location *location);

/**
 * Stores what is known about a page with this number in a pool, whether it is allocated or not.
 *
 * # Safety
 * `location` must point to a structure whose `struct_size` is set.
 */
zonal_status zonal_pool_locate_frame(zonal_pool pool, uint64_t frame, zonal_location *location);

/**
 * Stores the state of a pool's zone. Zones have the indices from 0; beyond the last one, the call fails with
 * `ZONAL_INVALID_ARGUMENT` and a message with their number.
 *
 * # Safety
 * `zone` must point to a structure whose `struct_size` is set.
 */
zonal_status zonal_pool_zone(zonal_pool pool, size_t index, zonal_zone *zone);

/**
 * Stores a pool's zone count.
 *
 * # Safety
 * `count` must point to a number.
 */
zonal_status zonal_pool_zones(zonal_pool pool, size_t *count);

/**
 * Asks the kernel where a pool's memory on a node is, page by page, and stores the result. It takes about 10 ms for
 * each GiB.
 *
 * Fails with `ZONAL_UNKNOWN` if the kernel denies `move_pages(2)`. For emulated nodes, `misplaced` says nothing.
 *
 * # Safety
 * `residency` must point to a structure whose `struct_size` is set.
 */
zonal_status zonal_pool_residency(zonal_pool pool,
                                  uint16_t node,
                                  zonal_residency *residency);

/**
 * Stores how many bytes of a pool the kernel now backs with huge pages, whatever their kind. Fails with
 * `ZONAL_UNKNOWN` if `/proc/self/smaps` cannot be read.
 *
 * # Safety
 * `bytes` must point to a number.
 */
zonal_status zonal_pool_huge_page_bytes(zonal_pool pool, uint64_t *bytes);

/**
 * Writes the state of a pool as text, and stores the length of the whole text in `needed` if that is not null. `format` is
 * one of `ZONAL_SNAPSHOT_*`.
 *
 * The text in `buffer` is cut to `len - 1` bytes and ends with a zero.
 *
 * # Safety
 * `buffer` must be null, or have room for `len` bytes. `needed` must be null, or point to a number.
 */
zonal_status zonal_pool_snapshot(zonal_pool pool,
                                 uint32_t format,
                                 char *buffer,
                                 size_t len,
                                 size_t *needed);

/**
 * Writes the steps that a request would take now on the calling CPU as text, a line for each, and stores the length of the
 * whole text in `needed` if that is not null. Nothing is allocated. A block larger than the largest aligned block has no steps, and
 * is refused.
 *
 * The text in `buffer` is cut to `len - 1` bytes and ends with a zero.
 *
 * # Safety
 * `request` must be null, for one page near the calling CPU, or point to a request. `buffer` must be null, or have room for
 * `len` bytes. `needed` must be null, or point to a number.
 */
zonal_status zonal_explain(zonal_pool pool,
                           const zonal_request *request,
                           char *buffer,
                           size_t len,
                           size_t *needed);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ZONAL_H */
