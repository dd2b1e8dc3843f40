/* Odd arguments. Prints what each call returns and the error number, to be compared with the C library's own functions. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile size_t most = SIZE_MAX, half = SIZE_MAX / 2 + 1, large = 600 << 20;
static void *block;

/* A block with a text in it. */
static void *filled(void)
{
	return strcpy(malloc(100), "text");
}

#define SHOW(call)                                                                                  \
	do {                                                                                        \
		errno = 77;                                                                         \
		block = (call);                                                                     \
		printf("%s: %s, errno %d\n", #call, block ? "a block" : "null", errno);             \
	} while (0)

/* The same, and whether the block is aligned, and has the size. */
#define SHOW_ALIGNED(call, alignment, bytes)                                                        \
	do {                                                                                        \
		SHOW(call);                                                                         \
		if (block)                                                                          \
			printf("  aligned %d, large enough %d\n", (uintptr_t)block % (alignment) == 0, \
			       malloc_usable_size(block) + 1 > (size_t)(bytes));                               \
	} while (0)

#define SHOW_NUMBER(call)                                                                           \
	do {                                                                                        \
		block = (void *)&most;                                                                      \
		errno = 77;                                                                         \
		long number = (long)(call);                                                         \
		printf("%s: %ld, errno %d, place changed %d\n", #call, number, errno, block != (void *)&most); \
	} while (0)

#define SHOW_FREE(old)                                                                              \
	do {                                                                                        \
		errno = 77;                                                                         \
		free(old);                                                                          \
		printf("  freed, errno %d\n", errno);                                               \
	} while (0)

int main(void)
{
	void *volatile old = filled();
	SHOW(malloc(0));
	SHOW(malloc(most));
	SHOW(malloc(half));
	SHOW(calloc(0, 8));
	SHOW(calloc(8, 0));
	SHOW(calloc(half, 2));
	SHOW(calloc(half, 1));
	SHOW(realloc(NULL, 0));
	SHOW(realloc(filled(), 0));
	SHOW(realloc(old, most));
	SHOW(realloc(old, half));
	SHOW(reallocarray(NULL, 0, 8));
	SHOW(reallocarray(filled(), 0, 8));
	SHOW(reallocarray(filled(), 8, 0));
	SHOW(reallocarray(old, half, 2));
	SHOW(reallocarray(old, half, 1));
	printf("%s\n", (char *)old); /* kept when realloc fails */
	SHOW_ALIGNED(aligned_alloc(0, 100), 16, 100);
	SHOW_ALIGNED(aligned_alloc(3, 100), 4, 100);
	SHOW_ALIGNED(aligned_alloc(48, 100), 16, 100);
	SHOW_ALIGNED(aligned_alloc(64, 100), 64, 100);
	SHOW_ALIGNED(aligned_alloc(64, 0), 64, 0);
	SHOW(aligned_alloc(64, most));
	SHOW(aligned_alloc(half, 64));
	SHOW(aligned_alloc(half + 1, 64));
	SHOW(aligned_alloc(most, 64));
	SHOW_ALIGNED(memalign(0, 100), 16, 100);
	SHOW_ALIGNED(memalign(1, 100), 16, 100);
	SHOW_ALIGNED(memalign(3, 100), 4, 100);
	SHOW_ALIGNED(memalign(48, 100), 64, 100);
	SHOW_ALIGNED(memalign(3000, 0), 4096, 0);
	SHOW(memalign(64, most));
	SHOW(memalign(half, 64));
	SHOW(memalign(half + 1, 64));
	SHOW(memalign(most, 64));
	SHOW_ALIGNED(valloc(0), 4096, 0);
	SHOW(valloc(most));
	SHOW_ALIGNED(pvalloc(0), 4096, 0);
	SHOW_ALIGNED(pvalloc(1), 4096, 4096);
	SHOW(pvalloc(most));
	SHOW(pvalloc(most - 4096));
	SHOW_NUMBER(posix_memalign(&block, 0, 64));
	SHOW_NUMBER(posix_memalign(&block, 3, 64));
	SHOW_NUMBER(posix_memalign(&block, 4, 64));
	SHOW_NUMBER(posix_memalign(&block, 24, 64));
	SHOW_NUMBER(posix_memalign(&block, 64, 0));
	SHOW_NUMBER(posix_memalign(&block, 64, most));
	SHOW_NUMBER(posix_memalign(&block, half, 64));
	SHOW_NUMBER(posix_memalign(&block, half, 0));
	SHOW_NUMBER(posix_memalign(&block, half / 8, 0));
	SHOW_NUMBER(malloc_usable_size(NULL));
	errno = 77;
	free(NULL);
	free(malloc(64 << 20));
	free(old);
	printf("free: errno %d\n", errno);
	/* Larger than the pool: the kernel maps them. */
	SHOW(malloc(large));
	SHOW_FREE(block);
	SHOW(calloc(large / 8, 8));
	SHOW_FREE(block);
	SHOW(realloc(NULL, large));
	SHOW_FREE(block);
	SHOW_ALIGNED(aligned_alloc(1 << 21, large), 1 << 21, large);
	SHOW_FREE(block);
	SHOW_ALIGNED(pvalloc(large), 4096, large);
	SHOW_FREE(block);
	SHOW_NUMBER(posix_memalign(&block, 1 << 21, large));
	SHOW_FREE(block);
	return 0;
}
