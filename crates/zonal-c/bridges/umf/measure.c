/* Measures the provider beside UMF's provider of the operating system: on their own, and below pools of UMF.
 *
 * The variants take turns, as often as the first argument says, and the medians are printed. The second argument divides the
 * work. docs/umf.md has the command.
 */

#define _DEFAULT_SOURCE 1

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <umf.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/pools/pool_scalable.h>
#include <umf/providers/provider_os_memory.h>

#include "zonal_umf.h"

enum { REPEATS_MAX = 101, SLOTS = 256, POOL_BYTES = 1 << 30 };

static umf_memory_provider_handle_t providers[2];
/* Divides the work of each measurement. */
static int divisor = 1;
static const char *const provider_names[2] = {"zonal", "os"};

static void expect(int is_right, const char *what)
{
	if (is_right)
		return;
	fprintf(stderr, "%s failed: %s\n", what, zonal_last_error());
	exit(1);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_value(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;
	return (a > b) - (a < b);
}

static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof(*values), by_value);
	return values[count / 2];
}

/* Returns the nanoseconds of an allocation and its free, in which each page is written if `is_written`. */
static double measure_provider(umf_memory_provider_handle_t provider, size_t bytes, int is_written)
{
	int pairs = is_written ? (int)((256 << 20) / bytes / 4) : 20000;
	if (pairs > 20000)
		pairs = 20000;
	pairs = (pairs + divisor - 1) / divisor;
	double start = now();
	for (int i = 0; i < pairs; i++) {
		void *at = NULL;
		expect(umfMemoryProviderAlloc(provider, bytes, 0, &at) == UMF_RESULT_SUCCESS, "alloc");
		for (size_t page = 0; is_written && page < bytes; page += 4096)
			((volatile char *)at)[page] = 1;
		expect(umfMemoryProviderFree(provider, at, bytes) == UMF_RESULT_SUCCESS, "free");
	}
	return (now() - start) / pairs;
}

static void measure_providers(int repeats)
{
	static const size_t sizes[] = {4096, 65536, 2 << 20};
	printf("provider alone, nanoseconds for an allocation and its free\n");
	for (int is_written = 0; is_written < 2; is_written++)
		for (size_t s = 0; s < 3; s++) {
			double values[2][REPEATS_MAX];
			for (int i = 0; i < repeats; i++)
				for (int p = 0; p < 2; p++)
					values[p][i] = measure_provider(providers[p], sizes[s], is_written);
			printf("  %4zu KiB%s", sizes[s] / 1024, is_written ? ", each page written" : "                   ");
			for (int p = 0; p < 2; p++)
				printf("  %s %9.0f", provider_names[p], median(values[p], repeats));
			printf("\n");
		}
}

struct worker {
	umf_memory_pool_handle_t pool;
	size_t bytes_max;
	int steps;
	uint64_t random;
};

static void *work(void *argument)
{
	struct worker *worker = argument;
	char *slots[SLOTS] = {0};
	for (int i = 0; i < worker->steps; i++) {
		worker->random ^= worker->random << 13;
		worker->random ^= worker->random >> 7;
		worker->random ^= worker->random << 17;
		char **slot = &slots[worker->random >> 8 & (SLOTS - 1)];
		if (*slot)
			umfPoolFree(worker->pool, *slot);
		size_t bytes = 16 + (worker->random >> 20) % worker->bytes_max;
		*slot = umfPoolMalloc(worker->pool, bytes);
		expect(*slot != NULL, "umfPoolMalloc");
		for (size_t at = 0; at < bytes; at += 4096)
			(*slot)[at] = 1;
	}
	for (int i = 0; i < SLOTS; i++)
		if (slots[i])
			umfPoolFree(worker->pool, slots[i]);
	return NULL;
}

/* Returns thousands of allocations a second, with their frees. */
static double measure_pool(const umf_memory_pool_ops_t *ops, void *params, umf_memory_provider_handle_t provider,
			   int threads, size_t bytes_max)
{
	umf_memory_pool_handle_t pool;
	struct worker workers[2];
	pthread_t handles[2];
	int steps = bytes_max > 65536 ? 2000 : bytes_max > 1024 ? 200000 : 1000000;
	steps = (steps + divisor - 1) / divisor;
	double start = now();
	expect(umfPoolCreate(ops, provider, params, 0, &pool) == UMF_RESULT_SUCCESS, "umfPoolCreate");
	for (int i = 0; i < threads; i++) {
		workers[i] = (struct worker){pool, bytes_max, steps, 0x9E3779B97F4A7C15 * (uint64_t)(i + 1)};
		expect(pthread_create(&handles[i], NULL, work, &workers[i]) == 0, "pthread_create");
	}
	for (int i = 0; i < threads; i++)
		pthread_join(handles[i], NULL);
	umfPoolDestroy(pool);
	return (double)steps * threads / (now() - start) * 1e6;
}

static void measure_pools(int repeats)
{
	umf_disjoint_pool_params_handle_t disjoint;
	umf_scalable_pool_params_handle_t scalable;
	expect(umfDisjointPoolParamsCreate(&disjoint) == UMF_RESULT_SUCCESS, "parameters");
	expect(umfScalablePoolParamsCreate(&scalable) == UMF_RESULT_SUCCESS, "parameters");
	static const size_t most[] = {1024, 32768, 4 << 20};
	printf("pools, thousands of allocations a second, with their frees; the pool is created and destroyed in that time\n");
	for (int k = 0; k < 2; k++)
		for (size_t s = 0; s < 3; s++)
			for (int threads = 1; threads <= 2; threads++) {
				double values[2][REPEATS_MAX];
				for (int i = 0; i < repeats; i++)
					for (int p = 0; p < 2; p++)
						values[p][i] = measure_pool(
							k ? umfDisjointPoolOps() : umfScalablePoolOps(),
							k ? (void *)disjoint : (void *)scalable, providers[p], threads, most[s]);
				printf("  %s, up to %4zu KiB, %d threads", k ? "disjoint" : "scalable", most[s] / 1024, threads);
				for (int p = 0; p < 2; p++)
					printf("  %s %8.1f", provider_names[p], median(values[p], repeats));
				printf("\n");
			}
	umfDisjointPoolParamsDestroy(disjoint);
	umfScalablePoolParamsDestroy(scalable);
}

int main(int argc, char **argv)
{
	int repeats = argc > 1 ? atoi(argv[1]) : 7;
	divisor = argc > 2 && atoi(argv[2]) > 0 ? atoi(argv[2]) : 1;
	repeats = repeats < 1 ? 1 : repeats > REPEATS_MAX ? REPEATS_MAX : repeats;
	zonal_pool_options options = {
		.struct_size = sizeof(options), .size = 2 * (uint64_t)POOL_BYTES, .flags = ZONAL_POOL_PREFAULT};
	zonal_umf_params params = {.struct_size = sizeof(params), .flags = ZONAL_UMF_CLOSE_POOL};
	expect(zonal_pool_build(&options, &params.pool) == ZONAL_OK, "zonal_pool_build");
	expect(umfMemoryProviderCreate(zonal_umf_ops(), &params, &providers[0]) == UMF_RESULT_SUCCESS, "create");
	umf_os_memory_provider_params_handle_t os;
	expect(umfOsMemoryProviderParamsCreate(&os) == UMF_RESULT_SUCCESS, "parameters");
	expect(umfMemoryProviderCreate(umfOsMemoryProviderOps(), os, &providers[1]) == UMF_RESULT_SUCCESS, "create");
	measure_providers(repeats);
	measure_pools(repeats);
	umfOsMemoryProviderParamsDestroy(os);
	for (int p = 0; p < 2; p++)
		expect(umfMemoryProviderDestroy(providers[p]) == UMF_RESULT_SUCCESS, "umfMemoryProviderDestroy");
	return 0;
}
