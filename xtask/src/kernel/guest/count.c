/* A plugin for QEMU that counts the instructions of calls of functions in a guest.
 *
 * Each argument `NAME=ADDRESS` is a function, by the address of its first instruction. A call ends with the return that
 * leaves the function. The plugin counts all instructions from the first to that return, including those of functions
 * that are called and of interrupts. Calls are grouped by the named functions that they ran within, and by those that
 * they called. At the end the plugin prints one line for each group:
 *
 *     SECTION NAME within OTHERS called OTHERS calls N least L median M mean A most H
 *
 * A name that ends with `+` opens an interval, and the same name with `-` ends it, for locks. Each call of the function
 * `section` begins the next section. Nothing is recorded in the even sections, of which the first is 0. Calls and
 * returns are recognised by their instructions on x86-64. The declarations below are those of version 1 of QEMU's plugin
 * interface (QEMU 4.2 to 9.0).
 */

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { NO_REGISTERS = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { FUNCTIONS_MAX = 16, CPUS_MAX = 16, GROUPS_MAX = 256 };

/* What an instruction is, as the value that its callback gets. */
enum { CALL = 1, RETURN = 2, FIRST = 4 };

/* A named function. */
static struct {
	char name[64];
	uint64_t address;
	/* The function whose interval this one closes, or -1. */
	int closes;
	bool opens;
	bool is_section;
} functions[FUNCTIONS_MAX];
static int functions_len;

/* The state of a processor of the guest. */
static struct {
	uint64_t instructions;
	int64_t depth;
	struct {
		bool active;
		uint64_t start;
		int64_t depth;
		uint32_t within, called;
	} calls[FUNCTIONS_MAX];
} cpus[CPUS_MAX];

/* The number of the section. */
static int section;

/* The counts of the calls of a function within the same others that called the same others. */
static struct {
	int section, function;
	uint32_t within, called;
	uint64_t *counts;
	size_t len, room;
} groups[GROUPS_MAX];
static int groups_len;

static void record(int function, uint32_t within, uint32_t called, uint64_t count)
{
	int at = 0;
	while (at < groups_len && (groups[at].section != section || groups[at].function != function ||
				   groups[at].within != within || groups[at].called != called))
		at++;
	if (at == GROUPS_MAX) {
		fprintf(stderr, "count: more than %d groups\n", GROUPS_MAX);
		exit(1);
	}
	if (at == groups_len) {
		groups[at].section = section;
		groups[at].function = function;
		groups[at].within = within;
		groups[at].called = called;
		groups_len++;
	}
	if (groups[at].len == groups[at].room) {
		groups[at].room = groups[at].room ? 2 * groups[at].room : 1024;
		groups[at].counts = realloc(groups[at].counts, groups[at].room * sizeof(uint64_t));
		if (!groups[at].counts)
			abort();
	}
	groups[at].counts[groups[at].len++] = count;
}

static void end_call(unsigned cpu, int function)
{
	cpus[cpu].calls[function].active = false;
	if (section % 2)
		record(function, cpus[cpu].calls[function].within, cpus[cpu].calls[function].called,
		       cpus[cpu].instructions - cpus[cpu].calls[function].start);
}

static void begin_call(unsigned cpu, int function)
{
	uint32_t within = 0;
	if (functions[function].is_section) {
		section++;
		return;
	}
	for (int other = 0; other < functions_len; other++)
		if (cpus[cpu].calls[other].active && other != function) {
			cpus[cpu].calls[other].called |= 1u << function;
			within |= 1u << other;
		}
	if (functions[function].closes >= 0) {
		if (cpus[cpu].calls[functions[function].closes].active)
			end_call(cpu, functions[function].closes);
		return;
	}
	if (cpus[cpu].calls[function].active)
		return;
	cpus[cpu].calls[function].active = true;
	cpus[cpu].calls[function].start = cpus[cpu].instructions;
	cpus[cpu].calls[function].depth = cpus[cpu].depth;
	cpus[cpu].calls[function].within = within;
	cpus[cpu].calls[function].called = 0;
}

static void execute(unsigned cpu, void *data)
{
	uintptr_t what = (uintptr_t)data;
	if (cpu >= CPUS_MAX)
		return;
	if (what / FIRST)
		begin_call(cpu, (int)(what / FIRST) - 1);
	cpus[cpu].instructions++;
	if (what & CALL)
		cpus[cpu].depth++;
	if (what & RETURN) {
		cpus[cpu].depth--;
		for (int function = 0; function < functions_len; function++)
			if (cpus[cpu].calls[function].active && !functions[function].opens &&
			    cpus[cpu].depth < cpus[cpu].calls[function].depth)
				end_call(cpu, function);
	}
}

/* Returns what an instruction is: a call, a return, or neither. */
static uintptr_t kind(const uint8_t *bytes, size_t len)
{
	size_t at = 0;
	while (at < len && (bytes[at] == 0xF2 || bytes[at] == 0xF3 || bytes[at] == 0x2E || bytes[at] == 0x3E ||
			    (bytes[at] & 0xF0) == 0x40))
		at++;
	if (at == len)
		return 0;
	if (bytes[at] == 0xE8 || (bytes[at] == 0xFF && at + 1 < len && (bytes[at + 1] >> 3 & 7) == 2))
		return CALL;
	return bytes[at] == 0xC3 || bytes[at] == 0xC2 ? RETURN : 0;
}

static void translate(plugin_id id, struct qemu_plugin_tb *block)
{
	(void)id;
	for (size_t at = 0; at < qemu_plugin_tb_n_insns(block); at++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, at);
		uintptr_t what = kind(qemu_plugin_insn_data(insn), qemu_plugin_insn_size(insn));
		for (int function = 0; function < functions_len; function++)
			if (functions[function].address == qemu_plugin_insn_vaddr(insn))
				what |= (uintptr_t)FIRST * (function + 1);
		qemu_plugin_register_vcpu_insn_exec_cb(insn, execute, NO_REGISTERS, (void *)what);
	}
}

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return a < b ? -1 : a > b;
}

static void print_names(const char *title, uint32_t names)
{
	fprintf(stderr, " %s ", title);
	for (int function = 0; function < functions_len; function++)
		if (names >> function & 1)
			fprintf(stderr, "%s,", functions[function].name);
}

static void print(plugin_id id, void *data)
{
	(void)id;
	(void)data;
	for (int at = 0; at < groups_len; at++) {
		uint64_t sum = 0, *counts = groups[at].counts;
		size_t len = groups[at].len;
		qsort(counts, len, sizeof(*counts), compare);
		for (size_t n = 0; n < len; n++)
			sum += counts[n];
		fprintf(stderr, "%d %s", groups[at].section, functions[groups[at].function].name);
		print_names("within", groups[at].within);
		print_names("called", groups[at].called);
		fprintf(stderr, " calls %zu least %" PRIu64 " median %" PRIu64 " mean %" PRIu64 " most %" PRIu64 "\n", len,
			counts[0], counts[len / 2], sum / len, counts[len - 1]);
	}
}

struct qemu_info;

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const struct qemu_info *info, int argc,
							       char **argv)
{
	(void)info;
	for (int at = 0; at < argc; at++) {
		char *equals = strchr(argv[at], '=');
		if (!equals || equals == argv[at] || functions_len == FUNCTIONS_MAX ||
		    equals - argv[at] >= (long)sizeof(functions[0].name)) {
			fprintf(stderr, "count: `%s` must be NAME=ADDRESS, at most %d times\n", argv[at], FUNCTIONS_MAX);
			return 1;
		}
		memcpy(functions[functions_len].name, argv[at], equals - argv[at]);
		functions[functions_len].address = strtoull(equals + 1, NULL, 16);
		functions[functions_len].closes = -1;
		functions[functions_len].opens = equals[-1] == '+';
		functions[functions_len].is_section = !strcmp(functions[functions_len].name, "section");
		if (equals[-1] == '-')
			for (int other = 0; other < functions_len; other++)
				if (functions[other].opens &&
				    !strncmp(functions[other].name, argv[at], equals - argv[at] - 1))
					functions[functions_len].closes = other;
		functions_len++;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_atexit_cb(id, print, NULL);
	return 0;
}
