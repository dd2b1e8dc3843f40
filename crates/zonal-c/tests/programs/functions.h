/* A call of every function of zonal.h, for programs that make all calls in a certain situation: `contexts.c` and `heap.c`.
 *
 * `programs.rs` compares the names with the header. */

#include <stdlib.h>
#include <unistd.h>

#include "check.h"

/* What the calls use. Every call leaves objects of the same kind behind. */
typedef struct place {
	zonal_pool pool;
	zonal_policy policy;
	zonal_registration registration;
	zonal_block block; /* of two pages */
	size_t struct_size_of_options;
	const char *folder; /* for sockets */
} place;

/* What a function may not do in a callback, and what it needs. */
enum {
	ANYWHERE = 0,
	NOT_IN_CALLBACKS = 1,
	NEEDS_NO_POOL = 2, /* or only closes it */
	NEEDS_HEAP = 4, /* ends the process if the heap is exhausted */
};

typedef struct function {
	const char *name;
	zonal_status (*call)(place *at);
	int rules;
} function;

static uint64_t no_pages(void *context, const zonal_reclaim_request *request)
{
	(void)context, (void)request;
	return 0;
}

static void no_report(void *context, const zonal_pressure_event *event)
{
	(void)context, (void)event;
}

static void do_nothing(void *context, size_t in_reclaimers)
{
	(void)context, (void)in_reclaimers;
}

static inline zonal_status alloc_block(place *at)
{
	zonal_request request = {.struct_size = sizeof(request), .bytes = 8192, .flags = ZONAL_REQUEST_NO_WAIT};
	at->block = (zonal_block){.struct_size = sizeof(at->block), .bytes = 8192};
	return zonal_alloc(at->pool, &request, &at->block);
}

static inline zonal_status create_policy(place *at)
{
	uint16_t node = 0;
	zonal_policy_options options = {
		.struct_size = sizeof(options), .policy = ZONAL_POLICY_BIND, .nodes = &node, .nodes_len = 1};
	return zonal_policy_create(at->pool, &options, &at->policy);
}

static inline zonal_status register_reclaimer(place *at)
{
	zonal_reclaimer reclaimer = {.struct_size = sizeof(reclaimer), .count = no_pages, .reclaim = no_pages};
	return zonal_reclaimer_register(at->pool, &reclaimer, &at->registration);
}

#define CALL(name) static zonal_status call_##name(place *at)

CALL(zonal_last_error)
{
	(void)at;
	return zonal_last_error() ? ZONAL_OK : ZONAL_INTERNAL;
}

CALL(zonal_version)
{
	(void)at;
	return zonal_version() ? ZONAL_OK : ZONAL_INTERNAL;
}

CALL(zonal_pool_build)
{
	zonal_pool_options options = {.struct_size = at->struct_size_of_options, .size = 16 << 20, .fake_nodes = 1};
	zonal_pool built;
	return zonal_pool_build(&options, &built);
}

/* Refused: there is no such pool. */
CALL(zonal_pool_join)
{
	zonal_pool joined;
	zonal_status status = zonal_pool_join(at->struct_size_of_options ? "/nowhere/pool" : NULL, &joined);
	return status == ZONAL_BUILD_FAILED ? ZONAL_OK : status;
}

CALL(zonal_pool_join_fd)
{
	zonal_pool joined;
	zonal_status status = zonal_pool_join_fd(at->struct_size_of_options ? STDIN_FILENO : -1, &joined);
	return status == ZONAL_BUILD_FAILED ? ZONAL_OK : status;
}

CALL(zonal_pool_join_as)
{
	zonal_pool joined;
	zonal_status status = zonal_pool_join_as(at->struct_size_of_options ? "/nowhere/pool" : NULL, "name", &joined);
	return status == ZONAL_BUILD_FAILED ? ZONAL_OK : status;
}

CALL(zonal_pool_join_fd_as)
{
	zonal_pool joined;
	zonal_status status = zonal_pool_join_fd_as(at->struct_size_of_options ? STDIN_FILENO : -1, "name", &joined);
	return status == ZONAL_BUILD_FAILED ? ZONAL_OK : status;
}

/* Refused: the pool is not shared. */
CALL(zonal_pool_set_root)
{
	zonal_status status = zonal_pool_set_root(at->pool, "name", 0, 0);
	return status == ZONAL_INVALID_ARGUMENT ? ZONAL_OK : status;
}

CALL(zonal_pool_root)
{
	zonal_block found = {.struct_size = sizeof(found)};
	zonal_status status = zonal_pool_root(at->pool, "name", &found);
	return status == ZONAL_INVALID_ARGUMENT ? ZONAL_OK : status;
}

static inline void no_block(void *context, const zonal_block *block)
{
	(void)context, (void)block;
}

CALL(zonal_pool_for_each_held)
{
	return zonal_pool_for_each_held(at->pool, no_block, NULL);
}

CALL(zonal_pool_discard)
{
	zonal_status status = zonal_pool_discard(at->pool, "name", NULL);
	return status == ZONAL_INVALID_ARGUMENT ? ZONAL_OK : status;
}

CALL(zonal_pool_shared_fd)
{
	int32_t fd;
	return zonal_pool_shared_fd(at->pool, &fd);
}

CALL(zonal_pool_take_over)
{
	zonal_block block = {.struct_size = sizeof(block)};
	return zonal_pool_take_over(at->pool, at->block.frame, at->block.bytes, &block);
}

CALL(zonal_pool_owners)
{
	size_t count;
	return zonal_pool_owners(at->pool, &count);
}

CALL(zonal_pool_owner)
{
	/* Refused: the pool is not shared. */
	zonal_owner owner = {.struct_size = sizeof(owner)};
	zonal_status status = zonal_pool_owner(at->pool, 0, &owner);
	return status == ZONAL_INVALID_ARGUMENT ? ZONAL_OK : status;
}

CALL(zonal_pool_recover_dead)
{
	return zonal_pool_recover_dead(at->pool, NULL);
}

CALL(zonal_pool_close)
{
	return zonal_pool_close(at->pool, ZONAL_CLOSE_WITH_BLOCKS);
}

CALL(zonal_pool_accounting)
{
	zonal_accounting found = {.struct_size = sizeof(found)};
	return zonal_pool_accounting(at->pool, &found);
}

CALL(zonal_pool_verify)
{
	return zonal_pool_verify(at->pool);
}

CALL(zonal_pool_placement)
{
	uint32_t found;
	return zonal_pool_placement(at->pool, &found);
}

CALL(zonal_pool_warnings)
{
	return zonal_pool_warnings(at->pool, NULL, 0, NULL);
}

CALL(zonal_alloc)
{
	zonal_request request = {.struct_size = sizeof(request), .policy_handle = at->policy};
	zonal_block block = {.struct_size = sizeof(block)};
	zonal_status status = zonal_alloc(at->pool, &request, &block);
	return status == ZONAL_OK ? zonal_free(at->pool, block.address, block.bytes) : status;
}

CALL(zonal_free)
{
	zonal_status status = zonal_free(at->pool, at->block.address, at->block.bytes);
	return status == ZONAL_OK ? alloc_block(at) : status;
}

CALL(zonal_check_block)
{
	return zonal_check_block(at->pool, at->block.address, at->block.bytes);
}

CALL(zonal_split)
{
	zonal_status status = zonal_split(at->pool, at->block.address, at->block.bytes, 4096);
	void *pages[] = {at->block.address, (char *)at->block.address + 4096};
	if (status == ZONAL_OK)
		status = zonal_free_pages(at->pool, pages, 2, NULL);
	return status == ZONAL_OK ? alloc_block(at) : status;
}

CALL(zonal_alloc_pages)
{
	void *pages[100];
	size_t count;
	zonal_status status = zonal_alloc_pages(at->pool, NULL, pages, 100, &count);
	return status == ZONAL_OK ? zonal_free_pages(at->pool, pages, count, NULL) : status;
}

CALL(zonal_free_pages)
{
	/* Refused, in the middle of a call of the pool. */
	zonal_status status = zonal_free_pages(at->pool, (void *[]){at}, 1, NULL);
	return status == ZONAL_NOT_ALLOCATED ? ZONAL_OK : status;
}

CALL(zonal_policy_create)
{
	zonal_policy before = at->policy;
	zonal_status status = create_policy(at);
	if (status == ZONAL_OK)
		return zonal_policy_destroy(before);
	at->policy = before;
	return status;
}

CALL(zonal_policy_destroy)
{
	zonal_status status = zonal_policy_destroy(at->policy);
	return status == ZONAL_OK && create_policy(at) == ZONAL_INTERNAL ? ZONAL_INTERNAL : status;
}

CALL(zonal_pool_grow)
{
	return zonal_pool_grow(at->pool, 0, NULL);
}

CALL(zonal_pool_shrink)
{
	uint64_t done = 0;
	zonal_status status = zonal_pool_shrink(at->pool, 2 << 20, &done);
	return status == ZONAL_OK ? zonal_pool_grow(at->pool, done, NULL) : status;
}

CALL(zonal_pool_setting)
{
	return zonal_pool_setting(at->pool, "min_free_kbytes", NULL, 0, NULL);
}

CALL(zonal_pool_set_setting)
{
	return zonal_pool_set_setting(at->pool, "watermark_scale_factor", "20");
}

/* It folds the counters of all CPUs, which other settings do not. */
CALL(zonal_pool_set_setting_stat_refresh)
{
	return zonal_pool_set_setting(at->pool, "stat_refresh", "1");
}

CALL(zonal_pool_trim)
{
	return zonal_pool_trim(at->pool, NULL);
}

CALL(zonal_pool_pause_threads)
{
	return zonal_pool_pause_threads(at->pool, do_nothing, NULL);
}

CALL(zonal_reclaimer_register)
{
	zonal_registration before = at->registration;
	zonal_status status = register_reclaimer(at);
	if (status == ZONAL_OK)
		zonal_unregister(at->registration); /* refused in callbacks, until the pool closes */
	at->registration = before;
	return status;
}

CALL(zonal_pressure_register)
{
	zonal_registration registration;
	zonal_status status = zonal_pressure_register(at->pool, no_report, NULL, &registration);
	if (status == ZONAL_OK)
		zonal_unregister(registration);
	return status;
}

CALL(zonal_pool_publish)
{
	static _Atomic int number;
	char path[100];
	zonal_registration registration;
	snprintf(path, sizeof(path), "%s/%d.%d", at->folder, (int)getpid(), number++);
	zonal_status status = zonal_pool_publish(at->pool, path, &registration);
	if (status == ZONAL_OK)
		zonal_unregister(registration);
	return status;
}

CALL(zonal_unregister)
{
	zonal_status status = zonal_unregister(at->registration);
	return status == ZONAL_OK && register_reclaimer(at) == ZONAL_INTERNAL ? ZONAL_INTERNAL : status;
}

CALL(zonal_pool_reclaim)
{
	return zonal_pool_reclaim(at->pool, 0, 1, NULL);
}

CALL(zonal_pool_locate)
{
	zonal_location location = {.struct_size = sizeof(location)};
	return zonal_pool_locate(at->pool, at->block.address, &location);
}

CALL(zonal_pool_locate_frame)
{
	zonal_location location = {.struct_size = sizeof(location)};
	return zonal_pool_locate_frame(at->pool, at->block.frame, &location);
}

CALL(zonal_pool_zone)
{
	zonal_zone zone = {.struct_size = sizeof(zone)};
	return zonal_pool_zone(at->pool, 0, &zone);
}

CALL(zonal_pool_zones)
{
	size_t count;
	return zonal_pool_zones(at->pool, &count);
}

CALL(zonal_pool_residency)
{
	zonal_residency residency = {.struct_size = sizeof(residency)};
	return zonal_pool_residency(at->pool, 0, &residency);
}

CALL(zonal_pool_huge_page_bytes)
{
	uint64_t bytes;
	return zonal_pool_huge_page_bytes(at->pool, &bytes);
}

CALL(zonal_pool_snapshot)
{
	return zonal_pool_snapshot(at->pool, ZONAL_SNAPSHOT_JSON, NULL, 0, NULL);
}

CALL(zonal_explain)
{
	return zonal_explain(at->pool, NULL, NULL, 0, NULL);
}

#define FUNCTION(name, rules) {#name, call_##name, rules}

static const function FUNCTIONS[] = {
	FUNCTION(zonal_last_error, NEEDS_NO_POOL),
	FUNCTION(zonal_version, NEEDS_NO_POOL),
	FUNCTION(zonal_pool_build, NEEDS_NO_POOL | NEEDS_HEAP),
	FUNCTION(zonal_pool_close, NEEDS_NO_POOL | NOT_IN_CALLBACKS | NEEDS_HEAP),
	FUNCTION(zonal_pool_join, NEEDS_NO_POOL | NEEDS_HEAP),
	FUNCTION(zonal_pool_join_fd, NEEDS_NO_POOL | NEEDS_HEAP),
	FUNCTION(zonal_pool_join_as, NEEDS_NO_POOL | NEEDS_HEAP),
	FUNCTION(zonal_pool_join_fd_as, NEEDS_NO_POOL | NEEDS_HEAP),
	FUNCTION(zonal_pool_set_root, ANYWHERE),
	FUNCTION(zonal_pool_root, ANYWHERE),
	FUNCTION(zonal_pool_for_each_held, ANYWHERE),
	FUNCTION(zonal_pool_discard, ANYWHERE),
	FUNCTION(zonal_pool_shared_fd, ANYWHERE),
	FUNCTION(zonal_pool_take_over, ANYWHERE),
	FUNCTION(zonal_pool_owners, ANYWHERE),
	FUNCTION(zonal_pool_owner, ANYWHERE),
	FUNCTION(zonal_pool_recover_dead, ANYWHERE),
	FUNCTION(zonal_pool_accounting, ANYWHERE),
	FUNCTION(zonal_pool_verify, NOT_IN_CALLBACKS),
	FUNCTION(zonal_pool_placement, ANYWHERE),
	FUNCTION(zonal_pool_warnings, ANYWHERE),
	FUNCTION(zonal_alloc, ANYWHERE),
	FUNCTION(zonal_free, ANYWHERE),
	FUNCTION(zonal_check_block, ANYWHERE),
	FUNCTION(zonal_split, ANYWHERE),
	FUNCTION(zonal_alloc_pages, ANYWHERE),
	FUNCTION(zonal_free_pages, ANYWHERE),
	FUNCTION(zonal_policy_create, ANYWHERE),
	FUNCTION(zonal_policy_destroy, NEEDS_NO_POOL),
	FUNCTION(zonal_pool_grow, NEEDS_HEAP),
	FUNCTION(zonal_pool_shrink, NEEDS_HEAP),
	FUNCTION(zonal_pool_setting, ANYWHERE),
	FUNCTION(zonal_pool_set_setting, ANYWHERE),
	{"zonal_pool_set_setting", call_zonal_pool_set_setting_stat_refresh, NOT_IN_CALLBACKS},
	FUNCTION(zonal_pool_trim, NEEDS_HEAP),
	FUNCTION(zonal_pool_pause_threads, ANYWHERE),
	FUNCTION(zonal_reclaimer_register, NEEDS_HEAP),
	FUNCTION(zonal_pressure_register, NEEDS_HEAP),
	FUNCTION(zonal_pool_publish, NEEDS_HEAP),
	FUNCTION(zonal_unregister, NEEDS_NO_POOL | NOT_IN_CALLBACKS | NEEDS_HEAP),
	FUNCTION(zonal_pool_reclaim, ANYWHERE),
	FUNCTION(zonal_pool_locate, ANYWHERE),
	FUNCTION(zonal_pool_locate_frame, ANYWHERE),
	FUNCTION(zonal_pool_zone, ANYWHERE),
	FUNCTION(zonal_pool_zones, ANYWHERE),
	FUNCTION(zonal_pool_residency, NEEDS_HEAP),
	FUNCTION(zonal_pool_huge_page_bytes, NEEDS_HEAP),
	FUNCTION(zonal_pool_snapshot, NEEDS_HEAP),
	FUNCTION(zonal_explain, ANYWHERE),
};

enum { COUNT = sizeof(FUNCTIONS) / sizeof(*FUNCTIONS) };

static inline place make_place(const char *folder)
{
	place at = {.struct_size_of_options = sizeof(zonal_pool_options), .folder = folder};
	at.pool = build((zonal_pool_options){.size = 16 << 20, .fake_nodes = 1});
	CHECK(alloc_block(&at) == ZONAL_OK && create_policy(&at) == ZONAL_OK && register_reclaimer(&at) == ZONAL_OK);
	return at;
}

/* Whether a call did its work, or had too little memory for it. */
static inline int is_done(zonal_status status)
{
	return status == ZONAL_OK || status == ZONAL_OUT_OF_MEMORY || status == ZONAL_RESIZE_FAILED || status == ZONAL_UNKNOWN;
}
