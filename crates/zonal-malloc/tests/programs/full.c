/* Allocates 128 blocks, twice a pool of 64 MiB, and counts where they are. With arguments, keeps them: the second is their size. */
#include <errno.h>
#include <string.h>
#include "checks.h"

enum { BLOCKS = 128 };

int main(int count, char **arguments)
{
	static char *blocks[BLOCKS];
	size_t bytes = count > 2 ? strtoul(arguments[2], NULL, 10) : 1 << 20;
	int inside = 0, outside = 0, failed = 0;
	for (int at = 0; at < BLOCKS; at++) {
		errno = 0;
		blocks[at] = malloc(bytes);
		if (!blocks[at]) {
			CHECK(errno == ENOMEM);
			failed++;
			continue;
		}
		memset(blocks[at], at, bytes);
		*(node_of(blocks[at]) >= 0 ? &inside : &outside) += 1;
	}
	if (count > 1)
		return finish();
	for (int at = 0; at < BLOCKS; at++) {
		CHECK(!blocks[at] || blocks[at][(1 << 20) - 1] == (char)at);
		free(blocks[at]);
	}
	/* Free memory of the pool is used again. */
	char *block = malloc(1 << 20);
	CHECK(block && node_of(block) >= 0);
	free(block);
	printf("inside %d outside %d failed %d\n", inside, outside, failed);
	return finish();
}
