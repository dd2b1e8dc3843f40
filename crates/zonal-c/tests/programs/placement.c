/* Uses policies, splits, locations, zones, residency, snapshots and explanations, with good and with bad input. */

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

static zonal_policy create(zonal_pool pool, uint32_t kind, const uint16_t *nodes, size_t len, const uint8_t *weights)
{
	zonal_policy_options options = {
		.struct_size = sizeof(options), .policy = kind, .nodes = nodes, .nodes_len = len, .weights = weights};
	zonal_policy policy;
	CHECK(zonal_policy_create(pool, &options, &policy) == ZONAL_OK && policy.id != 0);
	return policy;
}

static uint16_t node_with(zonal_pool pool, zonal_policy policy)
{
	zonal_request request = {.struct_size = sizeof(request), .policy_handle = policy};
	zonal_block block = {.struct_size = sizeof(block)};
	CHECK(zonal_alloc(pool, &request, &block) == ZONAL_OK);
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
	return block.node;
}

static void test_policies(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .fake_nodes = 4});
	uint16_t nodes[] = {3, 1, 2};
	zonal_policy interleave = create(pool, ZONAL_POLICY_INTERLEAVE, nodes, 3, NULL);
	uint16_t first = node_with(pool, interleave);
	uint16_t second = node_with(pool, interleave), third = node_with(pool, interleave);
	CHECK(first != second && second != third && first != third && first + second + third == 6);
	CHECK(node_with(pool, interleave) == first);

	uint8_t weights[] = {1, 4, 0};
	zonal_policy weighted = create(pool, ZONAL_POLICY_WEIGHTED_INTERLEAVE, nodes, 3, weights);
	int on[4] = {0};
	for (int at = 0; at < 50; at++)
		on[node_with(pool, weighted)]++;
	CHECK(on[0] == 0 && on[1] == 40 && on[2] == 0 && on[3] == 10);

	zonal_policy many = create(pool, ZONAL_POLICY_PREFERRED_MANY, nodes, 3, NULL);
	CHECK(node_with(pool, many) == 3 && node_with(pool, many) == 3);
	CHECK(node_with(pool, create(pool, ZONAL_POLICY_PREFERRED, &nodes[2], 1, NULL)) == 2);
	CHECK(node_with(pool, create(pool, ZONAL_POLICY_BIND, &nodes[1], 1, NULL)) == 1);

	/* Pages of a bulk request follow the policy too. */
	zonal_request request = {.struct_size = sizeof(request), .policy_handle = interleave};
	void *pages[90];
	size_t count = 0;
	CHECK(zonal_alloc_pages(pool, &request, pages, 90, &count) == ZONAL_OK && count == 90);
	int on_node[4] = {0};
	for (size_t at = 0; at < count; at++) {
		zonal_location location = {.struct_size = sizeof(location)};
		CHECK(zonal_pool_locate(pool, pages[at], &location) == ZONAL_OK && location.node < 4);
		on_node[location.node]++;
	}
	CHECK(on_node[1] == 30 && on_node[2] == 30 && on_node[3] == 30);
	CHECK(zonal_free_pages(pool, pages, count, NULL) == ZONAL_OK);

	/* What is wrong. */
	zonal_block block = {.struct_size = sizeof(block)};
	CHECK(zonal_policy_destroy(interleave) == ZONAL_OK);
	REFUSED(zonal_policy_destroy(interleave), ZONAL_INVALID_ARGUMENT, "destroyed");
	REFUSED(zonal_alloc(pool, &request, &block), ZONAL_INVALID_ARGUMENT, "not a policy");
	request.policy_handle = many;
	request.policy = ZONAL_POLICY_BIND;
	REFUSED(zonal_alloc(pool, &request, &block), ZONAL_INVALID_ARGUMENT, "only one of the two");
	request = (zonal_request){.struct_size = sizeof(request), .policy = ZONAL_POLICY_INTERLEAVE, .nodes = nodes, .nodes_len = 2};
	REFUSED(zonal_alloc(pool, &request, &block), ZONAL_INVALID_ARGUMENT, "zonal_policy_create");
	zonal_pool other = build((zonal_pool_options){.size = 16 << 20, .fake_nodes = 4});
	request = (zonal_request){.struct_size = sizeof(request), .policy_handle = many};
	REFUSED(zonal_alloc(other, &request, &block), ZONAL_INVALID_ARGUMENT, "another pool");
	zonal_policy refused = {7};
	zonal_policy_options options = {.struct_size = sizeof(options), .policy = ZONAL_POLICY_INTERLEAVE};
	REFUSED(zonal_policy_create(pool, &options, &refused), ZONAL_INVALID_ARGUMENT, "without nodes");
	CHECK(refused.id == 0);
	options.nodes = nodes;
	options.nodes_len = 3;
	options.policy = ZONAL_POLICY_WEIGHTED_INTERLEAVE;
	REFUSED(zonal_policy_create(pool, &options, &refused), ZONAL_INVALID_ARGUMENT, "weights is 0x0");
	uint8_t zeros[3] = {0};
	options.weights = zeros;
	REFUSED(zonal_policy_create(pool, &options, &refused), ZONAL_INVALID_ARGUMENT, "weight");
	options.policy = ZONAL_POLICY_INTERLEAVE;
	REFUSED(zonal_policy_create(pool, &options, &refused), ZONAL_INVALID_ARGUMENT, "weights are for");
	options = (zonal_policy_options){.struct_size = sizeof(options), .policy = 17, .nodes = nodes, .nodes_len = 1};
	REFUSED(zonal_policy_create(pool, &options, &refused), ZONAL_INVALID_ARGUMENT, "policy is 17");
	options = (zonal_policy_options){.struct_size = sizeof(options), .policy = ZONAL_POLICY_BIND, .reserved = 7, .nodes = nodes, .nodes_len = 1};
	REFUSED(zonal_policy_create(pool, &options, &refused), ZONAL_INVALID_ARGUMENT, "reserved is 7");
	uint16_t missing = 9;
	options = (zonal_policy_options){.struct_size = sizeof(options), .policy = ZONAL_POLICY_BIND, .nodes = &missing, .nodes_len = 1};
	REFUSED(zonal_policy_create(pool, &options, &refused), ZONAL_INVALID_ARGUMENT, "9");

	/* Policies end with their pool. */
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK && zonal_pool_close(other, 0) == ZONAL_OK);
	REFUSED(zonal_policy_destroy(many), ZONAL_INVALID_ARGUMENT, "destroyed");
}

static void test_alignment_and_splits(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .fake_nodes = 1});
	for (size_t alignment = 4096; alignment <= 4 << 20; alignment *= 2) {
		zonal_request request = {.struct_size = sizeof(request), .bytes = 5000, .alignment = alignment};
		zonal_block block = {.struct_size = sizeof(block)};
		CHECK(zonal_alloc(pool, &request, &block) == ZONAL_OK && block.bytes == 8192);
		CHECK((size_t)block.address % alignment == 0);
		CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
	}
	zonal_block block = {.struct_size = sizeof(block)};
	zonal_request wrong = {.struct_size = sizeof(wrong), .alignment = 12288};
	REFUSED(zonal_alloc(pool, &wrong, &block), ZONAL_INVALID_ARGUMENT, "alignment is 12288");
	wrong.alignment = (size_t)1 << 40;
	REFUSED(zonal_alloc(pool, &wrong, &block), ZONAL_INVALID_ARGUMENT, "at most 4194304");

	block = alloc(pool, 2 << 20);
	REFUSED(zonal_split(pool, block.address, 1 << 20, 4096), ZONAL_NOT_ALLOCATED, "1048576 bytes at");
	REFUSED(zonal_split(pool, block.address, block.bytes, 12288), ZONAL_INVALID_ARGUMENT, "piece_bytes is 12288");
	REFUSED(zonal_split(pool, block.address, block.bytes, 64), ZONAL_INVALID_ARGUMENT, "piece_bytes is 64");
	REFUSED(zonal_split(pool, block.address, block.bytes, 2 << 20), ZONAL_INVALID_ARGUMENT, "a single piece");
	REFUSED(zonal_split(pool, &pool, 4096, 4096), ZONAL_NOT_ALLOCATED, "not memory of the pool");
	CHECK(zonal_split(pool, block.address, block.bytes, 64 << 10) == ZONAL_OK);
	for (size_t at = 0; at < block.bytes; at += 64 << 10)
		CHECK(zonal_free(pool, (char *)block.address + at, 64 << 10) == ZONAL_OK);
	REFUSED(zonal_split(pool, block.address, 64 << 10, 4096), ZONAL_NOT_ALLOCATED, "not allocated");
	CHECK(accounting(pool).allocated == 0 && zonal_pool_close(pool, 0) == ZONAL_OK);
}

static void test_locations(void)
{
	zonal_pool pool = build((zonal_pool_options){
		.size = 32 << 20, .fake_nodes = 2, .huge_pages = ZONAL_HUGE_PAGES_NEVER, .flags = ZONAL_POOL_SHARED_MEMORY});
	zonal_block block = alloc(pool, 4 * 4096);
	zonal_location location = {.struct_size = sizeof(location)}, again = {.struct_size = sizeof(again)};
	CHECK(zonal_pool_locate(pool, (char *)block.address + 5000, &location) == ZONAL_OK);
	CHECK(location.frame == block.frame + 1 && location.address == (char *)block.address + 4096 && location.node == block.node);
	CHECK(zonal_pool_locate_frame(pool, location.frame, &again) == ZONAL_OK && again.address == location.address);
	/* The file has the memory. */
	CHECK(location.file >= 0);
	strcpy(location.address, "shared");
	char *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, location.file, (off_t)location.file_offset);
	CHECK(mapped != MAP_FAILED && !strcmp(mapped, "shared"));
	munmap(mapped, 4096);
	REFUSED(zonal_pool_locate(pool, &pool, &location), ZONAL_NOT_ALLOCATED, "not memory of the pool");
	REFUSED(zonal_pool_locate_frame(pool, 1, &location), ZONAL_NOT_ALLOCATED, "no page 1");
	location.struct_size = 1;
	REFUSED(zonal_pool_locate(pool, block.address, &location), ZONAL_INVALID_ARGUMENT, "struct_size is 1");
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK && zonal_pool_close(pool, 0) == ZONAL_OK);

	pool = build((zonal_pool_options){.size = 16 << 20});
	block = alloc(pool, 4096);
	location.struct_size = sizeof(location);
	CHECK(zonal_pool_locate(pool, block.address, &location) == ZONAL_OK && location.file == -1);
	CHECK(zonal_pool_close(pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
}

static void test_state(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 32 << 20, .fake_nodes = 2, .huge_pages = ZONAL_HUGE_PAGES_NEVER});
	zonal_block block = alloc(pool, 64 << 10);
	size_t zones = 0;
	uint64_t managed = 0, hits = 0;
	CHECK(zonal_pool_zones(pool, &zones) == ZONAL_OK && zones == 2);
	zonal_zone zone = {.struct_size = sizeof(zone)};
	for (size_t at = 0; at < zones; at++) {
		CHECK(zonal_pool_zone(pool, at, &zone) == ZONAL_OK && zone.node == at && zone.spanned >= zone.managed);
		CHECK(zone.watermark_min < zone.watermark_low && zone.watermark_low < zone.watermark_high);
		managed += zone.managed;
		hits += zone.hits;
	}
	CHECK(managed == accounting(pool).managed && hits == 1);
	REFUSED(zonal_pool_zone(pool, 2, &zone), ZONAL_INVALID_ARGUMENT, "the pool has 2");

	uint64_t huge = 1;
	CHECK(zonal_pool_huge_page_bytes(pool, &huge) == ZONAL_OK && huge == 0);
	zonal_residency residency = {.struct_size = sizeof(residency)};
	memset(block.address, 1, block.bytes);
	zonal_status status = zonal_pool_residency(pool, block.node, &residency);
	if (status == ZONAL_UNKNOWN) {
		puts("skipped: residency: the kernel denies move_pages");
	} else {
		CHECK(status == ZONAL_OK && residency.bytes == 16 << 20);
		CHECK(residency.absent == (16 << 20) - (64 << 10));
		CHECK(residency.on_node + residency.misplaced + residency.absent + residency.unknown == residency.bytes);
		REFUSED(zonal_pool_residency(pool, 7, &residency), ZONAL_INVALID_ARGUMENT, "no memory on node 7");
	}

	const char *expected[] = {"\"page_bytes\"", "Node 0, zone", "Node 1, zone", "nr_free_pages", "Fallback order"};
	for (uint32_t format = 0; format < 5; format++) {
		size_t needed = 0;
		CHECK(zonal_pool_snapshot(pool, format, NULL, 0, &needed) == ZONAL_OK && needed > 0);
		char *text = malloc(needed + 100);
		CHECK(zonal_pool_snapshot(pool, format, text, needed + 100, NULL) == ZONAL_OK);
		if (!strstr(text, expected[format]))
			printf("format %u: %.200s\n", format, text);
		CHECK(strstr(text, expected[format]) != NULL);
		free(text);
	}
	REFUSED(zonal_pool_snapshot(pool, 5, NULL, 0, NULL), ZONAL_INVALID_ARGUMENT, "format is 5");

	char text[4096];
	uint16_t one = 1;
	zonal_request request = {
		.struct_size = sizeof(request), .bytes = 8192, .policy = ZONAL_POLICY_BIND, .nodes = &one, .nodes_len = 1};
	CHECK(zonal_explain(pool, &request, text, sizeof(text), NULL) == ZONAL_OK);
	CHECK(strstr(text, "served by zone Normal of node 1\n") != NULL);
	CHECK(zonal_explain(pool, NULL, text, sizeof(text), NULL) == ZONAL_OK && strstr(text, "served by"));
	request.bytes = 1 << 30;
	REFUSED(zonal_explain(pool, &request, text, sizeof(text), NULL), ZONAL_INVALID_ARGUMENT, "1073741824");
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);

	uint64_t returned = 9;
	zonal_status trimmed = zonal_pool_trim(pool, &returned);
	CHECK(trimmed == ZONAL_OK && returned >= 64 << 10);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
}

/* The kernel returns no memory that is locked. What it returned before is reported. */
static void test_a_refused_trim(void)
{
	enum { COUNT = 12, BYTES = 4 << 20 };
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .fake_nodes = 1, .huge_pages = ZONAL_HUGE_PAGES_NEVER});
	zonal_block blocks[COUNT];
	char *highest = NULL;
	for (int at = 0; at < COUNT; at++) {
		blocks[at] = alloc(pool, BYTES);
		memset(blocks[at].address, 1, BYTES);
		if ((char *)blocks[at].address > highest)
			highest = blocks[at].address;
	}
	int is_locked = syscall(SYS_mlock, highest, (size_t)BYTES) == 0; /* sanitizers replace the function */
	for (int at = 0; at < COUNT; at++)
		CHECK(zonal_free(pool, blocks[at].address, BYTES) == ZONAL_OK);
	uint64_t returned = 9;
	if (is_locked) {
		REFUSED(zonal_pool_trim(pool, &returned), ZONAL_RESIZE_FAILED, "bytes were returned to the kernel");
		CHECK(returned >= BYTES && strtoull(zonal_last_error(), NULL, 10) == returned);
	} else {
		puts("skipped: a trim that the kernel refuses: RLIMIT_MEMLOCK does not allow 4 MiB");
	}
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
}

static void test_options(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .page_bytes = 16384, .block_bytes_max = 32 << 20, .prefault_threads = 2,
		.quarantine_pages = 16, .flags = ZONAL_POOL_POISON | ZONAL_POOL_ZEROED | ZONAL_POOL_PREFAULT,
		.settings = "min_free_kbytes=1024; node_load=assign\n invalid_free=checked"});
	CHECK(accounting(pool).page_bytes == 16384);
	char value[64];
	CHECK(zonal_pool_setting(pool, "min_free_kbytes", value, sizeof(value), NULL) == ZONAL_OK && !strcmp(value, "1024"));
	CHECK(zonal_pool_setting(pool, "invalid_free", value, sizeof(value), NULL) == ZONAL_OK && !strcmp(value, "checked"));
	CHECK(zonal_pool_setting(pool, "watermark_scale_factor", value, sizeof(value), NULL) == ZONAL_OK && !strcmp(value, "500"));
	zonal_block block = alloc(pool, 32 << 20);
	CHECK((size_t)block.address % (32 << 20) == 0 && ((char *)block.address)[12345] == 0);
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
	/* A freed page in quarantine does not count as allocated, and does not keep the pool open. */
	block = alloc(pool, 4096);
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK);
	CHECK(accounting(pool).allocated == 0 && accounting(pool).unavailable > 0);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
	/* Nor do pages that were written after they were freed, which are not used again. */
	pool = build((zonal_pool_options){.size = 16 << 20, .fake_nodes = 1, .flags = ZONAL_POOL_POISON});
	void *pages[400];
	size_t count = 0;
	CHECK(zonal_alloc_pages(pool, NULL, pages, 400, &count) == ZONAL_OK && count == 400);
	CHECK(zonal_free_pages(pool, pages, count, NULL) == ZONAL_OK);
	for (size_t at = 0; at < 50; at++)
		*(char *)pages[at] = 1;
	CHECK(zonal_alloc_pages(pool, NULL, pages, 400, &count) == ZONAL_OK && count == 400);
	CHECK(accounting(pool).allocated == 400 && accounting(pool).unavailable > 0);
	CHECK(zonal_free_pages(pool, pages, count, NULL) == ZONAL_OK && accounting(pool).allocated == 0);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);

	struct {
		zonal_pool_options options;
		zonal_status status;
		const char *text;
	} wrong[] = {
		{{.settings = "min_free_kbytes"}, ZONAL_INVALID_ARGUMENT, "not `name=value`"},
		{{.settings = "swappiness=1"}, ZONAL_INVALID_ARGUMENT, "min_free_kbytes"},
		{{.settings = "node_load=no"}, ZONAL_INVALID_ARGUMENT, "accumulate"},
		{{.settings = "stat_refresh=1"}, ZONAL_INVALID_ARGUMENT, "once the allocator exists"},
		{{.page_bytes = 5000}, ZONAL_INVALID_ARGUMENT, "page_bytes is 5000"},
		{{.page_bytes = 512}, ZONAL_BUILD_FAILED, "4096"},
		{{.block_bytes_max = 1 << 20}, ZONAL_INVALID_ARGUMENT, "from 4194304 to 1073741824"},
		{{.block_bytes_max = 5 << 20}, ZONAL_INVALID_ARGUMENT, "block_bytes_max is 5242880"},
	};
	for (size_t at = 0; at < sizeof(wrong) / sizeof(*wrong); at++) {
		wrong[at].options.struct_size = sizeof(zonal_pool_options);
		wrong[at].options.size = 64 << 20;
		REFUSED(zonal_pool_build(&wrong[at].options, &pool), wrong[at].status, wrong[at].text);
	}
	CHECK(zonal_version() != NULL && strchr(zonal_version(), '.') != NULL);
}

int main(void)
{
	test_policies();
	test_alignment_and_splits();
	test_locations();
	test_state();
	test_a_refused_trim();
	test_options();
	printf("%d failures\n", failures);
	return failures != 0;
}
