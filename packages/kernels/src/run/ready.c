/*
 * Runs each step as soon as the steps that it waits for have ended. A worker that has ended a step
 * continues with the first of its users that waits for nothing else, and puts the other such users
 * into the common set. A worker that finds no step helps another worker with the tasks of its step.
 */
#include <stddef.h>

#include "run/team.h"

enum { WORD = 64, BEGUN = -1 };

/* A set of steps that wait for nothing; the lowest is taken first. */
typedef struct ready_set {
    _Alignas(TAPER_CACHE_LINE) _Atomic int64_t count; /* at least the number of steps in the set */
    _Atomic uint64_t *bits;
} ready_set;

/* Contents of taper_run_args.schedule. */
typedef struct schedule {
    int64_t words;                                   /* of a set */
    size_t job_bytes;                                /* from one to the next */
    _Atomic int32_t *waiting;                        /* [count]: for how many steps; BEGUN */
    ready_set anywhere, caller;                      /* for any leader; for worker 0 alone */
    char *jobs;                                      /* [leaders] */
    int32_t workers;                                 /* that the run may have */
    _Alignas(TAPER_CACHE_LINE) _Atomic int64_t left; /* steps that have not ended */
} schedule;

static size_t aligned(size_t bytes) {
    return (bytes + TAPER_CACHE_LINE - 1) / TAPER_CACHE_LINE * TAPER_CACHE_LINE;
}

static size_t waiting_bytes(int64_t count) { return aligned((size_t)count * sizeof(int32_t)); }

static size_t bits_bytes(int64_t count) {
    return aligned((size_t)((count + WORD - 1) / WORD) * sizeof(uint64_t));
}

/* A job, and its cursors behind it. */
static size_t job_bytes(int32_t workers) { return sizeof(job) + (size_t)workers * sizeof(cursor); }

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

static void begin_schedule(team *t) {
    const taper_run_args *args = t->args;
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
        job *j = job_at(s, k);
        taper_job_begin(j, t, (cursor *)(void *)(j + 1), args->workers);
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

/* Runs step i, unless a step fails before it ends; returns the first of its users that now waits
 * for nothing and that this worker may run, or -1. */
static int64_t run_step(worker *me, schedule *s, int64_t i) {
    const taper_run_args *args = me->team->args;
    const taper_order *order = args->order;
    int64_t next = -1;
    me->within = i;
    atomic_store_explicit(&s->waiting[i], BEGUN, memory_order_relaxed);
    if (args->steps[i].control)
        taper_run_control(me, i);
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
    for (int32_t k = 1; k <= leaders; k++) {
        job *j = job_at(s, (me->index + k) % leaders);
        if (taper_seats_join(&j->seats, me->index, 0)) {
            taper_help(j, &j->seats.phase, me->index);
            taper_seats_leave(&j->seats);
            return true;
        }
    }
    return false;
}

/* Returns whether other workers could compute something during the caller's step. */
static bool is_for_others(const schedule *s, const taper_step *step) {
    return step->workers > 1 || atomic_load_explicit(&s->anywhere.count, memory_order_relaxed) > 0;
}

static void work_ready(void *shared, const taper_phase *none, int32_t index);

/* Runs steps until none is left. The caller, worker 0, invites the others when there is something
 * for them to do. */
static void run_ready(team *t, int32_t index, int32_t workers) {
    worker me = {.team = t, .index = index, .workers = workers};
    schedule *s = t->args->schedule;
    const int32_t leaders = t->args->leaders < workers ? t->args->leaders : workers;
    int64_t next = -1, ended = 0;
    int32_t turn = 0;
    bool alone = index == 0 && workers > 1; /* the caller, as long as it has not invited others */
    if (workers > 1 && index < leaders)
        me.job = job_at(s, index);
    while (taper_goes_on(&me, me.within)) {
        if (next < 0)
            next = find_step(&me, s);
        if (alone && next >= 0 && is_for_others(s, &t->args->steps[next])) {
            taper_pool_open(work_ready, t, NULL, workers);
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
}

static void work_ready(void *shared, const taper_phase *none, int32_t index) {
    (void)none;
    const schedule *s = ((team *)shared)->args->schedule;
    run_ready(shared, index, s->workers);
}

void taper_run_ready(team *t, int32_t wanted) {
    begin_schedule(t);
    schedule *s = t->args->schedule;
    s->workers = taper_pool_take(wanted);
    run_ready(t, 0, s->workers);
    if (s->workers > 1) {
        taper_pool_close();
        taper_pool_release();
    }
}
