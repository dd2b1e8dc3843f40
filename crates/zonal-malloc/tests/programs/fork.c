/* Children made by `fork` have a copy of the memory. With an argument, the program is one that `main` starts: it prints
 * whether its memory is in a pool. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "checks.h"

enum { BLOCKS = 3000 };

static char *blocks[BLOCKS];

static int child(void)
{
	for (int at = 0; at < BLOCKS; at++) {
		CHECK(blocks[at][0] == at % 100 && blocks[at][999] == at % 100);
		blocks[at][0] = 101;
		if (at % 2)
			free(blocks[at]);
	}
	for (int at = 0; at < BLOCKS; at++) {
		char *block = malloc(1000 + at);
		CHECK(block != NULL);
		memset(block, 102, 1000 + at);
	}
	char *large = malloc(8 << 20);
	CHECK(node_of(large) >= 0);
	memset(large, 103, 8 << 20);
	return failures != 0;
}

int main(int count, char **arguments)
{
	if (count > 1) {
		void *block = malloc(4 << 20);
		printf("%s\n", node_of(block) >= 0 ? "a pool" : "no pool");
		free(block);
		return 0;
	}
	for (int at = 0; at < BLOCKS; at++) {
		blocks[at] = malloc(1000);
		memset(blocks[at], at % 100, 1000);
	}
	for (int round = 0; round < 5; round++) {
		int status = -1;
		pid_t process = fork();
		if (process == 0)
			exit(child()); /* runs functions at exit */
		CHECK(waitpid(process, &status, 0) == process && status == 0);
	}
	for (int at = 0; at < BLOCKS; at++) {
		CHECK(blocks[at][0] == at % 100 && blocks[at][999] == at % 100);
		free(blocks[at]);
	}
	char command[4200];
	snprintf(command, sizeof(command), "'%s' child", arguments[0]);
	fflush(stdout);
	CHECK(system(command) == 0);
	return finish();
}
