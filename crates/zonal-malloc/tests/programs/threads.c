/* Threads that allocate blocks, hand them to the next thread, and free those of the previous one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include "checks.h"

enum { THREADS = 8, BLOCKS = 4000, GENERATIONS = 5 };

static void *table[THREADS][BLOCKS];
static pthread_barrier_t barrier;

static size_t size_of(int thread, int at)
{
	return 8 + (size_t)(thread * 7919 + at * 104729) % (at % 100 == 0 ? 200000 : 2000);
}

static void *work(void *argument)
{
	int own = *(int *)argument, previous = (own + THREADS - 1) % THREADS, outside = 0;
	for (int at = 0; at < BLOCKS; at++) {
		table[own][at] = malloc(size_of(own, at));
		memset(table[own][at], own * 16 + at % 16, size_of(own, at));
		outside += node_of(table[own][at]) < 0;
	}
	CHECK(outside < BLOCKS / 5);
	pthread_barrier_wait(&barrier);
	for (int at = 0; at < BLOCKS; at++) {
		unsigned char *block = table[previous][at];
		size_t bytes = size_of(previous, at);
		CHECK(block[0] == (unsigned char)(previous * 16 + at % 16) && block[bytes - 1] == block[0]);
		free(block);
	}
	return NULL;
}

int main(void)
{
	static int ids[THREADS];
	pthread_t threads[THREADS];
	for (int generation = 0; generation < GENERATIONS; generation++) {
		pthread_barrier_init(&barrier, NULL, THREADS);
		for (int at = 0; at < THREADS; at++) {
			ids[at] = at;
			CHECK(pthread_create(&threads[at], NULL, work, &ids[at]) == 0);
		}
		for (int at = 0; at < THREADS; at++)
			CHECK(pthread_join(threads[at], NULL) == 0);
		pthread_barrier_destroy(&barrier);
	}
	return finish();
}
