/* Calls every function of zonal.h so that it fails, while the heap is exhausted: messages need no heap, so no call ends the
 * process. */

#include <errno.h>
#include <pthread.h>

#include "functions.h"

/* The functions of glibc, which the program replaces. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static _Thread_local int is_exhausted;

void *malloc(size_t size)
{
	return is_exhausted ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	return is_exhausted ? NULL : __libc_calloc(count, size);
}

void *realloc(void *block, size_t size)
{
	return is_exhausted ? NULL : __libc_realloc(block, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return is_exhausted ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
	*block = aligned_alloc(alignment, size);
	return *block ? 0 : ENOMEM;
}

static place gone, full;

/* Returns whether a call fails with a message. */
static void call_without_heap(const char *name, zonal_status (*call)(place *), place *at)
{
	is_exhausted = 1;
	zonal_status status = call(at);
	is_exhausted = 0;
	int is_message = call == call_zonal_last_error || call == call_zonal_version;
	if (!is_message && (status == ZONAL_OK || !*zonal_last_error())) {
		printf("%s: status %d without heap (last error: %s)\n", name, (int)status, zonal_last_error());
		failures++;
	}
}

static void *call_all(void *argument)
{
	(void)argument;
	for (int which = 0; which < COUNT; which++)
		call_without_heap(FUNCTIONS[which].name, FUNCTIONS[which].call, &gone);
	return NULL;
}

static zonal_status call_alloc(place *at)
{
	zonal_request request = {.struct_size = sizeof(request), .bytes = at->block.bytes, .flags = ZONAL_REQUEST_NO_WAIT};
	zonal_block block = {.struct_size = sizeof(block)};
	return zonal_alloc(at->pool, &request, &block);
}

static zonal_status free_wrong_page(place *at)
{
	return zonal_free_pages(at->pool, (void *[]){at->block.address, at->block.address}, 2, NULL);
}

static zonal_status free_wrong_block(place *at)
{
	return zonal_free(at->pool, at->block.address, 3 * 4096);
}

static zonal_status set_wrong_setting(place *at)
{
	return zonal_pool_set_setting(at->pool, "no_such_setting", "1");
}

static zonal_status close_in_use(place *at)
{
	return zonal_pool_close(at->pool, 0);
}

int main(void)
{
	full = make_place("/nowhere");
	gone = make_place("/nowhere");
	gone.struct_size_of_options = 0;
	CHECK(zonal_pool_close(gone.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
	while (call_alloc(&full) == ZONAL_OK)
		;
	CHECK(strstr(zonal_last_error(), "node 0") != NULL);
	call_all(NULL);
	/* A thread whose first call fails. */
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, call_all, NULL) == 0);
	pthread_join(thread, NULL);
	size_t sizes[] = {4096, 8192, 3 * 4096, 2 << 20, 5 << 20};
	for (size_t at = 0; at < sizeof(sizes) / sizeof(*sizes); at++) {
		full.block.bytes = sizes[at];
		while (call_alloc(&full) == ZONAL_OK)
			;
		call_without_heap("zonal_alloc of a full pool", call_alloc, &full);
		CHECK(strstr(zonal_last_error(), "can serve now") == NULL);
	}
	call_without_heap("zonal_free_pages of a block", free_wrong_page, &full);
	call_without_heap("zonal_free in a wrong size", free_wrong_block, &full);
	call_without_heap("zonal_pool_set_setting of a wrong name", set_wrong_setting, &full);
	call_without_heap("zonal_pool_close of a pool in use", close_in_use, &full);
	CHECK(zonal_pool_close(full.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
	printf("%d failures\n", failures);
	return failures != 0;
}
