/* Tests each operation of the provider for the Unified Memory Framework, without a pool of UMF on top. */

#include "umf_test.h"

#include <umf/experimental/ctl.h>

#include <umf/experimental/memory_properties.h>
#include <umf/memory_provider_gpu.h>
#include <umf/pools/pool_proxy.h>

#define REFUSED(call, result, text)                                                               \
	do {                                                                                      \
		const char *found = "";                                                           \
		int32_t error;                                                                    \
		CHECK((call) == (result));                                                        \
		OK(umfMemoryProviderGetLastNativeError(provider, &found, &error));                \
		if (!strstr(found, text) || error == ZONAL_OK)                                    \
			printf("the message is '%s', the error %d\n", found, error), failures++; \
	} while (0)

#define WRONG UMF_RESULT_ERROR_INVALID_ARGUMENT
#define WRONG_ALIGNMENT UMF_RESULT_ERROR_INVALID_ALIGNMENT

static umf_memory_provider_handle_t provider;
static zonal_pool pool;

static char *alloc(size_t bytes)
{
	void *at = NULL;
	OK(umfMemoryProviderAlloc(provider, bytes, 0, &at));
	return at;
}

static umf_result_t release(char *at, size_t bytes)
{
	return umfMemoryProviderFree(provider, at, bytes);
}

static umf_result_t split(char *at, size_t total, size_t first)
{
	return umfMemoryProviderAllocationSplit(provider, at, total, first);
}

static umf_result_t merge(char *low, char *high, size_t total)
{
	return umfMemoryProviderAllocationMerge(provider, low, high, total);
}

static void test_creation(void)
{
	uint16_t nowhere = 9;
	zonal_request unknown = {
		.struct_size = sizeof(unknown), .policy = ZONAL_POLICY_BIND, .nodes = &nowhere, .nodes_len = 1};
	zonal_request sized = {.struct_size = sizeof(sized), .bytes = PAGE};
	size_t size = sizeof(zonal_umf_params);
	zonal_umf_params wrong[] = {
		{.struct_size = size - 1, .pool = pool},
		{.struct_size = size, .pool = pool, .flags = 2},
		{.struct_size = size, .pool = pool, .reserved = 1},
		{.struct_size = size, .pool = pool, .recommended_page_bytes = 5000},
		{.struct_size = size, .pool = pool, .request = &unknown},
		{.struct_size = size, .pool = pool, .request = &sized},
	};
	umf_memory_provider_handle_t none;
	CHECK(umfMemoryProviderCreate(zonal_umf_ops(), NULL, &none) == WRONG);
	for (size_t at = 0; at < sizeof(wrong) / sizeof(*wrong); at++)
		CHECK(umfMemoryProviderCreate(zonal_umf_ops(), &wrong[at], &none) == WRONG);
	zonal_umf_params closed = {.struct_size = size};
	CHECK(umfMemoryProviderCreate(zonal_umf_ops(), &closed, &none) == UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC);
}

static void test_facts(void)
{
	size_t size = 0;
	const char *name = "";
	OK(umfMemoryProviderGetMinPageSize(provider, NULL, &size));
	CHECK(size == PAGE);
	OK(umfMemoryProviderGetRecommendedPageSize(provider, 1 << 30, &size));
	CHECK(size == PAGE);
	OK(umfMemoryProviderGetCacheLineSize(provider, &size));
	CHECK(size >= 16 && size <= 1024 && (size & (size - 1)) == 0);
	OK(umfMemoryProviderGetName(provider, &name));
	CHECK(strcmp(name, "zonal") == 0);
	OK(zonal_umf_ops()->get_name(NULL, &name));
	zonal_umf_params params = {
		.struct_size = sizeof(params), .pool = pool, .recommended_page_bytes = 2 << 20};
	umf_memory_provider_handle_t huge;
	OK(umfMemoryProviderCreate(zonal_umf_ops(), &params, &huge));
	OK(umfMemoryProviderGetRecommendedPageSize(huge, 2 << 20, &size));
	CHECK(size == 2 << 20);
	OK(umfMemoryProviderGetRecommendedPageSize(huge, (2 << 20) - 1, &size));
	CHECK(size == PAGE);
	OK(umfMemoryProviderDestroy(huge));
}

static size_t statistic(const char *path)
{
	size_t found = 77;
	OK(umfCtlGet(path, &found, sizeof(found), provider));
	return found;
}

static void test_statistics(void)
{
	const char *now = "umf.provider.by_handle.{}.stats.allocated_memory";
	const char *most = "umf.provider.by_handle.{}.stats.peak_memory";
	char *first = alloc(3 * PAGE), *second = alloc(100);
	void *aligned;
	CHECK(statistic(now) == 4 * PAGE && statistic(most) == 4 * PAGE);
	OK(split(first, 3 * PAGE, PAGE));
	OK(release(first, PAGE));
	OK(umfMemoryProviderAlloc(provider, PAGE, 3 * PAGE, &aligned));
	CHECK(statistic(now) == 4 * PAGE && statistic(most) == 4 * PAGE);
	CHECK(release(second, 2 * PAGE) == WRONG && statistic(now) == 4 * PAGE);
	OK(release(first + PAGE, 2 * PAGE));
	OK(release(aligned, PAGE));
	CHECK(statistic(now) == PAGE && statistic(most) == 4 * PAGE);
	OK(umfCtlExec("umf.provider.by_handle.{}.stats.peak_memory.reset", NULL, 0, provider));
	CHECK(statistic(most) == PAGE);
	OK(umfMemoryProviderAlloc(provider, PAGE, 3 * PAGE, &aligned)); /* what is cut off is not counted */
	CHECK(statistic(now) == 2 * PAGE && statistic(most) == 2 * PAGE);
	/* A free through another provider of the pool counts there, but not below 0. */
	umf_memory_provider_handle_t first_provider = provider;
	zonal_umf_params params = {.struct_size = sizeof(params), .pool = pool};
	OK(umfMemoryProviderCreate(zonal_umf_ops(), &params, &provider));
	char *third = alloc(PAGE);
	OK(release(aligned, PAGE));
	CHECK(statistic(now) == 0);
	OK(release(third, PAGE));
	CHECK(statistic(now) == 0 && statistic(most) == PAGE);
	OK(umfMemoryProviderDestroy(provider));
	provider = first_provider;
	CHECK(statistic(now) == 2 * PAGE);
	OK(release(second, 100));
	CHECK(statistic(now) == PAGE && statistic(most) == 2 * PAGE);
}

static void test_sizes_and_alignments(void)
{
	size_t sizes[] = {1, 4095, PAGE, 4097, 5 * PAGE, 65536, 70000, 2 << 20, (4 << 20) + 1, 9 << 20};
	size_t alignments[] = {0,	  1,	    64,	      PAGE,	 2 * PAGE, 3 * PAGE,
			       16 * PAGE, 100 * PAGE, 2 << 20, 4 << 20, 8 << 20};
	for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
		for (size_t a = 0; a < sizeof(alignments) / sizeof(*alignments); a++) {
			size_t size = sizes[s], alignment = alignments[a], pages = (size + PAGE - 1) / PAGE;
			void *at = NULL;
			OK(umfMemoryProviderAlloc(provider, size, alignment, &at));
			CHECK(at && (uintptr_t)at % (alignment ? alignment : PAGE) == 0);
			CHECK(allocated(pool) == pages);
			memset(at, 0x5A, size);
			OK(umfMemoryProviderPurgeLazy(provider, at, size));
			CHECK(release(at, (pages + 1) * PAGE) == WRONG);
			CHECK(pages == 1 || release(at, (pages - 1) * PAGE) == WRONG);
			CHECK(pages == 1 || release((char *)at + PAGE, PAGE) == WRONG);
			REFUSED(release(at, 0), WRONG, "whole pages");
			OK(release(at, size));
			REFUSED(release(at, size), WRONG, "not allocated");
			CHECK(allocated(pool) == 0);
		}
	void *at = &at;
	size_t wrong[] = {3, 48, PAGE + 1, PAGE + 64, 3 * PAGE / 2};
	for (size_t a = 0; a < sizeof(wrong) / sizeof(*wrong); a++)
		REFUSED(umfMemoryProviderAlloc(provider, PAGE, wrong[a], &at), WRONG_ALIGNMENT, "divisor of 4096");
	CHECK(at == NULL);
	REFUSED(umfMemoryProviderAlloc(provider, 0, 0, &at), WRONG, "no bytes");
	OK(umfMemoryProviderFree(provider, NULL, 0));
	REFUSED(release((char *)&at, PAGE), WRONG, "not memory of the pool");
}

static void test_out_of_memory(void)
{
	umf_result_t none = UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
	void *at = NULL;
	REFUSED(umfMemoryProviderAlloc(provider, SIZE_MAX, 0, &at), none, "");
	REFUSED(umfMemoryProviderAlloc(provider, SIZE_MAX - PAGE, 3 * PAGE, &at), none, "no address space");
	REFUSED(umfMemoryProviderAlloc(provider, PAGE, (size_t)1 << 62, &at), none, "");
	umf_memory_provider_handle_t all = provider;
	uint16_t one = 1;
	zonal_request bound = {.struct_size = sizeof(bound), .policy = ZONAL_POLICY_BIND, .nodes = &one, .nodes_len = 1};
	provider = provide(pool, &bound, 0);
	one = 0; /* the provider has copied the node */
	static char *pages[20000];
	size_t count = 0;
	umf_result_t result;
	while ((result = umfMemoryProviderAlloc(provider, PAGE, 0, &at)) == UMF_RESULT_SUCCESS) {
		zonal_location location = {.struct_size = sizeof(location)};
		CHECK(zonal_pool_locate(pool, at, &location) == ZONAL_OK && location.node == 1);
		pages[count++] = at;
	}
	REFUSED(result, none, "node 1");
	CHECK(count > 1000);
	while (count != 0)
		OK(release(pages[--count], PAGE));
	OK(umfMemoryProviderDestroy(provider));
	provider = all;
	CHECK(allocated(pool) == 0);
}

static void test_two_parts(void)
{
	for (size_t pages = 2; pages <= 40; pages++)
		for (size_t first = 1; first < pages; first++)
			for (int order = 0; order < 4; order++) {
				char *at = alloc(pages * PAGE), *high = at + first * PAGE;
				OK(split(at, pages * PAGE, first * PAGE));
				if (first + 1 < pages) {
					CHECK(release(high, (pages - first - 1) * PAGE) == WRONG);
					CHECK(release(high + PAGE, PAGE) == WRONG);
				}
				CHECK(release(at, pages * PAGE) == WRONG);
				CHECK(split(at, pages * PAGE, first * PAGE) == WRONG);
				if (order >= 2) {
					OK(merge(at, high, pages * PAGE));
					CHECK(release(high, (pages - first) * PAGE) == WRONG);
					CHECK(release(at, first * PAGE) == WRONG);
				}
				if (order == 2)
					OK(split(at, pages * PAGE, first * PAGE));
				if (order == 3)
					OK(release(at, pages * PAGE));
				else
					OK(order == 1 ? release(at, first * PAGE) : release(high, (pages - first) * PAGE));
				if (order != 3)
					OK(order == 1 ? release(high, (pages - first) * PAGE) : release(at, first * PAGE));
				CHECK(allocated(pool) == 0);
			}
}

static void test_refused_splits_and_merges(void)
{
	char *at = alloc(10 * PAGE), *other = alloc(10 * PAGE);
	REFUSED(split(at, 11 * PAGE, PAGE), WRONG, "not exactly one");
	REFUSED(split(at, 9 * PAGE, PAGE), WRONG, "not exactly one");
	REFUSED(split(at + PAGE, 9 * PAGE, PAGE), WRONG, "not exactly one");
	REFUSED(split(at, 10 * PAGE, 100), WRONG_ALIGNMENT, "whole pages");
	REFUSED(split((char *)(2 * PAGE), 2 * PAGE, PAGE), WRONG, "not memory of the pool");
	OK(split(at, 10 * PAGE - 5, 3 * PAGE)); /* the second part ends with the last page */
	OK(split(at + 3 * PAGE, 7 * PAGE, PAGE));
	REFUSED(merge(at, at + 4 * PAGE, 10 * PAGE), WRONG, "not exactly one"); /* a part lies between */
	REFUSED(merge(at, at + 3 * PAGE, 5 * PAGE), WRONG, "not exactly one");
	REFUSED(merge(at, at + 2 * PAGE, 4 * PAGE), WRONG, "not exactly one");
	REFUSED(merge(at, at + 3 * PAGE + 8, 4 * PAGE), WRONG, "");
	CHECK(merge(at < other ? at : other, at < other ? other : at, 20 * PAGE) == WRONG);
	OK(release(at + 3 * PAGE, PAGE));
	REFUSED(merge(at, at + 3 * PAGE, 4 * PAGE), WRONG, "not exactly one"); /* freed */
	OK(release(at, 3 * PAGE));
	OK(release(at + 4 * PAGE, 6 * PAGE));
	OK(release(other, 10 * PAGE));
	/* Neighbours that were allocated on their own. */
	char *pages[64];
	int merged = 0;
	for (int i = 0; i < 64; i++)
		pages[i] = alloc((i % 2 + 1) * PAGE);
	for (int i = 0; i < 64; i++)
		for (int j = 0; pages[i] && j < 64; j++)
			if (pages[j] == pages[i] + (i % 2 + 1) * PAGE) {
				size_t total = (i % 2 + j % 2 + 2) * PAGE;
				OK(merge(pages[i], pages[j], total));
				CHECK(release(pages[i], (i % 2 + 1) * PAGE) == WRONG);
				CHECK(release(pages[j], (j % 2 + 1) * PAGE) == WRONG);
				OK(release(pages[i], total));
				pages[i] = pages[j] = NULL;
				merged++;
			}
	CHECK(merged > 4);
	for (int i = 0; i < 64; i++)
		OK(release(pages[i], (i % 2 + 1) * PAGE));
	CHECK(allocated(pool) == 0);
}

static void test_properties(void)
{
	const umf_memory_provider_ops_t *ops = zonal_umf_ops();
	umf_memory_pool_handle_t proxy;
	OK(umfPoolCreate(umfProxyPoolOps(), provider, NULL, 0, &proxy));
	char *at = umfPoolMalloc(proxy, 3 * PAGE);
	umf_memory_properties_handle_t properties;
	OK(umfGetMemoryPropertiesHandle(at + PAGE, &properties));
	umf_usm_memory_type_t type = UMF_MEMORY_TYPE_UNKNOWN;
	OK(umfGetMemoryProperty(properties, UMF_MEMORY_PROPERTY_POINTER_TYPE, &type, sizeof(type)));
	CHECK(type == UMF_MEMORY_TYPE_HOST);
	zonal_location location = {.struct_size = sizeof(location)};
	CHECK(zonal_pool_locate(pool, at, &location) == ZONAL_OK);
	uint16_t node = 99;
	uint64_t frame = 0;
	umf_memory_property_id_t of_node = (umf_memory_property_id_t)ZONAL_UMF_PROPERTY_NODE;
	umf_memory_property_id_t of_frame = (umf_memory_property_id_t)ZONAL_UMF_PROPERTY_FRAME;
	OK(umfGetMemoryProperty(properties, of_node, &node, sizeof(node)));
	OK(umfGetMemoryProperty(properties, of_frame, &frame, sizeof(frame)));
	CHECK(node == location.node && frame == location.frame);
	CHECK(umfGetMemoryProperty(properties, of_frame, &frame, 4) == WRONG);
	size_t size;
	CHECK(umfGetMemoryPropertySize(properties, UMF_MEMORY_PROPERTY_DEVICE, &size) == UMF_RESULT_ERROR_NOT_SUPPORTED);
	CHECK(ops->ext_get_allocation_properties_size(NULL, of_node, &size) == UMF_RESULT_SUCCESS && size == 2);
	OK(umfPoolFree(proxy, at));
	OK(umfPoolDestroy(proxy));
	CHECK(allocated(pool) == 0);
}

static void test_purge(uint32_t pool_flags)
{
	zonal_pool purged = build((zonal_pool_options){.size = 32 << 20, .fake_nodes = 2, .flags = pool_flags});
	umf_memory_provider_handle_t all = provider;
	provider = provide(purged, NULL, 0);
	char *at = alloc(16 * PAGE);
	memset(at, 7, 16 * PAGE);
	OK(umfMemoryProviderPurgeForce(provider, at + PAGE, 8 * PAGE));
	for (int i = 0; i < 16; i++)
		CHECK(at[i * PAGE + 5] == (i >= 1 && i < 9 ? 0 : 7));
	OK(umfMemoryProviderPurgeLazy(provider, at, 16 * PAGE));
	memset(at, 9, 16 * PAGE);
	CHECK(at[5 * PAGE] == 9);
	REFUSED(umfMemoryProviderPurgeForce(provider, at + 8, PAGE), WRONG_ALIGNMENT, "not whole pages");
	REFUSED(umfMemoryProviderPurgeLazy(provider, at, PAGE + 1), WRONG_ALIGNMENT, "not whole pages");
	char *odd = alloc(PAGE + 1);
	memset(odd, 7, 2 * PAGE);
	OK(umfMemoryProviderPurgeForce(provider, odd, PAGE + 1));
	CHECK(odd[0] == 0 && odd[2 * PAGE - 1] == 0);
	OK(umfMemoryProviderPurgeLazy(provider, odd, PAGE + 1));
	OK(release(odd, PAGE + 1));
	OK(split(at, 16 * PAGE, 13 * PAGE));
	OK(umfMemoryProviderPurgeForce(provider, at + 13 * PAGE, 3 * PAGE - 1));
	REFUSED(umfMemoryProviderPurgeForce(provider, at, 13 * PAGE + 1), WRONG_ALIGNMENT, "not whole pages");
	OK(merge(at, at + 13 * PAGE, 16 * PAGE));
	static _Alignas(4096) char outside[PAGE] = {5};
	REFUSED(umfMemoryProviderPurgeForce(provider, outside, PAGE), WRONG, "not memory of the pool");
	CHECK(outside[0] == 5);
	/* The last page is on another node, and what lies between is not memory of the pool. */
	zonal_zone zones[2] = {{.struct_size = sizeof(*zones)}, {.struct_size = sizeof(*zones)}};
	for (size_t i = 0; i < 2; i++)
		CHECK(zonal_pool_zone(purged, i, &zones[i]) == ZONAL_OK);
	char *low = zones[0].address, *high = zones[1].address;
	if (low > high)
		low = high, high = zones[0].address;
	REFUSED(umfMemoryProviderPurgeForce(provider, low, (size_t)(high + PAGE - low)), WRONG, "not exactly one");
	OK(release(at, 16 * PAGE));
	OK(umfMemoryProviderDestroy(provider));
	provider = all;
	close_empty(purged);
}

static void test_closing(void)
{
	zonal_pool closed = build((zonal_pool_options){.size = 16 << 20});
	umf_memory_provider_handle_t all = provider;
	provider = provide(closed, NULL, ZONAL_UMF_CLOSE_POOL);
	char *at = alloc(4 * PAGE);
	OK(split(at, 4 * PAGE, PAGE));
	CHECK(umfMemoryProviderDestroy(provider) == UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC);
	CHECK(strstr(zonal_last_error(), "4 pages") && allocated(closed) == 4);
	CHECK(zonal_pool_close(closed, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
	closed = build((zonal_pool_options){.size = 16 << 20});
	provider = provide(closed, NULL, ZONAL_UMF_CLOSE_POOL);
	OK(umfMemoryProviderDestroy(provider));
	CHECK(zonal_pool_verify(closed) == ZONAL_NOT_A_POOL);
	provider = all;
}

int main(void)
{
	pool = build((zonal_pool_options){.size = 128 << 20, .fake_nodes = 2});
	provider = provide(pool, NULL, 0);
	test_creation();
	test_facts();
	test_statistics();
	test_sizes_and_alignments();
	test_out_of_memory();
	test_two_parts();
	test_refused_splits_and_merges();
	test_properties();
	test_purge(0);
	test_purge(ZONAL_POOL_SHARED_MEMORY);
	test_closing();
	OK(umfMemoryProviderDestroy(provider));
	close_empty(pool);
	return report();
}
