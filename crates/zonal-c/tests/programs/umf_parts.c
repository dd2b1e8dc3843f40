/* Allocates, splits, merges and frees at random in several threads, and checks the contents of every page.
 *
 * Each page has its address and the number of its owner, so that memory which two allocations share is found. Threads pass
 * allocations to each other. Wrong calls must be refused. The arguments are the numbers of threads and of steps.
 */

#include <pthread.h>

#include "umf_test.h"

enum { OWNED = 48, PASSED = 16 };

struct allocation {
	char *at;
	size_t bytes;
	uint64_t owner;
};

static umf_memory_provider_handle_t provider;
static int steps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation passed[PASSED];

static void mark(const struct allocation *it)
{
	for (size_t page = 0; page < it->bytes; page += PAGE) {
		uint64_t words[] = {(uint64_t)(uintptr_t)(it->at + page), it->owner};
		memcpy(it->at + page, words, sizeof(words));
	}
}

static void check_marks(const struct allocation *it)
{
	for (size_t page = 0; page < it->bytes; page += PAGE) {
		uint64_t address = (uint64_t)(uintptr_t)(it->at + page), words[2];
		memcpy(words, it->at + page, sizeof(words));
		CHECK(words[0] == address && words[1] == it->owner);
	}
}

static void allocate(struct allocation *it, uint64_t owner, uint64_t *random)
{
	static const size_t alignments[] = {0, 0, 0, 0, PAGE, 4 * PAGE, 3 * PAGE, 64 * PAGE};
	size_t pages = 1 + next_random(random) % (next_random(random) % 16 == 0 ? 1200 : 40);
	size_t alignment = alignments[next_random(random) % 8];
	void *at;
	umf_result_t result = umfMemoryProviderAlloc(provider, pages * PAGE, alignment, &at);
	CHECK(result == UMF_RESULT_SUCCESS || result == UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY);
	if (result != UMF_RESULT_SUCCESS)
		return;
	CHECK(alignment == 0 || (uintptr_t)at % alignment == 0);
	*it = (struct allocation){at, pages * PAGE, owner};
	mark(it);
}

static void release(struct allocation *it)
{
	check_marks(it);
	memset(it->at, 0xEE, it->bytes);
	OK(umfMemoryProviderFree(provider, it->at, it->bytes));
	it->at = NULL;
}

/* Moves the second part of an allocation to a free entry. */
static void split(struct allocation *it, struct allocation *free_entry, uint64_t *random)
{
	size_t pages = it->bytes / PAGE;
	if (pages < 2)
		return;
	size_t first = (1 + next_random(random) % (pages - 1)) * PAGE;
	OK(umfMemoryProviderAllocationSplit(provider, it->at, it->bytes, first));
	*free_entry = (struct allocation){it->at + first, it->bytes - first, it->owner};
	it->bytes = first;
}

/* Merges an allocation with one of the same owner behind it, if there is one. */
static void merge(struct allocation *owned, struct allocation *it)
{
	for (int i = 0; i < OWNED; i++)
		if (owned[i].at == it->at + it->bytes && owned[i].owner == it->owner) {
			size_t total = it->bytes + owned[i].bytes;
			OK(umfMemoryProviderAllocationMerge(provider, it->at, owned[i].at, total));
			it->bytes = total;
			owned[i].at = NULL;
			return;
		}
}

static void do_wrong(const struct allocation *it)
{
	umf_result_t wrong = UMF_RESULT_ERROR_INVALID_ARGUMENT;
	CHECK(umfMemoryProviderFree(provider, it->at, it->bytes + PAGE) == wrong);
	CHECK(umfMemoryProviderAllocationSplit(provider, it->at, it->bytes + PAGE, PAGE) == wrong);
	if (it->bytes == PAGE)
		return;
	CHECK(umfMemoryProviderFree(provider, it->at, it->bytes - PAGE) == wrong);
	CHECK(umfMemoryProviderFree(provider, it->at + PAGE, it->bytes - PAGE) == wrong);
	CHECK(umfMemoryProviderFree(provider, it->at + PAGE, PAGE) == wrong);
	CHECK(umfMemoryProviderAllocationMerge(provider, it->at, it->at + PAGE, it->bytes) == wrong);
}

static void pass(struct allocation *it, uint64_t *random)
{
	struct allocation *entry = &passed[next_random(random) % PASSED];
	pthread_mutex_lock(&lock);
	struct allocation found = *entry;
	*entry = *it;
	pthread_mutex_unlock(&lock);
	*it = found;
}

static void *run(void *number)
{
	uint64_t owner = (uint64_t)(uintptr_t)number, random = 0x9E3779B97F4A7C15 ^ (owner << 20);
	struct allocation owned[OWNED] = {0};
	for (int step = 0; step < steps; step++) {
		struct allocation *it = &owned[next_random(&random) % OWNED];
		struct allocation *other = &owned[next_random(&random) % OWNED];
		uint64_t what = next_random(&random) % 16;
		if (!it->at)
			allocate(it, owner, &random);
		else if (what < 5 && !other->at)
			split(it, other, &random);
		else if (what < 9)
			merge(owned, it);
		else if (what < 11)
			pass(it, &random);
		else if (what < 12)
			do_wrong(it);
		else if (what < 14)
			release(it);
	}
	for (int i = 0; i < OWNED; i++)
		if (owned[i].at)
			release(&owned[i]);
	return NULL;
}

int main(int argc, char **argv)
{
	enum { THREADS_MAX = 64 };
	int threads = argc > 1 ? atoi(argv[1]) : 4;
	steps = argc > 2 ? atoi(argv[2]) : 20000;
	if (threads > THREADS_MAX)
		threads = THREADS_MAX;
	zonal_pool pool = build((zonal_pool_options){.size = 192 << 20, .fake_nodes = 2});
	provider = provide(pool, NULL, 0);
	pthread_t thread[THREADS_MAX];
	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&thread[i], NULL, run, (void *)(uintptr_t)(i + 1)) == 0);
	for (int i = 0; i < threads; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	for (int i = 0; i < PASSED; i++)
		if (passed[i].at)
			release(&passed[i]);
	OK(umfMemoryProviderDestroy(provider));
	close_empty(pool);
	return report();
}
