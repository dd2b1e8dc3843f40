/*
 * Large thread-locals, of the program and of a library that it loads. The C library frees those of the library while it
 * holds a lock.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include "checks.h"

/* Ended threads keep their stacks, and so their thread-locals, until there are more than 40 MiB of stacks. */
enum { BYTES = 8 << 20, THREADS = 8, ROUNDS = 40, LIMIT = 60 /* seconds */ };

static __thread volatile char local[BYTES];

void touch(void)
{
	for (int at = 0; at < BYTES; at += 4096)
		local[at] = 1;
}

#ifndef LIBRARY
static void (*touch_library)(void);

static void *work(void *unused)
{
	touch();
	touch_library();
	return unused;
}

static int threads_named(const char *name)
{
	int found = 0;
	DIR *tasks = opendir("/proc/self/task");
	for (struct dirent *task; (task = readdir(tasks));) {
		char path[300], text[16] = "";
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		int file = open(path, O_RDONLY);
		ssize_t bytes = file < 0 ? 0 : read(file, text, sizeof(text) - 1);
		found += bytes > 0 && strcmp(strtok(text, "\n"), name) == 0;
		close(file);
	}
	closedir(tasks);
	return found;
}

/* Ends the program if it waits for a lock, also with signals blocked. */
static void end_later(void)
{
	timer_t timer;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
	struct itimerspec limit = {.it_value.tv_sec = LIMIT};
	CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &limit, NULL) == 0);
}

int main(int count, char **arguments)
{
	end_later();
	void *library = dlopen(arguments[count - 1], RTLD_NOW);
	CHECK(library);
	*(void **)&touch_library = dlsym(library, "touch");
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t threads[THREADS];
		for (int at = 0; at < THREADS; at++)
			CHECK(pthread_create(&threads[at], NULL, work, NULL) == 0);
		for (int at = 0; at < THREADS; at++)
			CHECK(pthread_join(threads[at], NULL) == 0);
	}
	CHECK(threads_named("zonal-purge") == 1);
	return finish();
}
#endif
