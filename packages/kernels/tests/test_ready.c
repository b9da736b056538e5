/* Runs whose steps begin as soon as they can. In any order in time, the result is that of running
 * one step after the other. Failures, ends and the caller's own steps behave in the same way. */
#include "taper/run.h"

#include <stdatomic.h>

#include "check.h"
#include "host.h"
#include "os/os.h"

enum { N = 24, MAX_STEPS = 40, MAX_INPUTS = 3, WORKERS = 4, MODULUS = 1000003 };

typedef struct node {
    int64_t inputs[MAX_INPUTS]; /* steps; below 0 none */
    taper_tensor tensors[MAX_INPUTS + 1];
    struct program *program;
    int64_t index;
    _Atomic int32_t *meets; /* NULL, or what the step and another wait at for each other */
    taper_status status;    /* the status with which the step ends */
    taper_copy enter;
    taper_control control;
    _Alignas(64) char scratch[64];
} node;

typedef struct program {
    int64_t count, all; /* steps of the run, and with those inside */
    taper_step steps[MAX_STEPS];
    node nodes[MAX_STEPS];
    int64_t data[MAX_STEPS][4 * N];
    int32_t producers[MAX_STEPS], first_user[MAX_STEPS + 1], users[MAX_STEPS * MAX_INPUTS];
    taper_order order;
    taper_span spans[MAX_STEPS * WORKERS];
    _Alignas(64) char worker_scratch[WORKERS][64];
    _Alignas(64) char schedule[1 << 14];
    uint64_t delays; /* seeds those of a run; 0: none */
    int32_t caller;  /* thread */
    _Atomic int32_t began[MAX_STEPS];
    int64_t failed;
    int32_t stop;
    bool (*poll)(void *);
    void *poll_context;
} program;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * UINT64_C(0x7fb5d329728ea185);
    x = (x ^ x >> 27) * UINT64_C(0x81dadef4bc2dd44d);
    return x ^ x >> 33;
}

/* Waits one time in six, up to some hundred microseconds; half of these times it yields the CPU. */
static void delay(const program *p, int64_t step, int64_t begin) {
    const uint64_t r =
        p->delays ? mix(p->delays * 1000 + (uint64_t)step * 64 + (uint64_t)begin) : 1;
    if (r % 6)
        return;
    const int64_t until = taper_os_now() + (int64_t)(r >> 8 & 0x1ffff);
    while (taper_os_now() < until)
        if (r >> 7 & 1)
            taper_os_yield();
}

/* Computes from each input's neighbours; in a later phase from the phase before too. */
static taper_status combine(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const node *it = call->state;
    program *p = it->program;
    int64_t *out = call->output->data, *sum = scratch;
    atomic_store(&p->began[it->index], 1);
    if (it->meets && begin == 0) {
        const int64_t until = taper_os_now() + 10000000000;
        atomic_fetch_add(it->meets, 1);
        while (atomic_load(it->meets) < 2 && taper_os_now() < until)
            taper_os_yield();
    }
    if (begin % 16 == 0) /* not at each piece of a worker's tasks */
        delay(p, it->index, begin);
    for (int64_t i = begin; i < end; i++) {
        *sum = it->index + i + (i >= N ? out[i - N] + 3 * out[i / N * N - 1 - i % N] : 0);
        for (int32_t k = 0; k < call->n_inputs; k++) {
            const int64_t *in = call->inputs[k].data;
            *sum += in[i % N] + (k + 2) * in[(i + 1) % N];
        }
        out[i] = *sum % MODULUS;
    }
    return it->status;
}

static taper_status on_caller(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const node *it = call->state;
    CHECK(taper_os_thread() == it->program->caller, "step %lld", (long long)it->index);
    return combine(call, begin, end, scratch);
}

static const taper_kernel COMBINE = {.run = combine}, ON_CALLER = {.run = on_caller};

/* Adds a step that reads the results of earlier ones. */
static node *add(program *p, const taper_kernel *kernel, int64_t phases, int32_t workers,
                 int32_t n_inputs, const int64_t *inputs) {
    const int64_t i = p->all++;
    node *it = &p->nodes[i];
    memset(it, 0, sizeof *it);
    it->program = p;
    it->index = i;
    for (int32_t k = 0; k < n_inputs; k++) {
        it->inputs[k] = inputs[k];
        it->tensors[k].data = p->data[inputs[k]];
    }
    it->tensors[MAX_INPUTS].data = p->data[i];
    p->steps[i] = (taper_step){.call = {.kernel = kernel,
                                        .inputs = it->tensors,
                                        .output = &it->tensors[MAX_INPUTS],
                                        .state = it,
                                        .n_inputs = n_inputs,
                                        .n_outputs = 1},
                               .work = {.tasks = phases * N, .scratch_bytes = 64, .phases = phases},
                               .scratch = it->scratch,
                               .workers = workers,
                               .on_caller = kernel == &ON_CALLER};
    return it;
}

/* Computes which step waits for which; all steps have been added. */
static void make_order(program *p) {
    int32_t n = 0;
    memset(p->producers, 0, sizeof p->producers);
    for (int64_t i = 0; i < p->count; i++) {
        p->first_user[i] = n;
        for (int64_t j = i + 1; j < p->count; j++)
            for (int32_t k = 0; k < p->steps[j].call.n_inputs; k++)
                if (p->nodes[j].inputs[k] == i) {
                    p->users[n++] = (int32_t)j;
                    p->producers[j]++;
                    break;
                }
    }
    p->first_user[p->count] = n;
    p->order = (taper_order){p->producers, p->first_user, p->users};
}

static taper_run_args args_of(program *p, int32_t workers, int32_t leaders) {
    return (taper_run_args){.steps = p->steps,
                            .count = p->count,
                            .workers = workers,
                            .worker_scratch = p->worker_scratch[0],
                            .worker_scratch_bytes = 64,
                            .spans = p->spans,
                            .stop = &p->stop,
                            .poll = p->poll,
                            .poll_context = p->poll_context,
                            .order = leaders > 0 ? &p->order : NULL,
                            .leaders = leaders,
                            .schedule = p->schedule};
}

/* With 0 leaders it runs one step after the other. */
static taper_status run(program *p, int32_t workers, int32_t leaders) {
    memset(p->spans, 0, sizeof p->spans);
    memset(p->data, 0xee, sizeof p->data);
    for (int64_t i = 0; i < p->all; i++)
        atomic_store(&p->began[i], 0);
    p->caller = taper_os_thread();
    CHECK(taper_schedule_bytes(p->count, workers, leaders) <= sizeof p->schedule, "schedule");
    const taper_run_args args = args_of(p, workers, leaders);
    return taper_run(&args, &p->failed);
}

static int32_t below(int32_t limit) { return (int32_t)check_int(0, limit - 1); }

/* Steps of all kinds, each of which reads up to three earlier ones; some are loops with a step
 * inside. */
static void grow(program *p) {
    int64_t inside[MAX_STEPS];
    memset(p, 0, sizeof *p);
    p->count = 4 + below(22);
    const int32_t width = 1 + below(8); /* how far back they read: 1 is nearly a chain */
    for (int64_t i = 0; i < p->count; i++) {
        int64_t inputs[MAX_INPUTS];
        const int32_t n = i == 0 || below(6) == 0 ? 0 : 1 + below(MAX_INPUTS), kind = below(8);
        for (int32_t k = 0; k < n; k++)
            inputs[k] = i - 1 - below(i < width ? (int32_t)i : width);
        inside[i] = kind == 0;
        if (kind == 1)
            add(p, &ON_CALLER, 1, 1, n, inputs);
        else
            add(p, &COMBINE, 1 + (kind == 2) * 3, 1 + below(WORKERS), n, inputs);
    }
    make_order(p);
    for (int64_t i = 0; i < p->count; i++) {
        if (!inside[i])
            continue;
        /* for three trips: out = combine(out, inputs), which begins as zeros */
        static const int64_t zeros[4 * N];
        node *outer = &p->nodes[i];
        const int32_t n = p->steps[i].call.n_inputs;
        node *inner = add(p, below(3) ? &COMBINE : &ON_CALLER, 1, 1, n, outer->inputs);
        taper_step *step = &p->steps[inner->index];
        if (!step->on_caller)
            step->workers = 1 + below(WORKERS);
        if (n > 0)
            inner->tensors[0].data = p->data[i];
        outer->enter = (taper_copy){p->data[i], zeros, sizeof zeros};
        inner->enter = (taper_copy){p->data[i], p->data[inner->index], sizeof zeros};
        outer->control = (taper_control){.kind = TAPER_SCAN,
                                         .blocks = {{inner->index, 1}},
                                         .trips = 3,
                                         .enter = &outer->enter,
                                         .n_enter = 1,
                                         .next = &inner->enter,
                                         .n_next = 1};
        p->steps[i].control = &outer->control;
        p->steps[i].workers = step->workers;
        p->steps[i].on_caller = step->on_caller;
    }
}

static void check_times(const program *p, int32_t workers) {
    for (int64_t i = 0; i < p->count; i++) {
        int64_t ns = 0;
        for (int32_t w = 0; w < workers; w++)
            ns += p->spans[i * workers + w].end - p->spans[i * workers + w].begin;
        CHECK(ns > 0, "step %lld has no time", (long long)i);
    }
}

enum { GRAPHS = 60, SCHEDULES = 20 };
static void every_schedule_gives_the_same(void) {
    static program p;
    static int64_t want[MAX_STEPS][4 * N];
    for (int g = 0; g < GRAPHS; g++) {
        grow(&p);
        CHECK(run(&p, 1, 0) == TAPER_OK, "graph %d", g);
        memcpy(want, p.data, sizeof want);
        for (int s = 0; s < SCHEDULES; s++) {
            const int32_t workers = 1 + s % WORKERS, leaders = 1 + s / 2 % WORKERS;
            p.delays = (uint64_t)(g * SCHEDULES + s);
            CHECK(run(&p, workers, leaders) == TAPER_OK, "graph %d", g);
            CHECK(memcmp(p.data, want, sizeof want) == 0, "graph %d, %d workers, %d leaders", g,
                  workers, leaders);
            check_times(&p, workers);
        }
        p.delays = 0;
    }
}

static void run_again_and_again(void *arg) {
    program *p = arg;
    static _Thread_local int64_t want[MAX_STEPS][4 * N];
    CHECK(run(p, 1, 0) == TAPER_OK, "alone");
    memcpy(want, p->data, sizeof want);
    for (int i = 1; i <= 20; i++) {
        p->delays = (uint64_t)i;
        CHECK(run(p, 2, 2) == TAPER_OK, "run %d", i);
        CHECK(memcmp(p->data, want, sizeof want) == 0, "run %d", i);
    }
}

/* One caller has the pool; the others compute their runs alone. */
static void callers_share_the_pool(void) {
    static program p[4];
    host_thread *threads[4];
    for (int i = 0; i < 4; i++)
        grow(&p[i]);
    for (int i = 0; i < 4; i++)
        threads[i] = host_start(run_again_and_again, &p[i]);
    for (int i = 0; i < 4; i++)
        host_join(threads[i]);
}

/* Two steps, each of which ends only if the other has begun. */
static void steps_that_need_not_wait_run_together(void) {
    static program p;
    memset(&p, 0, sizeof p);
    _Atomic int32_t meets = 0;
    add(&p, &COMBINE, 1, 1, 0, NULL)->meets = &meets;
    add(&p, &COMBINE, 1, 1, 0, NULL)->meets = &meets;
    p.count = 2;
    make_order(&p);
    const int64_t begin = taper_os_now();
    CHECK(run(&p, 2, 2) == TAPER_OK && atomic_load(&meets) == 2, "run");
    CHECK(taper_os_now() - begin < 9000000000, "one waited for the other");
}

/* Tasks that the first of two workers takes at once: half of its share. */
enum { HELD = (N / 2 + 1) / 2 };

static taper_status wait_for_others(const taper_call *call, int64_t begin, int64_t end,
                                    void *scratch) {
    (void)scratch;
    _Atomic int32_t *done = call->output->data;
    for (int64_t i = begin; i < end; i++) {
        while (i == 0 && atomic_load(done) < N - HELD)
            taper_os_yield();
        atomic_fetch_add(done, 1);
    }
    return TAPER_OK;
}

/* The first task ends after the others: a worker without a step computes these. */
static void a_worker_without_a_step_helps(void) {
    static const taper_kernel kernel = {.run = wait_for_others};
    static program p;
    for (int32_t leaders = 1; leaders <= 2; leaders++) {
        memset(&p, 0, sizeof p);
        _Atomic int32_t done = 0;
        add(&p, &kernel, 1, 2, 0, NULL)->tensors[MAX_INPUTS].data = &done;
        p.count = 1;
        make_order(&p);
        CHECK(run(&p, 2, leaders) == TAPER_OK && done == N, "%d tasks", (int)done);
    }
}

enum { BRANCHES = 8, BAD = 5 };
/* The first step, eight branches of three steps, and a step that reads three of them. */
static void branch_out(program *p) {
    memset(p, 0, sizeof *p);
    add(p, &COMBINE, 1, 1, 0, NULL);
    for (int64_t b = 0; b < BRANCHES; b++) {
        int64_t before = 0;
        for (int k = 0; k < 3; k++) {
            add(p, &COMBINE, 1, 1 + (int32_t)b % 2, 1, &before);
            before = p->all - 1;
        }
    }
    add(p, &COMBINE, 1, 1, 3, (const int64_t[]){3 * BAD, 3 * BAD + 3, 3});
    p->count = p->all;
    make_order(p);
}

static void a_failure_in_one_branch_is_the_runs(void) {
    static program p;
    branch_out(&p);
    const int64_t bad = 3 * BAD + 2, after = 3 * BAD + 3, last = p.count - 1;
    for (int i = 0; i < 1000; i++) {
        p.delays = (uint64_t)i % 4 ? 0 : (uint64_t)i + 1;
        p.nodes[bad].status = TAPER_BAD_INDEX;
        CHECK(run(&p, 1 + i % WORKERS, 1 + i % 3) == TAPER_BAD_INDEX, "run %d", i);
        CHECK(p.failed == bad, "step %lld", (long long)p.failed);
        CHECK(!p.began[after] && !p.began[last], "run %d: a user of what failed ran", i);
        const taper_run_args args = args_of(&p, 1, 1);
        for (int64_t k = 0; k < p.count; k++)
            CHECK(taper_has_begun(&args, k) || !p.began[k], "step %lld ran", (long long)k);
        CHECK(taper_has_begun(&args, bad) && !taper_has_begun(&args, after), "begun");
    }
    p.nodes[bad].status = TAPER_OK;
    CHECK(run(&p, 2, 2) == TAPER_OK, "the pool lives on");
}

/* Both steps fail while the other runs; in the plan's order the second step comes before the third.
 */
static void of_several_failures_the_first_counts(void) {
    static program p;
    for (int i = 0; i < 200; i++) {
        memset(&p, 0, sizeof p);
        _Atomic int32_t meets = 0;
        add(&p, &COMBINE, 1, 1, 0, NULL);
        for (int64_t k = 0; k < 2; k++) {
            node *it = add(&p, &COMBINE, 1, 1, 1, (const int64_t[]){0});
            it->meets = &meets;
            it->status = k == 0 ? TAPER_BAD_INDEX : TAPER_CALL_FAILED;
        }
        p.count = 3;
        make_order(&p);
        p.delays = (uint64_t)i + 1;
        CHECK(run(&p, 2, 2) == TAPER_BAD_INDEX, "run %d", i);
        CHECK(p.failed == 1, "step %lld", (long long)p.failed);
    }
}

/* A branch that loops for ever, while others run. */
static void loop_for_ever(program *p) {
    static uint8_t always = 1;
    branch_out(p);
    node *outer = &p->nodes[2];
    node *inner = add(p, &COMBINE, 1, 2, 1, (const int64_t[]){1});
    outer->control = (taper_control){.kind = TAPER_WHILE,
                                     .blocks = {{inner->index, 0}, {inner->index, 1}},
                                     .predicate = &always};
    p->steps[2].control = &outer->control;
    p->steps[2].workers = 2;
}

static void stop_later(void *stop) {
    const int64_t until = taper_os_now() + 2000000;
    while (taper_os_now() < until)
        taper_os_yield();
    __atomic_store_n((int32_t *)stop, 1, __ATOMIC_RELAXED);
}

static void stop_ends_a_run(void) {
    static program p;
    for (int32_t workers = 1; workers <= WORKERS; workers++) {
        loop_for_ever(&p);
        host_thread *other = host_start(stop_later, &p.stop);
        CHECK(run(&p, workers, workers) == TAPER_STOPPED, "%d workers", workers);
        host_join(other);
    }
}

/* Acts as a host that ends the run in its third poll. */
static bool refuse_third_look(void *context) { return ++*(int *)context < 3; }

static void poll_ends_a_run(void) {
    static program p;
    for (int32_t workers = 1; workers <= WORKERS; workers++) {
        int looks = 0;
        loop_for_ever(&p);
        p.poll = refuse_third_look;
        p.poll_context = &looks;
        CHECK(run(&p, workers, workers) == TAPER_STOPPED && looks == 3, "%d looks", looks);
    }
}

int main(int argc, char **argv) {
    const check_case cases[] = {
        {"every_schedule_gives_the_same", every_schedule_gives_the_same},
        {"callers_share_the_pool", callers_share_the_pool},
        {"steps_that_need_not_wait_run_together", steps_that_need_not_wait_run_together},
        {"a_worker_without_a_step_helps", a_worker_without_a_step_helps},
        {"a_failure_in_one_branch_is_the_runs", a_failure_in_one_branch_is_the_runs},
        {"of_several_failures_the_first_counts", of_several_failures_the_first_counts},
        {"stop_ends_a_run", stop_ends_a_run},
        {"poll_ends_a_run", poll_ends_a_run},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
