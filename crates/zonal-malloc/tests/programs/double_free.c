/* Frees blocks twice, in the main thread or in a thread that ends, and exits. The program may be aborted, but must end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include "checks.h"

enum { LIMIT = 60 }; /* seconds after which the program counts as hanging */

static void at_once(size_t bytes)
{
	void *block = malloc(bytes);
	free(block);
	free(block);
}

static void interleaved(size_t bytes)
{
	void *one = malloc(bytes), *other = malloc(bytes);
	free(one);
	free(other);
	free(one);
}

static void delayed(size_t bytes)
{
	void *block = malloc(bytes), *blocks[100];
	free(block);
	for (int at = 0; at < 100; at++)
		blocks[at] = malloc(bytes);
	for (int at = 0; at < 100; at++)
		free(blocks[at]);
	free(block);
}

static void reused(size_t bytes)
{
	void *block = malloc(bytes), *other = malloc(bytes);
	free(block);
	void *again = malloc(bytes);
	free(block);
	free(again);
	free(other);
}

static const struct { const char *name; void (*function)(size_t); } kinds[] = {
	{"at_once", at_once}, {"interleaved", interleaved}, {"delayed", delayed}, {"reused", reused},
};

static int kind;
static size_t size;

static void *work(void *argument)
{
	void *kept[8]; /* so that the page is not freed as a whole */
	for (int at = 0; at < 8; at++)
		kept[at] = malloc(size);
	kinds[kind].function(size);
	for (int at = 0; at < 8; at++)
		memset(kept[at], 1, 8);
	return argument;
}

/* Arguments: kind, bytes, and "thread" or "main". Without arguments, prints the kinds. */
int main(int count, char **arguments)
{
	const int known = sizeof(kinds) / sizeof(*kinds);
	if (count != 4) {
		for (int at = 0; at < known; at++)
			printf("%s\n", kinds[at].name);
		return 0;
	}
	while (strcmp(kinds[kind].name, arguments[1]) != 0)
		if (++kind == known)
			return 2;
	size = strtoul(arguments[2], NULL, 10);
	alarm(LIMIT);
	if (strcmp(arguments[3], "thread") == 0) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	} else {
		work(NULL);
	}
	return finish();
}
