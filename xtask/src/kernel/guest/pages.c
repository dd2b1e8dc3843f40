/* The first program of a Linux guest: makes the kernel allocate and free pages, one after another and in bursts.
 *
 * With the argument `symbols` on the kernel's command line, prints the addresses of the kernel's functions instead. A page
 * of a pipe is allocated when it is written and freed when it is read. A huge page is allocated when it is touched and
 * freed when it is given back.
 */

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <termios.h>
#include <unistd.h>

enum { PAGE = 4096, PIPE_PAGES = 16, PIPES = 200, ROUNDS = 200, HUGE_ROUNDS = 20 };
#define HUGE_BYTES ((size_t)2 << 20)
#define HUGE_PAGES 32

static void check(int fine, const char *what)
{
	if (!fine) {
		perror(what);
		reboot(RB_POWER_OFF);
	}
}

/* The functions of Linux 6.12 whose calls are counted. */
static const char *const wanted[] = {
	"__alloc_pages_noprof",	  "free_unref_page",	     "free_unref_folios",	"vma_alloc_folio_noprof",
	"_raw_spin_lock_irqsave", "_raw_spin_unlock_irqrestore", "__x64_sys_sched_yield",
};

static void print_symbols(void)
{
	char line[256];
	FILE *symbols = fopen("/proc/kallsyms", "r");
	check(symbols != NULL, "kallsyms");
	while (fgets(line, sizeof(line), symbols)) {
		char name[200];
		unsigned long address;
		char kind;
		if (sscanf(line, "%lx %c %199s", &address, &kind, name) == 3 && (kind | 32) == 't')
			for (size_t at = 0; at < sizeof(wanted) / sizeof(*wanted); at++)
				if (!strcmp(name, wanted[at]))
					printf("symbol %s %lx\n", name, address);
	}
	fclose(symbols);
}

static int pipes[PIPES][2];
static char buffer[PIPE_PAGES * PAGE];

static void fill(int at)
{
	check(write(pipes[at][1], buffer, sizeof(buffer)) == sizeof(buffer), "write");
}

static void empty(int at)
{
	check(read(pipes[at][0], buffer, sizeof(buffer)) == sizeof(buffer), "read");
}

int main(void)
{
	char options[1024] = "";
	check(mount("proc", "/proc", "proc", 0, NULL) == 0, "proc");
	int file = open("/proc/cmdline", O_RDONLY);
	check(file >= 0 && read(file, options, sizeof(options) - 1) > 0, "cmdline");
	if (strstr(options, "symbols")) {
		print_symbols();
	} else {
		for (int at = 0; at < PIPES; at++)
			check(pipe(pipes[at]) == 0, "pipe");
		char *area = mmap(NULL, (HUGE_PAGES + 1) * HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				  -1, 0);
		check(area != MAP_FAILED, "mmap");
		area += HUGE_BYTES - (size_t)area % HUGE_BYTES;
		check(madvise(area, HUGE_PAGES * HUGE_BYTES, MADV_HUGEPAGE) == 0, "MADV_HUGEPAGE");
		sched_yield(); /* section 1: one huge page after another */
		for (int round = 0; round < HUGE_ROUNDS; round++) {
			area[0] = 1;
			check(madvise(area, HUGE_BYTES, MADV_DONTNEED) == 0, "MADV_DONTNEED");
		}
		sched_yield();
		sched_yield(); /* section 3: a burst of huge pages */
		for (int at = 0; at < HUGE_PAGES; at++)
			area[at * HUGE_BYTES] = 1;
		for (int at = 0; at < HUGE_PAGES; at++)
			check(madvise(area + at * HUGE_BYTES, HUGE_BYTES, MADV_DONTNEED) == 0, "MADV_DONTNEED");
		sched_yield();
		sched_yield(); /* section 5: sets of single pages */
		for (int round = 0; round < ROUNDS; round++) {
			fill(0);
			empty(0);
		}
		sched_yield();
		sched_yield(); /* section 7: a burst of single pages */
		for (int at = 0; at < PIPES; at++)
			fill(at);
		for (int at = 0; at < PIPES; at++)
			empty(at);
		sched_yield();
	}
	printf("done\n");
	fflush(stdout);
	tcdrain(STDOUT_FILENO); /* switching off loses what the console has not sent */
	reboot(RB_POWER_OFF);
}
