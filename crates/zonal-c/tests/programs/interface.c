/* Uses every function of the interface, with good and with bad input. Prints what fails, and ends with 0 if nothing does. */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void test_blocks(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .fake_nodes = 2});
	size_t sizes[] = {1, 4096, 5000, 12 << 10, 2 << 20, 4 << 20, 9 << 20};
	for (size_t at = 0; at < sizeof(sizes) / sizeof(*sizes); at++) {
		zonal_block block = alloc(pool, sizes[at]);
		CHECK(block.bytes >= sizes[at] && block.bytes < sizes[at] + 4096 && (size_t)block.address % 4096 == 0);
		memset(block.address, 0x5A, block.bytes);
		REFUSED(zonal_free(pool, block.address, block.bytes + 4096), ZONAL_NOT_ALLOCATED, "bytes at");
		CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
		REFUSED(zonal_free(pool, block.address, block.bytes), ZONAL_NOT_ALLOCATED, "not allocated");
	}
	zonal_block zeroed = {.struct_size = sizeof(zeroed)};
	zonal_request request = {.struct_size = sizeof(request), .bytes = 4 << 20, .flags = ZONAL_REQUEST_ZEROED};
	CHECK(zonal_alloc(pool, &request, &zeroed) == ZONAL_OK);
	for (size_t at = 0; at < zeroed.bytes; at++)
		if (((char *)zeroed.address)[at]) {
			CHECK(!"the block has only zeros");
			break;
		}
	CHECK(zonal_free(pool, zeroed.address, zeroed.bytes) == ZONAL_OK);
	zonal_block page = {.struct_size = sizeof(page)};
	CHECK(zonal_alloc(pool, NULL, &page) == ZONAL_OK && page.bytes == accounting(pool).page_bytes);
	CHECK(accounting(pool).allocated == 1);
	REFUSED(zonal_pool_close(pool, 0), ZONAL_BUSY, "1 pages");
	CHECK(zonal_free(pool, page.address, page.bytes) == ZONAL_OK);
	CHECK(accounting(pool).allocated == 0 && zonal_pool_verify(pool) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
}

static void test_nodes(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .fake_nodes = 4});
	for (uint16_t node = 0; node < 4; node++)
		for (uint32_t policy = ZONAL_POLICY_PREFERRED; policy <= ZONAL_POLICY_BIND; policy++) {
			zonal_request request = {
				.struct_size = sizeof(request), .policy = policy, .nodes = &node, .nodes_len = 1};
			zonal_block block = {.struct_size = sizeof(block)};
			CHECK(zonal_alloc(pool, &request, &block) == ZONAL_OK && block.node == node);
			CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
		}
	uint16_t missing[] = {9, 2000};
	for (int at = 0; at < 2; at++) {
		zonal_request request = {
			.struct_size = sizeof(request), .policy = ZONAL_POLICY_BIND, .nodes = &missing[at], .nodes_len = 1};
		zonal_block block = {.struct_size = sizeof(block)};
		REFUSED(zonal_alloc(pool, &request, &block), ZONAL_INVALID_ARGUMENT, at ? "2000" : "9");
		CHECK(block.address == NULL);
	}
	uint32_t placement = 9;
	CHECK(zonal_pool_placement(pool, &placement) == ZONAL_OK && placement == 2);
	/* A bound request fails when its node is full, and says so. */
	uint16_t one = 1;
	zonal_request bound = {.struct_size = sizeof(bound), .policy = ZONAL_POLICY_BIND, .nodes = &one, .nodes_len = 1};
	zonal_block block = {.struct_size = sizeof(block)};
	zonal_status status;
	size_t count = 0;
	while ((status = zonal_alloc(pool, &bound, &block)) == ZONAL_OK)
		count++;
	CHECK(status == ZONAL_OUT_OF_MEMORY && count > 1000 && strstr(zonal_last_error(), "node 1"));
	CHECK(zonal_pool_close(pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

static void test_pages(void)
{
	enum { PAGES = 1000 };
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20});
	void *pages[PAGES];
	size_t count = 0;
	CHECK(zonal_alloc_pages(pool, NULL, pages, PAGES, &count) == ZONAL_OK && count == PAGES);
	for (size_t at = 0; at < count; at++)
		memset(pages[at], (int)at, 4096);
	void *last = pages[PAGES - 1];
	pages[PAGES - 1] = &pages;
	REFUSED(zonal_free_pages(pool, pages, PAGES, &count), ZONAL_NOT_ALLOCATED, "addresses[999]");
	CHECK(count == PAGES - 1);
	REFUSED(zonal_free_pages(pool, pages, PAGES, &count), ZONAL_NOT_ALLOCATED, "addresses[0]");
	CHECK(count == 0 && zonal_free_pages(pool, &last, 1, NULL) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
}

static int stop_at_once(void *context, uint64_t done, uint64_t total)
{
	*(volatile uint64_t *)context = total;
	return done > 0;
}

static int go_on(void *context, uint64_t done, uint64_t total)
{
	(void)done;
	*(volatile uint64_t *)context = total;
	return 0;
}

static void test_builds(void)
{
	zonal_pool pool = {1};
	volatile uint64_t total = 0;
	zonal_pool_options prefault = {.struct_size = sizeof(prefault), .size = 64 << 20, .flags = ZONAL_POOL_PREFAULT,
				       .progress = stop_at_once, .progress_context = (void *)&total};
	CHECK(zonal_pool_build(&prefault, &pool) == ZONAL_INTERRUPTED && pool.id == 0 && total == 64 << 20);
	prefault.progress = go_on;
	CHECK(zonal_pool_build(&prefault, &pool) == ZONAL_OK && zonal_pool_close(pool, 0) == ZONAL_OK);
	pool = build((zonal_pool_options){.size = 16 << 20, .max_size = 64 << 20, .flags = ZONAL_POOL_SHARED_MEMORY});
	size_t needed = 99;
	char text[8] = "xxxxxxx";
	CHECK(zonal_pool_warnings(pool, text, sizeof(text), &needed) == ZONAL_OK && strlen(text) < sizeof(text));
	CHECK(zonal_pool_warnings(pool, NULL, 0, NULL) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);

	zonal_pool_options bad = {.struct_size = 8};
	REFUSED(zonal_pool_build(&bad, &pool), ZONAL_INVALID_ARGUMENT, "struct_size is 8");
	REFUSED(zonal_pool_build(&bad, NULL), ZONAL_INVALID_ARGUMENT, "pool is 0x0");
	bad = (zonal_pool_options){.struct_size = sizeof(bad), .size = (uint64_t)1 << 60};
	REFUSED(zonal_pool_build(&bad, &pool), ZONAL_BUILD_FAILED, "available");
	uint16_t nodes[] = {1000};
	bad = (zonal_pool_options){.struct_size = sizeof(bad), .nodes = nodes, .nodes_len = 1};
	REFUSED(zonal_pool_build(&bad, &pool), ZONAL_BUILD_FAILED, "1000");
	bad = (zonal_pool_options){.struct_size = sizeof(bad), .nodes_len = 1};
	REFUSED(zonal_pool_build(&bad, &pool), ZONAL_INVALID_ARGUMENT, "nodes_len 1");
	bad = (zonal_pool_options){.struct_size = sizeof(bad), .huge_pages = 7};
	REFUSED(zonal_pool_build(&bad, &pool), ZONAL_INVALID_ARGUMENT, "huge_pages is 7");
	bad = (zonal_pool_options){.struct_size = sizeof(bad), .flags = 1u << 30};
	REFUSED(zonal_pool_build(&bad, &pool), ZONAL_INVALID_ARGUMENT, "0x40000000");
}

static void test_bad_input(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20});
	zonal_block block = {.struct_size = sizeof(block)};
	zonal_request request = {.struct_size = sizeof(request), .bytes = (size_t)-1};
	CHECK(zonal_alloc(pool, &request, &block) != ZONAL_OK && block.address == NULL);
	request = (zonal_request){.struct_size = 4};
	REFUSED(zonal_alloc(pool, &request, &block), ZONAL_INVALID_ARGUMENT, "request->struct_size is 4");
	request = (zonal_request){.struct_size = sizeof(request), .flags = 64};
	REFUSED(zonal_alloc(pool, &request, &block), ZONAL_INVALID_ARGUMENT, "0x40");
	request = (zonal_request){.struct_size = sizeof(request), .policy = ZONAL_POLICY_BIND};
	REFUSED(zonal_alloc(pool, &request, &block), ZONAL_INVALID_ARGUMENT, "policy is 2 with 0 nodes");
	REFUSED(zonal_alloc(pool, NULL, NULL), ZONAL_INVALID_ARGUMENT, "block is 0x0");
	zonal_block unsized_block = {0};
	REFUSED(zonal_alloc(pool, NULL, &unsized_block), ZONAL_INVALID_ARGUMENT, "block->struct_size is 0");
	REFUSED(zonal_free(pool, &block, 4096), ZONAL_NOT_ALLOCATED, "not memory of the pool");
	REFUSED(zonal_free(pool, NULL, 4096), ZONAL_NOT_ALLOCATED, "not memory of the pool");
	block = alloc(pool, 8192);
	REFUSED(zonal_free(pool, (char *)block.address + 1, 4096), ZONAL_NOT_ALLOCATED, "whole pages");
	REFUSED(zonal_free(pool, block.address, 0), ZONAL_NOT_ALLOCATED, "whole pages");
	REFUSED(zonal_free(pool, block.address, (size_t)-4096), ZONAL_NOT_ALLOCATED, "bytes at");
	REFUSED(zonal_free(pool, (char *)block.address + 4096, 4096), ZONAL_NOT_ALLOCATED, "4096 bytes at");
	REFUSED(zonal_alloc_pages(pool, NULL, NULL, 1, NULL), ZONAL_INVALID_ARGUMENT, "count is 0x0");
	REFUSED(zonal_free_pages(pool, NULL, 1, NULL), ZONAL_INVALID_ARGUMENT, "addresses is 0x0");
	REFUSED(zonal_pool_accounting(pool, NULL), ZONAL_INVALID_ARGUMENT, "accounting is 0x0");
	REFUSED(zonal_pool_placement(pool, NULL), ZONAL_INVALID_ARGUMENT, "placement is 0x0");
	REFUSED(zonal_pool_close(pool, 8), ZONAL_INVALID_ARGUMENT, "0x8");
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
	zonal_pool wrong[] = {{0}, {1}, {(uint64_t)-1}, {pool.id + 1000}, pool};
	for (int at = 0; at < 5; at++) {
		block = (zonal_block){.struct_size = sizeof(block)};
		CHECK(zonal_alloc(wrong[at], NULL, &block) == ZONAL_NOT_A_POOL);
		CHECK(zonal_free(wrong[at], &block, 4096) == ZONAL_NOT_A_POOL);
		CHECK(zonal_pool_verify(wrong[at]) == ZONAL_NOT_A_POOL);
		CHECK(zonal_pool_close(wrong[at], 0) == ZONAL_NOT_A_POOL);
	}
	REFUSED(zonal_pool_close(pool, 0), ZONAL_NOT_A_POOL, "has been closed");
}

static void test_changes(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .max_size = 128 << 20});
	uint64_t done = 9, managed = accounting(pool).managed;
	CHECK(zonal_pool_grow(pool, 32 << 20, &done) == ZONAL_OK && done == 32 << 20);
	CHECK(accounting(pool).managed == managed + 8192);
	REFUSED(zonal_pool_grow(pool, 1 << 30, &done), ZONAL_RESIZE_FAILED, "cannot grow");
	CHECK(done == 0);
	CHECK(zonal_pool_shrink(pool, 64 << 20, &done) == ZONAL_OK && done >= 64 << 20);
	CHECK(accounting(pool).managed <= managed - 8192);
	zonal_block block = alloc(pool, 4096);
	REFUSED(zonal_pool_shrink(pool, 1 << 30, &done), ZONAL_RESIZE_FAILED, "in use");
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
	CHECK(zonal_pool_grow(pool, 1 << 20, NULL) == ZONAL_OK);

	char value[32];
	size_t needed = 0;
	CHECK(zonal_pool_set_setting(pool, "zone_reclaim_mode", "1") == ZONAL_OK);
	CHECK(zonal_pool_setting(pool, "zone_reclaim_mode", value, sizeof(value), &needed) == ZONAL_OK);
	CHECK(needed == 1 && !strcmp(value, "1"));
	REFUSED(zonal_pool_set_setting(pool, "zone_reclaim_mode", "9"), ZONAL_INVALID_ARGUMENT, "0 to 7");
	REFUSED(zonal_pool_set_setting(pool, "nosuch", "9"), ZONAL_INVALID_ARGUMENT, "min_free_kbytes");
	REFUSED(zonal_pool_setting(pool, "nosuch", value, sizeof(value), NULL), ZONAL_INVALID_ARGUMENT, "nosuch");
	REFUSED(zonal_pool_setting(pool, NULL, value, sizeof(value), NULL), ZONAL_INVALID_ARGUMENT, "name is 0x0");
	REFUSED(zonal_pool_set_setting(pool, "a\xFF", "1"), ZONAL_INVALID_ARGUMENT, "UTF-8");
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
}

static void *use_until_closed(void *argument)
{
	zonal_pool pool = *(zonal_pool *)argument;
	for (;;) {
		zonal_block block = {.struct_size = sizeof(block)};
		zonal_status status = zonal_alloc(pool, NULL, &block);
		if (status == ZONAL_NOT_A_POOL)
			return NULL;
		CHECK(status == ZONAL_OK);
		/* The pool may be closed between the two calls, and the memory with it. */
		status = zonal_free(pool, block.address, block.bytes);
		CHECK(status == ZONAL_OK || status == ZONAL_NOT_A_POOL);
	}
}

static void test_closing_in_use(void)
{
	enum { THREADS = 4, ROUNDS = 30 };
	for (int round = 0; round < ROUNDS; round++) {
		zonal_pool pool = build((zonal_pool_options){.size = 16 << 20});
		pthread_t threads[THREADS];
		for (int at = 0; at < THREADS; at++)
			CHECK(pthread_create(&threads[at], NULL, use_until_closed, &pool) == 0);
		usleep(2000);
		CHECK(zonal_pool_close(pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
		for (int at = 0; at < THREADS; at++)
			pthread_join(threads[at], NULL);
	}
}

/* A pool with blocks is not closed, and other threads' calls succeed while that is tried. */
static void *close_in_vain(void *argument)
{
	zonal_pool pool = *(zonal_pool *)argument;
	for (int at = 0; at < 500; at++)
		CHECK(zonal_pool_close(pool, 0) == ZONAL_BUSY);
	return NULL;
}

static void test_refused_closing(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20});
	zonal_block held = alloc(pool, 5 * 4096);
	pthread_t threads[2];
	for (int at = 0; at < 2; at++)
		CHECK(pthread_create(&threads[at], NULL, close_in_vain, &pool) == 0);
	for (int at = 0; at < 20000; at++) {
		zonal_block block = alloc(pool, 4096);
		CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
	}
	for (int at = 0; at < 2; at++)
		pthread_join(threads[at], NULL);
	CHECK(zonal_free(pool, held.address, held.bytes) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
}

static _Atomic int stop_building;

static void *build_and_close(void *argument)
{
	(void)argument;
	while (!stop_building) {
		zonal_pool pool = build((zonal_pool_options){.size = 16 << 20});
		CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
	}
	return NULL;
}

static void test_fork(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20});
	pthread_t thread, builder;
	CHECK(pthread_create(&thread, NULL, use_until_closed, &pool) == 0);
	CHECK(pthread_create(&builder, NULL, build_and_close, NULL) == 0);
	for (int at = 0; at < 50; at++) {
		pid_t child = fork();
		if (child == 0) {
			/* The child closes its copy of the pool, which threads of the parent use, and has pools of its own. */
			alarm(20);
			failures = 0;
			CHECK(zonal_pool_close(pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
			zonal_pool own = build((zonal_pool_options){.size = 16 << 20});
			zonal_block block = alloc(own, 4096);
			CHECK(zonal_free(own, block.address, block.bytes) == ZONAL_OK);
			CHECK(zonal_pool_close(own, 0) == ZONAL_OK);
			_exit(failures != 0);
		}
		int status = 0;
		CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		if (status)
			break; /* it may have waited long */
	}
	stop_building = 1;
	pthread_join(builder, NULL);
	CHECK(zonal_pool_close(pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
	pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	CHECK(zonal_last_error() != NULL && *zonal_last_error() == 0);
	test_blocks();
	test_nodes();
	test_pages();
	test_builds();
	test_changes();
	test_bad_input();
	test_closing_in_use();
	test_refused_closing();
	if (argc < 2 || strcmp(argv[1], "--no-fork"))
		test_fork();
	printf("%d failures\n", failures);
	return failures != 0;
}
