/* Every function of the heap: sizes, alignments, contents, and where the memory is. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <string.h>
#include "checks.h"

static size_t next = 88172645463325252u;

static size_t random_size(size_t most)
{
	next ^= next << 13;
	next ^= next >> 7;
	next ^= next << 17;
	return 1 + next % most;
}

static void *allocate(size_t bytes)
{
	void *block = NULL;
	size_t alignment = (size_t)16 << next % 9; /* up to 4 KiB */
	switch (next % 8) {
	case 0:
		return calloc(1, bytes);
	case 1:
		block = realloc(NULL, bytes);
		break;
	case 2:
		CHECK(posix_memalign(&block, alignment, bytes) == 0);
		CHECK((uintptr_t)block % alignment == 0);
		break;
	case 3:
		block = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
		CHECK((uintptr_t)block % alignment == 0);
		break;
	case 4:
		block = memalign(alignment, bytes);
		CHECK((uintptr_t)block % alignment == 0);
		break;
	case 5:
		block = valloc(bytes);
		CHECK((uintptr_t)block % 4096 == 0);
		break;
	case 6:
		block = reallocarray(NULL, 1, bytes);
		break;
	default:
		block = malloc(bytes);
	}
	CHECK((uintptr_t)block % 16 == 0 || bytes < 16);
	return block;
}

static int is_filled(const unsigned char *block, size_t bytes, int value)
{
	for (size_t at = 0; at < bytes; at++)
		if (block[at] != value)
			return 0;
	return 1;
}

static void check_random_calls(void)
{
	enum { COUNT = 2000, ROUNDS = 40000 };
	static struct { unsigned char *block; size_t bytes; } blocks[COUNT];
	size_t inside = 0, total = 0;
	for (int round = 0; round < ROUNDS; round++) {
		size_t at = random_size(COUNT) - 1;
		size_t bytes = random_size(round % 50 == 0 ? 300000 : 3000);
		unsigned char *old = blocks[at].block;
		if (old) {
			CHECK(is_filled(old, blocks[at].bytes, at % 251));
			if (round % 3 == 0) {
				size_t kept = blocks[at].bytes < bytes ? blocks[at].bytes : bytes;
				blocks[at].block = realloc(old, bytes);
				CHECK(is_filled(blocks[at].block, kept, at % 251));
			} else {
				free(old);
				blocks[at].block = NULL;
			}
		}
		if (!blocks[at].block)
			blocks[at].block = allocate(bytes);
		CHECK(malloc_usable_size(blocks[at].block) >= bytes);
		memset(blocks[at].block, at % 251, bytes);
		blocks[at].bytes = bytes;
		inside += node_of(blocks[at].block) >= 0;
		total++;
	}
	/* Objects of sizes that were used before `main` may be outside. */
	CHECK(inside > total / 10 * 8);
	for (int at = 0; at < COUNT; at++)
		free(blocks[at].block);
}

static void check_large_blocks(void)
{
	for (size_t bytes = 1 << 20; bytes <= (size_t)128 << 20; bytes *= 2) {
		char *block = malloc(bytes);
		CHECK(block && node_of(block) >= 0 && node_of(block + bytes - 1) >= 0);
		memset(block, 7, bytes);
		free(block);
		block = calloc(bytes, 1);
		CHECK(block && is_filled((unsigned char *)block, bytes, 0));
		free(block);
	}
}

/* mimalloc gets these from the kernel. */
static void check_large_alignments(void)
{
	for (size_t alignment = 64 << 10; alignment <= 4 << 20; alignment *= 2) {
		void *block = NULL;
		CHECK(posix_memalign(&block, alignment, 3 * alignment) == 0 && (uintptr_t)block % alignment == 0);
		memset(block, 1, 3 * alignment);
		CHECK(malloc_usable_size(block) >= 3 * alignment);
		free(block);
	}
}

static void check_errors(void)
{
	volatile size_t most = SIZE_MAX;
	void *block = NULL;
	errno = 0;
	CHECK(malloc(most) == NULL && errno == ENOMEM);
	errno = 0;
	CHECK(calloc(most / 2, 3) == NULL && errno == ENOMEM);
	errno = 0;
	CHECK(realloc(NULL, most) == NULL && errno == ENOMEM);
	CHECK(posix_memalign(&block, 3, 64) == EINVAL);
	CHECK(posix_memalign(&block, 64, most) == ENOMEM);
	block = malloc(10);
	errno = 77;
	free(block);
	free(NULL);
	CHECK(errno == 77);
	block = malloc(0);
	CHECK(block != NULL);
	free(block);
}

/* Functions of the C library that allocate, and whose blocks the program frees. */
static void check_the_library(void)
{
	char *text = NULL, *line = NULL;
	size_t length = 0;
	CHECK(asprintf(&text, "%0*d", 100000, 7) == 100000 && node_of(text) >= 0);
	free(text);
	text = strdup("text");
	CHECK(strcmp(text, "text") == 0);
	free(text);
	FILE *file = fopen("/proc/self/maps", "r");
	CHECK(file && getline(&line, &length, file) > 0);
	free(line);
	fclose(file);
	text = realpath("/proc/self/exe", NULL);
	CHECK(text && text[0] == '/');
	free(text);
}

static int threads(void)
{
	int count = 0;
	DIR *folder = opendir("/proc/self/task");
	for (struct dirent *entry; folder && (entry = readdir(folder));)
		count += entry->d_name[0] != '.';
	closedir(folder);
	return count;
}

int main(void)
{
	CHECK(threads() == 1); /* those of the pool have ended */
	check_random_calls();
	check_large_blocks();
	check_large_alignments();
	check_errors();
	check_the_library();
	return finish();
}
