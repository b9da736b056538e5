/* macOS and any other POSIX system: waiting by a condition variable; the system places threads. */
#include <pthread.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <stdio.h>
#include <sys/sysctl.h>
#endif

#include "os/os.h"

/* All waiters on all words share one condition, because they are few and rarely wake. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;

void taper_os_wait(_Atomic uint32_t *word, uint32_t seen) {
    pthread_mutex_lock(&mutex);
    if (atomic_load(word) == seen)
        pthread_cond_wait(&woken, &mutex);
    pthread_mutex_unlock(&mutex);
}

/* Under the mutex: a waiter that read the word before it changed is asleep by now, so this wakes
 * it. */
void taper_os_wake_all(_Atomic uint32_t *word) {
    (void)word;
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&woken);
    pthread_mutex_unlock(&mutex);
}

void taper_os_forget_waiters(void) {
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    woken = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

int32_t taper_os_cpu(void) { return -1; }

int32_t taper_os_thread(void) { return 0; }

void taper_os_leave(const int32_t *cpus, int32_t count, int32_t like) {
    (void)cpus, (void)count, (void)like;
}

int32_t taper_os_cpu_count(void) {
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    return cpus > 0 ? (int32_t)cpus : 1;
}

double taper_os_cpu_limit(const char *root, char *file, size_t bytes) {
    (void)root, (void)file, (void)bytes;
    return 0;
}

bool taper_os_cpu_limited(void) { return false; }

int64_t taper_os_cache_bytes(int32_t level) {
#if defined(__APPLE__)
    static const char *const names[] = {"hw.l1dcachesize", "hw.l2cachesize", "hw.l3cachesize"};
    int64_t bytes = 0;
    size_t size = sizeof bytes;
    if (sysctlbyname(names[level - 1], &bytes, &size, NULL, 0) == 0 && size == sizeof bytes)
        return bytes;
#else
    (void)level;
#endif
    return 0;
}
