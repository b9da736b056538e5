/* One pool of threads per process. */
#ifndef TAPER_THREAD_POOL_H
#define TAPER_THREAD_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { TAPER_POOL_WORKERS = 255, TAPER_CACHE_LINE = 64 };

/* Tasks [from, from + tasks) of a step, in one share for each worker that may compute them. */
typedef struct taper_phase {
    int64_t within; /* the run's step that is or contains the step */
    int64_t step, from, tasks;
    int32_t shares;
    uint32_t number; /* different from that of the phase before with the same cursors */
} taper_phase;

/*
 * Lets other threads join a thread's work for a while. The work must not need them: who comes too
 * late does not join, and only those who have joined are waited for.
 */
typedef struct taper_seats {
    /* Its number, different each time << 32 | workers that may join << 16 | how many more may join
     * << 8 | how many have joined. */
    _Alignas(TAPER_CACHE_LINE) _Atomic uint64_t word;
    taper_phase phase;        /* the work, where it is one; on the word's cache line */
    _Atomic uint32_t sleeps;  /* whether the owner does */
    _Atomic uint32_t emptied; /* one more each time that all have left, where the owner sleeps */
} taper_seats;
_Static_assert(sizeof(taper_seats) == TAPER_CACHE_LINE, "what a worker reads when it joins");

/* Lets workers [1, workers) join, at most `count` of them. */
void taper_seats_open(taper_seats *seats, int32_t workers, int32_t count);
/* Returns whether the worker may join now, other than the time that has the number `last`. */
bool taper_seats_free(taper_seats *seats, int32_t worker, uint32_t last);
/* Joins, where the worker may; returns the number of the time, else 0. */
uint32_t taper_seats_join(taper_seats *seats, int32_t worker, uint32_t last);
void taper_seats_leave(taper_seats *seats);
/* Lets no more join, and waits until those who have joined have left; returns whether it had to. */
bool taper_seats_close(taper_seats *seats);

typedef void (*taper_pool_fn)(void *arg, const taper_phase *phase, int32_t worker);

/* Called before and after a caller's run. Callers and the workers of the pool together use at most
 * all CPUs: a second caller computes alone, or with the CPUs that are left. */
void taper_pool_enter(void);
void taper_pool_leave(void);

/*
 * Makes the caller the pool's owner, until it releases the pool, and wakes the workers. Returns how
 * many threads may work, at most `workers`, the caller as worker 0 included. It is 1, and the
 * caller no owner, where threads cannot be created, other callers need the CPUs or own the pool.
 */
int32_t taper_pool_take(int32_t workers);
void taper_pool_release(void);

/* Lets workers [1, workers) of the pool call fn(arg, phase, w), each at most once, in its own
 * thread, while the owner works, too; see taper_seats. phase: a copy; NULL leaves it undefined. */
void taper_pool_open(taper_pool_fn fn, void *arg, const taper_phase *phase, int32_t workers);
/* Ends that; returns whether the owner had to wait for a worker. */
bool taper_pool_close(void);

/* Returns whether the owner is to share its work. It is not to for a while after it has waited for
 * workers longer than they have saved. */
bool taper_pool_pays(void);
/* Tells how much time the workers have saved their owner, and for how long it has waited for them;
 * both in ns. limited: whether the process has a limit on CPU time. The system stops a process that
 * has used it up, with its owner, so that a wait of that length is no worker's. */
void taper_pool_judge(int64_t saved, int64_t waited, bool limited);
/* Tells for how long the owner has computed alone because sharing does not pay. */
void taper_pool_computed_alone(int64_t ns);

/* One iteration of a loop that waits for another thread; *turn counts them, from 0 on. It is short,
 * but after some hundred microseconds it yields the CPU for a while. */
void taper_pool_wait(int32_t *turn);

#endif /* TAPER_THREAD_POOL_H */
