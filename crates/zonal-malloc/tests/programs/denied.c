/* `malloc` and `free` leave `errno` as it is where the kernel denies steps that they can do without. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "checks.h"

enum { BLOCKS = 100000, BYTES = 1000, LARGE = 3 << 20, ROUNDS = 100 };

/* Makes a call of getcpu(2), and one of futex(2) that wakes, fail in this thread and those that it starts. Returns whether that is
 * possible. */
static int deny(void)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getcpu, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_WAKE_PRIVATE, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof(steps) / sizeof(*steps), steps};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/* A thread finds its node when it first allocates. */
static void *begin(void *unused)
{
	errno = 77;
	void *small = malloc(100);
	CHECK(small && errno == 77);
	void *large = calloc(1, LARGE);
	CHECK(large && errno == 77);
	free(large);
	free(small);
	CHECK(errno == 77);
	return unused;
}

/* A thread of the library waits until memory is freed, and cannot be woken. */
static void check_frees(void)
{
	static char *blocks[BLOCKS];
	for (int at = 0; at < BLOCKS; at++)
		blocks[at] = memset(malloc(BYTES), 1, BYTES);
	for (int at = 0; at < BLOCKS; at++)
		free(blocks[at]);
	for (int round = 0; round < ROUNDS; round++) {
		void *large = malloc(LARGE);
		usleep(30000);
		errno = 77;
		free(large);
		CHECK(errno == 77);
	}
}

int main(void)
{
	if (!deny()) {
		puts("no seccomp");
		return 0;
	}
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, begin, NULL) == 0 && pthread_join(thread, NULL) == 0);
	check_frees();
	return finish();
}
