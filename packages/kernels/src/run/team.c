#include "run/team.h"

#include "os/os.h"

enum {
    GRAINS = 256, /* the most pieces in which a worker's share of a phase is handed out */
    POLL_NS = 25000000,
    /* A step's tasks are computed in pieces; between two pieces a worker checks whether to
     * continue. The first piece has FIRST_TASKS. The next has as many as take about PIECE_NS by the
     * time of the piece before, but not many times more than that piece. So short steps are two
     * calls of their kernel. */
    FIRST_TASKS = 2,
    PIECE_NS = 10000000,
    PIECE_GROWTH = 64
};

void taper_team_begin(team *t, const taper_run_args *args) {
    t->args = args;
    t->failed = t->failed_within = 0;
    t->polled = args->poll ? taper_os_coarse_now() : 0;
    atomic_flag_clear(&t->failing);
    atomic_init(&t->status, TAPER_OK);
}

/* If several steps fail, the first step counts, and the first failure within it. A requested stop
 * has priority over all. */
static void fail(team *t, int64_t within, int64_t step, taper_status status) {
    for (int32_t turn = 0; atomic_flag_test_and_set_explicit(&t->failing, memory_order_acquire);)
        taper_pool_wait(&turn);
    if (!has_failed(t) || within < t->failed_within) {
        t->failed = step;
        t->failed_within = within;
        atomic_store_explicit(&t->status, (int32_t)status, memory_order_relaxed);
    }
    atomic_flag_clear_explicit(&t->failing, memory_order_release);
}

bool taper_goes_on(const worker *me, int64_t i) {
    team *t = me->team;
    const taper_run_args *args = t->args;
    if (has_failed(t))
        return false;
    if (args->stop && __atomic_load_n(args->stop, __ATOMIC_RELAXED))
        fail(t, -1, i, TAPER_STOPPED);
    if (args->poll && me->index == 0) {
        const int64_t now = taper_os_coarse_now();
        if (now - t->polled >= POLL_NS) {
            t->polled = now;
            if (!args->poll(args->poll_context))
                fail(t, -1, i, TAPER_STOPPED);
        }
    }
    return !has_failed(t);
}

static void run_piece(const worker *me, const taper_step *step, int64_t i, int64_t begin,
                      int64_t end, void *scratch) {
    const taper_status status = step->call.kernel->run(&step->call, begin, end, scratch);
    if (status != TAPER_OK)
        fail(me->team, me->within, i, status);
}

/* Returns how many tasks take PIECE_NS, if they are as fast as those of the last piece, which took
 * `ns`. */
static int64_t next_piece(int64_t piece, int64_t ns) {
    const int64_t most = piece * PIECE_GROWTH;
    const int64_t fitting = piece * PIECE_NS / (ns > 0 ? ns : 1);
    return fitting > most ? most : fitting > 0 ? fitting : 1;
}

/* Computes the tasks [begin, end) of step i, unless the run has ended. */
static void run_tasks(const worker *me, int64_t i, int64_t begin, int64_t end) {
    const taper_run_args *args = me->team->args;
    const taper_step *step = &args->steps[i];
    if (begin == end || has_failed(me->team))
        return;
    const size_t before = (size_t)(me->index - 1);
    void *scratch = me->index == 0
                        ? step->scratch
                        : (void *)(args->worker_scratch + before * args->worker_scratch_bytes);
    int64_t piece = FIRST_TASKS;
    int64_t at = end - begin > piece ? taper_now() : 0;
    while (end - begin > piece) {
        run_piece(me, step, i, begin, begin + piece, scratch);
        begin += piece;
        if (!taper_goes_on(me, i))
            return;
        const int64_t now = taper_now();
        piece = next_piece(piece, now - at);
        at = now;
    }
    run_piece(me, step, i, begin, end, scratch);
}

/* Takes half of the grains that are left of a share in that phase; returns false if there are none.
 */
static bool take_grains(cursor *c, uint64_t number, int64_t grains, int64_t *begin, int64_t *end) {
    uint64_t at = atomic_load_explicit(&c->at, memory_order_relaxed);
    do {
        *begin = at >> 32 == number ? (int64_t)(uint32_t)at : 0;
        *end = *begin + (grains - *begin + 1) / 2;
        if (*begin == *end)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&c->at, &at, number << 32 | (uint64_t)*end,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* Computes the worker's part of a phase: its own share, whose data is in its caches, and then what
 * is left of other shares. Cores are rarely equally fast, because other processes and other threads
 * of the core slow them down. Returns how many tasks it has computed. cursors: [shares]. */
static int64_t run_shares(const worker *me, const taper_phase *p, cursor *cursors) {
    int64_t computed = 0;
    for (int32_t n = 0; n < p->shares; n++) {
        const int32_t whose = (me->index + n) % p->shares;
        const int64_t first = p->tasks * whose / p->shares,
                      share = p->tasks * (whose + 1) / p->shares - first,
                      grains = share < GRAINS ? share : GRAINS;
        int64_t from, to;
        while (take_grains(&cursors[whose], p->number, grains, &from, &to)) {
            const int64_t begin = first + share * from / grains, end = first + share * to / grains;
            run_tasks(me, p->step, p->from + begin, p->from + end);
            computed += end - begin;
        }
    }
    return computed;
}

void taper_job_begin(job *j, team *t, cursor *cursors, int32_t workers) {
    j->team = t;
    j->number = 0;
    j->cursors = cursors;
    atomic_init(&j->seats.word, 0);
    atomic_init(&j->seats.sleeps, 0);
    atomic_init(&j->seats.emptied, 0);
    for (int32_t w = 0; w < workers; w++)
        atomic_init(&cursors[w].at, 0);
}

void taper_help(void *shared, const taper_phase *phase, int32_t index) {
    const job *j = shared;
    const worker helper = {.team = j->team, .index = index, .within = phase->within};
    const int64_t begin = taper_begin_span(&helper), step = phase->step;
    run_shares(&helper, phase, j->cursors);
    taper_end_span(&helper, step, begin);
}

/* Shares a phase with workers that have no step: any of them. */
static void share_with_any(const worker *me, const taper_phase *p) {
    job *j = me->job;
    j->seats.phase = *p;
    taper_seats_open(&j->seats, me->workers, p->shares - 1);
    run_shares(me, p, j->cursors);
    taper_seats_close(&j->seats);
}

/* Shares a phase with the pool's workers: the same ones in each step, whose data they have. */
static void share_with_pool(const worker *me, const taper_phase *p) {
    const int64_t begin = taper_now();
    if (!taper_pool_pays()) {
        run_tasks(me, p->step, p->from, p->from + p->tasks);
        taper_pool_computed_alone(taper_now() - begin);
        return;
    }
    taper_pool_open(taper_help, me->job, p, p->shares);
    const int64_t mine = run_shares(me, p, me->job->cursors), end = taper_now();
    const int64_t waited = taper_pool_close() ? taper_now() - end : 0;
    /* The others' tasks would have taken this worker as long as its own, one by one. */
    const double others = mine ? (double)(p->tasks - mine) / (double)mine : 0;
    taper_pool_judge((int64_t)((double)(end - begin) * others), waited, taper_os_cpu_limited());
}

void taper_lead(const worker *me, int64_t i) {
    const taper_step *step = &me->team->args->steps[i];
    const int64_t begin = taper_begin_span(me);
    if (step->workers <= 1 || !me->job) {
        run_tasks(me, i, 0, step->work.tasks);
    } else {
        const int64_t phases = step->work.phases > 1 ? step->work.phases : 1;
        taper_phase now = {.within = me->within, .step = i, .tasks = step->work.tasks / phases};
        now.shares = step->workers < me->workers ? step->workers : me->workers;
        for (int64_t p = 0; p < phases; p++) {
            now.from = p * now.tasks;
            now.number = ++me->job->number;
            if (me->team->args->order)
                share_with_any(me, &now);
            else
                share_with_pool(me, &now);
        }
    }
    taper_end_span(me, i, begin);
}

int64_t taper_begin_span(const worker *me) { return me->team->args->spans ? taper_os_now() : 0; }

void taper_end_span(const worker *me, int64_t i, int64_t begin) {
    const taper_run_args *args = me->team->args;
    if (!args->spans)
        return;
    taper_span *span = &args->spans[i * args->workers + me->index];
    if (!span->begin)
        span->begin = span->end = begin;
    span->end += taper_os_now() - begin;
    span->times++;
}
