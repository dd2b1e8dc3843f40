/* `realloc` keeps the contents of large blocks, and neither it nor `calloc` needs memory for what is not written. With an
 * argument, huge pages are allowed, of which each write needs one. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "checks.h"

enum { LARGE = 256 << 20, ROUNDS = 400 };

static void check_sparse_block(void)
{
	const long before = resident();
	char *block = calloc(LARGE, 1);
	block[0] = 1;
	block[LARGE / 2 + 1] = 2;
	block[LARGE - 1] = 3;
	for (size_t size = LARGE; size <= 4ul * LARGE; size += LARGE / 2) {
		block = realloc(block, size);
		CHECK(block && block[0] == 1 && block[LARGE / 2 + 1] == 2 && block[LARGE - 1] == 3);
		CHECK(block[LARGE / 4] == 0 && block[LARGE - 2] == 0); /* reads do not need memory of their own */
	}
	/* Smaller than half, so that the block moves. */
	block = realloc(block, LARGE / 2 + 4096);
	CHECK(block && block[0] == 1 && block[LARGE / 2 + 1] == 2 && block[LARGE / 4] == 0);
	CHECK(resident() <= before + 40);
	free(block);
}

/* Blocks that `calloc` clears and that are hardly written stay so. They are smaller than those that are returned at once. */
static void check_reused_blocks(void)
{
	enum { REUSED = 24 << 20, PAGE = 4096 };
	const long before = resident();
	for (int round = 0; round < 100; round++) {
		unsigned char *block = round % 2 ? calloc(REUSED, 1) : realloc(calloc(REUSED / 2, 1), REUSED);
		CHECK(block);
		for (int at = 0; at < REUSED / (2 - round % 2); at += PAGE)
			CHECK(block[at] == 0 && block[at + PAGE - 1] == 0);
		block[(size_t)round * 1000 * PAGE % REUSED + 5] = 1;
		CHECK(resident() <= before + 12);
		free(block);
	}
}

/* Blocks keep their contents if few descriptors are left, and none stays open. */
static void check_few_descriptors(void)
{
	const int next = dup(0);
	close(next);
	struct rlimit limit, before;
	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	for (int left = 0; left < 3; left++) {
		limit = before;
		limit.rlim_cur = (rlim_t)(next + left);
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		char *block = calloc(LARGE, 1);
		block[LARGE / 2] = 1;
		block = realloc(block, 2ul * LARGE);
		CHECK(block && block[LARGE / 2] == 1 && block[LARGE / 4] == 0);
		free(block);
		CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
		const int now = dup(0);
		CHECK(now == next);
		close(now);
	}
}

static uint64_t random_word(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Blocks of all sizes, with words at random places, some of them zero again, and some dirty memory between. */
static void check_random_blocks(void)
{
	enum { WORDS = 300 };
	static size_t places[WORDS];
	static uint64_t values[WORDS];
	uint64_t state = 88172645463325252;
	for (int round = 0; round < ROUNDS; round++) {
		size_t size = (1 << 19) + random_word(&state) % (64 << 20);
		unsigned char *block = calloc(size, 1);
		int count = 0;
		for (int move = 0; move < 4; move++) {
			for (; count < WORDS / 4 * (move + 1); count++) {
				places[count] = random_word(&state) % (size - 8);
				memcpy(block + places[count], values + count, 8);
			}
			for (int at = 0; at < count; at++) {
				values[at] = random_word(&state) % 3 == 0 ? 0 : random_word(&state);
				if (places[at] + 8 <= size)
					memcpy(block + places[at], values + at, 8);
			}
			for (int at = 0; at < count; at++) /* as they overlap, what was written last counts */
				if (places[at] + 8 <= size)
					memcpy(values + at, block + places[at], 8);
			size = (1 << 19) + random_word(&state) % (64 << 20);
			block = realloc(block, size);
			CHECK(block);
			for (int at = 0; at < count; at++)
				CHECK(places[at] + 8 > size || memcmp(values + at, block + places[at], 8) == 0);
			/* What shrank away is gone. */
			for (int at = 0; at < count;)
				if (places[at] + 8 > size)
					places[at] = places[--count];
				else
					at++;
			for (int at = 0; at < count; at++)
				memcpy(values + at, block + places[at], 8);
			free(memset(malloc(3 << 20), 0xaa, 3 << 20));
		}
		free(block);
	}
}

int main(int count, char **arguments)
{
	(void)arguments;
	check_sparse_block();
	if (count == 1)
		check_reused_blocks();
	check_few_descriptors();
	check_random_blocks();
	return finish();
}
