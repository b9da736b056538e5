/* Linux: waiting by futex, placement by affinity masks, sizes from /sys. */
#define _GNU_SOURCE /* CPU sets, sched_getcpu, syscall */
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/os.h"

/* The kernel's numbers; not every libc has <linux/futex.h>. */
enum { FUTEX_PRIVATE = 128, FUTEX_WAIT = 0 | FUTEX_PRIVATE, FUTEX_WAKE = 1 | FUTEX_PRIVATE };

void taper_os_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

void taper_os_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void taper_os_forget_waiters(void) {} /* in the kernel, a child has no waiters */

int32_t taper_os_cpu(void) { return sched_getcpu(); }

int32_t taper_os_thread(void) { return (int32_t)syscall(SYS_gettid); }

void taper_os_leave(const int32_t *cpus, int32_t count, int32_t like) {
    cpu_set_t all, others;
    if (sched_getaffinity(like, sizeof all, &all) != 0)
        return;
    others = all;
    for (int32_t i = 0; i < count; i++)
        CPU_CLR((size_t)cpus[i], &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
        (void)sched_setaffinity(0, sizeof all, &all);
}

/* Returns the CPUs that the control groups allow, rounded up. They are read once: a run that begins
 * beside others asks, too. */
static int32_t allowed_cpus(void) {
    static _Atomic int32_t known; /* 0: not read yet */
    int32_t cpus = atomic_load_explicit(&known, memory_order_relaxed);
    if (cpus == 0) {
        char file[PATH_MAX];
        const double limit = taper_os_cpu_limit("", file, sizeof file);
        cpus = limit > 0 && limit < INT32_MAX ? (int32_t)ceil(limit) : INT32_MAX;
        atomic_store_explicit(&known, cpus, memory_order_relaxed);
    }
    return cpus;
}

int32_t taper_os_cpu_count(void) {
    cpu_set_t set;
    const int32_t cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1,
                  allowed = allowed_cpus();
    return allowed < cpus ? allowed : cpus > 0 ? cpus : 1;
}

bool taper_os_cpu_limited(void) { return allowed_cpus() < INT32_MAX; }

/* Reads one word of a file about cache i of the first CPU. */
static bool read_word(int i, const char *file, char word[32]) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    const bool good = fscanf(f, "%31s", word) == 1;
    fclose(f);
    return good;
}

int64_t taper_os_cache_bytes(int32_t level) {
    enum { MAX_CACHES = 16 };
    char word[32];
    for (int i = 0; i < MAX_CACHES && read_word(i, "level", word); i++) {
        int32_t of = 0;
        long long size = 0;
        char unit = 'B';
        if (sscanf(word, "%d", &of) != 1 || of != level || !read_word(i, "type", word) ||
            strcmp(word, "Instruction") == 0 || !read_word(i, "size", word) ||
            sscanf(word, "%lld%c", &size, &unit) < 1)
            continue;
        const long long scale = unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : 1;
        return size > 0 && size < 1ll << 40 ? (int64_t)(size * scale) : 0;
    }
    return 0;
}
