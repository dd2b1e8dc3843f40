/* A memory provider of the Unified Memory Framework (UMF) 1.2 that serves from a pool of zonal.
 *
 * Compile zonal_umf.c with the program, and pass the result of zonal_umf_ops() to umfMemoryProviderCreate(). docs/umf.md
 * describes each operation.
 */

#ifndef ZONAL_UMF_H
#define ZONAL_UMF_H

#include <umf/memory_provider_ops.h>
#include <zonal.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Flag of a provider: close the pool when the provider is destroyed. If blocks are still allocated, the pool stays open, and
 * the destruction fails.
 */
#define ZONAL_UMF_CLOSE_POOL 1

/**
 * Property of an allocation: the node of its memory, a `uint16_t`.
 */
#define ZONAL_UMF_PROPERTY_NODE 0x7A6F0001

/**
 * Property of an allocation: the number of its first page in the pool, a `uint64_t`.
 */
#define ZONAL_UMF_PROPERTY_FRAME 0x7A6F0002

/**
 * Parameters of a provider. Zero in every field but the first two is the default. The provider copies them, with the request
 * and its nodes.
 */
typedef struct {
	/**
	 * `sizeof(zonal_umf_params)`.
	 */
	size_t struct_size;
	/**
	 * The pool, which must stay open as long as the provider is used.
	 */
	zonal_pool pool;
	/**
	 * Flags, policy and nodes of all allocations; `bytes` and `alignment` must be 0. Default: memory near the calling CPU.
	 */
	const zonal_request *request;
	/**
	 * Page size to recommend for allocations of at least this size, for example that of huge pages: a multiple of the
	 * pool's page. Default: the pool's page.
	 */
	size_t recommended_page_bytes;
	/**
	 * `ZONAL_UMF_*` flags, or-ed.
	 */
	uint32_t flags;
	/**
	 * Must be 0.
	 */
	uint32_t reserved;
} zonal_umf_params;

/**
 * Returns the operations of the provider. Its parameters are a `zonal_umf_params`.
 */
const umf_memory_provider_ops_t *zonal_umf_ops(void);

#ifdef __cplusplus
}
#endif

#endif /* ZONAL_UMF_H */
