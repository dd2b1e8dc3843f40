/* Passes an allocation to another process through UMF: this program runs itself, with the handle as input.
 *
 * Prints a line that begins with "skipped: " if this process may not open files of another one.
 */

#define _GNU_SOURCE 1

#include "umf_test.h"

#include <spawn.h>
#include <sys/wait.h>
#include <umf/ipc.h>
#include <umf/pools/pool_proxy.h>
#include <unistd.h>

enum { BYTES = 5 * PAGE + 100, REFUSED_BY_KERNEL = 3 };

static umf_memory_pool_handle_t proxy(umf_memory_provider_handle_t provider)
{
	umf_memory_pool_handle_t found = NULL;
	OK(umfPoolCreate(umfProxyPoolOps(), provider, NULL, 0, &found));
	return found;
}

/* Reads a handle from standard input, and checks and changes the memory. */
static int consume(void)
{
	_Alignas(16) char handle[1024];
	size_t size = fread(handle, 1, sizeof(handle), stdin);
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20});
	umf_memory_provider_handle_t provider = provide(pool, NULL, 0);
	umf_memory_pool_handle_t on_top = proxy(provider);
	umf_ipc_handler_handle_t handler;
	OK(umfPoolGetIPCHandler(on_top, &handler));
	unsigned char *at = NULL;
	CHECK(size > 0);
	umf_result_t result = umfOpenIPCHandle(handler, (umf_ipc_handle_t)(void *)handle, (void **)&at);
	if (result == UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC)
		return REFUSED_BY_KERNEL;
	CHECK(result == UMF_RESULT_SUCCESS && at);
	for (int i = 0; at && i < BYTES; i++)
		if (at[i] != i % 251) {
			CHECK(!"the memory has the contents of the other process");
			break;
		}
	if (at)
		memset(at, 0xC3, BYTES);
	OK(umfCloseIPCHandle(at));
	OK(umfPoolDestroy(on_top));
	OK(umfMemoryProviderDestroy(provider));
	close_empty(pool);
	return failures ? 1 : 0;
}

static int run_consumer(char *program, const void *handle, size_t size)
{
	int pipes[2], status = -1;
	pid_t child = -1;
	char *arguments[] = {program, "consume", NULL};
	posix_spawn_file_actions_t actions;
	CHECK(pipe(pipes) == 0 && posix_spawn_file_actions_init(&actions) == 0);
	posix_spawn_file_actions_adddup2(&actions, pipes[0], 0);
	posix_spawn_file_actions_addclose(&actions, pipes[0]);
	posix_spawn_file_actions_addclose(&actions, pipes[1]);
	CHECK(posix_spawn(&child, program, &actions, NULL, arguments, environ) == 0);
	posix_spawn_file_actions_destroy(&actions);
	close(pipes[0]);
	CHECK(write(pipes[1], handle, size) == (ssize_t)size);
	close(pipes[1]);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Calls the operations of the provider, also with handles that are wrong, which must not be mapped. */
static void test_handles(zonal_pool pool, const unsigned char *at)
{
	void *mapped = NULL;
	uint64_t words[8];
	size_t own = 0;
	const umf_memory_provider_ops_t *ops = zonal_umf_ops();
	void *state;
	zonal_umf_params params = {.struct_size = sizeof(params), .pool = pool};
	OK(ops->initialize(&params, &state));
	OK(ops->ext_get_ipc_handle_size(state, &own));
	CHECK(own <= sizeof(words));
	OK(ops->ext_get_ipc_handle(state, at, BYTES, words));
	OK(ops->ext_put_ipc_handle(state, words));
	OK(ops->ext_open_ipc_handle(state, words, &mapped));
	CHECK(mapped != at && memcmp(mapped, at, BYTES) == 0);
	/* Only what was mapped from a handle is unmapped. */
	void *const wrong[] = {(void *)at, (char *)mapped + PAGE, state, NULL};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		CHECK(ops->ext_close_ipc_handle(state, wrong[i], BYTES) == UMF_RESULT_ERROR_INVALID_ARGUMENT);
	CHECK(ops->ext_close_ipc_handle(state, mapped, PAGE) == UMF_RESULT_ERROR_INVALID_ARGUMENT);
	CHECK(memcmp(mapped, at, BYTES) == 0);
	OK(ops->ext_close_ipc_handle(state, mapped, BYTES));
	CHECK(ops->ext_close_ipc_handle(state, mapped, BYTES) == UMF_RESULT_ERROR_INVALID_ARGUMENT);
	words[own / 8 - 1]++;
	CHECK(ops->ext_open_ipc_handle(state, words, &mapped) == UMF_RESULT_ERROR_INVALID_ARGUMENT);
	words[0]++;
	CHECK(ops->ext_open_ipc_handle(state, words, &mapped) == UMF_RESULT_ERROR_INVALID_ARGUMENT);
	CHECK(ops->ext_put_ipc_handle(state, words) == UMF_RESULT_ERROR_INVALID_ARGUMENT);
	CHECK(ops->ext_get_ipc_handle(state, &own, BYTES, words) == UMF_RESULT_ERROR_INVALID_ARGUMENT);
	OK(ops->finalize(state));
}

static void test_sharing(char *program)
{
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20, .flags = ZONAL_POOL_SHARED_MEMORY, .fake_nodes = 2});
	umf_memory_provider_handle_t provider = provide(pool, NULL, 0);
	umf_memory_pool_handle_t on_top = proxy(provider);
	unsigned char *others[2] = {umfPoolMalloc(on_top, PAGE)};
	unsigned char *at = umfPoolMalloc(on_top, BYTES);
	others[1] = umfPoolMalloc(on_top, PAGE);
	others[0][0] = others[1][0] = 1;
	for (int i = 0; i < BYTES; i++)
		at[i] = (unsigned char)(i % 251);
	umf_ipc_handle_t handle;
	size_t size;
	OK(umfGetIPCHandle(at, &handle, &size));
	int status = run_consumer(program, handle, size);
	if (status == REFUSED_BY_KERNEL)
		printf("skipped: the kernel lets no process open files of another one\n");
	else
		CHECK(status == 0);
	for (int i = 0; status == 0 && i < BYTES; i++)
		if (at[i] != 0xC3) {
			CHECK(!"the memory has the contents that the other process wrote");
			break;
		}
	CHECK(others[0][0] == 1 && others[1][0] == 1);
	test_handles(pool, at);
	OK(umfPutIPCHandle(handle));
	for (int i = 0; i < 2; i++)
		OK(umfPoolFree(on_top, others[i]));
	OK(umfPoolFree(on_top, at));
	OK(umfPoolDestroy(on_top));
	OK(umfMemoryProviderDestroy(provider));
	close_empty(pool);
}

/* A pool without files has no handles. */
static void test_refusal(void)
{
	zonal_pool pool = build((zonal_pool_options){.size = 16 << 20});
	umf_memory_provider_handle_t provider = provide(pool, NULL, 0);
	umf_memory_pool_handle_t on_top = proxy(provider);
	void *at = umfPoolMalloc(on_top, PAGE);
	umf_ipc_handle_t handle;
	size_t size;
	CHECK(umfPoolGetIPCHandleSize(on_top, &size) == UMF_RESULT_ERROR_NOT_SUPPORTED);
	CHECK(umfGetIPCHandle(at, &handle, &size) == UMF_RESULT_ERROR_NOT_SUPPORTED);
	OK(umfPoolFree(on_top, at));
	OK(umfPoolDestroy(on_top));
	OK(umfMemoryProviderDestroy(provider));
	close_empty(pool);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return consume();
	test_sharing(argv[0]);
	test_refusal();
	return report();
}
