/* Builds and uses a pool in a program whose thread locals are larger than the stacks of the pool's threads. */

#include "check.h"

static _Thread_local volatile char large[3 << 20];

int main(void)
{
	large[sizeof(large) - 1] = 1;
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20});
	zonal_block block = alloc(pool, 8192);
	CHECK(accounting(pool).allocated == 2);
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
	CHECK(large[sizeof(large) - 1] == 1);
	printf("%d failures\n", failures);
	return failures != 0;
}
