/* Linux: a worker of the pool does not stay on its caller's CPU. */
#define _GNU_SOURCE /* CPU sets */
#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include "check.h"
#include "os/os.h"
#include "run/thread_pool.h"

static void come(void *came, const taper_phase *none, int32_t worker) {
    (void)none;
    atomic_store((_Atomic int32_t *)came, worker);
}

/* Has a worker come to what the caller shares. */
static void run_with_a_worker(void) {
    _Atomic int32_t came = 0;
    CHECK(taper_pool_take(2) == 2, "a worker");
    taper_pool_open(come, &came, NULL, 2);
    while (!atomic_load(&came))
        taper_os_yield();
    taper_pool_close();
    taper_pool_release();
}

/* Returns the threads of this process that may use more than one CPU, without the caller. With
 * `cpu` it first allows each of them only that one. */
static int others_free(int cpu) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        cpu_set_t set;
        CPU_ZERO(&set);
        if (thread == 0 || thread == getpid())
            continue;
        if (cpu >= 0) {
            CPU_SET((size_t)cpu, &set);
            CHECK(sched_setaffinity(thread, sizeof set, &set) == 0, "thread %d", (int)thread);
        }
        CHECK(sched_getaffinity(thread, sizeof set, &set) == 0, "thread %d", (int)thread);
        count += CPU_COUNT(&set) > 1;
    }
    closedir(tasks);
    return count;
}

/* A worker that is bound to the caller's CPU leaves it, because it finds that they share it. */
static void worker_leaves_the_callers_cpu(void) {
    run_with_a_worker(); /* to create a worker */
    cpu_set_t all;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0, "CPUs of the caller");
    bool parted = CPU_COUNT(&all) < 2;
    for (int i = 0; i < 100 && !parted; i++) { /* the caller may be moved too, now and then */
        const int cpu = sched_getcpu();
        CHECK(others_free(cpu) == 0, "threads on CPU %d alone", cpu);
        run_with_a_worker();
        parted = others_free(-1) > 0;
    }
    CHECK(parted, "the worker stays");
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"worker_leaves_the_callers_cpu", worker_leaves_the_callers_cpu},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
