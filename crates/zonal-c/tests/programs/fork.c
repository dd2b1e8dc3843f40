/* Makes children of processes that have pools of every kind, with and without a call before, and grandchildren while a thread
 * tries to close the pool. Prints a line that begins with "skipped: " for a kind that the machine does not have. */

#define _GNU_SOURCE

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "functions.h"

/* Rounds of children of a process that is closing its pool; its thread and theirs meet by chance. */
static int rounds(void)
{
	return getenv("ZONAL_DEEPER") ? 10 : 2;
}

/* Runs a function in a process, and adds what it counts. Children that a bare system call makes run no handlers. */
static int run_in(pid_t child, void (*run)(void *), void *argument)
{
	if (child == 0) {
		alarm(60);
		failures = 0;
		run(argument);
		fflush(stdout);
		_exit(failures != 0);
	}
	int status = 0;
	if (child > 0 && waitpid(child, &status, 0) == child && status == 0)
		return 1;
	printf("a child ended with %#x\n", status);
	failures++;
	return 0;
}

static pid_t fork_flushed(void)
{
	fflush(stdout);
	return fork();
}

static pid_t clone_flushed(void)
{
	fflush(stdout);
	return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

/* Kinds of pools. */
static const struct kind {
	const char *name;
	uint32_t flags, huge_pages;
	int is_copied;
} KINDS[] = {
	{"private memory", 0, 0, 1},
	{"shared memory", ZONAL_POOL_SHARED_MEMORY, 0, 0},
	{"huge pages of 2 MiB", ZONAL_POOL_REQUIRE_HUGE_PAGES, ZONAL_HUGE_PAGES_2M, 0},
	{"shared huge pages of 2 MiB", ZONAL_POOL_REQUIRE_HUGE_PAGES | ZONAL_POOL_SHARED_MEMORY, ZONAL_HUGE_PAGES_2M, 0},
};

static struct pool_case {
	const struct kind *kind;
	int has_called, is_bare;
	zonal_pool pool;
} now;

/* Every request is served with memory that can be written to, or is refused and changes nothing. */
static void request_in_child(void *argument)
{
	(void)argument;
	void *pages[100];
	size_t count = 99;
	zonal_block block = {.struct_size = sizeof(block)};
	memset(pages, 1, sizeof(pages));
	zonal_accounting before = accounting(now.pool);
	zonal_status one = zonal_alloc(now.pool, NULL, &block);
	zonal_status many = zonal_alloc_pages(now.pool, NULL, pages, 100, &count);
	if (now.kind->is_copied) {
		CHECK(one == ZONAL_OK && many == ZONAL_OK && count == 100);
		memset(block.address, 1, block.bytes);
		for (size_t at = 0; at < count; at++)
			memset(pages[at], 1, 4096);
		CHECK(zonal_free(now.pool, block.address, block.bytes) == ZONAL_OK);
		CHECK(zonal_free_pages(now.pool, pages, count, NULL) == ZONAL_OK);
	} else {
		zonal_status expected = now.is_bare ? ZONAL_INTERNAL : ZONAL_NOT_A_POOL;
		CHECK(one == expected && many == expected && count == 0 && block.address == NULL);
	}
	CHECK(accounting(now.pool).allocated == before.allocated);
	if (!now.is_bare)
		CHECK(zonal_pool_close(now.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

/* The process has made no call before this one, in which it builds its first pool. */
static void build_and_fork(void *argument)
{
	(void)argument;
	zonal_pool_options options = {
		.struct_size = sizeof(options), .size = 16 << 20, .flags = now.kind->flags, .huge_pages = now.kind->huge_pages};
	zonal_status status = zonal_pool_build(&options, &now.pool);
	if (now.kind->huge_pages && status == ZONAL_REQUIREMENT_FAILED) {
		printf("skipped: children of %s: the machine has reserved none\n", now.kind->name);
		return;
	}
	CHECK(status == ZONAL_OK);
	if (now.has_called)
		alloc(now.pool, 8192);
	run_in(now.is_bare ? clone_flushed() : fork_flushed(), request_in_child, NULL);
	CHECK(zonal_pool_close(now.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

static void test_kinds(void)
{
	for (size_t kind = 0; kind < sizeof(KINDS) / sizeof(*KINDS); kind++) {
		for (int which = 0; which < 4; which++) {
			now = (struct pool_case){.kind = &KINDS[kind], .has_called = which & 1, .is_bare = which >> 1};
			if (!run_in(fork_flushed(), build_and_fork, NULL))
				printf("%s, %s, %s\n", now.kind->name, now.has_called ? "a call before" : "no call before",
				       now.is_bare ? "a bare system call" : "fork");
		}
	}
}

static place shared_place;
static const function *tried;
static _Atomic int is_inside, is_released;

static uint64_t one_page(void *context, const zonal_reclaim_request *request)
{
	(void)context, (void)request;
	return 1;
}

static uint64_t wait_in_reclaim(void *context, const zonal_reclaim_request *request)
{
	(void)context, (void)request;
	is_inside = 1;
	while (!is_released)
		usleep(1000);
	return 0;
}

static void *reclaim(void *argument)
{
	zonal_status status = zonal_pool_reclaim(shared_place.pool, 0, 1, NULL);
	CHECK(status == ZONAL_OK);
	return argument;
}

/* Closes a pool that is refused, until the process ends. */
static void *close_repeatedly(void *argument)
{
	while (zonal_pool_close(shared_place.pool, 0) == ZONAL_BUSY)
		is_inside = 1;
	return argument;
}

static void start_to_close(void)
{
	pthread_t thread;
	is_inside = 0;
	CHECK(pthread_create(&thread, NULL, close_repeatedly, NULL) == 0 && pthread_detach(thread) == 0);
	while (!is_inside)
		usleep(1000);
}

static void call_abandoned(void *argument)
{
	(void)argument;
	zonal_status status = tried->call(&shared_place);
	if (status != (tried->rules & NEEDS_NO_POOL ? ZONAL_OK : ZONAL_BUSY)) {
		printf("grandchild: %s: status %d (last error: %s)\n", tried->name, (int)status, zonal_last_error());
		failures++;
	}
}

static void make_grandchildren(void *argument)
{
	(void)argument;
	start_to_close();
	for (int round = 0; round < rounds(); round++) {
		for (int which = 0; which < COUNT; which++) {
			tried = &FUNCTIONS[which];
			run_in(fork_flushed(), call_abandoned, NULL);
		}
	}
}

/* A pool of which a child can only be refused the use is refused to its children too, whatever its threads do. */
static void test_grandchildren(void)
{
	shared_place = make_place("/nowhere");
	zonal_reclaimer reclaimer = {.struct_size = sizeof(reclaimer), .count = one_page, .reclaim = wait_in_reclaim};
	zonal_registration registration;
	CHECK(zonal_reclaimer_register(shared_place.pool, &reclaimer, &registration) == ZONAL_OK);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, reclaim, NULL) == 0);
	while (!is_inside)
		usleep(1000);
	run_in(fork_flushed(), make_grandchildren, NULL);
	is_released = 1;
	pthread_join(thread, NULL);
	CHECK(zonal_pool_close(shared_place.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

static void call_while_parent_closes(void *argument)
{
	(void)argument;
	zonal_status status = tried->call(&shared_place);
	CHECK(is_done(status) || status == ZONAL_BUSY);
	CHECK(tried->call == call_zonal_pool_close || zonal_pool_close(shared_place.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

static void make_children_while_closing(void *argument)
{
	(void)argument;
	shared_place = make_place("/nowhere");
	start_to_close();
	for (int round = 0; round < rounds(); round++) {
		for (int which = 0; which < COUNT; which++) {
			tried = &FUNCTIONS[which];
			if (tried->call != call_zonal_pool_publish) /* the folder does not exist */
				run_in(fork_flushed(), call_while_parent_closes, NULL);
		}
	}
}

/* Locks that a closing thread held are held in a child for ever, so the child is refused the pool instead of waiting. */
static void test_children_while_closing(void)
{
	run_in(fork_flushed(), make_children_while_closing, NULL);
}

int main(void)
{
	test_kinds(); /* first, because the process has made no call */
	test_children_while_closing();
	test_grandchildren();
	printf("%d failures\n", failures);
	return failures != 0;
}
