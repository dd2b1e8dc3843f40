/*
 * Children of `fork`, made while other threads begin, allocate and end. Each child makes one call and exits. The arguments
 * are the names of the functions to call. Half of the children are made by threads that have not allocated, and a handler
 * that runs before that of the library starts a thread in each child.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "checks.h"

enum { THREADS = 4, BLOCKS = 64, ROUNDS = 40, LIMIT = 60 /* seconds after which a child counts as hanging */ };

static atomic_int is_done;
/* Blocks that threads hand to each other, so that pages are freed by threads that do not own them. */
static _Atomic(void *) shared[BLOCKS];

static void *live_briefly(void *argument)
{
	unsigned seed = (unsigned)(size_t)argument;
	for (int at = 0; at < BLOCKS; at++) {
		seed = seed * 1103515245 + 12345;
		size_t bytes = seed % 50 == 0 ? 400000 : 16 + seed / 65536 % 3000;
		void *block = malloc(bytes);
		memset(block, 1, 16);
		free(atomic_exchange(&shared[seed / 7 % BLOCKS], block));
	}
	return NULL;
}

/* Starts one thread after another: each takes locks when it begins and when it ends. */
static void *churn(void *argument)
{
	for (size_t round = 0; !is_done; round++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, live_briefly, (char *)argument + round * THREADS) == 0)
			pthread_join(thread, NULL);
	}
	return NULL;
}

/* How a function is called, by what its arguments are. */
enum shape { BYTES, COUNT_BYTES, ALIGNMENT_BYTES, BLOCK, BLOCK_BYTES, BLOCK_COUNT_BYTES, PLACE, BLOCK_ALIGNMENT_BYTES };

static const struct { const char *name; enum shape shape; int is_free; } calls[] = {
	{"malloc", BYTES, 0}, {"__libc_malloc", BYTES, 0}, {"valloc", BYTES, 0}, {"__libc_valloc", BYTES, 0},
	{"pvalloc", BYTES, 0}, {"__libc_pvalloc", BYTES, 0},
	{"calloc", COUNT_BYTES, 0}, {"__libc_calloc", COUNT_BYTES, 0},
	{"aligned_alloc", ALIGNMENT_BYTES, 0}, {"memalign", ALIGNMENT_BYTES, 0}, {"__libc_memalign", ALIGNMENT_BYTES, 0},
	{"free", BLOCK, 1}, {"cfree", BLOCK, 1}, {"__libc_free", BLOCK, 1},
	{"malloc_usable_size", BLOCK, 0}, {"zonal_malloc_node_of", BLOCK, 0},
	{"realloc", BLOCK_BYTES, 0}, {"__libc_realloc", BLOCK_BYTES, 0}, {"free_sized", BLOCK_BYTES, 1},
	{"reallocarray", BLOCK_COUNT_BYTES, 0},
	{"free_aligned_sized", BLOCK_ALIGNMENT_BYTES, 1},
	{"posix_memalign", PLACE, 0}, {"__posix_memalign", PLACE, 0},
};

static void *allocate(size_t bytes)
{
	char *block = malloc(bytes);
	memset(block, 2, bytes < 16 ? bytes : 16);
	return block;
}

static void make_call(enum shape shape, void *function, size_t bytes)
{
	void *place;
	switch (shape) {
	case BYTES:
		memset(((void *(*)(size_t))function)(bytes), 1, bytes);
		break;
	case COUNT_BYTES:
		memset(((void *(*)(size_t, size_t))function)(1, bytes), 1, bytes);
		break;
	case ALIGNMENT_BYTES:
		memset(((void *(*)(size_t, size_t))function)(64, bytes), 1, bytes);
		break;
	case BLOCK:
		((long (*)(void *))function)(allocate(bytes));
		break;
	case BLOCK_BYTES:
		((void *(*)(void *, size_t))function)(allocate(bytes), bytes);
		break;
	case BLOCK_COUNT_BYTES:
		memset(((void *(*)(void *, size_t, size_t))function)(allocate(bytes), 2, bytes), 1, 2 * bytes);
		break;
	case BLOCK_ALIGNMENT_BYTES:
		((void (*)(void *, size_t, size_t))function)(allocate(bytes), 16, bytes);
		break;
	case PLACE:
		((int (*)(void **, size_t, size_t))function)(&place, 64, bytes);
		memset(place, 1, bytes);
		break;
	}
}

static void child(int index, void *function)
{
	alarm(LIMIT);
	/* The blocks of other threads. A free function frees them itself. */
	for (int at = 0; at < BLOCKS; at++) {
		void *block = atomic_exchange(&shared[at], NULL);
		if (block && calls[index].is_free && calls[index].shape == BLOCK)
			((void (*)(void *))function)(block);
		else
			free(block);
	}
	for (size_t bytes = 8; bytes <= 8 << 20; bytes *= 4)
		make_call(calls[index].shape, function, bytes);
	/* Threads of the child take the same locks. */
	pthread_t thread;
	if (pthread_create(&thread, NULL, live_briefly, NULL) == 0)
		pthread_join(thread, NULL);
	exit(0);
}

static void *in_early_handler(void *unused)
{
	free(allocate(100));
	return unused;
}

static void early_handler(void)
{
	pthread_t thread;
	alarm(LIMIT);
	free(allocate(3000));
	if (pthread_create(&thread, NULL, in_early_handler, NULL) == 0)
		pthread_join(thread, NULL);
}

static void register_early(void)
{
	pthread_atfork(NULL, NULL, early_handler);
}

/* Runs before the constructors of libraries. */
__attribute__((section(".preinit_array"), used)) static void (*const early)(void) = register_early;

/* The function that a child calls. */
struct call { int index; void *function; int status; };

/* Makes a child and waits for it. */
static void *make_child(void *argument)
{
	struct call *call = argument;
	pid_t process = fork();
	if (process == 0)
		child(call->index, call->function);
	if (waitpid(process, &call->status, 0) != process)
		call->status = -1;
	return NULL;
}

int main(int count, char **arguments)
{
	const int known = sizeof(calls) / sizeof(*calls);
	pthread_t threads[THREADS];
	for (size_t at = 0; at < THREADS; at++)
		CHECK(pthread_create(&threads[at], NULL, churn, (void *)(at + 1)) == 0);
	for (int at = 1; at < count; at++) {
		int index = 0;
		while (index < known && strcmp(calls[index].name, arguments[at]) != 0)
			index++;
		void *function = dlsym(RTLD_DEFAULT, arguments[at]);
		if (index == known || function == NULL) {
			fprintf(stderr, "%s: not in the table of calls, or not exported\n", arguments[at]);
			failures++;
			continue;
		}
		for (int round = 0; round < ROUNDS; round++) {
			struct call call = {index, function, -1};
			pthread_t thread;
			if (round % 2 == 0)
				make_child(&call);
			else if (pthread_create(&thread, NULL, make_child, &call) == 0)
				pthread_join(thread, NULL);
			if (call.status != 0) {
				fprintf(stderr, "%s: status %#x in round %d\n", arguments[at], call.status, round);
				failures++;
				break;
			}
		}
	}
	is_done = 1;
	for (int at = 0; at < THREADS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	return finish();
}
