/* Checks for programs that run with the library preloaded. The last line counts the failures. */
#ifndef CHECKS_H
#define CHECKS_H

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures;

#define CHECK(condition)                                                             \
	do {                                                                         \
		if (!(condition)) {                                                  \
			failures++;                                                  \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);     \
		}                                                                    \
	} while (0)

/* Returns the node of an address in the pool, -1 for other addresses, and -2 without the library. */
static inline int node_of(const void *address)
{
	typedef int (*function)(const void *);
	static function found;
	if (!found)
		*(void **)&found = dlsym(RTLD_DEFAULT, "zonal_malloc_node_of");
	return found ? found(address) : -2;
}

/* Returns the resident MiB, without an allocation. */
static inline long resident(void)
{
	char text[200] = "";
	int file = open("/proc/self/statm", O_RDONLY);
	CHECK(read(file, text, sizeof(text) - 1) > 0);
	close(file);
	return strtol(strchr(text, ' '), NULL, 10) * sysconf(_SC_PAGESIZE) >> 20;
}

static inline int finish(void)
{
	printf("%d failures\n", failures);
	return failures != 0;
}

#endif
