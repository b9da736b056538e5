/* Steps with steps inside: branches, loops and slices give what plain C gives, for any number of
 * threads, and end when a step fails or the caller wants it. */
#include "taper/run.h"

#include <stdatomic.h>

#include "check.h"
#include "host.h"
#include "os/os.h"

enum { N = 64, THREADS = 4 };

/* The kernels of these tests: they compute int64, one element in each task. state: a number. */

static int64_t number(const taper_call *call) { return *(const int64_t *)call->state; }

/* Tasks read their neighbours, so that the result shows a task that runs too early or too late. */
static taper_status mix(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const int64_t *in = call->inputs[0].data;
    int64_t *out = call->output->data;
    for (int64_t i = begin; i < end; i++) {
        *(int64_t *)scratch = in[i] + 3 * in[(i + 1) % N] + in[(i + N - 1) % N] + number(call);
        out[i] = *(int64_t *)scratch % 1000003;
    }
    return TAPER_OK;
}

static taper_status add(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int64_t *a = call->inputs[0].data, *b = call->inputs[1].data;
    for (int64_t i = begin; i < end; i++)
        ((int64_t *)call->output->data)[i] = (a[i] + b[i]) % 1000003;
    return TAPER_OK;
}

static taper_status below(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    for (int64_t i = begin; i < end; i++)
        ((uint8_t *)call->output->data)[i] = *(int64_t *)call->inputs[0].data < number(call);
    return TAPER_OK;
}

static taper_status increase(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    for (int64_t i = begin; i < end; i++)
        ((int64_t *)call->output->data)[i] = ((int64_t *)call->inputs[0].data)[i] + number(call);
    return TAPER_OK;
}

static taper_status refuse_three(const taper_call *call, int64_t begin, int64_t end,
                                 void *scratch) {
    (void)begin, (void)end, (void)scratch;
    return *(int64_t *)call->inputs[0].data == 3 ? TAPER_BAD_INDEX : TAPER_OK;
}

static const taper_kernel MIX = {.run = mix}, ADD = {.run = add}, BELOW = {.run = below},
                          INCREASE = {.run = increase}, REFUSE_THREE = {.run = refuse_three};

typedef struct node {
    taper_tensor tensors[3];
    int64_t number;
    _Alignas(64) char scratch[64];
} node;

enum { MAX_STEPS = 16 };
typedef struct program {
    taper_step steps[MAX_STEPS];
    node nodes[MAX_STEPS];
    taper_span spans[MAX_STEPS * THREADS]; /* per step as many as the run has workers */
    _Alignas(64) char worker_scratch[THREADS][64];
    int64_t failed;
    int32_t stop;
    bool (*poll)(void *);
    void *poll_context;
} program;

static void set(program *p, int step, const taper_kernel *kernel, int64_t tasks, int32_t workers,
                int64_t n, void *out, void *a, void *b) {
    node *it = &p->nodes[step];
    it->number = n;
    it->tensors[0].data = a;
    it->tensors[1].data = b;
    it->tensors[2].data = out;
    p->steps[step] = (taper_step){.call = {.kernel = kernel,
                                           .inputs = it->tensors,
                                           .output = &it->tensors[2],
                                           .state = &it->number,
                                           .n_inputs = 2,
                                           .n_outputs = 1},
                                  .work = {.tasks = tasks, .scratch_bytes = 64},
                                  .scratch = it->scratch,
                                  .workers = workers};
}

static taper_status run(program *p, int64_t count, int32_t workers) {
    memset(p->spans, 0, sizeof p->spans);
    const taper_run_args args = {.steps = p->steps,
                                 .count = count,
                                 .workers = workers,
                                 .worker_scratch = p->worker_scratch[0],
                                 .worker_scratch_bytes = 64,
                                 .spans = p->spans,
                                 .stop = &p->stop,
                                 .poll = p->poll,
                                 .poll_context = p->poll_context};
    return taper_run(&args, &p->failed);
}

static void fill(int64_t *x, int64_t seed) {
    for (int64_t i = 0; i < N; i++)
        x[i] = (i * i + seed) % 1000003;
}

static void mix_reference(int64_t *out, const int64_t *in, int64_t n) {
    for (int64_t i = 0; i < N; i++)
        out[i] = (in[i] + 3 * in[(i + 1) % N] + in[(i + N - 1) % N] + n) % 1000003;
}

/* How many threads steps use: all the same, or small and large ones in turn. */
static const int32_t widths[][3] = {{1, 1, 1}, {4, 4, 4}, {1, 4, 2}, {4, 1, 3}, {2, 4, 1}};
enum { WIDTHS = sizeof widths / sizeof widths[0] };

static int32_t widest(const int32_t *w) {
    const int32_t ab = w[0] > w[1] ? w[0] : w[1];
    return ab > w[2] ? ab : w[2];
}

/* mix; if: mix with 1, else: mix twice with 2; mix. */
static void branch_is_taken(void) {
    static program p;
    static int64_t x[N], a[N], b[N], c[N], out[N], want[3][N];
    uint8_t yes;
    for (int taken = 0; taken <= 1; taken++)
        for (int w = 0; w < WIDTHS; w++)
            for (int32_t workers = 1; workers <= THREADS; workers++) {
                const int32_t *n = widths[w];
                const taper_control control = {
                    .kind = TAPER_IF, .blocks = {{4, 1}, {5, 2}}, .predicate = &yes};
                fill(x, w);
                yes = !taken; /* until step 1 says what is true */
                set(&p, 0, &MIX, N, n[0], 5, a, x, NULL);
                set(&p, 1, &BELOW, 1, 1, taken ? INT64_MAX : INT64_MIN, &yes, a, NULL);
                p.steps[2] = (taper_step){.control = &control, .workers = widest(n)};
                set(&p, 3, &MIX, N, n[1], 7, out, b, NULL);
                set(&p, 4, &MIX, N, n[2], 1, b, a, NULL);
                set(&p, 5, &MIX, N, n[0], 2, c, a, NULL);
                set(&p, 6, &MIX, N, n[1], 2, b, c, NULL);
                CHECK(run(&p, 4, workers) == TAPER_OK, "%d workers", workers);
                mix_reference(want[0], x, 5);
                mix_reference(want[1], want[0], taken ? 1 : 2);
                if (!taken) {
                    memcpy(want[0], want[1], sizeof want[0]);
                    mix_reference(want[1], want[0], 2);
                }
                mix_reference(want[2], want[1], 7);
                CHECK(memcmp(out, want[2], sizeof out) == 0, "taken %d, widths %d, %d workers",
                      taken, w, workers);
                const taper_span skipped = p.spans[(taken ? 5 : 4) * workers];
                CHECK(skipped.begin == 0 && skipped.end == 0 && skipped.times == 0,
                      "a branch not taken has a time");
            }
}

/* Computes while (i < TRIPS) { i = i + 1; h = mix(mix(h)); } with h carried by a copy and i in
 * place. */
enum { TRIPS = 7 };
static void set_while(program *p, taper_control *control, const int32_t *n, int64_t *i,
                      uint8_t *more, int64_t *h, int64_t *a, int64_t *b, taper_copy *copies) {
    *control = (taper_control){.kind = TAPER_WHILE,
                               .blocks = {{2, 1}, {3, 3}},
                               .predicate = more,
                               .enter = &copies[0],
                               .n_enter = 2,
                               .next = &copies[2],
                               .n_next = 2};
    p->steps[0] = (taper_step){.control = control, .workers = widest(n)};
    set(p, 2, &BELOW, 1, n[0], TRIPS, more, i, NULL);
    set(p, 3, &MIX, N, n[1], 11, a, h, NULL);
    set(p, 4, &INCREASE, 1, 1, 1, i, i, NULL);
    set(p, 5, &MIX, N, n[2], 13, b, a, NULL);
}

static void loop_ends_when_its_condition_does(void) {
    static program p;
    static int64_t x[N], h[N], a[N], b[N], out[N], want[2][N];
    taper_control control;
    for (int64_t from = 0; from <= TRIPS; from += TRIPS) /* the second does nothing */
        for (int w = 0; w < WIDTHS; w++)
            for (int32_t workers = 1; workers <= THREADS; workers++) {
                int64_t i = -1;
                uint8_t more = 77;
                taper_copy copies[4] = {
                    {h, x, sizeof h}, {&i, &from, sizeof i}, {h, b, sizeof h}, {&i, &i, sizeof i}};
                fill(x, w);
                set_while(&p, &control, widths[w], &i, &more, h, a, b, copies);
                set(&p, 1, &MIX, N, widths[w][0], 17, out, h, NULL);
                CHECK(run(&p, 2, workers) == TAPER_OK, "%d workers", workers);
                memcpy(want[0], x, sizeof x);
                for (int64_t t = from; t < TRIPS; t++) {
                    mix_reference(want[1], want[0], 11);
                    mix_reference(want[0], want[1], 13);
                }
                mix_reference(want[1], want[0], 17);
                CHECK(i == TRIPS && !more, "ended at %lld", (long long)i);
                CHECK(memcmp(out, want[1], sizeof out) == 0, "widths %d, %d workers", w, workers);
            }
}

/* Computes h = mix(h + x[t]), y[t] = mix(h): slices are read and written in place. In each trip a
 * loop over the columns of x[t]'s own slices runs inside: s = s + z[t][k]. */
enum { INNER = 3 };
static void scans_nest_and_write_slices(void) {
    static program p;
    static int64_t x[TRIPS][N], z[TRIPS][INNER][N], y[TRIPS][N], h0[N], h[N], sum[N], next[N], s[N],
        want_h[N], want_s[N], t0[N];
    for (int w = 0; w < WIDTHS; w++)
        for (int32_t workers = 1; workers <= THREADS; workers++)
            for (int64_t trips = 0; trips <= TRIPS; trips += TRIPS) {
                const int32_t *n = widths[w];
                fill(h0, 3);
                memset(s, 0, sizeof s);
                memset(y, 0, sizeof y);
                for (int t = 0; t < TRIPS; t++) {
                    fill(x[t], t + w);
                    for (int k = 0; k < INNER; k++)
                        fill(z[t][k], 10 * t + k);
                }
                taper_slice inner_slices[1] = {{&p.nodes[5].tensors[1].data, NULL, sizeof z[0][0]}};
                const taper_slice slices[3] = {
                    {&p.nodes[1].tensors[1].data, (char *)x, sizeof x[0]},
                    {&p.nodes[4].tensors[2].data, (char *)y, sizeof y[0]},
                    {(void **)&inner_slices[0].first, (char *)z, sizeof z[0]},
                };
                const taper_copy enter = {h, h0, sizeof h}, next_h = {h, next, sizeof h};
                const taper_control inner = {.kind = TAPER_SCAN,
                                             .blocks = {{5, 1}},
                                             .trips = INNER,
                                             .slices = inner_slices,
                                             .n_slices = 1},
                                    outer = {.kind = TAPER_SCAN,
                                             .blocks = {{1, 4}},
                                             .trips = trips,
                                             .enter = &enter,
                                             .n_enter = 1,
                                             .next = &next_h,
                                             .n_next = 1,
                                             .slices = slices,
                                             .n_slices = 3};
                p.steps[0] = (taper_step){.control = &outer, .workers = widest(n)};
                set(&p, 1, &ADD, N, n[0], 0, sum, h, NULL);
                p.steps[2] = (taper_step){.control = &inner, .workers = n[1]};
                set(&p, 3, &MIX, N, n[2], 5, next, sum, NULL);
                set(&p, 4, &MIX, N, n[0], 9, NULL, sum, NULL);
                set(&p, 5, &ADD, N, n[1], 0, s, s, NULL);
                CHECK(run(&p, 1, workers) == TAPER_OK, "%d workers", workers);
                memcpy(want_h, h0, sizeof h0);
                memset(want_s, 0, sizeof want_s);
                for (int64_t t = 0; t < trips; t++) {
                    for (int i = 0; i < N; i++) {
                        t0[i] = (want_h[i] + x[t][i]) % 1000003;
                        for (int k = 0; k < INNER; k++)
                            want_s[i] = (want_s[i] + z[t][k][i]) % 1000003;
                    }
                    mix_reference(want_h, t0, 9);
                    CHECK(memcmp(y[t], want_h, sizeof want_h) == 0, "y[%lld]", (long long)t);
                    mix_reference(want_h, t0, 5);
                }
                CHECK(memcmp(h, want_h, sizeof h) == 0, "h, widths %d, %d workers", w, workers);
                CHECK(memcmp(s, want_s, sizeof s) == 0, "s, widths %d, %d workers", w, workers);
            }
}

/* A step of a body fails in the fourth iteration: the failure names it, and the loop ends. */
static void failure_inside_a_body_ends_the_run(void) {
    static program p;
    static int64_t x[N], h[N], a[N], b[N], out[N];
    taper_control control;
    for (int w = 0; w < WIDTHS; w++)
        for (int32_t workers = 1; workers <= THREADS; workers++) {
            int64_t i = -1;
            const int64_t from = 0;
            uint8_t more;
            taper_copy copies[4] = {
                {h, x, sizeof h}, {&i, &from, sizeof i}, {h, b, sizeof h}, {&i, &i, sizeof i}};
            set_while(&p, &control, widths[w], &i, &more, h, a, b, copies);
            set(&p, 1, &INCREASE, 1, 1, 1, out, out, NULL);
            set(&p, 5, &REFUSE_THREE, N, widths[w][2], 0, b, &i, NULL);
            out[0] = 0;
            CHECK(run(&p, 2, workers) == TAPER_BAD_INDEX, "widths %d, %d workers", w, workers);
            CHECK(p.failed == 5 && i == 3, "step %lld, i %lld", (long long)p.failed, (long long)i);
            CHECK(out[0] == 0, "a later step ran");
        }
}

static void stop_later(void *stop) {
    const int64_t until = taper_os_now() + 2000000;
    while (taper_os_now() < until)
        taper_os_yield();
    __atomic_store_n((int32_t *)stop, 1, __ATOMIC_RELAXED);
}

/* Loops that would never end: the caller's flag, set by another thread, ends them. */
static void stop_ends_a_loop(void) {
    static program p;
    static uint8_t always = 1;
    static int64_t i, x[N], y[N];
    for (int empty = 0; empty <= 1; empty++)
        for (int32_t workers = 1; workers <= THREADS; workers++) {
            const taper_control control = {
                .kind = TAPER_WHILE, .blocks = {{1, 0}, {1, empty ? 0 : 2}}, .predicate = &always};
            p.steps[0] = (taper_step){.control = &control, .workers = workers};
            set(&p, 1, &INCREASE, 1, 1, 1, &i, &i, NULL);
            set(&p, 2, &MIX, N, workers, 1, y, x, NULL);
            p.stop = 0;
            host_thread *other = host_start(stop_later, &p.stop);
            CHECK(run(&p, 1, workers) == TAPER_STOPPED, "%d workers", workers);
            host_join(other);
        }
    p.stop = 0;
    CHECK(i > 0, "the loop ran");
}

/* Acts as a host that ends the run in its third poll. */
static bool refuse_third_look(void *context) { return ++*(int *)context < 3; }

static void poll_ends_a_loop(void) {
    static program p;
    static uint8_t always = 1;
    static int64_t i;
    const taper_control control = {
        .kind = TAPER_WHILE, .blocks = {{1, 0}, {1, 1}}, .predicate = &always};
    int looks = 0;
    p.steps[0] = (taper_step){.control = &control, .workers = 1};
    set(&p, 1, &INCREASE, 1, 1, 1, &i, &i, NULL);
    p.poll = refuse_third_look;
    p.poll_context = &looks;
    const int64_t begin = taper_os_now();
    CHECK(run(&p, 1, 2) == TAPER_STOPPED && looks == 3, "%d looks", looks);
    CHECK(taper_os_now() - begin >= 30000000, "three looks in %lld ns",
          (long long)(taper_os_now() - begin));
    /* A short run does not poll. */
    set(&p, 0, &INCREASE, 1, 1, 1, &i, &i, NULL);
    CHECK(run(&p, 1, 1) == TAPER_OK && looks == 3, "%d looks", looks);
}

/* All times of a step that runs often are within that of its loop. */
static void spans_of_a_body_add_up(void) {
    static program p;
    static int64_t x[N], y[N];
    const taper_control control = {.kind = TAPER_SCAN, .blocks = {{1, 1}}, .trips = 1000};
    p.steps[0] = (taper_step){.control = &control, .workers = 1};
    set(&p, 1, &MIX, N, 1, 1, y, x, NULL);
    CHECK(run(&p, 1, 1) == TAPER_OK, "run");
    const taper_span loop = p.spans[0], step = p.spans[1];
    CHECK(loop.begin > 0 && loop.begin <= step.begin && step.begin < step.end &&
              step.end <= loop.end && loop.times == 1 && step.times == 1000 &&
              (step.end - step.begin) * 20 > loop.end - loop.begin,
          "%lld ns of %lld", (long long)(step.end - step.begin),
          (long long)(loop.end - loop.begin));
}

int main(int argc, char **argv) {
    const check_case cases[] = {
        {"branch_is_taken", branch_is_taken},
        {"loop_ends_when_its_condition_does", loop_ends_when_its_condition_does},
        {"scans_nest_and_write_slices", scans_nest_and_write_slices},
        {"failure_inside_a_body_ends_the_run", failure_inside_a_body_ends_the_run},
        {"stop_ends_a_loop", stop_ends_a_loop},
        {"poll_ends_a_loop", poll_ends_a_loop},
        {"spans_of_a_body_add_up", spans_of_a_body_add_up},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
