#include "run/thread_pool.h"

#include "os/os.h"

enum {
    /* What owners have gained by the workers pays for what they lose later, up to this. */
    MOST_CREDIT_NS = 4000000,
    /* Without credit, owners compute alone for so many times as long as the last has waited. What
     * they gain beyond the most credit shortens it: a factor of n is halved for n times this. */
    LEAST_PAUSE = 8,
    MOST_PAUSE = 128,
    SURPLUS_NS = 1000000,
    /* A wait from which on the system is taken to have stopped a process with a limit on CPU time.
     * For others' slices of CPU time, of about 3 ms, a thread is put aside for less. */
    STOPPED_NS = 4000000,
    /* Iterations of a waiting loop before it yields its CPU or sleeps: a few hundred microseconds,
     * which is longer than the gaps between the steps of a run, so that idle threads cost next to
     * nothing. */
    SPINS = 4000,
    NUMBER_SHIFT = 32, /* of the word of seats */
    WORKERS_SHIFT = 16,
    BYTE = 0xff
};

static const uint64_t JOINED = 1, FREE = 0x100, ALL_JOINED = 0xff, ALL_FREE = 0xff00;

/* Fields that waiting threads read are on other cache lines than fields that others write. */
static struct {
    atomic_flag owned; /* while a run has the pool */
    bool forks;        /* whether forks are watched */
    int32_t threads;   /* that exist, without the caller */
    /* The owner's account; see taper_pool_judge. In ns, but the factor. */
    int64_t credit, surplus, pause, factor;
    _Alignas(TAPER_CACHE_LINE) taper_pool_fn fn; /* what the seats are for */
    void *arg;
    _Atomic uint32_t run; /* counts the owners */
    taper_seats seats;
    /* What sleeping workers wait for: one more where there may be something for them. */
    _Alignas(TAPER_CACHE_LINE) _Atomic uint32_t call;
    _Atomic uint32_t asleep; /* whether a worker sleeps, or is about to */
    /* The CPU on which each worker was last seen, the owner's first; and the owner's thread. */
    _Alignas(TAPER_CACHE_LINE) _Atomic int32_t cpu[TAPER_POOL_WORKERS];
    _Atomic int32_t caller;
    _Alignas(TAPER_CACHE_LINE) _Atomic int32_t callers; /* that now run something */
} pool = {.owned = ATOMIC_FLAG_INIT, .credit = MOST_CREDIT_NS, .factor = LEAST_PAUSE};

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

void taper_seats_open(taper_seats *seats, int32_t workers, int32_t count) {
    const uint64_t word = atomic_load_explicit(&seats->word, memory_order_relaxed);
    const uint32_t next = (uint32_t)(word >> NUMBER_SHIFT) + 1, number = next ? next : 1;
    /* Sequentially consistent, as is what workers do before they sleep. */
    atomic_store(&seats->word, (uint64_t)number << NUMBER_SHIFT |
                                   (uint64_t)workers << WORKERS_SHIFT | (uint64_t)count * FREE);
}

static bool may_join(uint64_t word, int32_t worker, uint32_t last) {
    return (word & ALL_FREE) && worker < (int32_t)(word >> WORKERS_SHIFT & BYTE) &&
           (uint32_t)(word >> NUMBER_SHIFT) != last;
}

bool taper_seats_free(taper_seats *seats, int32_t worker, uint32_t last) {
    return may_join(atomic_load(&seats->word), worker, last);
}

uint32_t taper_seats_join(taper_seats *seats, int32_t worker, uint32_t last) {
    uint64_t word = atomic_load_explicit(&seats->word, memory_order_relaxed);
    do {
        if (!may_join(word, worker, last))
            return 0;
    } while (!atomic_compare_exchange_weak_explicit(&seats->word, &word, word - FREE + JOINED,
                                                    memory_order_acquire, memory_order_relaxed));
    return (uint32_t)(word >> NUMBER_SHIFT);
}

void taper_seats_leave(taper_seats *seats) {
    const uint64_t word = atomic_fetch_sub(&seats->word, JOINED);
    if ((word & ALL_JOINED) == 1 && atomic_load(&seats->sleeps)) {
        atomic_fetch_add(&seats->emptied, 1);
        taper_os_wake_all(&seats->emptied);
    }
}

/* The owner sleeps soon: a worker that takes longer was put aside by the system, and may get the
 * owner's CPU. */
bool taper_seats_close(taper_seats *seats) {
    uint64_t word = atomic_fetch_and_explicit(&seats->word, ~ALL_FREE, memory_order_acquire);
    if (!(word & ALL_JOINED))
        return false;
    for (int32_t turn = 0; turn < SPINS; turn++) {
        relax();
        word = atomic_load_explicit(&seats->word, memory_order_acquire);
        if (!(word & ALL_JOINED))
            return true;
    }
    atomic_store(&seats->sleeps, 1);
    for (;;) {
        const uint32_t seen = atomic_load(&seats->emptied);
        if (!(atomic_load(&seats->word) & ALL_JOINED))
            break;
        taper_os_wait(&seats->emptied, seen);
    }
    atomic_store(&seats->sleeps, 0);
    return true;
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

/* Returns when the worker may join again: spins for work that follows soon, then sleeps. */
static void wait_for_work(int32_t worker, uint32_t last) {
    for (;;) {
        for (int32_t i = 0; i < SPINS; i++) {
            if (taper_seats_free(&pool.seats, worker, last))
                return;
            relax();
        }
        const uint32_t seen = atomic_load(&pool.call);
        atomic_store(&pool.asleep, 1);
        if (taper_seats_free(&pool.seats, worker, last))
            return;
        taper_os_wait(&pool.call, seen);
    }
}

static void work(int32_t worker) {
    uint32_t last = 0, run = 0;
    for (;;) {
        wait_for_work(worker, last);
        const uint32_t now = atomic_load_explicit(&pool.run, memory_order_relaxed);
        if (now != run)
            keep_apart(worker);
        run = now;
        const uint32_t joined = taper_seats_join(&pool.seats, worker, last);
        if (!joined)
            continue;
        last = joined;
        pool.fn(pool.arg, &pool.seats.phase, worker);
        taper_seats_leave(&pool.seats);
    }
}

/* Wakes the workers, where one sleeps. */
static void wake(void) {
    if (atomic_load(&pool.asleep) && atomic_exchange(&pool.asleep, 0)) {
        atomic_fetch_add(&pool.call, 1);
        taper_os_wake_all(&pool.call);
    }
}

/* The child of a fork has none of the threads, and may have a run that one of them would end. */
static void forget(void) {
    pool.threads = 0;
    atomic_store(&pool.seats.word, 0);
    atomic_store(&pool.seats.sleeps, 0);
    atomic_store(&pool.asleep, 0);
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

int32_t taper_pool_take(int32_t workers) {
    workers = fitting(workers < TAPER_POOL_WORKERS ? workers : TAPER_POOL_WORKERS);
    if (workers <= 1 || atomic_flag_test_and_set_explicit(&pool.owned, memory_order_acquire))
        return 1;
    if (pool.threads < workers - 1)
        grow(workers - 1);
    if (workers > pool.threads + 1)
        workers = pool.threads + 1;
    if (workers == 1) {
        atomic_flag_clear_explicit(&pool.owned, memory_order_release);
        return 1;
    }
    atomic_store_explicit(&pool.caller, taper_os_thread(), memory_order_relaxed);
    atomic_store_explicit(&pool.cpu[0], taper_os_cpu(), memory_order_relaxed);
    atomic_fetch_add_explicit(&pool.run, 1, memory_order_relaxed);
    if (taper_pool_pays())
        wake();
    return workers;
}

void taper_pool_release(void) { atomic_flag_clear_explicit(&pool.owned, memory_order_release); }

bool taper_pool_pays(void) { return pool.pause <= 0; }

void taper_pool_computed_alone(int64_t ns) { pool.pause -= ns; }

/* Where another thread keeps a CPU busy, the system puts a worker aside for milliseconds, and what
 * the worker has begun waits. Then one thread is faster than several. The pause counts time of
 * computing, as some owners compute seldom. It is longer each time, as long as sharing loses:
 * trying again costs an owner one wait for each pause. */
void taper_pool_judge(int64_t saved, int64_t waited, bool limited) {
    if (limited && waited >= STOPPED_NS)
        return;
    pool.credit += saved - waited;
    if (pool.credit > MOST_CREDIT_NS) {
        pool.surplus += pool.credit - MOST_CREDIT_NS;
        pool.credit = MOST_CREDIT_NS;
        if (pool.surplus >= pool.factor * SURPLUS_NS) {
            pool.surplus = 0;
            pool.factor = pool.factor > LEAST_PAUSE ? pool.factor / 2 : LEAST_PAUSE;
        }
    } else if (pool.credit < 0) {
        pool.credit = pool.surplus = 0;
        pool.pause = pool.factor * waited;
        pool.factor = pool.factor < MOST_PAUSE ? 2 * pool.factor : MOST_PAUSE;
    }
}

void taper_pool_open(taper_pool_fn fn, void *arg, const taper_phase *phase, int32_t workers) {
    if (pool.fn != fn || pool.arg != arg) { /* else workers may have them in their caches */
        pool.fn = fn;
        pool.arg = arg;
    }
    if (phase)
        pool.seats.phase = *phase;
    taper_seats_open(&pool.seats, workers, workers - 1);
    wake();
}

bool taper_pool_close(void) { return taper_seats_close(&pool.seats); }
