/* Memory that is freed is returned to the kernel, although the program does not allocate any more. In a child, the thread that
 * does so starts with an allocation. With an argument, only large blocks are checked, which are returned at once. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "checks.h"

enum { BLOCKS = 200000, BYTES = 1000, LARGE = 128 << 20, PAGE = 1 << 20, LIMIT = 60 /* seconds */ };

/* Waits until at most `mib` are resident. */
static void wait_for(long mib)
{
	for (int round = 0; resident() > mib && round < LIMIT * 20; round++)
		usleep(50000);
	CHECK(resident() <= mib);
}

static void check_small_blocks(long before)
{
	static char *blocks[BLOCKS];
	for (int at = 0; at < BLOCKS; at++)
		blocks[at] = memset(malloc(BYTES), 1, BYTES);
	CHECK(resident() > before + 180);
	int status = -1;
	pid_t process = fork();
	for (int at = 0; at < BLOCKS; at++)
		free(blocks[at]);
	if (process == 0)
		free(malloc(PAGE));
	wait_for(before + 40);
	if (process == 0) /* a child returns what it inherited, too */
		_exit(failures != 0);
	CHECK(waitpid(process, &status, 0) == process && status == 0);
}

/* Large zeroed blocks that are not written need no memory, also after one that was written. */
static void check_large_blocks(long before)
{
	free(memset(malloc(LARGE), 1, LARGE));
	CHECK(resident() <= before + 40);
	for (int round = 0; round < 100; round++) {
		char *block = calloc(LARGE, 1);
		CHECK(block && block[LARGE / 2] == 0 && block[LARGE - 1] == 0);
		block[LARGE / 2] = 1;
		CHECK(resident() <= before + 40);
		free(block);
	}
}

int main(int count, char **arguments)
{
	(void)arguments;
	long before = resident();
	if (count == 1)
		check_small_blocks(before);
	check_large_blocks(before);
	return finish();
}
