/* A memory provider of the Unified Memory Framework that serves from a pool of zonal. zonal_umf_record.h has split, merge and
 * free.
 */

#define _DEFAULT_SOURCE 1
#define _XOPEN_SOURCE 700

#include "zonal_umf.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <umf/memory_provider_gpu.h>
#include <unistd.h>

#include "zonal_umf_record.h"

static umf_result_t system_call_failed(const char *call)
{
	int error = errno;
	bool is_unsupported = error == EINVAL || error == EOPNOTSUPP || error == ENOSYS;
	return refuse(is_unsupported ? UMF_RESULT_ERROR_NOT_SUPPORTED : UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC,
		      ZONAL_UNKNOWN, "%s failed: %s", call, strerror(error));
}

static umf_result_t get_last_native_error(void *provider, const char **message, int32_t *error)
{
	(void)provider;
	if (!message || !error)
		return UMF_RESULT_ERROR_INVALID_ARGUMENT;
	*message = last.message;
	*error = last.status;
	return UMF_RESULT_SUCCESS;
}

/* Allocates with an alignment that the pool does not have: allocates more, and frees what is before and after. */
static umf_result_t alloc_apart(struct provider *p, zonal_request *request, size_t alignment, void **ptr)
{
	size_t size = whole_pages(p, request->bytes), total = size + alignment - p->page;
	if (size < request->bytes || total < size)
		return refuse(UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY, ZONAL_OUT_OF_MEMORY,
			      "no address space has %zu bytes at a multiple of %zu", request->bytes, alignment);
	request->bytes = total;
	zonal_block block = {.struct_size = sizeof(block)};
	zonal_status status = zonal_alloc(p->pool, request, &block);
	if (status != ZONAL_OK)
		return failed(status);
	char *start = block.address;
	size_t head = (alignment - (uintptr_t)start % alignment) % alignment;
	size_t tail = total - head - size, unneeded = 0;
	umf_result_t result = UMF_RESULT_SUCCESS;
	if (head != 0) {
		result = allocation_split(p, start, total, head);
		if (result == UMF_RESULT_SUCCESS) {
			free_pages(p, start, head, &unneeded);
			start += head;
			total -= head;
		}
	}
	if (result == UMF_RESULT_SUCCESS && tail != 0) {
		result = allocation_split(p, start, total, size);
		if (result == UMF_RESULT_SUCCESS)
			free_pages(p, start + size, tail, &unneeded);
	}
	if (result != UMF_RESULT_SUCCESS) {
		free_pages(p, start, total, &unneeded);
		return result;
	}
	count_allocation(p, block.bytes - unneeded);
	*ptr = start;
	return UMF_RESULT_SUCCESS;
}

static umf_result_t alloc_allocation(void *provider, size_t size, size_t alignment, void **ptr)
{
	struct provider *p = provider;
	*ptr = NULL;
	if (size == 0)
		return refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_INVALID_ARGUMENT, "an allocation has no bytes");
	if (alignment != 0 && alignment % p->page != 0 && p->page % alignment != 0)
		return refuse(UMF_RESULT_ERROR_INVALID_ALIGNMENT, ZONAL_INVALID_ARGUMENT,
			      "the alignment is %zu; it must be a multiple or a divisor of %zu", alignment, p->page);
	zonal_request request = p->request;
	request.bytes = size;
	if (alignment > p->page) {
		if (alignment > p->block_max || (alignment & (alignment - 1)) != 0)
			return alloc_apart(p, &request, alignment, ptr);
		request.alignment = alignment;
	}
	zonal_block block = {.struct_size = sizeof(block)};
	zonal_status status = zonal_alloc(p->pool, &request, &block);
	*ptr = block.address;
	if (status != ZONAL_OK)
		return failed(status);
	count_allocation(p, block.bytes);
	return UMF_RESULT_SUCCESS;
}

/* Creation. */

/* Finds out what the provider must know about its pool. */
static zonal_status describe_pool(struct provider *p)
{
	zonal_accounting accounting = {.struct_size = sizeof(accounting)};
	zonal_status status = zonal_pool_accounting(p->pool, &accounting);
	if (status != ZONAL_OK)
		return status;
	p->page = accounting.page_bytes;
	zonal_request request = {.struct_size = sizeof(request), .bytes = p->page};
	while (zonal_explain(p->pool, &request, NULL, 0, NULL) == ZONAL_OK) {
		p->block_max = request.bytes;
		request.bytes *= 2;
	}
	zonal_zone zone = {.struct_size = sizeof(zone)};
	zonal_location location = {.struct_size = sizeof(location)};
	status = zonal_pool_zone(p->pool, 0, &zone);
	if (status == ZONAL_OK)
		status = zonal_pool_locate_frame(p->pool, zone.first_frame, &location);
	p->has_files = location.file >= 0;
	/* Refuses a wrong policy or node now. */
	return status == ZONAL_OK ? zonal_explain(p->pool, &p->request, NULL, 0, NULL) : status;
}

static umf_result_t check_params(const zonal_umf_params *params)
{
	umf_result_t wrong = UMF_RESULT_ERROR_INVALID_ARGUMENT;
	if (!params)
		return refuse(wrong, ZONAL_INVALID_ARGUMENT, "the parameters are null");
	if (params->struct_size != sizeof(*params))
		return refuse(wrong, ZONAL_INVALID_ARGUMENT, "struct_size is %zu; zonal_umf_params has %zu bytes",
			      params->struct_size, sizeof(*params));
	if ((params->flags & ~(uint32_t)ZONAL_UMF_CLOSE_POOL) != 0 || params->reserved != 0)
		return refuse(wrong, ZONAL_INVALID_ARGUMENT, "flags is %#x, of which %#x are known, and reserved is %u",
			      params->flags, ZONAL_UMF_CLOSE_POOL, params->reserved);
	const zonal_request *request = params->request;
	if (request && (request->struct_size != sizeof(*request) || request->bytes != 0 || request->alignment != 0))
		return refuse(wrong, ZONAL_INVALID_ARGUMENT, "the request has a struct_size of %zu, which must be %zu, %s",
			      request->struct_size, sizeof(*request), "or bytes or alignment, which must be 0");
	return UMF_RESULT_SUCCESS;
}

static umf_result_t initialize(const void *given, void **provider)
{
	const zonal_umf_params *params = given;
	umf_result_t result = check_params(params);
	if (result != UMF_RESULT_SUCCESS)
		return result;
	const zonal_request *request = params->request;
	size_t nodes = request && request->nodes ? request->nodes_len : 0;
	struct provider *p = calloc(1, sizeof(*p) + nodes * sizeof(*p->nodes));
	if (!p)
		return out_of_host_memory();
	p->pool = params->pool;
	p->flags = params->flags;
	p->request = request ? *request : (zonal_request){.struct_size = sizeof(*request)};
	if (nodes != 0) {
		memcpy(p->nodes, request->nodes, nodes * sizeof(*p->nodes));
		p->request.nodes = p->nodes;
	}
	zonal_status status = describe_pool(p);
	p->recommended = params->recommended_page_bytes ? params->recommended_page_bytes : p->page;
	if (status != ZONAL_OK)
		result = failed(status);
	else if (p->recommended % p->page != 0)
		result = refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_INVALID_ARGUMENT,
				"recommended_page_bytes is %zu; it must be a multiple of %zu", p->recommended, p->page);
	else if (pthread_mutex_init(&p->lock, NULL) != 0)
		result = out_of_host_memory();
	if (result == UMF_RESULT_SUCCESS)
		*provider = p;
	else
		free(p);
	return result;
}

/* Frees the provider, also if the pool cannot be closed, because UMF forgets it in either case. */
static umf_result_t finalize(void *provider)
{
	struct provider *p = provider;
	while (p->segments) {
		struct segment *segment = *(struct segment **)p->segments;
		take_out(p, segment);
		free(segment);
	}
	/* What is still mapped stays mapped, because the program may use it. */
	while (p->mappings) {
		struct mapping *mapping = p->mappings;
		p->mappings = mapping->next;
		free(mapping);
	}
	zonal_status status = (p->flags & ZONAL_UMF_CLOSE_POOL) != 0 ? zonal_pool_close(p->pool, 0) : ZONAL_OK;
	pthread_mutex_destroy(&p->lock);
	free(p);
	return status == ZONAL_OK ? UMF_RESULT_SUCCESS : failed(status);
}

/* Sizes, names and properties. */

static umf_result_t get_recommended_page_size(void *provider, size_t size, size_t *page_size)
{
	const struct provider *p = provider;
	*page_size = size >= p->recommended ? p->recommended : p->page;
	return UMF_RESULT_SUCCESS;
}

static umf_result_t get_min_page_size(void *provider, const void *ptr, size_t *page_size)
{
	(void)ptr;
	*page_size = ((const struct provider *)provider)->page;
	return UMF_RESULT_SUCCESS;
}

static umf_result_t get_cache_line_size(void *provider, size_t *size)
{
	(void)provider;
	*size = 64;
#ifdef _SC_LEVEL1_DCACHE_LINESIZE
	long bytes = sysconf(_SC_LEVEL1_DCACHE_LINESIZE);
	if (bytes > 0)
		*size = (size_t)bytes;
#endif
	return UMF_RESULT_SUCCESS;
}

static umf_result_t get_name(void *provider, const char **name)
{
	(void)provider;
	*name = "zonal";
	return UMF_RESULT_SUCCESS;
}

static umf_result_t get_allocation_properties_size(void *provider, umf_memory_property_id_t property, size_t *size)
{
	(void)provider;
	switch ((int)property) {
	case UMF_MEMORY_PROPERTY_POINTER_TYPE:
		*size = sizeof(umf_usm_memory_type_t);
		return UMF_RESULT_SUCCESS;
	case ZONAL_UMF_PROPERTY_NODE:
		*size = sizeof(uint16_t);
		return UMF_RESULT_SUCCESS;
	case ZONAL_UMF_PROPERTY_FRAME:
		*size = sizeof(uint64_t);
		return UMF_RESULT_SUCCESS;
	default:
		return refuse(UMF_RESULT_ERROR_NOT_SUPPORTED, ZONAL_INVALID_ARGUMENT, "there is no property %#x", property);
	}
}

static umf_result_t get_allocation_properties(void *provider, const void *ptr, umf_memory_property_id_t property,
					      void *value)
{
	struct provider *p = provider;
	if (property == UMF_MEMORY_PROPERTY_POINTER_TYPE) {
		*(umf_usm_memory_type_t *)value = UMF_MEMORY_TYPE_HOST;
		return UMF_RESULT_SUCCESS;
	}
	size_t size;
	umf_result_t result = get_allocation_properties_size(provider, property, &size);
	if (result != UMF_RESULT_SUCCESS)
		return result;
	zonal_location location = {.struct_size = sizeof(location)};
	zonal_status status = zonal_pool_locate(p->pool, ptr, &location);
	if (status != ZONAL_OK)
		return failed(status);
	if ((int)property == ZONAL_UMF_PROPERTY_NODE)
		*(uint16_t *)value = location.node;
	else
		*(uint64_t *)value = location.frame;
	return UMF_RESULT_SUCCESS;
}

/* Purging and other processes. */

/* Finds the first page of a range, and checks that the pool has all of it in one piece. */
static umf_result_t locate(struct provider *p, const void *ptr, size_t size, zonal_location *first)
{
	zonal_location last_page = {.struct_size = sizeof(last_page)};
	zonal_status status = zonal_pool_locate(p->pool, ptr, first);
	if (status == ZONAL_OK)
		status = zonal_pool_locate(p->pool, (const char *)ptr + size - p->page, &last_page);
	if (status != ZONAL_OK)
		return failed(status);
	if (last_page.node != first->node || last_page.frame - first->frame != size / p->page - 1)
		return not_one_allocation((uintptr_t)ptr, (uintptr_t)ptr + size);
	return UMF_RESULT_SUCCESS;
}

static umf_result_t purge(struct provider *p, void *ptr, size_t size, int advice)
{
	size_t pages = whole_pages(p, size);
	/* A size of alloc stands for whole pages; of a part of an allocation, the last page may be in use. */
	if (pages == 0 || (uintptr_t)ptr % p->page != 0 || (size != pages && !is_allocation(p, ptr, pages)))
		return refuse(UMF_RESULT_ERROR_INVALID_ALIGNMENT, ZONAL_INVALID_ARGUMENT,
			      "%zu bytes at %p are not whole pages of %zu bytes, nor an allocation", size, ptr, p->page);
	size = pages;
	zonal_location first = {.struct_size = sizeof(first)};
	umf_result_t result = locate(p, ptr, size, &first);
	if (result != UMF_RESULT_SUCCESS)
		return result;
	/* Other processes may have mapped the file, which keeps its contents until there is a hole. */
	return madvise(ptr, size, first.file >= 0 ? MADV_REMOVE : advice) == 0 ? UMF_RESULT_SUCCESS
									     : system_call_failed("madvise");
}

static umf_result_t purge_lazy(void *provider, void *ptr, size_t size)
{
	return purge(provider, ptr, size, MADV_FREE);
}

static umf_result_t purge_force(void *provider, void *ptr, size_t size)
{
	return purge(provider, ptr, size, MADV_DONTNEED);
}

/* What another process needs to map an allocation. `device` and `inode` tell whether it has opened the same file. */
struct handle {
	uint64_t magic;
	int32_t process, file;
	uint64_t offset, size, device, inode;
};

static const uint64_t magic = 0x7A6F6E616C756D66;

static umf_result_t no_files(void)
{
	return refuse(UMF_RESULT_ERROR_NOT_SUPPORTED, ZONAL_INVALID_ARGUMENT,
		      "the pool was built without ZONAL_POOL_SHARED_MEMORY");
}

static umf_result_t get_ipc_handle_size(void *provider, size_t *size)
{
	*size = sizeof(struct handle);
	return ((const struct provider *)provider)->has_files ? UMF_RESULT_SUCCESS : no_files();
}

static umf_result_t get_ipc_handle(void *provider, const void *ptr, size_t size, void *data)
{
	struct provider *p = provider;
	zonal_location first = {.struct_size = sizeof(first)};
	size = whole_pages(p, size);
	umf_result_t result = locate(p, ptr, size, &first);
	if (result != UMF_RESULT_SUCCESS)
		return result;
	if (first.file < 0)
		return no_files();
	struct stat file;
	struct statfs system;
	if (fstat(first.file, &file) != 0 || fstatfs(first.file, &system) != 0)
		return system_call_failed("fstat");
	bool is_huge = system.f_type == 0x958458f6; /* hugetlbfs */
	if (is_huge && (first.file_offset % (size_t)system.f_bsize != 0 || size % (size_t)system.f_bsize != 0))
		return refuse(UMF_RESULT_ERROR_NOT_SUPPORTED, ZONAL_INVALID_ARGUMENT,
			      "%zu bytes at %p are not whole huge pages of %zu bytes", size, ptr, (size_t)system.f_bsize);
	struct handle handle = {magic, getpid(), first.file, first.file_offset, size, file.st_dev, file.st_ino};
	memcpy(data, &handle, sizeof(handle));
	return UMF_RESULT_SUCCESS;
}

/* The handle owns nothing: the pool owns the file. */
static umf_result_t put_ipc_handle(void *provider, void *data)
{
	(void)provider;
	struct handle handle;
	memcpy(&handle, data, sizeof(handle));
	if (handle.magic == magic && handle.process == getpid())
		return UMF_RESULT_SUCCESS;
	return refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_INVALID_ARGUMENT, "the handle is not of this process");
}

static umf_result_t open_ipc_handle(void *provider, void *data, void **ptr)
{
	struct provider *p = provider;
	struct handle handle;
	memcpy(&handle, data, sizeof(handle));
	if (handle.magic != magic)
		return refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_INVALID_ARGUMENT, "this is no handle of zonal");
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.process, handle.file);
	struct mapping *mapping = malloc(sizeof(*mapping));
	if (!mapping)
		return out_of_host_memory();
	int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (file < 0) {
		umf_result_t refused = system_call_failed(path);
		free(mapping);
		return refused;
	}
	struct stat found;
	umf_result_t result = UMF_RESULT_SUCCESS;
	void *address = MAP_FAILED;
	if (fstat(file, &found) != 0 || found.st_dev != handle.device || found.st_ino != handle.inode)
		result = refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_INVALID_ARGUMENT,
				"%s is not the file of the handle", path);
	else
		address = mmap(NULL, handle.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)handle.offset);
	if (address == MAP_FAILED && result == UMF_RESULT_SUCCESS)
		result = system_call_failed("mmap");
	close(file);
	if (result != UMF_RESULT_SUCCESS) {
		free(mapping);
		return result;
	}
	pthread_mutex_lock(&p->lock);
	*mapping = (struct mapping){.start = address, .size = handle.size, .next = p->mappings};
	p->mappings = mapping;
	pthread_mutex_unlock(&p->lock);
	*ptr = address;
	return UMF_RESULT_SUCCESS;
}

/* Unmaps only what open_ipc_handle mapped: other memory may be a block of a pool. */
static umf_result_t close_ipc_handle(void *provider, void *ptr, size_t size)
{
	struct provider *p = provider;
	size = whole_pages(p, size);
	pthread_mutex_lock(&p->lock);
	struct mapping **at = &p->mappings, *mapping;
	while ((mapping = *at) && (mapping->start != ptr || mapping->size != size))
		at = &mapping->next;
	if (mapping)
		*at = mapping->next;
	pthread_mutex_unlock(&p->lock);
	if (!mapping)
		return refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_INVALID_ARGUMENT,
			      "%zu bytes at %p were not mapped from a handle", size, ptr);
	free(mapping);
	return munmap(ptr, size) == 0 ? UMF_RESULT_SUCCESS : system_call_failed("munmap");
}

/* Reads statistics. UMF 1.2 reports success also if this function fails. */
static umf_result_t control(void *provider, umf_ctl_query_source_t source, const char *name, void *value, size_t size,
			    umf_ctl_query_type_t type, va_list more)
{
	struct provider *p = provider;
	(void)source, (void)more;
	size_t now = atomic_load_explicit(&p->allocated, memory_order_relaxed);
	if (type == CTL_QUERY_RUNNABLE && strcmp(name, "stats.peak_memory.reset") == 0) {
		atomic_store_explicit(&p->peak, now, memory_order_relaxed);
		return UMF_RESULT_SUCCESS;
	}
	bool is_peak = strcmp(name, "stats.peak_memory") == 0;
	if (type == CTL_QUERY_READ && (is_peak || strcmp(name, "stats.allocated_memory") == 0)) {
		if (!value || size != sizeof(now))
			return refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_INVALID_ARGUMENT,
				      "%s has %zu bytes, not %zu", name, sizeof(now), size);
		*(size_t *)value = is_peak ? atomic_load_explicit(&p->peak, memory_order_relaxed) : now;
		return UMF_RESULT_SUCCESS;
	}
	return refuse(UMF_RESULT_ERROR_INVALID_CTL_PATH, ZONAL_INVALID_ARGUMENT, "there is no %s", name);
}

const umf_memory_provider_ops_t *zonal_umf_ops(void)
{
	static const umf_memory_provider_ops_t ops = {
		.version = UMF_PROVIDER_OPS_VERSION_CURRENT,
		.initialize = initialize,
		.finalize = finalize,
		.alloc = alloc_allocation,
		.free = free_allocation,
		.get_last_native_error = get_last_native_error,
		.get_recommended_page_size = get_recommended_page_size,
		.get_min_page_size = get_min_page_size,
		.get_name = get_name,
		.ext_purge_lazy = purge_lazy,
		.ext_purge_force = purge_force,
		.ext_allocation_merge = allocation_merge,
		.ext_allocation_split = allocation_split,
		.ext_get_ipc_handle_size = get_ipc_handle_size,
		.ext_get_ipc_handle = get_ipc_handle,
		.ext_put_ipc_handle = put_ipc_handle,
		.ext_open_ipc_handle = open_ipc_handle,
		.ext_close_ipc_handle = close_ipc_handle,
		.ext_ctl = control,
		.ext_get_allocation_properties = get_allocation_properties,
		.ext_get_allocation_properties_size = get_allocation_properties_size,
		.get_cache_line_size = get_cache_line_size,
	};
	return &ops;
}
