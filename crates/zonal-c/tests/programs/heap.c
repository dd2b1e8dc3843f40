/* Calls every function of zonal.h while the heap is exhausted: with a pool, when only the functions that need the heap end the
 * process, and so that it fails, because messages need no heap.
 *
 * `heap --needs-heap` prints the functions that need it, which `programs.rs` compares with docs/c.md. */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

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

/* Makes a call with a pool in a child, which ends if the function needs the heap. */
static void call_with_pool(const function *function, int (*call)(place *))
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		struct rlimit none = {0};
		setrlimit(RLIMIT_CORE, &none);
		dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
		alarm(30);
		is_exhausted = 1;
		_exit(call(&full));
	}
	int status = 0;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	int is_ended = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
	if (function->rules & NEEDS_HEAP ? !is_ended : status != 0) {
		printf("%s: without heap, the child ended with %#x\n", function->name, status);
		failures++;
	}
}

static const function *called;

static int call_one(place *at)
{
	return !is_done(called->call(at));
}

static int write_texts(place *at)
{
	char text[200];
	size_t needed = 0;
	zonal_status status = zonal_explain(at->pool, NULL, text, sizeof(text), &needed);
	int is_right = status == ZONAL_OK && needed > 10 && strlen(text) == (needed < sizeof(text) ? needed : sizeof(text) - 1);
	is_right &= zonal_pool_setting(at->pool, "watermark_scale_factor", text, 2, &needed) == ZONAL_OK;
	return !(is_right && needed > 1 && strlen(text) == 1 && zonal_pool_warnings(at->pool, text, 1, NULL) == ZONAL_OK && !*text);
}

static int create_policies(place *at)
{
	uint16_t node = 0;
	uint8_t weight = 3;
	zonal_policy policy;
	for (uint32_t kind = ZONAL_POLICY_PREFERRED; kind <= ZONAL_POLICY_PREFERRED_MANY; kind++) {
		int has_weights = kind == ZONAL_POLICY_WEIGHTED_INTERLEAVE;
		int needs_heap = has_weights || kind == ZONAL_POLICY_PREFERRED_MANY;
		zonal_policy_options options = {.struct_size = sizeof(options), .policy = kind, .nodes = &node, .nodes_len = 1,
						.weights = has_weights ? &weight : NULL};
		if (zonal_policy_create(at->pool, &options, &policy) != (needs_heap ? ZONAL_BUSY : ZONAL_OK))
			return 1;
	}
	return 0;
}

/* The first policy of a process needs a table. */
static int create_first_policy(place *at)
{
	return create_policy(at) != ZONAL_BUSY || !strstr(zonal_last_error(), "heap");
}

static void test_with_pool(void)
{
	static const function explain = FUNCTION(zonal_explain, ANYWHERE), create = FUNCTION(zonal_policy_create, ANYWHERE);
	full.pool = build((zonal_pool_options){.size = 16 << 20, .fake_nodes = 1});
	zonal_accounting before = accounting(full.pool);
	CHECK(before.allocated == 0);
	call_with_pool(&create, create_first_policy);
	CHECK(zonal_pool_close(full.pool, 0) == ZONAL_OK);
	full = make_place("/tmp");
	for (int which = 0; which < COUNT; which++) {
		called = &FUNCTIONS[which];
		call_with_pool(called, call_one);
	}
	call_with_pool(&explain, write_texts);
	call_with_pool(&create, create_policies);
	CHECK(zonal_pool_close(full.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "--needs-heap")) {
		for (int which = 0; which < COUNT; which++)
			if (FUNCTIONS[which].rules & NEEDS_HEAP)
				puts(FUNCTIONS[which].name);
		return 0;
	}
	test_with_pool();
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
