/*
 * Runs each step as soon as the steps that it waits for have ended. A worker that has ended a step
 * continues with the first of its users that waits for nothing else, and puts the other such users
 * into the common set. A worker that finds no step helps another worker with the tasks of its step.
 */
#include <stddef.h>

#include "run/team.h"
#include "run/thread_pool.h"

enum { WORD = 64, BEGUN = -1 };

/* A set of steps that wait for nothing; the lowest is taken first. */
typedef struct ready_set {
    _Alignas(CACHE_LINE) _Atomic int64_t count; /* at least the number of steps in the set */
    _Atomic uint64_t *bits;
} ready_set;

/* The phase that a leader has opened: its number << 32 | workers that may join << 16 | workers that
 * have joined. */
typedef uint64_t job_word;
static const job_word HELPER = 1, HELPERS = 0xffff, SEAT = 0x10000, SEATS = 0xffff0000;

/* The phase that a leader shares with others. They read `now` and `within` while they have joined;
 * the leader writes those while no worker has joined. */
typedef struct job {
    _Alignas(CACHE_LINE) _Atomic job_word word;
    phase now;
    int64_t within;
    cursor cursors[]; /* [workers of the run at most] */
} job;

/* Contents of taper_run_args.schedule. */
typedef struct schedule {
    int64_t words;                             /* of a set */
    size_t job_bytes;                          /* from one to the next */
    _Atomic int32_t *waiting;                  /* [count]: for how many steps; BEGUN */
    ready_set anywhere, caller;                /* for any leader; for worker 0 alone */
    char *jobs;                                /* [leaders] */
    _Alignas(CACHE_LINE) _Atomic int64_t left; /* steps that have not ended */
} schedule;

static size_t aligned(size_t bytes) { return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE; }

static size_t waiting_bytes(int64_t count) { return aligned((size_t)count * sizeof(int32_t)); }

static size_t bits_bytes(int64_t count) {
    return aligned((size_t)((count + WORD - 1) / WORD) * sizeof(uint64_t));
}

static size_t job_bytes(int32_t workers) {
    return aligned(offsetof(job, cursors)) + (size_t)workers * sizeof(cursor);
}

size_t taper_schedule_bytes(int64_t count, int32_t workers, int32_t leaders) {
    return aligned(sizeof(schedule)) + waiting_bytes(count) + 2 * bits_bytes(count) +
           (size_t)leaders * job_bytes(workers);
}

static job *job_at(const schedule *s, int32_t leader) {
    return (job *)(void *)(s->jobs + (size_t)leader * s->job_bytes);
}

static void put(ready_set *set, int64_t i) {
    atomic_fetch_add_explicit(&set->count, 1, memory_order_relaxed);
    atomic_fetch_or_explicit(&set->bits[i / WORD], UINT64_C(1) << i % WORD, memory_order_release);
}

/* Returns a step, or -1. */
static int64_t take(ready_set *set, int64_t words) {
    if (atomic_load_explicit(&set->count, memory_order_relaxed) == 0)
        return -1;
    for (int64_t w = 0; w < words; w++) {
        uint64_t bits = atomic_load_explicit(&set->bits[w], memory_order_relaxed);
        while (bits) {
            const uint64_t first = bits & -bits;
            bits = atomic_fetch_and_explicit(&set->bits[w], ~first, memory_order_acquire);
            if (bits & first) {
                atomic_fetch_sub_explicit(&set->count, 1, memory_order_relaxed);
                return w * WORD + __builtin_ctzll(first);
            }
        }
    }
    return -1;
}

static void make_ready(schedule *s, const taper_run_args *args, int64_t i) {
    put(args->steps[i].on_caller ? &s->caller : &s->anywhere, i);
}

void taper_schedule_begin(const taper_run_args *args) {
    schedule *s = args->schedule;
    const int64_t count = args->count;
    char *at = (char *)args->schedule + aligned(sizeof *s);
    s->words = (count + WORD - 1) / WORD;
    s->job_bytes = job_bytes(args->workers);
    s->waiting = (_Atomic int32_t *)(void *)at;
    s->anywhere.bits = (_Atomic uint64_t *)(void *)(at += waiting_bytes(count));
    s->caller.bits = (_Atomic uint64_t *)(void *)(at += bits_bytes(count));
    s->jobs = at + bits_bytes(count);
    atomic_init(&s->left, count);
    atomic_init(&s->anywhere.count, 0);
    atomic_init(&s->caller.count, 0);
    for (int64_t w = 0; w < s->words; w++) {
        atomic_init(&s->anywhere.bits[w], 0);
        atomic_init(&s->caller.bits[w], 0);
    }
    for (int32_t k = 0; k < args->leaders; k++) {
        atomic_init(&job_at(s, k)->word, 0);
        for (int32_t w = 0; w < args->workers; w++)
            atomic_init(&job_at(s, k)->cursors[w].at, 0);
    }
    for (int64_t i = 0; i < count; i++) {
        atomic_init(&s->waiting[i], args->order->producers[i]);
        if (args->order->producers[i] == 0)
            make_ready(s, args, i);
    }
}

bool taper_has_begun(const taper_run_args *args, int64_t step) {
    const schedule *s = args->schedule;
    return atomic_load_explicit(&s->waiting[step], memory_order_relaxed) == BEGUN;
}

/* Opens a phase to others, computes it, and closes it after the last of them has left. */
static void share_phase(const worker *me, job *j, const phase *now) {
    j->now = *now;
    j->within = me->within;
    atomic_store_explicit(&j->word,
                          (job_word)now->number << 32 | (job_word)(now->shares - 1) * SEAT,
                          memory_order_release);
    taper_run_shares(me, now, j->cursors);
    job_word word = atomic_fetch_and_explicit(&j->word, ~SEATS, memory_order_acquire);
    for (int32_t turn = 0; word & HELPERS;) {
        taper_pool_wait(&turn);
        word = atomic_load_explicit(&j->word, memory_order_acquire);
    }
}

/* Joins a phase that is open; returns false where there is none. */
static bool help(const worker *me, job *j) {
    job_word word = atomic_load_explicit(&j->word, memory_order_relaxed);
    do {
        if (!(word & SEATS))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&j->word, &word, word - SEAT + HELPER,
                                                    memory_order_acquire, memory_order_relaxed));
    const worker helper = {.team = me->team, .index = me->index, .within = j->within};
    const int64_t begin = taper_begin_span(me), step = j->now.step;
    taper_run_shares(&helper, &j->now, j->cursors);
    taper_end_span(me, step, begin);
    atomic_fetch_sub_explicit(&j->word, HELPER, memory_order_release);
    return true;
}

void taper_lead(const worker *me, int64_t i) {
    const taper_run_args *args = me->team->args;
    const taper_step *step = &args->steps[i];
    const int64_t begin = taper_begin_span(me);
    if (step->workers <= 1 || args->workers == 1) {
        taper_run_tasks(me, i, 0, step->work.tasks);
    } else {
        job *j = job_at(args->schedule, me->index);
        const int64_t phases = step->work.phases > 1 ? step->work.phases : 1;
        phase now = {.step = i, .tasks = step->work.tasks / phases};
        now.shares = step->workers < args->workers ? step->workers : args->workers;
        now.number = (uint32_t)(atomic_load_explicit(&j->word, memory_order_relaxed) >> 32);
        for (int64_t p = 0; p < phases; p++) {
            now.from = p * now.tasks;
            now.number++;
            share_phase(me, j, &now);
        }
    }
    taper_end_span(me, i, begin);
}

/* Runs step i, unless a step fails before it ends; returns the first of its users that now waits
 * for nothing and that this worker may run, or -1. */
static int64_t run_step(worker *me, schedule *s, int64_t i) {
    const taper_run_args *args = me->team->args;
    const taper_order *order = args->order;
    int64_t next = -1;
    me->within = i;
    atomic_store_explicit(&s->waiting[i], BEGUN, memory_order_relaxed);
    if (args->steps[i].control)
        taper_run_control_alone(me, i);
    else
        taper_lead(me, i);
    if (has_failed(me->team)) /* some of the step's tasks may not have run */
        return -1;
    for (int32_t u = order->first_user[i]; u < order->first_user[i + 1]; u++) {
        const int32_t user = order->users[u];
        if (order->producers[user] > 1 &&
            atomic_fetch_sub_explicit(&s->waiting[user], 1, memory_order_acq_rel) != 1)
            continue;
        if (next < 0 && (me->index == 0 || !args->steps[user].on_caller))
            next = user;
        else
            make_ready(s, args, user);
    }
    return next;
}

static int64_t find_step(const worker *me, schedule *s) {
    int64_t step = -1;
    if (me->index == 0)
        step = take(&s->caller, s->words);
    if (step < 0 && me->index < me->team->args->leaders)
        step = take(&s->anywhere, s->words);
    return step;
}

static bool help_any(const worker *me, const schedule *s, int32_t leaders) {
    for (int32_t k = 1; k <= leaders; k++)
        if (help(me, job_at(s, (me->index + k) % leaders)))
            return true;
    return false;
}

/* Returns whether other workers could compute something during the caller's step. */
static bool is_for_others(const schedule *s, const taper_step *step) {
    return step->workers > 1 || atomic_load_explicit(&s->anywhere.count, memory_order_relaxed) > 0;
}

void taper_run_ready(void *shared, int32_t index, int32_t workers) {
    worker me = {.team = shared, .index = index};
    schedule *s = me.team->args->schedule;
    const int32_t leaders = me.team->args->leaders < workers ? me.team->args->leaders : workers;
    int64_t next = -1, ended = 0;
    int32_t turn = 0, invited = 0;
    bool alone = index == 0; /* the caller, as long as it has not invited others */
    while (taper_goes_on(&me, me.within)) {
        if (next < 0)
            next = find_step(&me, s);
        if (alone && next >= 0 && is_for_others(s, &me.team->args->steps[next])) {
            invited = taper_pool_invite(taper_run_ready, shared, workers);
            alone = false;
        }
        if (next >= 0) {
            next = run_step(&me, s, next);
            ended++;
            turn = 0;
            continue;
        }
        if (ended > 0)
            atomic_fetch_sub_explicit(&s->left, ended, memory_order_relaxed);
        ended = 0;
        if (atomic_load_explicit(&s->left, memory_order_relaxed) == 0)
            break;
        if (help_any(&me, s, leaders))
            turn = 0;
        else
            taper_pool_wait(&turn);
    }
    taper_pool_part(invited);
}
