/* Uses reclaimers, callbacks for memory pressure, publications and pauses, with good and with bad input. */

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* A cache of pages that frees the newest ones when it is asked to. */
typedef struct cache {
	pthread_mutex_t lock;
	zonal_pool pool;
	void *pages[16384];
	size_t count;
	_Atomic int running;
	_Atomic unsigned long calls;
	_Atomic int is_gone;
	zonal_registration itself;
	_Atomic int refusals;
} cache;

static uint64_t cache_count(void *context, const zonal_reclaim_request *request)
{
	cache *cache = context;
	CHECK(!cache->is_gone && request->struct_size == sizeof(*request) && request->node == 0);
	pthread_mutex_lock(&cache->lock);
	uint64_t count = cache->count;
	pthread_mutex_unlock(&cache->lock);
	return count;
}

static uint64_t cache_reclaim(void *context, const zonal_reclaim_request *request)
{
	cache *cache = context;
	uint64_t freed = 0;
	cache->running++;
	CHECK(!cache->is_gone && request->pages > 0);
	pthread_mutex_lock(&cache->lock);
	while (cache->count > 0 && freed < request->pages) {
		CHECK(zonal_free(cache->pool, cache->pages[--cache->count], 4096) == ZONAL_OK);
		freed++;
	}
	pthread_mutex_unlock(&cache->lock);
	/* What a reclaimer cannot do: close its pool, end itself, verify. */
	if (cache->calls++ == 0) {
		CHECK(zonal_pool_close(cache->pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_BUSY);
		CHECK(cache->itself.id == 0 || zonal_unregister(cache->itself) == ZONAL_BUSY);
		CHECK(zonal_pool_verify(cache->pool) == ZONAL_BUSY);
		cache->refusals++;
	}
	cache->running--;
	return freed;
}

static void fill(cache *cache)
{
	zonal_request request = {.struct_size = sizeof(request), .flags = ZONAL_REQUEST_NO_WAIT};
	for (;;) {
		zonal_block block = {.struct_size = sizeof(block)};
		if (zonal_alloc(cache->pool, &request, &block) != ZONAL_OK)
			return;
		pthread_mutex_lock(&cache->lock);
		cache->pages[cache->count++] = block.address;
		pthread_mutex_unlock(&cache->lock);
	}
}

static zonal_registration register_cache(cache *cache)
{
	zonal_reclaimer reclaimer = {
		.struct_size = sizeof(reclaimer), .count = cache_count, .reclaim = cache_reclaim, .context = cache};
	zonal_registration registration;
	CHECK(zonal_reclaimer_register(cache->pool, &reclaimer, &registration) == ZONAL_OK && registration.id != 0);
	return registration;
}

static cache the_cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void test_reclaimers(void)
{
	cache *cache = &the_cache;
	cache->pool = build((zonal_pool_options){.size = 32 << 20, .fake_nodes = 1});
	zonal_registration registration = register_cache(cache);
	cache->itself = registration;
	fill(cache);
	/* The pool is full of pages of the cache, which make way for other requests. */
	void *pages[2000];
	size_t count = 0;
	for (; count < 2000; count++) {
		zonal_block block = {.struct_size = sizeof(block)};
		if (zonal_alloc(cache->pool, NULL, &block) != ZONAL_OK)
			break;
		pages[count] = block.address;
	}
	CHECK(count == 2000 && cache->calls > 0 && cache->refusals == 1);
	CHECK(zonal_free_pages(cache->pool, pages, count, NULL) == ZONAL_OK);
	uint64_t freed = 0, before = cache->count;
	CHECK(before >= 100);
	CHECK(zonal_pool_reclaim(cache->pool, 0, 100, &freed) == ZONAL_OK && freed >= 100);
	REFUSED(zonal_pool_reclaim(cache->pool, 9, 100, NULL), ZONAL_INVALID_ARGUMENT, "no memory on node 9");
	CHECK(zonal_unregister(registration) == ZONAL_OK && cache->running == 0);
	cache->is_gone = 1;
	REFUSED(zonal_unregister(registration), ZONAL_INVALID_ARGUMENT, "not registered, or no longer");
	CHECK(zonal_pool_reclaim(cache->pool, 0, 100, &freed) == ZONAL_OK && freed == 0);
	zonal_reclaimer empty = {.struct_size = sizeof(empty), .count = cache_count};
	REFUSED(zonal_reclaimer_register(cache->pool, &empty, &registration), ZONAL_INVALID_ARGUMENT, "needs both");
	CHECK(registration.id == 0);
	REFUSED(zonal_reclaimer_register(cache->pool, NULL, &registration), ZONAL_INVALID_ARGUMENT, "reclaimer is 0x0");
	CHECK(zonal_free_pages(cache->pool, cache->pages, cache->count, NULL) == ZONAL_OK);
	CHECK(zonal_pool_close(cache->pool, 0) == ZONAL_OK);
}

/* A cache of single pages, which evicts those of the range that the pool wants, or any pages. */
typedef struct page_cache {
	pthread_mutex_t lock;
	zonal_pool pool;
	int honours_ranges;
	zonal_block pages[16384];
	size_t count;
	_Atomic uint64_t evicted; /* without those of background reclaim */
} page_cache;

static int is_wanted(const page_cache *cache, const zonal_reclaim_request *request, const zonal_block *page)
{
	return !cache->honours_ranges || request->range_pages == 0 ||
	       (page->frame >= request->range_frame && page->frame < request->range_frame + request->range_pages);
}

static uint64_t page_cache_count(void *context, const zonal_reclaim_request *request)
{
	page_cache *cache = context;
	uint64_t count = 0;
	pthread_mutex_lock(&cache->lock);
	for (size_t at = 0; at < cache->count; at++)
		count += is_wanted(cache, request, &cache->pages[at]);
	pthread_mutex_unlock(&cache->lock);
	return count;
}

static uint64_t page_cache_reclaim(void *context, const zonal_reclaim_request *request)
{
	page_cache *cache = context;
	uint64_t freed = 0;
	size_t kept = 0;
	pthread_mutex_lock(&cache->lock);
	for (size_t at = 0; at < cache->count; at++) {
		zonal_block page = cache->pages[at];
		if (freed < request->pages && is_wanted(cache, request, &page)) {
			CHECK(zonal_free(cache->pool, page.address, 4096) == ZONAL_OK);
			freed++;
		} else {
			cache->pages[kept++] = page;
		}
	}
	cache->count = kept;
	pthread_mutex_unlock(&cache->lock);
	if (request->reason != ZONAL_RECLAIM_BACKGROUND)
		cache->evicted += freed;
	return freed;
}

/* Fills the pool, and mixes the pages, so that they are evicted in no order. */
static void page_cache_fill(page_cache *cache)
{
	zonal_request request = {.struct_size = sizeof(request), .flags = ZONAL_REQUEST_NO_WAIT};
	for (;;) {
		zonal_block page = {.struct_size = sizeof(page)};
		if (zonal_alloc(cache->pool, &request, &page) != ZONAL_OK)
			break;
		pthread_mutex_lock(&cache->lock);
		cache->pages[cache->count++] = page;
		pthread_mutex_unlock(&cache->lock);
	}
	pthread_mutex_lock(&cache->lock);
	for (size_t at = cache->count; at > 1; at--) {
		size_t other = (size_t)rand() % at;
		zonal_block page = cache->pages[other];
		cache->pages[other] = cache->pages[at - 1];
		cache->pages[at - 1] = page;
	}
	pthread_mutex_unlock(&cache->lock);
}

static void test_large_blocks(int honours_ranges)
{
	static page_cache cache = {.lock = PTHREAD_MUTEX_INITIALIZER};
	cache.honours_ranges = honours_ranges;
	cache.pool = build((zonal_pool_options){.size = 64 << 20, .fake_nodes = 1});
	zonal_reclaimer reclaimer = {
		.struct_size = sizeof(reclaimer), .count = page_cache_count, .reclaim = page_cache_reclaim, .context = &cache};
	zonal_registration registration;
	CHECK(zonal_reclaimer_register(cache.pool, &reclaimer, &registration) == ZONAL_OK);
	zonal_block in_use[24];
	for (size_t at = 0; at < 24; at++)
		in_use[at] = alloc(cache.pool, 2 << 20);
	page_cache_fill(&cache);
	size_t served = 0, named = 0;
	for (size_t at = 0; at < 20; at++) {
		zonal_request request = {.struct_size = sizeof(request), .bytes = 2 << 20};
		zonal_block block = {.struct_size = sizeof(block)};
		cache.evicted = 0;
		if (zonal_alloc(cache.pool, &request, &block) == ZONAL_OK) {
			served++;
			CHECK(zonal_free(cache.pool, block.address, 2 << 20) == ZONAL_OK);
		} else {
			named += strstr(zonal_last_error(), "the reclaimers ignore ranges") != NULL;
		}
		CHECK(cache.evicted <= 1024);
		page_cache_fill(&cache);
	}
	/* A request can also fail because background reclaim has the pages that it needs. */
	CHECK(honours_ranges ? served >= 19 : named > 0);
	CHECK(zonal_unregister(registration) == ZONAL_OK);
	while (cache.count > 0)
		CHECK(zonal_free(cache.pool, cache.pages[--cache.count].address, 4096) == ZONAL_OK);
	for (size_t at = 0; at < 24; at++)
		CHECK(zonal_free(cache.pool, in_use[at].address, 2 << 20) == ZONAL_OK);
	CHECK(zonal_pool_verify(cache.pool) == ZONAL_OK && zonal_pool_close(cache.pool, 0) == ZONAL_OK);
}

static void *keep_allocating(void *argument)
{
	zonal_pool pool = *(zonal_pool *)argument;
	for (;;) {
		void *pages[256];
		size_t count = 0;
		if (zonal_alloc_pages(pool, NULL, pages, 256, &count) == ZONAL_NOT_A_POOL)
			return NULL;
		zonal_status status = zonal_free_pages(pool, pages, count, NULL);
		CHECK(status == ZONAL_OK || status == ZONAL_NOT_A_POOL);
	}
}

/* Reclaimers come and go, and the pool is closed, while threads run them. No reclaimer runs after it has gone. */
static void test_ends_while_in_use(void)
{
	for (int round = 0; round < 6; round++) {
		cache *cache = &the_cache;
		cache->count = 0;
		cache->itself.id = 0;
		cache->is_gone = 0;
		cache->pool = build((zonal_pool_options){.size = 32 << 20, .fake_nodes = 1});
		pthread_t threads[2];
		fill(cache);
		for (int at = 0; at < 2; at++)
			CHECK(pthread_create(&threads[at], NULL, keep_allocating, &cache->pool) == 0);
		for (int turn = 0; turn < 20; turn++) {
			cache->is_gone = 0;
			zonal_registration registration = register_cache(cache);
			if (turn % 4 == 3)
				fill(cache);
			usleep(500);
			if (turn == 19)
				break; /* closing ends it */
			CHECK(zonal_unregister(registration) == ZONAL_OK && cache->running == 0);
			cache->is_gone = 1;
		}
		CHECK(zonal_pool_close(cache->pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK && cache->running == 0);
		cache->is_gone = 1;
		for (int at = 0; at < 2; at++)
			pthread_join(threads[at], NULL);
	}
}

static pthread_mutex_t program_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int is_reclaiming, is_locked, is_closing;
static zonal_pool locked_pool;
static zonal_block locked_block;

static uint64_t count_one(void *context, const zonal_reclaim_request *request)
{
	(void)context, (void)request;
	return 1;
}

/* Takes a lock of the program, which another thread holds while it frees. */
static uint64_t reclaim_with_lock(void *context, const zonal_reclaim_request *request)
{
	(void)context, (void)request;
	is_reclaiming = 1;
	while (!is_locked)
		usleep(100);
	pthread_mutex_lock(&program_lock);
	pthread_mutex_unlock(&program_lock);
	return 0;
}

static void *call_reclaimers(void *argument)
{
	CHECK(zonal_pool_reclaim(*(zonal_pool *)argument, 0, 1, NULL) == ZONAL_OK);
	return NULL;
}

static void *free_with_lock(void *argument)
{
	(void)argument;
	while (!is_reclaiming)
		usleep(100);
	pthread_mutex_lock(&program_lock);
	is_locked = 1;
	while (!is_closing)
		usleep(100);
	CHECK(zonal_free(locked_pool, locked_block.address, locked_block.bytes) == ZONAL_OK);
	pthread_mutex_unlock(&program_lock);
	return NULL;
}

/* A thread that closes a pool waits for a reclaimer, which waits for a thread that frees. */
static void test_locks_of_the_program(void)
{
	zonal_pool other = build((zonal_pool_options){.size = 16 << 20});
	locked_pool = build((zonal_pool_options){.size = 16 << 20, .fake_nodes = 1});
	locked_block = alloc(locked_pool, 4096);
	zonal_block kept = alloc(locked_pool, 4096);
	zonal_reclaimer reclaimer = {.struct_size = sizeof(reclaimer), .count = count_one, .reclaim = reclaim_with_lock};
	zonal_registration registration;
	CHECK(zonal_reclaimer_register(locked_pool, &reclaimer, &registration) == ZONAL_OK);
	pthread_t threads[2];
	CHECK(pthread_create(&threads[0], NULL, call_reclaimers, &locked_pool) == 0);
	CHECK(pthread_create(&threads[1], NULL, free_with_lock, NULL) == 0);
	while (!is_reclaiming)
		usleep(100);
	is_closing = 1;
	CHECK(zonal_pool_close(locked_pool, 0) == ZONAL_BUSY);
	for (int at = 0; at < 2; at++)
		pthread_join(threads[at], NULL);
	CHECK(zonal_free(locked_pool, kept.address, kept.bytes) == ZONAL_OK);
	CHECK(zonal_pool_close(locked_pool, 0) == ZONAL_OK && zonal_pool_close(other, 0) == ZONAL_OK);
}

static pthread_key_t late_key;
static zonal_pool late_pool;
static _Atomic int late_calls;

static uint64_t late_reclaim(void *context, const zonal_reclaim_request *request)
{
	zonal_registration *own = context;
	(void)request;
	CHECK(zonal_pool_close(late_pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_BUSY);
	CHECK(zonal_unregister(*own) == ZONAL_BUSY);
	CHECK(zonal_pool_verify(late_pool) == ZONAL_BUSY);
	late_calls++;
	return 0;
}

/* Runs after the thread-locals of the thread have been destroyed. */
static void use_late(void *argument)
{
	(void)argument;
	CHECK(zonal_pool_reclaim(late_pool, 0, 1, NULL) == ZONAL_OK);
}

static void *end_with_calls(void *argument)
{
	pthread_setspecific(late_key, argument);
	return NULL;
}

static void test_ending_threads(void)
{
	zonal_registration registration;
	zonal_reclaimer reclaimer = {
		.struct_size = sizeof(reclaimer), .count = count_one, .reclaim = late_reclaim, .context = &registration};
	late_pool = build((zonal_pool_options){.size = 16 << 20, .fake_nodes = 1});
	CHECK(zonal_reclaimer_register(late_pool, &reclaimer, &registration) == ZONAL_OK);
	CHECK(pthread_key_create(&late_key, use_late) == 0);
	for (int at = 0; at < 200; at++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, end_with_calls, &late_key) == 0);
		pthread_join(thread, NULL);
	}
	CHECK(late_calls == 200);
	CHECK(zonal_pool_close(late_pool, 0) == ZONAL_OK && pthread_key_delete(late_key) == 0);
}

static _Atomic unsigned seen;

static void on_pressure(void *context, const zonal_pressure_event *event)
{
	CHECK(context == &seen && event->struct_size == sizeof(*event) && event->node == 0 && event->low < event->high);
	seen |= 1u << event->kind;
}

static void test_pressure(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20, .fake_nodes = 1});
	zonal_registration registration;
	CHECK(zonal_pressure_register(pool, on_pressure, &seen, &registration) == ZONAL_OK);
	zonal_request request = {.struct_size = sizeof(request), .flags = ZONAL_REQUEST_NO_WAIT};
	zonal_block block = {.struct_size = sizeof(block)};
	while (zonal_alloc(pool, &request, &block) == ZONAL_OK)
		;
	for (int wait = 0; wait < 10000 && !(seen & 1u << ZONAL_PRESSURE_BELOW_LOW); wait++)
		usleep(1000);
	CHECK(seen & 1u << ZONAL_PRESSURE_BELOW_LOW);
	CHECK(zonal_unregister(registration) == ZONAL_OK);
	REFUSED(zonal_pressure_register(pool, NULL, NULL, &registration), ZONAL_INVALID_ARGUMENT, "callback is null");
	CHECK(zonal_pool_close(pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

static void test_publications(void)
{
	char folder[] = "/tmp/zonal-XXXXXX", path[64];
	CHECK(mkdtemp(folder) != NULL);
	snprintf(path, sizeof(path), "%s/pool", folder);
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20});
	zonal_registration first, second;
	CHECK(zonal_pool_publish(pool, path, &first) == ZONAL_OK && access(path, F_OK) == 0);
	REFUSED(zonal_pool_publish(pool, path, &second), ZONAL_PUBLISH_FAILED, path);
	CHECK(second.id == 0 && zonal_unregister(first) == ZONAL_OK && access(path, F_OK) != 0);
	CHECK(zonal_pool_publish(pool, path, &first) == ZONAL_OK && zonal_pool_close(pool, 0) == ZONAL_OK);
	CHECK(access(path, F_OK) != 0 && rmdir(folder) == 0);
}

static zonal_pool paused;

static void fork_child(void *context, size_t in_reclaimers)
{
	CHECK(context == &paused && in_reclaimers == 0);
	pid_t child = fork();
	if (child == 0) {
		zonal_block block = alloc(paused, 8192);
		memset(block.address, 1, block.bytes);
		CHECK(zonal_free(paused, block.address, block.bytes) == ZONAL_OK);
		CHECK(zonal_pool_close(paused, 0) == ZONAL_BUSY); /* this function is a callback of the pool */
		_exit(failures != 0);
	}
	int status = 1;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void test_pauses(void)
{
	paused = build((zonal_pool_options){.size = 16 << 20});
	CHECK(zonal_pool_pause_threads(paused, fork_child, &paused) == ZONAL_OK);
	REFUSED(zonal_pool_pause_threads(paused, NULL, NULL), ZONAL_INVALID_ARGUMENT, "function is null");
	CHECK(zonal_pool_close(paused, 0) == ZONAL_OK);
}

int main(int argc, char **argv)
{
	test_reclaimers();
	test_large_blocks(1);
	test_large_blocks(0);
	test_ends_while_in_use();
	test_locks_of_the_program();
	test_ending_threads();
	test_pressure();
	test_publications();
	if (argc < 2 || strcmp(argv[1], "--no-fork"))
		test_pauses();
	printf("%d failures\n", failures);
	return failures != 0;
}
