#include "check.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include "host.h"
#include "taper/run.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { BAND = 256, BAND_BYTE = 0xc5, POISON_BYTE = 0xab, MAX_MESSAGES = 8, MAX_WORKERS = 64 };

/* ---- cases ---- */

static struct {
    const char *name;
    size_t index; /* numbers from 1, as TAP does */
    int failures;
} running;

void check_fail(const char *file, int line, const char *format, ...) {
    if (running.failures++ >= MAX_MESSAGES)
        return;
    va_list args;
    va_start(args, format);
    printf("# %s:%d: ", file, line);
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

#if !defined(__SANITIZE_ADDRESS__)
/* Names the case before a kernel that runs into a guard page dies. */
static void on_fault(int sig) {
    char line[256];
    const int n = snprintf(line, sizeof line, "not ok %zu - %s # memory fault\n", running.index,
                           running.name ? running.name : "?");
    if (n > 0 && write(STDOUT_FILENO, line, (size_t)n) < 0)
        _exit(2);
    signal(sig, SIG_DFL);
    raise(sig);
}
#endif

const taper_level *check_level;

int check_main(int argc, char **argv, const check_case *cases, size_t n_cases,
               const check_case *benches, size_t n_benches) {
    bool bench = false;
    const char *isa = NULL, *filter = "";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            bench = true;
        else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
            isa = argv[++i];
        else if (argv[i][0] != '-')
            filter = argv[i];
        else {
            fprintf(stderr, "usage: %s [--isa NAME] [--bench] [FILTER]\n", argv[0]);
            return 2;
        }
    }
    const taper_status found = taper_level_find(isa, &check_level);
    if (isa && found == TAPER_UNKNOWN_ISA) {
        printf("1..0 # SKIP this CPU lacks %s\n", isa);
        return 0;
    }
    if (found != TAPER_OK) {
        printf("Bail out! TAPER_ISA: %s\n", taper_status_string(found));
        return 2;
    }
#if !defined(__SANITIZE_ADDRESS__)
    signal(SIGSEGV, on_fault);
#if defined(SIGBUS)
    signal(SIGBUS, on_fault);
#endif
#endif

    const check_case *list = bench ? benches : cases;
    const size_t n = bench ? n_benches : n_cases;
    bool ok = true;
    size_t selected = 0;
    for (size_t i = 0; i < n; i++)
        selected += strstr(list[i].name, filter) != NULL;
    if (!bench)
        printf("1..%zu\n", selected);
    for (size_t i = 0; i < n; i++) {
        if (!strstr(list[i].name, filter))
            continue;
        running.name = list[i].name;
        running.index++;
        running.failures = 0;
        check_seed(1);
        fflush(stdout);
        list[i].run();
        if (!bench)
            printf("%s %zu - %s\n", running.failures ? "not ok" : "ok", running.index,
                   running.name);
        ok = ok && running.failures == 0;
    }
    return ok ? 0 : 1;
}

/* ---- guarded memory ---- */

/* pages:  [... band ...][ data, bytes ][ gap ] end [ unmapped page ] */
typedef struct block {
    struct block *next;
    uint8_t *pages, *end, *data;
    size_t bytes, gap;
} block;
static block *blocks;
/* Freed blocks that were mapped for at most i * PIECE bytes: to map memory and to touch it first
 * takes longer than most tests of a small buffer. */
enum { PIECE = 4096, PIECES = 17 };
static block *spare[PIECES];

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static size_t pieces(size_t bytes, size_t gap) {
    return round_up(BAND + bytes + gap, PIECE) / PIECE;
}

/* Returns a block with room for the band, the data and the gap. */
static block *take_block(size_t bytes, size_t gap) {
    const size_t n = pieces(bytes, gap);
    if (n < PIECES && spare[n]) {
        block *b = spare[n];
        spare[n] = b->next;
        ASAN_UNPOISON_MEMORY_REGION(b->pages, (size_t)(b->end - b->pages));
        return b;
    }
    block *b = malloc(sizeof *b);
    uint8_t *end = NULL;
    uint8_t *pages = host_map(n * PIECE, &end);
    if (!b || !pages) {
        printf("Bail out! out of memory\n");
        exit(2);
    }
    *b = (block){NULL, pages, end, NULL, 0, 0};
    return b;
}

static void give_block(block *b) {
    const size_t n = pieces(b->bytes, b->gap);
    if (n < PIECES) {
        ASAN_POISON_MEMORY_REGION(b->pages, (size_t)(b->end - b->pages));
        b->next = spare[n];
        spare[n] = b;
    } else {
        host_unmap(b->pages, b->end);
        free(b);
    }
}

/* gap: bytes between the data and the unmapped page. */
static void *alloc_guarded(size_t bytes, size_t gap, int fill) {
    block *b = take_block(bytes, gap);
    *b = (block){blocks, b->pages, b->end, b->end - gap - bytes, bytes, gap};
    blocks = b;
    memset(b->data - BAND, BAND_BYTE, BAND);
    memset(b->data, fill, bytes);
    memset(b->data + bytes, BAND_BYTE, gap);
    ASAN_POISON_MEMORY_REGION(b->data - BAND, BAND);
    ASAN_POISON_MEMORY_REGION(b->data + bytes, gap);
    return b->data;
}

void *check_alloc(size_t bytes, size_t misalign) {
    const size_t gap = misalign ? round_up(bytes + misalign, 64) - bytes - misalign : 0;
    return alloc_guarded(bytes, gap, 0xff);
}

static void *alloc_aligned(size_t bytes, int fill) {
    return alloc_guarded(bytes, round_up(bytes, TAPER_ALIGNMENT) - bytes, fill);
}

static bool all_bytes(const uint8_t *p, size_t n, uint8_t value) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != value)
            return false;
    return true;
}

void check_free(void *p) {
    block **link = &blocks;
    while (*link && (*link)->data != p)
        link = &(*link)->next;
    block *b = *link;
    if (!b) {
        CHECK(!p, "check_free of a pointer check_alloc did not return");
        return;
    }
    ASAN_UNPOISON_MEMORY_REGION(b->data - BAND, BAND);
    ASAN_UNPOISON_MEMORY_REGION(b->data + b->bytes, b->gap);
    CHECK(all_bytes(b->data - BAND, BAND, BAND_BYTE), "written before the start of a buffer");
    CHECK(all_bytes(b->data + b->bytes, b->gap, BAND_BYTE), "written past the end of a buffer");
    *link = b->next;
    give_block(b);
}

/* ---- random numbers: splitmix64 ---- */

static uint64_t random_state;

void check_seed(uint64_t seed) { random_state = seed; }

static uint64_t random_bits(void) {
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float check_uniform(float low, float high) {
    return low + (high - low) * (float)(random_bits() >> 40) * 0x1p-24f;
}

int64_t check_int(int64_t low, int64_t high) {
    return low + (int64_t)(random_bits() % ((uint64_t)(high - low) + 1));
}

void check_fill_uniform(float *p, int64_t n, float low, float high) {
    for (int64_t i = 0; i < n; i++)
        p[i] = check_uniform(low, high);
}

void check_fill_bytes(void *p, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        const uint64_t bits = random_bits();
        memcpy((uint8_t *)p + i, &bits, n - i < 8 ? (size_t)(n - i) : 8);
    }
}

/* ---- numbers and tensors ---- */

double check_ulp(float got, double want) {
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want) ? 0 : HUGE_VAL;
    if (isinf(want))
        return (double)got == want ? 0 : HUGE_VAL;
    const double past = 0x1p128;
    const double g = fmin(fmax((double)got, -past), past), w = fmin(fmax(want, -past), past);
    int exponent = w == 0 ? -126 : ilogb(w);
    exponent = exponent < -126 ? -126 : exponent > 127 ? 127 : exponent;
    return ldexp(fabs(g - w), 23 - exponent);
}

float check_from_half(taper_dtype dtype, uint16_t bits) {
    const int mantissa_bits = dtype == TAPER_FLOAT16 ? 10 : 7;
    const int most = (1 << (15 - mantissa_bits)) - 1; /* exponent of infinities and NaN */
    const int exponent = bits >> mantissa_bits & most, fraction = bits & ((1 << mantissa_bits) - 1);
    const int whole = exponent == 0 ? fraction : fraction | 1 << mantissa_bits;
    const double value = exponent < most
                             ? ldexp(whole, (exponent ? exponent : 1) - most / 2 - mantissa_bits)
                         : fraction ? NAN
                                    : INFINITY;
    return (float)(bits & 0x8000 ? -value : value);
}

taper_tensor check_tensor(void *data, taper_dtype dtype, int rank, const int64_t *dims) {
    taper_tensor t = {.data = data, .rank = rank, .dtype = dtype};
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; d--) {
        t.shape[d] = dims[d];
        t.strides[d] = stride;
        stride *= dims[d] ? dims[d] : 1;
    }
    return t;
}

int64_t check_numel(const taper_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++)
        n *= t->shape[d];
    return n;
}

/* ---- running one node ---- */

int check_n_outputs = 1;
const taper_tensor *check_table;
const char *check_variant;

typedef struct node {
    taper_kernel kernel;
    taper_tensor *inputs;
    taper_tensor outputs[CHECK_MAX_OUTPUTS];
    taper_call call;
    taper_work work;
} node;

size_t check_attr_bytes(taper_attr_type type) {
    static const size_t bytes[TAPER_ATTR_TYPE_COUNT] = {
        [TAPER_ATTR_INT] = sizeof(int64_t),
        [TAPER_ATTR_FLOAT] = sizeof(double),
        [TAPER_ATTR_BOOL] = sizeof(bool),
        [TAPER_ATTR_STRING] = sizeof(const char *),
        [TAPER_ATTR_SCALAR] = sizeof(taper_scalar),
        [TAPER_ATTR_INTS] = sizeof(taper_ints),
        [TAPER_ATTR_STRINGS] = sizeof(taper_strings),
        [TAPER_ATTR_SCALARS] = sizeof(taper_scalars),
    };
    return type < TAPER_ATTR_TYPE_COUNT ? bytes[type] : SIZE_MAX / 2;
}

static void check_descriptors(const taper_kernel *k) {
    for (size_t i = 0; i < k->n_attrs; i++) {
        const taper_attr *a = &k->attrs[i];
        CHECK(a->offset + check_attr_bytes(a->type) <= k->attrs_bytes,
              "%s: attr %s lies outside the attr struct", k->name, a->name);
    }
}

/* Returns the number of the kernel's variant of that name; 0 if it has none. */
static int32_t variant_named(const taper_kernel *k, const char *name) {
    for (int32_t i = 0; k->variants && k->variants[i].name; i++)
        if (strcmp(k->variants[i].name, name) == 0)
            return i + 1;
    return 0;
}

/* n->call has pointers into *n, so a node must not move after this. */
static taper_status node_prepare(node *n, const char *op, const char *kernel_name,
                                 const taper_tensor *inputs, int n_inputs,
                                 const taper_tensor *output, const void *attrs) {
    const size_t input_bytes = sizeof *inputs * (size_t)n_inputs;
    n->inputs = alloc_guarded(input_bytes, 0, 0);
    for (int i = 0; i < check_n_outputs; i++) {
        n->outputs[i] = output[i];
        n->outputs[i].data = NULL;
    }
    for (int i = 0; i < n_inputs; i++) {
        n->inputs[i] = inputs[i];
        n->inputs[i].data = NULL;
    }
    size_t position = 0;
    while (taper_kernel_next(check_level, op, &position, &n->kernel)) {
        if (kernel_name && strcmp(n->kernel.name, kernel_name) != 0)
            continue;
        const int32_t variant = check_variant ? variant_named(&n->kernel, check_variant) : 0;
        if (check_variant && variant == 0)
            continue;
        check_descriptors(&n->kernel);
        n->work = (taper_work){.tasks = -1, .scratch_bytes = SIZE_MAX, .phases = 1};
        n->call = (taper_call){.kernel = &n->kernel,
                               .inputs = n->inputs,
                               .output = n->outputs,
                               .table = check_table,
                               .attrs = attrs,
                               .state = alloc_aligned(n->kernel.state_bytes, POISON_BYTE),
                               .n_inputs = n_inputs,
                               .n_outputs = check_n_outputs,
                               .variant = variant};
        const taper_status status = taper_kernel_takes(&n->kernel, &n->call)
                                        ? n->kernel.prepare(&n->call, &n->work)
                                        : TAPER_UNSUPPORTED;
        if (status == TAPER_OK) {
            CHECK(n->work.tasks >= 0 && n->work.scratch_bytes != SIZE_MAX,
                  "%s: prepare accepted but did not fill work", n->kernel.name);
            CHECK(variant ? n->work.variant == variant
                          : (n->work.variant != 0) == (n->kernel.variants != NULL),
                  "%s: asked for variant %d, prepared %d", n->kernel.name, variant,
                  n->work.variant);
            CHECK(n->work.scratch_traffic >= 0, "%s: less than nothing", n->kernel.name);
            for (int i = 0; i < n_inputs; i++)
                n->inputs[i].data = inputs[i].data;
            for (int i = 0; i < check_n_outputs; i++)
                n->outputs[i].data = output[i].data;
            return TAPER_OK;
        }
        check_free(n->call.state);
        if (status != TAPER_UNSUPPORTED) {
            check_free(n->inputs);
            return status;
        }
    }
    check_free(n->inputs);
    return TAPER_UNSUPPORTED;
}

static void node_free(node *n) {
    check_free(n->call.state);
    check_free(n->inputs);
}

/* Data that the threads of one check_run share: ranges [cuts[order[i]], cuts[order[i] + 1]), which
 * threads take in turn. */
typedef struct team {
    const node *n;
    const int64_t *cuts;
    const int *order;
    int n_ranges;
    int next;   /* atomic */
    int status; /* atomic; the first status other than TAPER_OK */
} team;

typedef struct worker {
    team *team;
    void *scratch;
} worker;

static void worker_main(void *arg) {
    const worker *w = arg;
    team *t = w->team;
    int i;
    while ((i = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED)) < t->n_ranges) {
        const int64_t *cut = &t->cuts[t->order[i]];
        int ok = TAPER_OK;
        const int status = (int)t->n->kernel.run(&t->n->call, cut[0], cut[1], w->scratch);
        if (status != TAPER_OK)
            __atomic_compare_exchange_n(&t->status, &ok, status, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED);
    }
}

static int by_value(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Runs tasks [from, from + tasks) on some threads, in any order. */
static taper_status tasks_run(const node *n, int64_t from, int64_t tasks, int workers) {
    enum { RANGES_EACH = 4 };
    int64_t cuts[MAX_WORKERS * RANGES_EACH + 1];
    int order[MAX_WORKERS * RANGES_EACH];
    const int n_ranges = workers == 1 ? 1 : workers * RANGES_EACH;
    cuts[0] = from;
    for (int i = 1; i < n_ranges; i++)
        cuts[i] = from + check_int(0, tasks);
    cuts[n_ranges] = from + tasks;
    qsort(cuts, (size_t)n_ranges + 1, sizeof *cuts, by_value);
    for (int i = 0; i < n_ranges; i++) { /* insertion shuffle */
        const int j = (int)check_int(0, i);
        order[i] = order[j];
        order[j] = i;
    }

    team t = {n, cuts, order, n_ranges, 0, TAPER_OK};
    worker each[MAX_WORKERS];
    host_thread *threads[MAX_WORKERS];
    for (int i = 0; i < workers; i++)
        each[i] = (worker){&t, alloc_aligned(n->work.scratch_bytes, POISON_BYTE)};
    int started = 1; /* the caller works too, and alone if no thread can be created */
    while (started < workers &&
           (threads[started] = host_start(worker_main, &each[started])) != NULL)
        started++;
    worker_main(&each[0]);
    for (int i = 1; i < started; i++)
        host_join(threads[i]);
    for (int i = 0; i < workers; i++)
        check_free(each[i].scratch);
    return (taper_status)t.status;
}

/* Runs one phase after the other; one worker runs all of them in one call. */
static taper_status node_run(const node *n, int workers) {
    const int64_t parts = n->work.phases > 1 ? n->work.phases : 1;
    CHECK(n->work.tasks % parts == 0, "%s: %lld tasks in %lld phases", n->kernel.name,
          (long long)n->work.tasks, (long long)parts);
    const int64_t phases = workers == 1 ? 1 : parts, tasks = n->work.tasks / phases;
    taper_status status = TAPER_OK;
    for (int64_t p = 0; p < phases && status == TAPER_OK; p++)
        status = tasks_run(n, p * tasks, tasks, workers);
    return status;
}

taper_status check_run(const char *op, const char *kernel_name, const taper_tensor *inputs,
                       int n_inputs, const taper_tensor *output, const void *attrs, int workers) {
    node n;
    CHECK(workers >= 1 && workers <= MAX_WORKERS, "workers: %d", workers);
    taper_status status = node_prepare(&n, op, kernel_name, inputs, n_inputs, output, attrs);
    if (status != TAPER_OK)
        return status;
    if (n.work.tasks > 0)
        status = node_run(&n, workers);
    node_free(&n);
    return status;
}

void check_threads(const char *op, const char *kernel_name, const taper_tensor *inputs,
                   int n_inputs, const taper_tensor *output, const void *attrs) {
    size_t bytes[CHECK_MAX_OUTPUTS];
    void *alone[CHECK_MAX_OUTPUTS];
    for (int i = 0; i < check_n_outputs; i++) {
        bytes[i] = (size_t)check_numel(&output[i]) * taper_dtype_size(output[i].dtype);
        alone[i] = check_alloc(bytes[i], 0);
    }
    for (int workers = 1; workers <= 3; workers++) {
        for (int i = 0; i < check_n_outputs; i++)
            memset(output[i].data, 0xff, bytes[i]);
        const taper_status status =
            check_run(op, kernel_name, inputs, n_inputs, output, attrs, workers);
        CHECK(status == TAPER_OK, "%s with %d workers: %s", op, workers,
              taper_status_string(status));
        for (int i = 0; i < check_n_outputs; i++) {
            if (workers == 1)
                memcpy(alone[i], output[i].data, bytes[i]);
            CHECK(memcmp(alone[i], output[i].data, bytes[i]) == 0,
                  "%s: %d workers give other bits than one in output %d", op, workers, i);
        }
    }
    for (int i = 0; i < check_n_outputs; i++)
        check_free(alone[i]);
}

int check_variants(const char *op, const taper_tensor *inputs, int n_inputs,
                   const taper_tensor *output, const void *attrs, void (*compare)(void *arg),
                   void *arg) {
    const size_t bytes = (size_t)check_numel(output) * taper_dtype_size(output->dtype);
    void *own = check_alloc(bytes, 0);
    size_t position = 0;
    taper_kernel kernel;
    int served = 0;
    while (taper_kernel_next(check_level, op, &position, &kernel)) {
        memset(output->data, 0xff, bytes);
        if (check_run(op, kernel.name, inputs, n_inputs, output, attrs, 2) != TAPER_OK)
            continue;
        compare(arg);
        memcpy(own, output->data, bytes);
        for (const taper_variant *v = kernel.variants; v && v->name; v++) {
            memset(output->data, 0xff, bytes);
            check_variant = v->name;
            if (check_run(op, kernel.name, inputs, n_inputs, output, attrs, 2) == TAPER_OK) {
                served++;
                compare(arg);
                CHECK(v->other_bits || memcmp(own, output->data, bytes) == 0,
                      "%s: %s has other bits, which its row does not say", kernel.name, v->name);
            }
            check_variant = NULL;
        }
    }
    check_free(own);
    return served;
}

/* ---- timing ---- */

static double now(void) { return (double)taper_now(); }

static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void check_bench(const char *name, double flops, double bytes, void (*fn)(void *), void *arg) {
    enum { MAX_SAMPLES = 1000 };
    const double sample_ns = 2e4,
                 budget_ns = 2e8; /* a sample takes much longer than reading the clock */
    static double samples[MAX_SAMPLES];
    fn(arg); /* page faults, caches */
    int64_t repeat = 1;
    double took;
    for (;; repeat *= 2) {
        const double start = now();
        for (int64_t i = 0; i < repeat; i++)
            fn(arg);
        took = now() - start;
        if (took >= sample_ns)
            break;
    }
    int n = 0;
    for (const double end = now() + budget_ns; n < MAX_SAMPLES && (n < 3 || now() < end); n++) {
        const double start = now();
        for (int64_t i = 0; i < repeat; i++)
            fn(arg);
        samples[n] = (now() - start) / (double)repeat;
    }
    qsort(samples, (size_t)n, sizeof *samples, by_time);
    printf("{\"name\": \"%s\", \"isa\": \"%s\", \"ns_min\": %.0f, \"ns_median\": %.0f, "
           "\"gflops\": %.2f, \"gbs\": %.2f}\n",
           name, taper_level_name(check_level), samples[0], samples[n / 2], flops / samples[0],
           bytes / samples[0]);
    fflush(stdout);
}

typedef struct bench_arg {
    const node *n;
    void *scratch;
} bench_arg;

static void bench_node(void *arg) {
    const bench_arg *b = arg;
    b->n->kernel.run(&b->n->call, 0, b->n->work.tasks, b->scratch);
}

void check_bench_op(const char *name, const char *op, const char *kernel_name,
                    const taper_tensor *inputs, int n_inputs, const taper_tensor *output,
                    const void *attrs, double flops, double bytes) {
    node n;
    if (node_prepare(&n, op, kernel_name, inputs, n_inputs, output, attrs) != TAPER_OK) {
        printf("{\"name\": \"%s\", \"isa\": \"%s\", \"error\": \"unsupported\"}\n", name,
               taper_level_name(check_level));
        return;
    }
    bench_arg arg = {&n, alloc_aligned(n.work.scratch_bytes, POISON_BYTE)};
    check_bench(name, flops, bytes, bench_node, &arg);
    check_free(arg.scratch);
    node_free(&n);
}
