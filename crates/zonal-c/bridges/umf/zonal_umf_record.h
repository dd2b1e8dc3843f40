/* The allocations of a provider that are not one block of the pool: split, merge and free. Only zonal_umf.c includes this file.
 *
 * An allocation is a block of the pool, and is freed as one, until it is split or merged. The pool splits blocks into pieces
 * that are powers of two, aligned to their size, and never merges them while they are allocated. Allocations of UMF are split
 * at any page, and merged. The provider therefore records *segments* for allocations that are not one block:
 *
 *   allocation = adjacent segments, of which exactly the first has `begins` set
 *   segment    = one block (`is_block`), or the fewest aligned pieces that cover it
 *
 * The fewest pieces of a segment follow from its addresses. A cut at an address halves the one piece that contains it until
 * the address is a boundary, which leaves the fewest pieces on both sides. A merge only clears `begins`. The record is a tree
 * of segments that do not overlap, under a lock that is never held while memory is allocated. Frees of programs whose
 * allocations all are one block do not acquire it.
 */

#ifndef ZONAL_UMF_RECORD_H
#define ZONAL_UMF_RECORD_H

#include <pthread.h>
#include <search.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "zonal_umf.h"

struct segment {
	uintptr_t start, end;
	bool begins;
	bool is_block;
	struct segment *next; /* of a list of segments that are being freed */
};

/* An allocation of another process, or of this one, that is mapped from its handle. */
struct mapping {
	void *start;
	size_t size;
	struct mapping *next;
};

/* block_max: bytes of the largest piece. segments: the record, whose number of entries is `count`. lock: for the record and the
 * mappings. allocated, peak: bytes of all allocations, now and at most. */
struct provider {
	zonal_pool pool;
	zonal_request request;
	size_t page, block_max, recommended;
	uint32_t flags;
	bool has_files;
	pthread_mutex_t lock;
	void *segments;
	atomic_size_t count;
	struct mapping *mappings;
	atomic_size_t allocated, peak;
	uint16_t nodes[];
};

static _Thread_local struct {
	int32_t status;
	char message[1024];
} last;

/* Errors. */

static umf_result_t refuse(umf_result_t result, zonal_status status, const char *format, ...)
{
	va_list values;
	va_start(values, format);
	vsnprintf(last.message, sizeof(last.message), format, values);
	va_end(values);
	last.status = status;
	return result;
}

/* Returns the result of a call of zonal that has failed. */
static umf_result_t failed(zonal_status status)
{
	umf_result_t result = UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC;
	if (status == ZONAL_OUT_OF_MEMORY)
		result = UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
	else if (status == ZONAL_NOT_ALLOCATED || status == ZONAL_INVALID_ARGUMENT)
		result = UMF_RESULT_ERROR_INVALID_ARGUMENT;
	return refuse(result, status, "%s", zonal_last_error());
}

static umf_result_t out_of_host_memory(void)
{
	return refuse(UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY, ZONAL_OUT_OF_MEMORY, "no memory for the provider's record");
}

/* Segments. All functions of this part need the lock. */

static int compare(const void *left, const void *right)
{
	const struct segment *a = left, *b = right;
	return a->end <= b->start ? -1 : b->end <= a->start ? 1 : 0;
}

/* Returns the segment that contains an address, if there is one. */
static struct segment *find(struct provider *p, uintptr_t at)
{
	struct segment key = {.start = at, .end = at + 1};
	struct segment **node = tfind(&key, &p->segments, compare);
	return node ? *node : NULL;
}

static struct segment *record(struct provider *p, struct segment content)
{
	struct segment *segment = malloc(sizeof(*segment));
	if (!segment)
		return NULL;
	*segment = content;
	if (!tsearch(segment, &p->segments, compare)) {
		free(segment);
		return NULL;
	}
	/* Relaxed: a thread that uses a part of an allocation does so after the split that made it. */
	atomic_fetch_add_explicit(&p->count, 1, memory_order_relaxed);
	return segment;
}

static void take_out(struct provider *p, struct segment *segment)
{
	tdelete(segment, &p->segments, compare);
	atomic_fetch_sub_explicit(&p->count, 1, memory_order_relaxed);
}

/* Returns the end of the allocation that begins with a segment. */
static uintptr_t end_of(struct provider *p, const struct segment *segment)
{
	uintptr_t end = segment->end;
	while ((segment = find(p, end)) && !segment->begins)
		end = segment->end;
	return end;
}

/* Returns the bytes of the largest aligned piece from `at` that ends at `end` at the latest. */
static size_t piece(const struct provider *p, uintptr_t at, uintptr_t end)
{
	size_t bytes = at & -at;
	if (bytes > p->block_max)
		bytes = p->block_max;
	while (bytes > end - at)
		bytes /= 2;
	return bytes;
}

/* Removes the record of the allocation that begins at an address if the pool knows it as one block. */
static void forget_block(struct provider *p, uintptr_t at)
{
	struct segment *segment = find(p, at);
	if (!segment || !segment->begins || end_of(p, segment) != segment->end)
		return;
	if (!segment->is_block && piece(p, segment->start, segment->end) != segment->end - segment->start)
		return;
	take_out(p, segment);
	free(segment);
}

static umf_result_t not_one_allocation(uintptr_t start, uintptr_t end)
{
	return refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_NOT_ALLOCATED,
		      "%zu bytes at %p are not exactly one allocation", (size_t)(end - start), (void *)start);
}

/* Checks that exactly these bytes are an allocation, and records it. */
static umf_result_t adopt(struct provider *p, uintptr_t start, uintptr_t end)
{
	struct segment *segment = find(p, start);
	if (segment) {
		bool is_exact = segment->start == start && segment->begins && end_of(p, segment) == end;
		return is_exact ? UMF_RESULT_SUCCESS : not_one_allocation(start, end);
	}
	zonal_status status = zonal_check_block(p->pool, (void *)start, end - start);
	if (status != ZONAL_OK)
		return failed(status);
	segment = record(p, (struct segment){.start = start, .end = end, .begins = true, .is_block = true});
	return segment ? UMF_RESULT_SUCCESS : out_of_host_memory();
}

/* Splits pieces of a segment so that one begins at `at`. The first split refuses a wrong segment before anything has changed. */
static zonal_status cut(struct provider *p, const struct segment *segment, uintptr_t at)
{
	uintptr_t start = segment->start;
	size_t bytes = segment->end - start;
	zonal_status status = ZONAL_OK;
	if (segment->is_block && piece(p, start, segment->end) != bytes)
		status = zonal_split(p->pool, (void *)start, bytes, p->block_max);
	while ((bytes = piece(p, start, segment->end)) <= at - start && start != at)
		start += bytes;
	while (status == ZONAL_OK && start != at) {
		status = zonal_split(p->pool, (void *)start, bytes, bytes / 2);
		bytes /= 2;
		if (at - start >= bytes)
			start += bytes;
	}
	return status;
}

/* Makes an allocation begin at an address inside a recorded one. */
static umf_result_t begin_at(struct provider *p, uintptr_t at)
{
	struct segment *segment = find(p, at);
	if (segment->start == at) {
		segment->begins = true;
		return UMF_RESULT_SUCCESS;
	}
	struct segment before = *segment;
	segment->end = at;
	struct segment *second = record(p, (struct segment){.start = at, .end = before.end, .begins = true});
	zonal_status status = second ? cut(p, &before, at) : ZONAL_OK;
	if (second && status == ZONAL_OK) {
		segment->is_block = false;
		return UMF_RESULT_SUCCESS;
	}
	if (second) {
		take_out(p, second);
		free(second);
	}
	segment->end = before.end;
	return second ? failed(status) : out_of_host_memory();
}

/* Allocation and free. The statistics order no other accesses, so they are relaxed. */

static void count_allocation(struct provider *p, size_t bytes)
{
	size_t now = atomic_fetch_add_explicit(&p->allocated, bytes, memory_order_relaxed) + bytes;
	size_t peak = atomic_load_explicit(&p->peak, memory_order_relaxed);
	while (now > peak && !atomic_compare_exchange_weak_explicit(&p->peak, &peak, now, memory_order_relaxed,
								    memory_order_relaxed))
		;
}

static void count_free(struct provider *p, size_t bytes)
{
	size_t now = atomic_load_explicit(&p->allocated, memory_order_relaxed), left;
	/* Another provider of the pool may have allocated what this one frees. */
	do
		left = now > bytes ? now - bytes : 0;
	while (!atomic_compare_exchange_weak_explicit(&p->allocated, &now, left, memory_order_relaxed,
						      memory_order_relaxed));
}

static size_t whole_pages(const struct provider *p, size_t bytes)
{
	return (bytes + p->page - 1) & ~(p->page - 1);
}

/* Takes the segments of an allocation out of the record, as a list: none if no segment contains its first byte. */
static umf_result_t take_segments(struct provider *p, uintptr_t start, uintptr_t end, struct segment **list)
{
	umf_result_t result = UMF_RESULT_SUCCESS;
	*list = NULL;
	pthread_mutex_lock(&p->lock);
	struct segment *segment = find(p, start);
	if (segment && (segment->start != start || !segment->begins || end_of(p, segment) != end))
		result = not_one_allocation(start, end);
	else
		for (; segment; segment = start < end ? find(p, start) : NULL) {
			take_out(p, segment);
			segment->next = *list;
			*list = segment;
			start = segment->end;
		}
	pthread_mutex_unlock(&p->lock);
	return result;
}

/* Frees the pieces of segments, and goes on if one is refused. Adds the bytes of the others to `freed`. */
static umf_result_t free_segments(struct provider *p, struct segment *segment, size_t *freed)
{
	umf_result_t result = UMF_RESULT_SUCCESS;
	while (segment) {
		for (uintptr_t at = segment->start; at < segment->end;) {
			size_t bytes = segment->is_block ? segment->end - at : piece(p, at, segment->end);
			zonal_status status = zonal_free(p->pool, (void *)at, bytes);
			if (status == ZONAL_OK)
				*freed += bytes;
			else
				result = failed(status);
			at += bytes;
		}
		struct segment *next = segment->next;
		free(segment);
		segment = next;
	}
	return result;
}

/* Frees whole pages, and adds to `freed` how many bytes that are. */
static umf_result_t free_pages(struct provider *p, void *ptr, size_t size, size_t *freed)
{
	uintptr_t start = (uintptr_t)ptr;
	if (atomic_load_explicit(&p->count, memory_order_relaxed) != 0 && size != 0) {
		struct segment *list;
		umf_result_t result = take_segments(p, start, start + size, &list);
		if (result != UMF_RESULT_SUCCESS || list)
			return result != UMF_RESULT_SUCCESS ? result : free_segments(p, list, freed);
	}
	zonal_status status = zonal_free(p->pool, ptr, size);
	if (status != ZONAL_OK)
		return failed(status);
	*freed += size;
	return UMF_RESULT_SUCCESS;
}

static umf_result_t free_allocation(void *provider, void *ptr, size_t size)
{
	struct provider *p = provider;
	size_t freed = 0;
	if (!ptr)
		return UMF_RESULT_SUCCESS;
	umf_result_t result = free_pages(p, ptr, whole_pages(p, size), &freed);
	count_free(p, freed);
	return result;
}

/* Whether these bytes are exactly one allocation. */
static bool is_allocation(struct provider *p, const void *ptr, size_t size)
{
	uintptr_t start = (uintptr_t)ptr;
	pthread_mutex_lock(&p->lock);
	struct segment *segment = find(p, start);
	bool is_exact = segment && segment->start == start && segment->begins && end_of(p, segment) == start + size;
	pthread_mutex_unlock(&p->lock);
	return segment ? is_exact : zonal_check_block(p->pool, (void *)start, size) == ZONAL_OK;
}

static umf_result_t allocation_split(void *provider, void *ptr, size_t total, size_t first)
{
	struct provider *p = provider;
	uintptr_t start = (uintptr_t)ptr;
	if (first == 0 || first >= total)
		return refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_INVALID_ARGUMENT,
			      "the first part has %zu bytes, and the allocation %zu", first, total);
	if (first % p->page)
		return refuse(UMF_RESULT_ERROR_INVALID_ALIGNMENT, ZONAL_INVALID_ARGUMENT,
			      "the first part has %zu bytes; it must be whole pages of %zu bytes", first, p->page);
	pthread_mutex_lock(&p->lock);
	umf_result_t result = adopt(p, start, start + whole_pages(p, total));
	if (result == UMF_RESULT_SUCCESS) {
		result = begin_at(p, start + first);
		forget_block(p, start);
		forget_block(p, start + first);
	}
	pthread_mutex_unlock(&p->lock);
	return result;
}

static umf_result_t allocation_merge(void *provider, void *low_ptr, void *high_ptr, size_t total)
{
	struct provider *p = provider;
	uintptr_t low = (uintptr_t)low_ptr, high = (uintptr_t)high_ptr;
	if (low >= high || high - low >= total)
		return refuse(UMF_RESULT_ERROR_INVALID_ARGUMENT, ZONAL_INVALID_ARGUMENT,
			      "%p is not inside %zu bytes from %p", high_ptr, total, low_ptr);
	pthread_mutex_lock(&p->lock);
	umf_result_t result = adopt(p, low, high);
	if (result == UMF_RESULT_SUCCESS) {
		result = adopt(p, high, low + whole_pages(p, total));
		if (result == UMF_RESULT_SUCCESS)
			find(p, high)->begins = false;
		forget_block(p, low);
	}
	pthread_mutex_unlock(&p->lock);
	return result;
}

#endif /* ZONAL_UMF_RECORD_H */
