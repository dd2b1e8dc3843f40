/* Checks zonal_check_block on blocks, runs, pieces, and what is none of these. Ends with 0 if nothing fails. */

#include "check.h"

static const size_t page = 4096;

static void test_refusals(zonal_pool pool, char *at, size_t bytes)
{
	CHECK(zonal_check_block(pool, at, bytes) == ZONAL_OK);
	CHECK(zonal_check_block(pool, at, bytes + page) == ZONAL_NOT_ALLOCATED);
	CHECK(zonal_check_block(pool, at, bytes - 1) == ZONAL_NOT_ALLOCATED);
	CHECK(zonal_check_block(pool, at, 0) == ZONAL_NOT_ALLOCATED);
	CHECK(zonal_check_block(pool, at, (size_t)-1 & ~(page - 1)) == ZONAL_NOT_ALLOCATED);
	CHECK(zonal_check_block(pool, at + 8, bytes) == ZONAL_NOT_ALLOCATED);
	for (size_t less = page; less < bytes; less += page) {
		CHECK(zonal_check_block(pool, at, less) == ZONAL_NOT_ALLOCATED);
		CHECK(zonal_check_block(pool, at + less, bytes - less) == ZONAL_NOT_ALLOCATED);
	}
}

static void test_block(zonal_pool pool, size_t bytes)
{
	zonal_request request = {.struct_size = sizeof(request), .bytes = bytes};
	zonal_block block = {.struct_size = sizeof(block)}, next = {.struct_size = sizeof(next)};
	CHECK(zonal_alloc(pool, &request, &block) == ZONAL_OK && zonal_alloc(pool, &request, &next) == ZONAL_OK);
	char *at = block.address;
	test_refusals(pool, at, block.bytes);
	test_refusals(pool, next.address, next.bytes);
	CHECK(zonal_free(pool, next.address, next.bytes) == ZONAL_OK);
	CHECK(zonal_check_block(pool, next.address, next.bytes) == ZONAL_NOT_ALLOCATED);
	CHECK(strstr(zonal_last_error(), "not exactly one allocated block"));
	if (block.bytes > page) {
		CHECK(zonal_split(pool, at, block.bytes, page) == ZONAL_OK);
		CHECK(zonal_check_block(pool, at, block.bytes) == ZONAL_NOT_ALLOCATED);
		for (size_t piece = 0; piece < block.bytes; piece += page) {
			CHECK(zonal_check_block(pool, at + piece, page) == ZONAL_OK);
			CHECK(zonal_free(pool, at + piece, page) == ZONAL_OK);
			CHECK(zonal_check_block(pool, at + piece, page) == ZONAL_NOT_ALLOCATED);
		}
	} else {
		CHECK(zonal_free(pool, at, block.bytes) == ZONAL_OK);
	}
}

int main(void)
{
	zonal_pool_options options = {.struct_size = sizeof(options), .size = 64 << 20, .fake_nodes = 2};
	zonal_pool pool;
	CHECK(zonal_pool_build(&options, &pool) == ZONAL_OK);
	size_t sizes[] = {page, 2 * page, 3 * page, 7 * page, 16 * page, 100 * page, 1500 * page};
	for (size_t at = 0; at < sizeof(sizes) / sizeof(*sizes); at++)
		test_block(pool, sizes[at]);
	CHECK(zonal_check_block(pool, NULL, page) == ZONAL_NOT_ALLOCATED);
	CHECK(zonal_check_block(pool, &pool, page) == ZONAL_NOT_ALLOCATED);
	CHECK(zonal_pool_verify(pool) == ZONAL_OK && zonal_pool_close(pool, 0) == ZONAL_OK);
	CHECK(zonal_check_block(pool, NULL, page) == ZONAL_NOT_A_POOL);
	printf("%d failures\n", failures);
	return failures != 0;
}
