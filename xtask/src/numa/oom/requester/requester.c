// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * A kernel module for guests that requests page frames as a driver would: with any flags, order and nodes.
 *
 * A write to /proc/requester is one command:
 *
 *   alloc WORD...   requests blocks and holds them. Fails with ENOMEM at the first request that the kernel refuses, and
 *                   with EINTR if the writing process has been killed.
 *   fill WORD...    requests blocks without a limit or a warning, and succeeds when the kernel refuses.
 *   thin ORDER      returns the single frames held, except the first one in each aligned block of 2^ORDER frames.
 *   free            returns all blocks held.
 *
 * The words are order=N, count=N, node=N, nodes=MASK (hexadecimal), and gfp=NAME|NAME, where NAME is the kernel's name
 * of a flag. Without node= and nodes=, the memory policy of the writing process applies. Blocks belong to the open file,
 * and return to the kernel when it is closed, so that a killed process leaves nothing behind.
 */

#include <linux/gfp.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>
#include <linux/proc_fs.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#define COMMAND_MAX 256

struct request {
	unsigned int order;
	unsigned long count;
	int node;
	unsigned long nodes;
	gfp_t gfp;
};

struct flag {
	const char *name;
	gfp_t value;
};

#define FLAG(name) { #name, name }
static const struct flag flags[] = {
	FLAG(GFP_KERNEL), FLAG(GFP_ATOMIC), FLAG(GFP_NOWAIT), FLAG(GFP_NOIO), FLAG(GFP_NOFS), FLAG(GFP_USER),
	FLAG(GFP_DMA), FLAG(GFP_DMA32), FLAG(GFP_HIGHUSER), FLAG(GFP_HIGHUSER_MOVABLE), FLAG(GFP_KERNEL_ACCOUNT),
	FLAG(__GFP_HIGH), FLAG(__GFP_MEMALLOC), FLAG(__GFP_NOMEMALLOC), FLAG(__GFP_THISNODE), FLAG(__GFP_HARDWALL),
	FLAG(__GFP_NOWARN), FLAG(__GFP_NORETRY), FLAG(__GFP_RETRY_MAYFAIL), FLAG(__GFP_NOFAIL), FLAG(__GFP_COMP),
	FLAG(__GFP_ZERO), FLAG(__GFP_KSWAPD_RECLAIM), FLAG(__GFP_DIRECT_RECLAIM), FLAG(__GFP_MOVABLE),
	FLAG(__GFP_RECLAIMABLE),
};

/*
 * The blocks that an open file holds. The list uses the lru field of each block's first frame, which belongs to the
 * owner of the block. The order of a block without __GFP_COMP is in its private field.
 */
struct holder {
	struct list_head blocks;
	struct mutex lock;
};

static int parse_flags(char *text, gfp_t *gfp)
{
	char *name;
	int i;

	while ((name = strsep(&text, "|"))) {
		for (i = 0; i < ARRAY_SIZE(flags); i++)
			if (!strcmp(flags[i].name, name))
				break;
		if (i == ARRAY_SIZE(flags)) {
			pr_err("requester: unknown flag %s\n", name);
			return -EINVAL;
		}
		*gfp |= flags[i].value;
	}
	return 0;
}

static int parse_words(char *text, struct request *request)
{
	char *word, *value;
	int error;

	while ((word = strsep(&text, " "))) {
		if (!*word)
			continue;
		value = strchr(word, '=');
		if (!value)
			return -EINVAL;
		*value++ = '\0';
		if (!strcmp(word, "order"))
			error = kstrtouint(value, 10, &request->order);
		else if (!strcmp(word, "count"))
			error = kstrtoul(value, 10, &request->count);
		else if (!strcmp(word, "node"))
			error = kstrtoint(value, 10, &request->node);
		else if (!strcmp(word, "nodes"))
			error = kstrtoul(value, 16, &request->nodes);
		else if (!strcmp(word, "gfp"))
			error = parse_flags(value, &request->gfp);
		else
			error = -EINVAL;
		if (error)
			return error;
	}
	if (!request->gfp || request->order >= BITS_PER_LONG)
		return -EINVAL;
	if (request->node != NUMA_NO_NODE && (request->node < 0 || request->node >= MAX_NUMNODES ||
					      !node_online(request->node)))
		return -EINVAL;
	return 0;
}

static struct page *request_block(const struct request *request)
{
	nodemask_t mask = NODE_MASK_NONE;
	int node;

	if (request->node == NUMA_NO_NODE && !request->nodes)
		return alloc_pages(request->gfp, request->order);
	for_each_online_node(node)
		if (node < BITS_PER_LONG && request->nodes >> node & 1)
			node_set(node, mask);
	node = request->node == NUMA_NO_NODE ? numa_mem_id() : request->node;
	return __alloc_pages(request->gfp, request->order, node, request->nodes ? &mask : NULL);
}

static int alloc(struct holder *holder, const struct request *request)
{
	unsigned long i;
	struct page *page;

	for (i = 0; i < request->count; i++) {
		if (fatal_signal_pending(current))
			return -EINTR;
		page = request_block(request);
		if (!page)
			return -ENOMEM;
		if (!(request->gfp & __GFP_COMP))
			set_page_private(page, request->order);
		list_add(&page->lru, &holder->blocks);
		cond_resched();
	}
	return 0;
}

static void give_back(struct page *page)
{
	unsigned int order = PageCompound(page) ? compound_order(page) : page_private(page);

	list_del(&page->lru);
	if (!PageCompound(page))
		set_page_private(page, 0);
	__free_pages(page, order);
}

static void give_all_back(struct holder *holder)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, &holder->blocks, lru)
		give_back(page);
}

static int thin(struct holder *holder, const char *text)
{
	struct page *page, *next;
	unsigned int order;
	int error = kstrtouint(text, 10, &order);

	if (error || order >= BITS_PER_LONG)
		return -EINVAL;
	list_for_each_entry_safe(page, next, &holder->blocks, lru)
		if (!PageCompound(page) && !page_private(page) && page_to_pfn(page) & ((1UL << order) - 1))
			give_back(page);
	return 0;
}

static int run(struct holder *holder, char *text)
{
	struct request request = { .count = 1, .node = NUMA_NO_NODE };
	char *verb = strsep(&text, " ");
	int error;

	if (!strcmp(verb, "free")) {
		give_all_back(holder);
		return 0;
	}
	if (!text)
		return -EINVAL;
	if (!strcmp(verb, "thin"))
		return thin(holder, text);
	if (!strcmp(verb, "fill")) {
		request.count = ULONG_MAX;
		error = parse_words(text, &request);
		request.gfp |= __GFP_NOWARN;
		if (!error)
			error = alloc(holder, &request);
		return error == -ENOMEM ? 0 : error;
	}
	if (strcmp(verb, "alloc"))
		return -EINVAL;
	error = parse_words(text, &request);
	return error ? error : alloc(holder, &request);
}

static ssize_t requester_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	struct holder *holder = file->private_data;
	char text[COMMAND_MAX];
	int error;

	if (bytes >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, bytes))
		return -EFAULT;
	text[bytes] = '\0';
	error = mutex_lock_killable(&holder->lock);
	if (error)
		return error;
	error = run(holder, strim(text));
	mutex_unlock(&holder->lock);
	return error ? error : bytes;
}

static int requester_open(struct inode *inode, struct file *file)
{
	struct holder *holder = kzalloc(sizeof(*holder), GFP_KERNEL);

	if (!holder)
		return -ENOMEM;
	INIT_LIST_HEAD(&holder->blocks);
	mutex_init(&holder->lock);
	file->private_data = holder;
	return 0;
}

static int requester_release(struct inode *inode, struct file *file)
{
	give_all_back(file->private_data);
	kfree(file->private_data);
	return 0;
}

static const struct proc_ops operations = {
	.proc_open = requester_open,
	.proc_release = requester_release,
	.proc_write = requester_write,
};

static int __init requester_init(void)
{
	return proc_create("requester", 0600, NULL, &operations) ? 0 : -ENOMEM;
}

static void __exit requester_exit(void)
{
	remove_proc_entry("requester", NULL);
}

module_init(requester_init);
module_exit(requester_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Requests page frames with any flags, order and nodes");
