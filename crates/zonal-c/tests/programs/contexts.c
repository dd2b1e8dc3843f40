/* Calls every function of zonal.h from within every kind of callback, and in children of `fork` while other threads are in the
 * library. Each call is done or refused; none waits for ever, which the alarms end.
 *
 * `contexts --functions` prints the functions, which `programs.rs` compares with the header. */

#include <pthread.h>
#include <sys/wait.h>

#include "functions.h"

static char folder[] = "/tmp/zonal-XXXXXX";

/* The places of the callbacks: of their own pool, and of another one. */
static place own, other;
static _Atomic int has_run;

static void expect(const char *where, const function *function, zonal_status status, int is_right)
{
	if (!is_right) {
		printf("%s: %s: status %d (last error: %s)\n", where, function->name, (int)status, zonal_last_error());
		failures++;
	}
}

/* Makes all calls once. The calls may run callbacks themselves, also on other threads. */
static void call_all(const char *kind)
{
	if (has_run++)
		return;
	place *places[] = {&own, &other};
	for (int at = 0; at < 2; at++) {
		for (int which = 0; which < COUNT; which++) {
			const function *function = &FUNCTIONS[which];
			zonal_status status = function->call(places[at]);
			int is_right = function->rules & NOT_IN_CALLBACKS ? status == ZONAL_BUSY : is_done(status);
			expect(kind, function, status, is_right);
		}
	}
}

static int32_t in_progress(void *context, uint64_t done, uint64_t total)
{
	(void)context, (void)done, (void)total;
	call_all("progress");
	return 0;
}

static void in_pause(void *context, size_t in_reclaimers)
{
	(void)context, (void)in_reclaimers;
	call_all("pause");
}

static uint64_t in_count(void *context, const zonal_reclaim_request *request)
{
	(void)context, (void)request;
	call_all("count");
	return 0;
}

static uint64_t one_page(void *context, const zonal_reclaim_request *request)
{
	(void)context, (void)request;
	return 1;
}

static uint64_t in_reclaim(void *context, const zonal_reclaim_request *request)
{
	(void)context, (void)request;
	call_all("reclaim");
	return 0;
}

static void in_pressure(void *context, const zonal_pressure_event *event)
{
	(void)context, (void)event;
	call_all("pressure");
}

static void in_each(void *context, const zonal_block *block)
{
	(void)context, (void)block;
	call_all("each");
}

static void run_progress(void)
{
	zonal_pool built = build((zonal_pool_options){
		.size = 16 << 20, .fake_nodes = 1, .flags = ZONAL_POOL_PREFAULT, .progress = in_progress});
	CHECK(zonal_pool_close(built, 0) == ZONAL_OK);
}

static void run_pause(void)
{
	CHECK(zonal_pool_pause_threads(own.pool, in_pause, NULL) == ZONAL_OK);
}

/* Calls a function with each block of a shared pool; those of other pools are not listed. */
static void run_each(void)
{
	zonal_pool shared = build((zonal_pool_options){.size = 16 << 20, .flags = ZONAL_POOL_SHARED_BY_DESCRIPTOR});
	alloc(shared, 8192);
	CHECK(zonal_pool_for_each_held(shared, in_each, NULL) == ZONAL_OK);
	CHECK(zonal_pool_close(shared, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

static void fill(zonal_pool pool)
{
	zonal_request request = {.struct_size = sizeof(request), .flags = ZONAL_REQUEST_NO_WAIT};
	zonal_block block = {.struct_size = sizeof(block)};
	while (zonal_alloc(pool, &request, &block) == ZONAL_OK)
		;
}

static void run_reclaimer(zonal_reclaim count, zonal_reclaim reclaim)
{
	zonal_reclaimer reclaimer = {.struct_size = sizeof(reclaimer), .count = count, .reclaim = reclaim};
	zonal_registration registration;
	CHECK(zonal_reclaimer_register(own.pool, &reclaimer, &registration) == ZONAL_OK);
	CHECK(zonal_pool_reclaim(own.pool, 0, 1, NULL) == ZONAL_OK);
	if (!has_run) { /* a request counts before it tries again */
		fill(own.pool);
		CHECK(is_done(call_zonal_alloc(&own)));
	}
	CHECK(zonal_unregister(registration) == ZONAL_OK);
}

static void run_count(void)
{
	run_reclaimer(in_count, no_pages);
}

static void run_reclaim(void)
{
	run_reclaimer(one_page, in_reclaim);
}

static void run_pressure(void)
{
	zonal_registration registration;
	CHECK(zonal_pressure_register(own.pool, in_pressure, NULL, &registration) == ZONAL_OK);
	/* Below the watermark, but with memory for the calls. */
	zonal_zone zone = {.struct_size = sizeof(zone)};
	do {
		alloc(own.pool, 64 << 10);
		CHECK(zonal_pool_zone(own.pool, 0, &zone) == ZONAL_OK);
	} while (zone.free >= zone.watermark_low);
	while (!has_run) {
		CHECK(is_done(call_zonal_alloc(&own))); /* finds that the zone is below its watermark */
		usleep(1000);
	}
	CHECK(zonal_unregister(registration) == ZONAL_OK);
}

static void test_callbacks(void)
{
	void (*const runs[])(void) = {run_progress, run_pause, run_each, run_count, run_reclaim, run_pressure};
	for (size_t kind = 0; kind < sizeof(runs) / sizeof(*runs); kind++) {
		has_run = 0;
		own = make_place(folder);
		other = make_place(folder);
		runs[kind]();
		CHECK(has_run > 0);
		CHECK(zonal_pool_close(own.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
		CHECK(zonal_pool_close(other.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
	}
}

static _Thread_local int is_caller;
static _Atomic int is_inside, is_released;

/* Keeps the calling thread in a request that uses a policy. */
static uint64_t wait_in_reclaim(void *context, const zonal_reclaim_request *request)
{
	(void)context, (void)request;
	is_inside += is_caller;
	while (is_caller && !is_released)
		usleep(1000);
	return 0;
}

static void *call_and_wait(void *argument)
{
	is_caller = 1;
	zonal_status status = call_zonal_alloc(argument);
	CHECK(is_done(status));
	return NULL;
}

/* Makes a call in a child, which then closes the pool. */
static void call_in_child(const char *where, const function *function, place *at, int (*is_right)(const struct function *, zonal_status))
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		alarm(30);
		failures = 0;
		zonal_status status = function->call(at);
		expect(where, function, status, is_right(function, status));
		status = zonal_pool_close(at->pool, ZONAL_CLOSE_WITH_BLOCKS);
		if (function->call != call_zonal_pool_close)
			CHECK(status == ZONAL_OK);
		fflush(stdout);
		_exit(failures != 0);
	}
	int status = 0;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	if (status) {
		printf("%s: %s: the child ended with %#x\n", where, function->name, status);
		failures++;
	}
}

/* The calls of a pool are refused if another thread of the parent was in one, because that thread may have held a lock. */
static int is_right_in_use(const function *function, zonal_status status)
{
	return function->rules & NEEDS_NO_POOL ? status == ZONAL_OK : status == ZONAL_BUSY;
}

static int is_right_idle(const function *function, zonal_status status)
{
	(void)function;
	return is_done(status);
}

static int is_right_either(const function *function, zonal_status status)
{
	(void)function;
	return is_done(status) || status == ZONAL_BUSY;
}

static void test_children(void)
{
	place in_use = make_place(folder), idle = make_place(folder);
	zonal_reclaimer reclaimer = {.struct_size = sizeof(reclaimer), .count = one_page, .reclaim = wait_in_reclaim};
	zonal_registration registration;
	CHECK(zonal_reclaimer_register(in_use.pool, &reclaimer, &registration) == ZONAL_OK);
	fill(in_use.pool);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, call_and_wait, &in_use) == 0);
	while (!is_inside)
		usleep(1000);
	for (int which = 0; which < COUNT; which++) {
		call_in_child("child, pool in use", &FUNCTIONS[which], &in_use, is_right_in_use);
		call_in_child("child, idle pool", &FUNCTIONS[which], &idle, is_right_idle);
	}
	is_released = 1;
	pthread_join(thread, NULL);
	CHECK(zonal_pool_close(in_use.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
	CHECK(zonal_pool_close(idle.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

static _Atomic int is_over;

/* Calls all functions that other threads can call at the same time, with objects of its own. */
static void *call_repeatedly(void *argument)
{
	place at = *(place *)argument;
	CHECK(alloc_block(&at) == ZONAL_OK && create_policy(&at) == ZONAL_OK && register_reclaimer(&at) == ZONAL_OK);
	while (!is_over) {
		for (int which = 0; which < COUNT && !is_over; which++) {
			zonal_status (*call)(place *) = FUNCTIONS[which].call;
			if (call == call_zonal_pool_build) {
				zonal_pool built = build((zonal_pool_options){.size = 16 << 20});
				CHECK(zonal_pool_close(built, 0) == ZONAL_OK);
			} else if (call != call_zonal_pool_close && call != call_zonal_pool_verify) {
				expect("thread", &FUNCTIONS[which], 0, is_done(call(&at)));
			}
		}
	}
	return NULL;
}

/* As above, while threads are anywhere in the library. */
static void test_children_of_many_threads(void)
{
	place busy = make_place(folder);
	pthread_t threads[2];
	for (int at = 0; at < 2; at++)
		CHECK(pthread_create(&threads[at], NULL, call_repeatedly, &busy) == 0);
	for (int which = 0; which < COUNT; which++)
		call_in_child("child of many threads", &FUNCTIONS[which], &busy, is_right_either);
	is_over = 1;
	for (int at = 0; at < 2; at++)
		pthread_join(threads[at], NULL);
	CHECK(zonal_pool_close(busy.pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "--functions")) {
		for (int which = 0; which < COUNT; which++)
			puts(FUNCTIONS[which].name);
		return 0;
	}
	CHECK(mkdtemp(folder) != NULL);
	alarm(300);
	test_callbacks();
	if (argc < 2 || strcmp(argv[1], "--no-fork")) {
		test_children();
		test_children_of_many_threads();
	}
	CHECK(rmdir(folder) == 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
