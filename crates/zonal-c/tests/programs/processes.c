/* Processes that share a pool: another one joins, allocates, hands a block over and is killed, and nothing is lost. Also what
 * cannot be shared or joined, and children that `fork` makes. */

#define _GNU_SOURCE

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const size_t KEPT = 64 << 10, LOST = 3 * 4096;
static char path[64];

static uint32_t owners(zonal_pool pool)
{
	size_t count = 99;
	CHECK(zonal_pool_owners(pool, &count) == ZONAL_OK);
	return (uint32_t)count;
}

static zonal_owner owner(zonal_pool pool, size_t index)
{
	zonal_owner found = {.struct_size = sizeof(found)};
	CHECK(zonal_pool_owner(pool, index, &found) == ZONAL_OK);
	return found;
}

/* Another process, which prints the frames of two blocks and sleeps. */
typedef struct other {
	pid_t process;
	unsigned long long kept, lost;
} other;

static int be_other(const char *place)
{
	zonal_pool pool;
	zonal_status status = *place == '/' ? zonal_pool_join(place, &pool) : zonal_pool_join_fd(atoi(place), &pool);
	CHECK(status == ZONAL_OK);
	void *pages[300];
	size_t count = 0;
	CHECK(zonal_alloc_pages(pool, NULL, pages, 300, &count) == ZONAL_OK && count == 300);
	CHECK(zonal_free_pages(pool, pages, 150, NULL) == ZONAL_OK);
	zonal_block kept = alloc(pool, KEPT), lost = alloc(pool, LOST);
	memset(kept.address, 0x5A, kept.bytes);
	printf("%d %llu %llu\n", failures, (unsigned long long)kept.frame, (unsigned long long)lost.frame);
	fflush(stdout);
	alarm(60);
	pause();
	return 1;
}

/* Starts another process that joins the pool at the place: a path or a descriptor. */
static other start_other(const char *place)
{
	other found = {0};
	int ends[2], failed = 1;
	CHECK(pipe(ends) == 0);
	fflush(stdout);
	found.process = fork();
	if (found.process == 0) {
		dup2(ends[1], STDOUT_FILENO);
		execl("/proc/self/exe", "processes", "--other", place, (char *)NULL);
		_exit(1);
	}
	close(ends[1]);
	FILE *answer = fdopen(ends[0], "r");
	CHECK(fscanf(answer, "%d %llu %llu", &failed, &found.kept, &found.lost) == 3 && failed == 0);
	fclose(answer);
	return found;
}

static void test_death(zonal_pool pool, const char *place)
{
	zonal_block mine = alloc(pool, 8192), taken = {.struct_size = sizeof(taken)};
	other other = start_other(place);
	CHECK(owners(pool) == 2 && owner(pool, 0).is_this && owner(pool, 0).pid == (uint32_t)getpid());
	zonal_owner second = owner(pool, 1);
	CHECK(!second.is_this && second.pid == (uint32_t)other.process && second.process == 2 && second.epoch >= 1);
	CHECK(second.held == 150 + (KEPT + LOST) / 4096 && second.is_alive && *second.name == 0);
	CHECK(accounting(pool).allocated == 2 + 150 + (KEPT + LOST) / 4096);

	REFUSED(zonal_pool_take_over(pool, other.kept, KEPT / 2, NULL), ZONAL_NOT_ALLOCATED, "32768 bytes from page");
	REFUSED(zonal_pool_take_over(pool, other.kept, 100, NULL), ZONAL_NOT_ALLOCATED, "not whole pages of 4096");
	REFUSED(zonal_pool_take_over(pool, (uint64_t)1 << 60, KEPT, &taken), ZONAL_NOT_ALLOCATED, "no such page");
	REFUSED(zonal_pool_take_over(pool, UINT64_MAX, KEPT, &taken), ZONAL_NOT_ALLOCATED, "no such page");
	CHECK(zonal_pool_take_over(pool, other.kept, KEPT, &taken) == ZONAL_OK);
	CHECK(taken.frame == other.kept && taken.bytes == KEPT && taken.node == mine.node);
	zonal_location location = {.struct_size = sizeof(location)};
	CHECK(zonal_pool_locate(pool, taken.address, &location) == ZONAL_OK && location.frame == other.kept);
	CHECK(zonal_pool_locate_frame(pool, other.lost, &location) == ZONAL_OK && location.address != NULL);

	CHECK(kill(other.process, SIGKILL) == 0 && waitpid(other.process, NULL, 0) == other.process);
	uint64_t freed;
	while (owners(pool) > 1) /* the pool's own thread may be faster */
		CHECK(zonal_pool_recover_dead(pool, &freed) == ZONAL_OK);
	CHECK(zonal_pool_recover_dead(pool, &freed) == ZONAL_OK && freed == 0);
	CHECK(zonal_pool_recover_dead(pool, NULL) == ZONAL_OK);
	CHECK(accounting(pool).allocated == 2 + KEPT / 4096 && zonal_pool_verify(pool) == ZONAL_OK);
	for (size_t at = 0; at < KEPT; at += 4096)
		CHECK(((char *)taken.address)[at] == 0x5A);
	REFUSED(zonal_free(pool, location.address, LOST), ZONAL_NOT_ALLOCATED, "bytes at");
	REFUSED(zonal_pool_close(pool, 0), ZONAL_BUSY, "18 pages");
	CHECK(zonal_free(pool, taken.address, taken.bytes) == ZONAL_OK);
	CHECK(zonal_free(pool, mine.address, mine.bytes) == ZONAL_OK);
	CHECK(accounting(pool).allocated == 0 && zonal_pool_verify(pool) == ZONAL_OK);
}

static void test_deaths(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .shared_path = path, .processes = 2});
	test_death(pool, path);
	test_death(pool, path);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK && unlink(path) == 0);

	pool = build((zonal_pool_options){.size = 64 << 20, .flags = ZONAL_POOL_SHARED_BY_DESCRIPTOR});
	int32_t fd = -1;
	CHECK(zonal_pool_shared_fd(pool, &fd) == ZONAL_OK && fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	int inherited = dup(fd); /* without FD_CLOEXEC */
	char number[16];
	snprintf(number, sizeof(number), "%d", inherited);
	test_death(pool, number);
	close(inherited);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK);
}

/* A pool that is closed takes no blocks of the others with it, and does not wait for them. */
static void test_two_members(void)
{
	zonal_pool first = build((zonal_pool_options){.size = 64 << 20, .shared_path = path, .processes = 2}), second, third;
	CHECK(zonal_pool_join(path, &second) == ZONAL_OK);
	REFUSED(zonal_pool_join(path, &third), ZONAL_BUILD_FAILED, "as many as it was made for");
	CHECK(third.id == 0);
	zonal_block of_first = alloc(first, 4096), of_second = alloc(second, 8192);
	REFUSED(zonal_pool_close(first, 0), ZONAL_BUSY, "1 pages");
	REFUSED(zonal_pool_close(second, 0), ZONAL_BUSY, "2 pages");
	zonal_block here = {.struct_size = sizeof(here)};
	CHECK(zonal_pool_take_over(first, of_second.frame, of_second.bytes, &here) == ZONAL_OK);
	CHECK(here.address != of_second.address && zonal_pool_close(second, 0) == ZONAL_OK);
	CHECK(accounting(first).allocated == 3 && owners(first) == 1);
	CHECK(zonal_pool_join(path, &second) == ZONAL_OK);
	CHECK(zonal_pool_take_over(second, of_first.frame, of_first.bytes, &of_first) == ZONAL_OK);
	CHECK(zonal_free(first, here.address, here.bytes) == ZONAL_OK && zonal_pool_close(first, 0) == ZONAL_OK);
	CHECK(accounting(second).allocated == 1 && zonal_pool_close(second, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
	CHECK(zonal_pool_join(path, &first) == ZONAL_OK && accounting(first).allocated == 0);
	CHECK(zonal_pool_close(first, 0) == ZONAL_OK && unlink(path) == 0);
}

static void note_held(void *context, const zonal_block *block)
{
	CHECK(block->struct_size == sizeof(*block) && block->address != NULL);
	*(uint64_t *)context += block->bytes * 1000 + 1;
}

/* Blocks of a process with a name outlive it. */
static void test_names(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .shared_path = path, .process_name = "server"}), other;
	CHECK(!strcmp(owner(pool, 0).name, "server"));
	REFUSED(zonal_pool_join_as(path, "server", &other), ZONAL_BUILD_FAILED, "lives");
	REFUSED(zonal_pool_join_as(path, "", &other), ZONAL_BUILD_FAILED, "1 to 32 bytes");
	REFUSED(zonal_pool_discard(pool, "server", NULL), ZONAL_BUSY, "lives");
	REFUSED(zonal_pool_discard(pool, "client", NULL), ZONAL_INVALID_ARGUMENT, "keeps nothing");
	zonal_block block = alloc(pool, KEPT), found = {.struct_size = sizeof(found)};
	memset(block.address, 0x5A, block.bytes);
	alloc(pool, 4096);
	CHECK(zonal_pool_set_root(pool, "index", block.frame, block.bytes) == ZONAL_OK);
	REFUSED(zonal_pool_set_root(pool, "index", block.frame, block.bytes / 2), ZONAL_NOT_ALLOCATED, "cannot be a root");
	REFUSED(zonal_pool_set_root(pool, "index", UINT64_MAX, 4096), ZONAL_NOT_ALLOCATED, "no such page");
	CHECK(zonal_pool_close(pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK);
	int32_t fd = open(path, O_RDWR);
	CHECK(zonal_pool_join_fd_as(fd, "server", &pool) == ZONAL_OK && close(fd) == 0);
	CHECK(zonal_pool_root(pool, "index", &found) == ZONAL_OK && found.frame == block.frame && found.bytes == KEPT);
	CHECK(((char *)found.address)[KEPT - 1] == 0x5A);
	uint64_t held = 0;
	CHECK(zonal_pool_for_each_held(pool, note_held, &held) == ZONAL_OK && held == (KEPT + 4096) * 1000 + 2);
	REFUSED(zonal_pool_for_each_held(pool, NULL, NULL), ZONAL_INVALID_ARGUMENT, "each is null");
	CHECK(zonal_pool_set_root(pool, "index", 0, 0) == ZONAL_OK && zonal_free(pool, found.address, KEPT) == ZONAL_OK);
	CHECK(zonal_pool_root(pool, "index", &found) == ZONAL_OK && found.bytes == 0 && found.address == NULL);
	CHECK(zonal_pool_join_as(path, "client", &other) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, ZONAL_CLOSE_WITH_BLOCKS) == ZONAL_OK && !owner(other, 0).is_alive);
	uint64_t pages = 0;
	CHECK(zonal_pool_discard(other, "server", &pages) == ZONAL_OK && pages == 1 && accounting(other).allocated == 0);
	CHECK(zonal_pool_verify(other) == ZONAL_OK && zonal_pool_close(other, 0) == ZONAL_OK && unlink(path) == 0);
}

static void write_file(const char *text, off_t bytes)
{
	int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
	CHECK(write(file, text, strlen(text)) == (ssize_t)strlen(text) && ftruncate(file, bytes) == 0);
	close(file);
}

static void test_refused_joins(void)
{
	zonal_pool pool = {7};
	REFUSED(zonal_pool_join(NULL, &pool), ZONAL_INVALID_ARGUMENT, "path is");
	CHECK(pool.id == 0);
	REFUSED(zonal_pool_join(path, NULL), ZONAL_INVALID_ARGUMENT, "pool is");
	REFUSED(zonal_pool_join("\xFF", &pool), ZONAL_INVALID_ARGUMENT, "UTF-8");
	REFUSED(zonal_pool_join(path, &pool), ZONAL_BUILD_FAILED, "No such file");
	write_file("no pool", 7);
	REFUSED(zonal_pool_join(path, &pool), ZONAL_BUILD_FAILED, "shorter than a header");
	write_file("no pool", 1 << 20);
	REFUSED(zonal_pool_join(path, &pool), ZONAL_BUILD_FAILED, "does not begin like a pool");
	int file = open(path, O_RDWR), null = open("/dev/null", O_RDWR);
	REFUSED(zonal_pool_join_fd(file, &pool), ZONAL_BUILD_FAILED, "does not begin like a pool");
	REFUSED(zonal_pool_join_fd(null, &pool), ZONAL_BUILD_FAILED, "no regular file");
	close(null);
	close(file);
	REFUSED(zonal_pool_join_fd(file, &pool), ZONAL_BUILD_FAILED, "cannot open");
	REFUSED(zonal_pool_join_fd(-1, &pool), ZONAL_INVALID_ARGUMENT, "fd is -1");
	CHECK(pool.id == 0 && unlink(path) == 0);
}

static void test_refused_options(void)
{
	zonal_pool pool;
	struct {
		zonal_pool_options options;
		zonal_status status;
		const char *text;
	} wrong[] = {
		{{.processes = 3}, ZONAL_INVALID_ARGUMENT, "the pool is not shared"},
		{{.process_name = "a"}, ZONAL_INVALID_ARGUMENT, "the pool is not shared"},
		{{.shared_path = path, .process_name = ""}, ZONAL_BUILD_FAILED, "1 to 32 bytes"},
		{{.shared_path = path, .processes = 65}, ZONAL_INVALID_ARGUMENT, "at most 64"},
		{{.shared_path = path, .flags = ZONAL_POOL_SHARED_BY_DESCRIPTOR}, ZONAL_INVALID_ARGUMENT, "only one"},
		{{.shared_path = path, .max_size = 128 << 20}, ZONAL_BUILD_FAILED, "largest size"},
		{{.shared_path = path, .flags = ZONAL_POOL_PREFAULT}, ZONAL_BUILD_FAILED, "prefault"},
		{{.shared_path = path, .flags = ZONAL_POOL_POISON}, ZONAL_BUILD_FAILED, ""},
		{{.shared_path = "/dev/shm/no/such/folder"}, ZONAL_BUILD_FAILED, "No such file"},
		{{.shared_path = "/dev/null"}, ZONAL_BUILD_FAILED, "join the pool there"},
	};
	for (size_t at = 0; at < sizeof(wrong) / sizeof(*wrong); at++) {
		wrong[at].options.struct_size = sizeof(zonal_pool_options);
		wrong[at].options.size = 64 << 20;
		REFUSED(zonal_pool_build(&wrong[at].options, &pool), wrong[at].status, wrong[at].text);
	}
	CHECK(access(path, F_OK) != 0);
}

/* What the functions do with a pool that is not shared, and with wrong structures. */
static void test_other_pools(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20, .fake_nodes = 1});
	int32_t fd = 7;
	CHECK(zonal_pool_shared_fd(pool, &fd) == ZONAL_OK && fd == -1);
	REFUSED(zonal_pool_shared_fd(pool, NULL), ZONAL_INVALID_ARGUMENT, "fd is");
	zonal_owner found = {.struct_size = sizeof(found)}, small = {.struct_size = 8};
	REFUSED(zonal_pool_owner(pool, 0, &found), ZONAL_INVALID_ARGUMENT, "there is no process 0; 0 share the pool");
	REFUSED(zonal_pool_owner(pool, 0, &small), ZONAL_INVALID_ARGUMENT, "struct_size is 8");
	REFUSED(zonal_pool_owners(pool, NULL), ZONAL_INVALID_ARGUMENT, "count is");
	uint64_t freed = 7;
	CHECK(owners(pool) == 0 && zonal_pool_recover_dead(pool, &freed) == ZONAL_OK && freed == 0);
	zonal_block block = alloc(pool, 8192), wrong = {.struct_size = 8}, taken = {.struct_size = sizeof(taken)};
	REFUSED(zonal_pool_take_over(pool, block.frame, block.bytes, &wrong), ZONAL_INVALID_ARGUMENT, "struct_size is 8");
	CHECK(zonal_pool_take_over(pool, block.frame, block.bytes, &taken) == ZONAL_OK && taken.address == block.address);
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK && zonal_pool_close(pool, 0) == ZONAL_OK);
	REFUSED(zonal_pool_owners(pool, &(size_t){0}), ZONAL_NOT_A_POOL, "has been closed");
	REFUSED(zonal_pool_take_over(pool, block.frame, block.bytes, NULL), ZONAL_NOT_A_POOL, "has been closed");
}

static void use_in_child(zonal_pool pool, zonal_block block)
{
	zonal_accounting found = {.struct_size = sizeof(found)};
	REFUSED(zonal_pool_accounting(pool, &found), ZONAL_NOT_A_POOL, "no part in the shared pool");
	REFUSED(zonal_alloc(pool, NULL, &block), ZONAL_NOT_A_POOL, "no part in the shared pool");
	REFUSED(zonal_free(pool, block.address, block.bytes), ZONAL_NOT_A_POOL, "no part in the shared pool");
	zonal_pool own;
	CHECK(zonal_pool_join(path, &own) == ZONAL_OK && owners(own) == 2);
	zonal_block page = alloc(own, 4096);
	memset(page.address, 1, page.bytes);
	CHECK(accounting(own).allocated == 3);
	CHECK(zonal_free(own, page.address, page.bytes) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK && zonal_pool_close(own, 0) == ZONAL_OK);
}

static void test_children(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 64 << 20, .shared_path = path});
	zonal_block block = alloc(pool, 8192);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		alarm(60);
		failures = 0;
		use_in_child(pool, block);
		fflush(stdout);
		_exit(failures != 0);
	}
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(owners(pool) == 1 && accounting(pool).allocated == 2);
	CHECK(zonal_free(pool, block.address, block.bytes) == ZONAL_OK && zonal_pool_verify(pool) == ZONAL_OK);
	CHECK(zonal_pool_close(pool, 0) == ZONAL_OK && unlink(path) == 0);
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "--other"))
		return be_other(argv[2]);
	snprintf(path, sizeof(path), "/dev/shm/zonal-c-%d", (int)getpid());
	test_deaths();
	test_two_members();
	test_names();
	test_refused_joins();
	test_refused_options();
	test_other_pools();
	if (argc < 2 || strcmp(argv[1], "--no-fork"))
		test_children();
	unlink(path); /* if a check failed */
	printf("%d failures\n", failures);
	return failures != 0;
}
