/* Requests of most of a free pool of 512 MiB while a thread returns its memory to the kernel. */
#include <string.h>
#include <time.h>
#include "checks.h"

enum { BLOCKS = 350, BYTES = 1 << 20, LARGE = 450 << 20, ROUNDS = 40, LIMIT = 60 /* seconds */ };

int main(void)
{
	static char *blocks[BLOCKS];
	for (int round = 0; round < ROUNDS; round++) {
		for (int at = 0; at < BLOCKS; at++)
			blocks[at] = memset(malloc(BYTES), 1, BYTES);
		long before = resident();
		for (int at = 0; at < BLOCKS; at++)
			free(blocks[at]);
		const time_t end = time(NULL) + LIMIT;
		while (resident() >= before && time(NULL) < end)
			;
		CHECK(resident() < before);
		char *large = malloc(LARGE);
		CHECK(large && node_of(large) >= 0);
		free(large);
	}
	return finish();
}
