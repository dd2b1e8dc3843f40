/* Runs the pools of UMF over the provider, in several threads: sizes up to 6 MiB, alignments, zeroed and resized memory.
 *
 * Checks that all memory is in the pool of zonal, on the right node, and that nothing is left when a pool has been destroyed.
 * Prints a line that begins with "skipped: " for a pool that this build of UMF does not have.
 */

#include <pthread.h>

#include "umf_test.h"

#include <umf/pools/pool_disjoint.h>
#include <umf/pools/pool_proxy.h>
#include <umf/pools/pool_scalable.h>

/* The header of this pool is not installed if the library does not have it. */
const umf_memory_pool_ops_t *umfJemallocPoolOps(void);

enum { THREADS = 4, STEPS = 4000, OWNED = 64 };

static const uint16_t node = 1;

struct kind {
	const char *name;
	const umf_memory_pool_ops_t *ops;
	void *params;
	bool can_resize;
};

struct thread {
	zonal_pool pool;
	umf_memory_pool_handle_t on_top;
	const struct kind *kind;
	uint64_t random;
};

struct allocation {
	unsigned char *at;
	size_t bytes;
	unsigned char fill;
};

static void check_place(const struct thread *thread, const void *at, size_t bytes)
{
	zonal_location first = {.struct_size = sizeof(first)}, last = {.struct_size = sizeof(last)};
	CHECK(zonal_pool_locate(thread->pool, at, &first) == ZONAL_OK && first.node == node);
	CHECK(zonal_pool_locate(thread->pool, (const char *)at + bytes - 1, &last) == ZONAL_OK && last.node == node);
	umf_memory_pool_handle_t found = NULL;
	OK(umfPoolByPtr(at, &found));
	CHECK(found == thread->on_top);
}

static void check_fill(const struct allocation *it, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += i < 64 ? 1 : 509)
		CHECK(it->at[i] == it->fill);
	CHECK(bytes == 0 || it->at[bytes - 1] == it->fill);
}

static size_t random_size(uint64_t *random)
{
	static const size_t most[] = {64, 1024, 8192, 65536, 300000, 6 << 20};
	size_t at = next_random(random) % 64;
	return 1 + next_random(random) % most[at < 5 ? at : at == 5 && next_random(random) % 4 == 0 ? 5 : at % 4];
}

static void allocate(struct thread *thread, struct allocation *it)
{
	size_t bytes = random_size(&thread->random), alignment = 8;
	uint64_t how = next_random(&thread->random) % 8;
	unsigned char *at;
	if (how == 0 && thread->kind->can_resize) {
		at = umfPoolCalloc(thread->on_top, 1, bytes);
		for (size_t i = 0; at && i < bytes; i++)
			if (at[i]) {
				CHECK(!"the memory has only zeros");
				break;
			}
	} else if (how < 3) {
		alignment = (size_t)8 << next_random(&thread->random) % 14;
		at = umfPoolAlignedMalloc(thread->on_top, bytes, alignment);
	} else {
		at = umfPoolMalloc(thread->on_top, bytes);
	}
	CHECK(at != NULL);
	if (!at)
		return;
	/* Malloc aligns to 8 bytes only what has at least 8. */
	CHECK((uintptr_t)at % alignment == 0 || bytes < 8);
	check_place(thread, at, bytes);
	*it = (struct allocation){at, bytes, (unsigned char)next_random(&thread->random)};
	memset(at, it->fill, bytes);
}

static void resize(struct thread *thread, struct allocation *it)
{
	size_t bytes = random_size(&thread->random);
	unsigned char *at = umfPoolRealloc(thread->on_top, it->at, bytes);
	CHECK(at != NULL);
	if (!at)
		return;
	it->at = at;
	check_fill(it, bytes < it->bytes ? bytes : it->bytes);
	check_place(thread, at, bytes);
	it->bytes = bytes;
	memset(at, it->fill, bytes);
}

static void *run(void *argument)
{
	struct thread *thread = argument;
	struct allocation owned[OWNED] = {0};
	for (int step = 0; step < STEPS; step++) {
		struct allocation *it = &owned[next_random(&thread->random) % OWNED];
		if (!it->at) {
			allocate(thread, it);
		} else if (thread->kind->can_resize && next_random(&thread->random) % 4 == 0) {
			resize(thread, it);
		} else {
			check_fill(it, it->bytes);
			OK(umfPoolFree(thread->on_top, it->at));
			it->at = NULL;
		}
	}
	for (int i = 0; i < OWNED; i++)
		if (owned[i].at) {
			check_fill(&owned[i], owned[i].bytes);
			OK(umfPoolFree(thread->on_top, owned[i].at));
		}
	return NULL;
}

static void test_kind(const struct kind *kind)
{
	printf("%s\n", kind->name);
	zonal_pool pool = build((zonal_pool_options){.size = 2048u << 20, .fake_nodes = 2});
	zonal_request request = {
		.struct_size = sizeof(request), .policy = ZONAL_POLICY_BIND, .nodes = &node, .nodes_len = 1};
	umf_memory_provider_handle_t provider = provide(pool, &request, ZONAL_UMF_CLOSE_POOL);
	umf_memory_pool_handle_t on_top = NULL;
	OK(umfPoolCreate(kind->ops, provider, kind->params, 0, &on_top));
	struct thread threads[THREADS];
	pthread_t handles[THREADS];
	for (int i = 0; on_top && i < THREADS; i++) {
		threads[i] = (struct thread){pool, on_top, kind, 0x9E3779B97F4A7C15 * (uint64_t)(i + 1)};
		CHECK(pthread_create(&handles[i], NULL, run, &threads[i]) == 0);
	}
	for (int i = 0; on_top && i < THREADS; i++)
		CHECK(pthread_join(handles[i], NULL) == 0);
	OK(umfPoolDestroy(on_top));
	CHECK(allocated(pool) == 0);
	CHECK(zonal_pool_verify(pool) == ZONAL_OK);
	OK(umfMemoryProviderDestroy(provider)); /* closes the pool, which is refused if blocks are allocated */
	CHECK(zonal_pool_verify(pool) == ZONAL_NOT_A_POOL);
}

int main(void)
{
	umf_disjoint_pool_params_handle_t disjoint = NULL;
	umf_scalable_pool_params_handle_t scalable = NULL;
	OK(umfDisjointPoolParamsCreate(&disjoint));
	OK(umfScalablePoolParamsCreate(&scalable));
	struct kind kinds[] = {
		{"scalable", umfScalablePoolOps(), scalable, true},
		{"jemalloc", umfJemallocPoolOps(), NULL, true},
		{"disjoint", umfDisjointPoolOps(), disjoint, false},
		{"proxy", umfProxyPoolOps(), NULL, false},
	};
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (kinds[i].ops)
			test_kind(&kinds[i]);
		else
			printf("skipped: this build of UMF has no %s pool\n", kinds[i].name);
	OK(umfDisjointPoolParamsDestroy(disjoint));
	OK(umfScalablePoolParamsDestroy(scalable));
	return report();
}
