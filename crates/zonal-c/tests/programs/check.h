/* What the programs in this folder share: checks that count failures, and pools. */

#include <stdio.h>
#include <string.h>

#include "zonal.h"

static _Atomic int failures;

#define CHECK(condition)                                                                              \
	do {                                                                                          \
		if (!(condition)) {                                                                   \
			printf("line %d: %s (last error: %s)\n", __LINE__, #condition, zonal_last_error()); \
			failures++;                                                                   \
		}                                                                                     \
	} while (0)

#define REFUSED(call, status, text)                                      \
	do {                                                             \
		CHECK((call) == (status));                               \
		CHECK(strstr(zonal_last_error(), text) != NULL);         \
	} while (0)

static inline zonal_pool build(zonal_pool_options options)
{
	zonal_pool pool;
	options.struct_size = sizeof(options);
	CHECK(zonal_pool_build(&options, &pool) == ZONAL_OK && pool.id != 0);
	return pool;
}

static inline zonal_block alloc(zonal_pool pool, size_t bytes)
{
	zonal_request request = {.struct_size = sizeof(request), .bytes = bytes};
	zonal_block block = {.struct_size = sizeof(block)};
	CHECK(zonal_alloc(pool, &request, &block) == ZONAL_OK);
	return block;
}

static inline zonal_accounting accounting(zonal_pool pool)
{
	zonal_accounting found = {.struct_size = sizeof(found)};
	CHECK(zonal_pool_accounting(pool, &found) == ZONAL_OK);
	CHECK(found.managed == found.free + found.in_pagesets + found.allocated + found.unavailable);
	return found;
}
