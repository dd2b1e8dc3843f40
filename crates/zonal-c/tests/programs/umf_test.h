/* What the programs that test the provider for the Unified Memory Framework share. */

#ifndef UMF_TEST_H
#define UMF_TEST_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <umf.h>

#include "zonal_umf.h"

static atomic_int failures;

#define CHECK(condition)                                                                                       \
	do {                                                                                                   \
		if (!(condition)) {                                                                            \
			printf("%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, zonal_last_error()); \
			failures++;                                                                            \
		}                                                                                              \
	} while (0)

#define OK(call) CHECK((call) == UMF_RESULT_SUCCESS)

/* Bytes of a page of all pools. */
enum { PAGE = 4096 };

static inline zonal_pool build(zonal_pool_options options)
{
	zonal_pool pool;
	options.struct_size = sizeof(options);
	CHECK(zonal_pool_build(&options, &pool) == ZONAL_OK);
	return pool;
}

static inline umf_memory_provider_handle_t provide(zonal_pool pool, const zonal_request *request, uint32_t flags)
{
	zonal_umf_params params = {
		.struct_size = sizeof(params), .pool = pool, .request = request, .flags = flags};
	umf_memory_provider_handle_t provider = NULL;
	OK(umfMemoryProviderCreate(zonal_umf_ops(), &params, &provider));
	return provider;
}

static inline uint64_t allocated(zonal_pool pool)
{
	zonal_accounting found = {.struct_size = sizeof(found)};
	CHECK(zonal_pool_accounting(pool, &found) == ZONAL_OK);
	return found.allocated;
}

/* Checks that no block is left, and closes the pool. */
static inline void close_empty(zonal_pool pool)
{
	CHECK(allocated(pool) == 0);
	CHECK(zonal_pool_verify(pool) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
}

static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 8;
}

static inline int report(void)
{
	printf("%d failures\n", failures);
	return failures != 0;
}

#endif /* UMF_TEST_H */
