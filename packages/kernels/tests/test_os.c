/* Functions of the operating system: threads, waiting, placement, time, sizes. */
#include "os/os.h"

#include <time.h>

#include "check.h"

enum { THREADS = 3 };

static struct {
    _Atomic uint32_t word;
    _Atomic uint32_t woken;
    _Atomic int32_t indices;
} shared;

static void wait_for_word(int32_t index) {
    atomic_fetch_add(&shared.indices, index);
    while (atomic_load(&shared.word) == 0)
        taper_os_wait(&shared.word, 0);
    atomic_fetch_add(&shared.woken, 1);
    taper_os_wake_all(&shared.woken);
}

static void wait_for_count(_Atomic uint32_t *count, uint32_t wanted) {
    for (uint32_t seen; (seen = atomic_load(count)) != wanted;)
        taper_os_wait(count, seen);
}

/* Each thread gets its index, sleeps, and is woken, whether the wake comes before the sleep or
 * after it. */
static void threads_wait_and_wake(void) {
    for (int32_t early = 0; early <= 1; early++) {
        atomic_store(&shared.word, 0);
        atomic_store(&shared.woken, 0);
        atomic_store(&shared.indices, 0);
        for (int32_t i = 1; i <= THREADS; i++)
            CHECK(taper_os_start_thread(wait_for_word, i), "thread %d", i);
        while (!early && atomic_load(&shared.indices) != THREADS * (THREADS + 1) / 2)
            taper_os_yield();
        atomic_store(&shared.word, 1);
        taper_os_wake_all(&shared.word);
        wait_for_count(&shared.woken, THREADS);
        CHECK(atomic_load(&shared.indices) == THREADS * (THREADS + 1) / 2, "indices");
    }
}

static void no_wait_for_what_has_come(void) {
    _Atomic uint32_t word = 7;
    taper_os_wait(&word, 6); /* otherwise this test does not end */
    CHECK(atomic_load(&word) == 7, "the word");
}

/* The thread leaves its CPU, and may come back later. */
static void leaves_a_cpu(void) {
    const int32_t first = taper_os_cpu();
    bool left = first < 0 || taper_os_cpu_count() < 2, back = left;
    for (int i = 0; i < 100 && !left; i++) { /* the system may move it too, now and then */
        const int32_t cpu = taper_os_cpu();
        taper_os_leave(&cpu, 1, taper_os_thread());
        left = taper_os_cpu() != cpu;
    }
    CHECK(left, "still on CPU %d", first);
    for (int i = 0; i < 100 && !back; i++) {
        const int32_t cpu = taper_os_cpu();
        taper_os_leave(&cpu, 1, taper_os_thread());
        back = taper_os_cpu() == first;
    }
    CHECK(back, "never on CPU %d again", first);
}

static void counts_cpus(void) { CHECK(taper_os_cpu_count() >= 1, "at least the one this runs on"); }

static double wall(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The clock counts nanoseconds and never goes back. */
static void clock_counts_nanoseconds(void) {
    const int64_t before = taper_os_now();
    const double start = wall(), wait = 0.02;
    int64_t last = before;
    while (wall() - start < wait) {
        const int64_t now = taper_os_now();
        CHECK(now >= last, "back by %lld ns", (long long)(last - now));
        last = now;
    }
    const double took = 1e-9 * (double)(taper_os_now() - before);
    CHECK(took > wait / 2 && took < 60, "%g s in %g s", took, wait);
}

/* The clock counts nanoseconds and never goes back. */
static void coarse_clock_goes_on(void) {
    const int64_t exact = taper_os_now(), coarse = taper_os_coarse_now();
    int64_t last = coarse;
    while (taper_os_now() - exact < 100000000) {
        const int64_t now = taper_os_coarse_now();
        CHECK(now >= last, "back by %lld ns", (long long)(last - now));
        last = now;
    }
    const double took = 1e-9 * (double)(taper_os_coarse_now() - coarse);
    CHECK(took > 0.05 && took < 60, "%g s in 0.1 s", took);
}

/* Memory is zeroed each time, of small pages and of large ones; more than an address space gives
 * NULL. */
static void maps_memory(void) {
    const size_t sizes[] = {(size_t)1 << 20, ((size_t)5 << 20) + 64, (size_t)4 << 20};
    for (int i = 0; i < 6; i++) {
        const size_t bytes = sizes[i % 3];
        char *memory = taper_os_map(bytes);
        CHECK(memory, "turn %d", i);
        for (size_t k = 0; memory && k < bytes; k += 1024) {
            CHECK(memory[k] == 0, "byte %zu", k);
            memory[k] = 1;
        }
        if (memory)
            taper_os_unmap(memory, bytes);
    }
    CHECK(!taper_os_map((size_t)1 << 60), "of no size");
    CHECK(!taper_os_map(SIZE_MAX - 1), "of no size");
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"threads_wait_and_wake", threads_wait_and_wake},
        {"no_wait_for_what_has_come", no_wait_for_what_has_come},
        {"leaves_a_cpu", leaves_a_cpu},
        {"counts_cpus", counts_cpus},
        {"clock_counts_nanoseconds", clock_counts_nanoseconds},
        {"coarse_clock_goes_on", coarse_clock_goes_on},
        {"maps_memory", maps_memory},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
