/* Allocates twice the pool of 64 MiB, and counts where the blocks are. With an argument, keeps them. */
#include <errno.h>
#include <string.h>
#include "checks.h"

enum { BLOCKS = 128 };

int main(int count, char **arguments)
{
	(void)arguments;
	static char *blocks[BLOCKS];
	int inside = 0, outside = 0, failed = 0;
	for (int at = 0; at < BLOCKS; at++) {
		errno = 0;
		blocks[at] = malloc(1 << 20);
		if (!blocks[at]) {
			CHECK(errno == ENOMEM);
			failed++;
			continue;
		}
		memset(blocks[at], at, 1 << 20);
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
