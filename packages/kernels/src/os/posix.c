/* Functions that Linux, macOS and other POSIX systems share. */
/* pthread_atfork, the coarse clock; on macOS nothing is hidden unless POSIX is asked for */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "os/os.h"

static void (*thread_body)(int32_t index);

static void *start(void *index) {
    thread_body((int32_t)(intptr_t)index);
    return NULL;
}

bool taper_os_start_thread(void (*body)(int32_t index), int32_t index) {
    sigset_t all, before;
    pthread_t thread;
    if (!thread_body)
        thread_body = body;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, start, (void *)(intptr_t)index) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

void taper_os_at_fork(void (*child)(void)) { pthread_atfork(NULL, NULL, child); }

void taper_os_yield(void) { sched_yield(); }

static int64_t read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t taper_os_now(void) { return read_clock(CLOCK_MONOTONIC); }

int64_t taper_os_coarse_now(void) {
#if defined(CLOCK_MONOTONIC_COARSE)
    return read_clock(CLOCK_MONOTONIC_COARSE);
#elif defined(CLOCK_MONOTONIC_RAW_APPROX)
    return read_clock(CLOCK_MONOTONIC_RAW_APPROX);
#else
    return taper_os_now();
#endif
}

int64_t taper_os_memory_bytes(void) {
    const int64_t pages = sysconf(_SC_PHYS_PAGES), each = sysconf(_SC_PAGESIZE);
    return pages > 0 && each > 0 ? pages * each : 0;
}

enum {
    LARGE_PAGE = 1 << 21,        /* bytes, of x86-64 and of aarch64 with small pages of 4 KiB */
    LARGE_FROM = 2 * LARGE_PAGE, /* less memory gets small pages */
};

/* Returns what is mapped for this many bytes: the system aligns whole large pages to such pages. */
static size_t mapped_bytes(size_t bytes) {
    if (bytes < LARGE_FROM || bytes > SIZE_MAX - LARGE_PAGE)
        return bytes;
    return (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
}

/* Asks for large pages, of which a CPU keeps more addresses at hand; but not for the last one,
 * which may be used in part. */
void *taper_os_map(size_t bytes) {
    const size_t whole = mapped_bytes(bytes);
    void *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes >= LARGE_FROM)
        madvise(memory, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
#endif
    return memory;
}

void taper_os_unmap(void *memory, size_t bytes) { munmap(memory, mapped_bytes(bytes)); }
