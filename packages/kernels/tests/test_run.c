/* The pool and the run: every task once, steps in order, the same result for any thread count. */
#include "taper/run.h"

#include <stdatomic.h>

#include "check.h"
#include "host.h"
#include "os/os.h"
#include "run/thread_pool.h"

enum { TASKS = 37, STEPS = 40 };

/* Each task adds what the step before wrote to the slots around its own. So a missing barrier, or a
 * repeated or lost task, changes the numbers. */
static taper_status smooth(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const int64_t *in = call->inputs[0].data;
    int64_t *out = call->output->data;
    int64_t *own = scratch;
    for (int64_t i = begin; i < end; i++) {
        own[0] = in[i] + in[(i + 1) % TASKS] + in[(i + TASKS - 1) % TASKS];
        out[i] = own[0] % 1000003 + 1;
    }
    return TAPER_OK;
}

static taper_status fail(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    (void)call, (void)begin, (void)end, (void)scratch;
    return TAPER_BAD_INDEX;
}

static const taper_kernel smooth_kernel = {.name = "smooth", .op = "SMOOTH", .run = smooth};
static const taper_kernel failing_kernel = {.name = "fail", .op = "FAIL", .run = fail};

typedef struct model {
    int64_t data[STEPS + 1][TASKS];
    taper_tensor tensors[STEPS][2];
    taper_step steps[STEPS];
    _Alignas(64) char scratch[STEPS][64];
    _Alignas(64) char worker_scratch[8][64];
} model;

static void build(model *m, const int32_t *workers) {
    for (int64_t i = 0; i < TASKS; i++)
        m->data[0][i] = i * i;
    for (int s = 0; s < STEPS; s++) {
        m->tensors[s][0] = (taper_tensor){.data = m->data[s]};
        m->tensors[s][1] = (taper_tensor){.data = m->data[s + 1]};
        m->steps[s] = (taper_step){
            .call = {.kernel = &smooth_kernel,
                     .inputs = &m->tensors[s][0],
                     .output = &m->tensors[s][1],
                     .n_inputs = 1},
            .work = {.tasks = TASKS, .scratch_bytes = 64},
            .scratch = m->scratch[s],
            .workers = workers[s % 4],
        };
    }
}

static taper_status run(model *m, int32_t workers, int64_t *failed) {
    const taper_run_args args = {.steps = m->steps,
                                 .count = STEPS,
                                 .workers = workers,
                                 .worker_scratch = m->worker_scratch[0],
                                 .worker_scratch_bytes = 64};
    return taper_run(&args, failed);
}

static const int32_t mixed[4] = {8, 1, 3, 1};

static void check_same_as_one(int32_t workers, int repeats) {
    static _Thread_local model one, many;
    int64_t failed = 0;
    build(&one, mixed);
    CHECK(run(&one, 1, &failed) == TAPER_OK, "one worker");
    for (int i = 0; i < repeats; i++) {
        build(&many, mixed);
        CHECK(run(&many, workers, &failed) == TAPER_OK, "%d workers", workers);
        CHECK(memcmp(one.data, many.data, sizeof one.data) == 0, "%d workers differ", workers);
    }
}

static void same_result_for_any_thread_count(void) {
    check_same_as_one(2, 20);
    check_same_as_one(3, 10);
    check_same_as_one(8, 5);
}

/* Tasks that the first of two workers takes at once: half of its share. */
enum { HELD = (TASKS / 2 + 1) / 2 };

/* The first task ends after the second half of its own share, to which its worker has not come. */
static taper_status wait_for_others(const taper_call *call, int64_t begin, int64_t end,
                                    void *scratch) {
    (void)scratch;
    _Atomic int32_t *done = call->output->data;
    for (int64_t i = begin; i < end; i++) {
        while (i == 0 && atomic_load(done) < TASKS - HELD)
            taper_os_yield();
        atomic_fetch_add(done, 1);
    }
    return TAPER_OK;
}

static void slow_worker_is_helped(void) {
    static const taper_kernel kernel = {.name = "wait", .op = "WAIT", .run = wait_for_others};
    _Alignas(64) char scratch[64];
    _Atomic int32_t done = 0;
    const taper_tensor output = {.data = &done};
    const taper_step step = {
        .call = {.kernel = &kernel, .output = &output}, .work = {.tasks = TASKS}, .workers = 2};
    const taper_run_args args = {.steps = &step,
                                 .count = 1,
                                 .workers = 2,
                                 .worker_scratch = scratch,
                                 .worker_scratch_bytes = sizeof scratch};
    int64_t failed = 0;
    while (!taper_pool_pays()) /* runs before this one may have met a busy machine */
        taper_pool_computed_alone(INT64_C(1000000000));
    CHECK(taper_run(&args, &failed) == TAPER_OK && done == TASKS, "%d tasks", (int)done);
}

/* A row of TASKS for each phase, made of the row before it. */
enum { PHASES = 50 };
static taper_status smooth_on(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        const int64_t *in = call->inputs[0].data, at = i % TASKS;
        int64_t *out = call->output->data;
        if (i >= TASKS)
            in = out + (i / TASKS - 1) * TASKS;
        out[i] = (in[at] + in[(at + 1) % TASKS] + in[(at + TASKS - 1) % TASKS]) % 1000003 + 1;
    }
    return TAPER_OK;
}

static void phases_wait_for_each_other(void) {
    static const taper_kernel kernel = {.name = "smooth_on", .op = "SMOOTH_ON", .run = smooth_on};
    static int64_t first[TASKS], one[2][PHASES * TASKS], many[2][PHASES * TASKS];
    _Alignas(64) static char scratch[8][64];
    for (int64_t i = 0; i < TASKS; i++)
        first[i] = i * i;
    for (int32_t workers = 1; workers <= 8; workers++)
        for (int repeat = 0; repeat < 5; repeat++) {
            int64_t (*out)[PHASES * TASKS] = workers == 1 ? one : many;
            memset(out, 0, sizeof one);
            const taper_tensor in[2] = {{.data = first}, {.data = out[0] + TASKS}},
                               output[2] = {{.data = out[0]}, {.data = out[1]}};
            taper_step steps[2];
            for (int s = 0; s < 2; s++)
                steps[s] = (taper_step){
                    .call = {.kernel = &kernel, .inputs = &in[s], .output = &output[s]},
                    .work = {.tasks = PHASES * TASKS, .phases = PHASES},
                    .workers = s == 0 ? 8 : 3};
            const taper_run_args args = {.steps = steps,
                                         .count = 2,
                                         .workers = workers,
                                         .worker_scratch = scratch[0],
                                         .worker_scratch_bytes = 64};
            int64_t failed = 0;
            CHECK(taper_run(&args, &failed) == TAPER_OK, "%d workers", workers);
            CHECK(memcmp(one, out, sizeof one) == 0, "%d workers differ", workers);
        }
}

static void run_in_thread(void *arg) {
    (void)arg;
    check_same_as_one(2, 20);
}

static void callers_share_the_pool(void) {
    host_thread *threads[4];
    for (int i = 0; i < 4; i++)
        threads[i] = host_start(run_in_thread, NULL);
    for (int i = 0; i < 4; i++)
        host_join(threads[i]);
}

enum { MANY = 100000 };

/* A step of many tasks, the first of which ends the run. */
typedef struct long_step {
    int32_t stop;
    _Atomic int64_t done;
} long_step;

static taper_status wants_no_more(const taper_call *call, int64_t begin, int64_t end,
                                  void *scratch) {
    (void)scratch;
    long_step *s = call->output->data;
    atomic_fetch_add(&s->done, end - begin);
    __atomic_store_n(&s->stop, 1, __ATOMIC_RELAXED);
    return TAPER_OK;
}

static taper_status counts(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    long_step *s = call->output->data;
    atomic_fetch_add(&s->done, end - begin);
    return TAPER_OK;
}

/* Arguments of a run that uses one CPU and ends when it is told to. */
typedef struct holder {
    _Atomic int32_t begun, end;
} holder;

static taper_status hold(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    (void)begin, (void)end, (void)scratch;
    holder *it = call->output->data;
    atomic_store(&it->begun, 1);
    while (!atomic_load(&it->end))
        taper_os_yield();
    return TAPER_OK;
}

/* Records which workers have computed: one bit of the output for each worker's scratch. */
static taper_status note(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    _Atomic uint64_t *seen = call->output->data;
    atomic_fetch_or(seen, UINT64_C(1) << *(int32_t *)scratch);
    const int64_t until = taper_os_now() + 2000000 * (end - begin);
    while (taper_os_now() < until)
        taper_os_yield();
    return TAPER_OK;
}

enum { MOST = 8 };
static int32_t workers_seen(int32_t workers) {
    static const taper_kernel kernel = {.name = "note", .op = "NOTE", .run = note};
    _Alignas(64) int32_t scratch[MOST][16];
    _Atomic uint64_t seen = 0;
    const taper_tensor output = {.data = &seen};
    for (int32_t w = 0; w < MOST; w++)
        scratch[w][0] = w;
    const taper_step step = {.call = {.kernel = &kernel, .output = &output},
                             .work = {.tasks = 2 * MOST},
                             .scratch = scratch[0],
                             .workers = workers};
    const taper_run_args args = {.steps = &step,
                                 .count = 1,
                                 .workers = workers,
                                 .worker_scratch = (char *)scratch[1],
                                 .worker_scratch_bytes = sizeof scratch[0]};
    int64_t failed = 0;
    CHECK(taper_run(&args, &failed) == TAPER_OK, "run");
    return __builtin_popcountll(seen);
}

static void run_and_hold(void *it) {
    static const taper_kernel kernel = {.name = "hold", .op = "HOLD", .run = hold};
    const taper_tensor output = {.data = it};
    const taper_step step = {
        .call = {.kernel = &kernel, .output = &output}, .work = {.tasks = 1}, .workers = 1};
    const taper_run_args args = {.steps = &step, .count = 1, .workers = 1};
    int64_t failed = 0;
    CHECK(taper_run(&args, &failed) == TAPER_OK, "hold");
}

/* While another caller computes, a run uses the CPUs that are left; otherwise as many as it asks
 * for. */
static void callers_leave_each_other_a_cpu(void) {
    const int32_t cpus = taper_os_cpu_count(), workers = cpus < MOST ? cpus : MOST;
    const int32_t left = cpus - 1 < workers ? cpus - 1 : workers;
    if (cpus < 2)
        return;
    for (int i = 0; i < 3; i++) {
        holder it = {0, 0};
        host_thread *other = host_start(run_and_hold, &it);
        while (!atomic_load(&it.begun))
            taper_os_yield();
        const int32_t seen = workers_seen(workers);
        CHECK(seen <= left, "%d workers beside another caller, %d CPUs", seen, cpus);
        atomic_store(&it.end, 1);
        host_join(other);
        int tries = 0; /* on a busy machine a worker may come too late */
        while (workers_seen(workers) == 1 && tries < 1000)
            tries++;
        CHECK(tries < 1000, "one worker, where nobody else computes");
    }
}

static void stop_ends_a_long_step(void) {
    static const taper_kernel stops = {.name = "stops", .op = "STOPS", .run = wants_no_more},
                              goes_on = {.name = "counts", .op = "COUNTS", .run = counts};
    _Alignas(64) char scratch[4][64];
    for (int32_t workers = 1; workers <= 4; workers++) {
        long_step s = {0};
        const taper_tensor output = {.data = &s};
        taper_step step = {.call = {.kernel = &stops, .output = &output},
                           .work = {.tasks = MANY},
                           .workers = workers};
        const taper_run_args args = {.steps = &step,
                                     .count = 1,
                                     .workers = workers,
                                     .worker_scratch = scratch[0],
                                     .worker_scratch_bytes = sizeof scratch[0],
                                     .stop = &s.stop};
        int64_t failed = 0;
        CHECK(taper_run(&args, &failed) == TAPER_STOPPED, "%d workers", (int)workers);
        CHECK(s.done < MANY / 2, "%d workers: %d tasks", (int)workers, (int)s.done);
        s = (long_step){0};
        step.call.kernel = &goes_on;
        CHECK(taper_run(&args, &failed) == TAPER_OK && s.done == MANY, "%d tasks", (int)s.done);
    }
}

static void failure_names_the_step_and_stops(void) {
    static model m;
    for (int32_t workers = 1; workers <= 3; workers++) {
        build(&m, mixed);
        m.steps[5].call.kernel = &failing_kernel;
        m.data[7][0] = -1;
        int64_t failed = 0;
        CHECK(run(&m, workers, &failed) == TAPER_BAD_INDEX, "%d workers", workers);
        CHECK(failed == 5, "step %lld", (long long)failed);
        CHECK(m.data[7][0] == -1, "a later step ran");
        check_same_as_one(workers, 1); /* and the pool still works */
    }
}

static void no_steps(void) {
    const taper_run_args args = {.count = 0, .workers = 4};
    int64_t failed = 0;
    CHECK(taper_run(&args, &failed) == TAPER_OK, "an empty run");
}

int main(int argc, char **argv) {
    const check_case cases[] = {
        {"same_result_for_any_thread_count", same_result_for_any_thread_count},
        {"slow_worker_is_helped", slow_worker_is_helped},
        {"phases_wait_for_each_other", phases_wait_for_each_other},
        {"callers_share_the_pool", callers_share_the_pool},
        {"failure_names_the_step_and_stops", failure_names_the_step_and_stops},
        {"callers_leave_each_other_a_cpu", callers_leave_each_other_a_cpu},
        {"stop_ends_a_long_step", stop_ends_a_long_step},
        {"no_steps", no_steps},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
