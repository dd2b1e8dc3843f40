/* With two emulated nodes, CPUs alternate between them: threads get memory of the node of their CPU. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include "checks.h"

static int cpus[2];

static void run_on(int node)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpus[node], &set);
	CHECK(sched_setaffinity(0, sizeof(set), &set) == 0);
}

/* Returns how many of 100 blocks are on the node. */
static int blocks_on(int node)
{
	char *blocks[100];
	int count = 0;
	free(malloc(1)); /* a thread that has allocated nothing is on the node that the kernel reports */
	for (int at = 0; at < 100; at++) {
		blocks[at] = malloc(1 << 20);
		count += node_of(blocks[at]) == node;
	}
	for (int at = 0; at < 100; at++)
		free(blocks[at]);
	return count;
}

static void *work(void *argument)
{
	int node = *(int *)argument;
	run_on(node);
	CHECK(blocks_on(node) == 100);
	run_on(1 - node); /* the thread migrates */
	CHECK(blocks_on(1 - node) == 100);
	return NULL;
}

int main(void)
{
	cpu_set_t allowed;
	int found = 0;
	CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
	for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
		if (CPU_ISSET(cpu, &allowed))
			cpus[found++] = cpu;
	if (found < 2) {
		printf("one CPU\n");
		return 0;
	}
	for (int node = 0; node < 2; node++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, work, &node) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	int node = 1;
	work(&node); /* the main thread */
	/* The pool has 256 MiB on each node: the rest comes from the other node. */
	char *blocks[400];
	int on_node[2] = {0, 0}, elsewhere = 0;
	run_on(0);
	for (int at = 0; at < 400; at++) {
		blocks[at] = malloc(1 << 20);
		int found_on = node_of(blocks[at]);
		*(found_on >= 0 ? &on_node[found_on] : &elsewhere) += 1;
	}
	CHECK(on_node[0] > 200 && on_node[1] > 100 && elsewhere == 0);
	for (int at = 0; at < 400; at++)
		free(blocks[at]);
	return finish();
}
