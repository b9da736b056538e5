#include "run/thread_pool.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "os/os.h"

enum {
    /* Iterations of a waiting loop before it yields its CPU: a few hundred microseconds, which is
     * longer than the gaps between the steps of a run, so that idle threads cost next to nothing.
     */
    SPINS = 4000,
    CACHE_LINE = 64,
    WORKERS = 0xff, /* bits of a run's word */
    INVITED = 0x100,
    NUMBER = 0x200 /* one more */
};

/* States of a run to which workers are invited. */
static const uint64_t OPEN = 0x80000000, GUESTS = 0x7fffffff;

/* Fields that waiting threads read are on other cache lines than fields that others write. */
static struct {
    atomic_flag owned; /* while a run has the pool */
    bool forks;        /* whether forks are watched */
    int32_t threads;   /* that exist, without the caller */
    taper_pool_fn fn;
    void *arg;
    /* The run's number, whether its workers are INVITED, and how many: one word, so that a thread
     * that wakes late never pairs the count of one run with the number of another. */
    _Alignas(CACHE_LINE) _Atomic uint32_t run;
    /* The latest run with invited workers: its word << 32 | OPEN | how many work at it. */
    _Alignas(CACHE_LINE) _Atomic uint64_t guests;
    /* The CPU on which each worker was last seen, the owner's first; and the owner's thread. */
    _Alignas(CACHE_LINE) _Atomic int32_t cpu[TAPER_POOL_WORKERS];
    _Atomic int32_t caller;
    _Alignas(CACHE_LINE) _Atomic int32_t callers; /* that now run something */
    _Alignas(CACHE_LINE) _Atomic int32_t sleepers;
    _Alignas(CACHE_LINE) _Atomic int32_t arrived; /* at the barrier */
    _Alignas(CACHE_LINE) _Atomic uint32_t phase;  /* of the barrier */
} pool = {.owned = ATOMIC_FLAG_INIT};

/* Nested runs of this thread. */
static _Thread_local int32_t depth;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void taper_pool_wait(int32_t *turn) {
    if (*turn < SPINS) {
        ++*turn;
        relax();
    } else {
        taper_os_yield(); /* there are more threads than CPUs */
    }
}

void taper_pool_barrier(int32_t workers) {
    if (workers == 1)
        return;
    const uint32_t phase = atomic_load_explicit(&pool.phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&pool.arrived, 1, memory_order_acq_rel) + 1 == workers) {
        atomic_store_explicit(&pool.arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool.phase, phase + 1, memory_order_release);
        return;
    }
    for (int32_t turn = 0; atomic_load_explicit(&pool.phase, memory_order_acquire) == phase;)
        taper_pool_wait(&turn);
}

/* Returns the next run's word: spins for a run that follows soon, then sleeps. */
static uint32_t next_run(uint32_t seen) {
    uint32_t word;
    for (int32_t i = 0; i < SPINS; i++) {
        if ((word = atomic_load_explicit(&pool.run, memory_order_acquire)) != seen)
            return word;
        relax();
    }
    /* Sequentially consistent, because the owner writes the word and then reads sleepers. */
    atomic_fetch_add(&pool.sleepers, 1);
    while ((word = atomic_load(&pool.run)) == seen)
        taper_os_wait(&pool.run, seen);
    atomic_fetch_sub(&pool.sleepers, 1);
    return word;
}

/*
 * Moves a worker off the CPU of the owner, or of a worker before it. Linux wakes a thread beside
 * the one that wakes it if the other CPUs look busy just then, and leaves it there for
 * milliseconds: two threads on one CPU take longer than one, and a short run is over before Linux
 * separates them. After the move Linux may place the thread again: it knows which CPUs stay busy.
 */
static void keep_apart(int32_t worker) {
    int32_t cpus[TAPER_POOL_WORKERS];
    const int32_t cpu = taper_os_cpu();
    bool shared = false;
    if (cpu < 0)
        return;
    for (int32_t i = 0; i < worker; i++) {
        cpus[i] = atomic_load_explicit(&pool.cpu[i], memory_order_relaxed);
        shared |= cpus[i] == cpu;
    }
    if (shared) /* a worker may use the CPUs of its caller */
        taper_os_leave(cpus, worker, atomic_load_explicit(&pool.caller, memory_order_relaxed));
    atomic_store_explicit(&pool.cpu[worker], taper_os_cpu(), memory_order_relaxed);
}

/* Returns whether a worker joins a run to which it is invited before the run closes. */
static bool enter(uint32_t run) {
    uint64_t guests = atomic_load_explicit(&pool.guests, memory_order_relaxed);
    do {
        if (guests >> 32 != run || !(guests & OPEN))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&pool.guests, &guests, guests + 1,
                                                    memory_order_acquire, memory_order_relaxed));
    return true;
}

static void work(int32_t worker) {
    uint32_t seen = 0; /* no run has this word: numbers start at 1 */
    for (;;) {
        seen = next_run(seen);
        const int32_t workers = (int32_t)(seen & WORKERS);
        const bool invited = seen & INVITED;
        if (worker >= workers || (invited && !enter(seen)))
            continue;
        keep_apart(worker);
        pool.fn(pool.arg, worker, workers);
        if (invited)
            atomic_fetch_sub_explicit(&pool.guests, 1, memory_order_release);
        else
            taper_pool_barrier(workers); /* the owner may start the next run after this */
    }
}

/* The child of a fork has none of the threads, and may have a run that one of them would end. The
 * parent's last run would look new to the child's first thread. */
static void forget(void) {
    pool.threads = 0;
    atomic_store(&pool.run, 0);
    atomic_store(&pool.guests, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.arrived, 0);
    atomic_store(&pool.callers, depth > 0);
    taper_os_forget_waiters();
    atomic_flag_clear(&pool.owned);
}

/* Creates threads until the pool has `wanted`, or no more can be created. */
static void grow(int32_t wanted) {
    if (!pool.forks)
        taper_os_at_fork(forget);
    pool.forks = true;
    while (pool.threads < wanted && taper_os_start_thread(work, pool.threads + 1))
        pool.threads++;
}

void taper_pool_enter(void) {
    if (depth++ == 0)
        atomic_fetch_add_explicit(&pool.callers, 1, memory_order_relaxed);
}

void taper_pool_leave(void) {
    if (--depth == 0)
        atomic_fetch_sub_explicit(&pool.callers, 1, memory_order_relaxed);
}

/* Returns at most `workers`, and no more than there are CPUs without a caller. */
static int32_t fitting(int32_t workers) {
    const int32_t others = atomic_load_explicit(&pool.callers, memory_order_relaxed) - 1;
    if (workers <= 1 || others <= 0)
        return workers;
    const int32_t left = taper_os_cpu_count() - others;
    return workers < left ? workers : left;
}

/* Begins a run for the caller, which then owns the pool and is worker 0; returns how many workers
 * there are, or 0 where other callers own the pool or use the CPUs. kind: 0 or INVITED. */
static int32_t begin(taper_pool_fn fn, void *arg, int32_t workers, uint32_t kind) {
    workers = fitting(workers < TAPER_POOL_WORKERS ? workers : TAPER_POOL_WORKERS);
    if (workers <= 1 || atomic_flag_test_and_set_explicit(&pool.owned, memory_order_acquire))
        return 0;
    if (pool.threads < workers - 1)
        grow(workers - 1);
    if (workers > pool.threads + 1)
        workers = pool.threads + 1;
    if (workers == 1)
        return 1;
    pool.fn = fn;
    pool.arg = arg;
    atomic_store_explicit(&pool.caller, taper_os_thread(), memory_order_relaxed);
    atomic_store_explicit(&pool.cpu[0], taper_os_cpu(), memory_order_relaxed);
    uint32_t run = atomic_load_explicit(&pool.run, memory_order_relaxed) / NUMBER * NUMBER + NUMBER;
    if (run == 0)
        run = NUMBER;
    run |= kind | (uint32_t)workers;
    if (kind == INVITED)
        atomic_store_explicit(&pool.guests, (uint64_t)run << 32 | OPEN, memory_order_release);
    atomic_store(&pool.run, run);
    if (atomic_load(&pool.sleepers) > 0)
        taper_os_wake_all(&pool.run);
    return workers;
}

void taper_pool_run(taper_pool_fn fn, void *arg, int32_t workers) {
    const int32_t count = begin(fn, arg, workers, 0);
    fn(arg, 0, count > 1 ? count : 1);
    if (count == 0)
        return;
    taper_pool_barrier(count);
    atomic_flag_clear_explicit(&pool.owned, memory_order_release);
}

int32_t taper_pool_invite(taper_pool_fn fn, void *arg, int32_t workers) {
    return begin(fn, arg, workers, INVITED);
}

void taper_pool_part(int32_t n) {
    if (n == 0)
        return;
    uint64_t guests = atomic_fetch_and_explicit(&pool.guests, ~OPEN, memory_order_acquire);
    for (int32_t turn = 0; guests & GUESTS;) {
        taper_pool_wait(&turn);
        guests = atomic_load_explicit(&pool.guests, memory_order_acquire);
    }
    atomic_flag_clear_explicit(&pool.owned, memory_order_release);
}
