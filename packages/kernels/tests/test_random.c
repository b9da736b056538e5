/* RANDOM and RANDOM_NEXT. Words are compared with the twister as its authors wrote it, whose
 * 10000th word for seed 5489 the C++ standard states (std::mt19937); numbers are compared with
 * their documented rules. */
#include <math.h>

#include "check.h"
#include "random/kernels.inc"

CHECK_ATTRS(random)
CHECK_ATTRS(random_next)

#define TWO_PI 6.283185307179586
enum { WORDS = 624, USED = WORDS, HAS_NORMAL, NORMAL, STATE_SIZE, MOST = 5000 };

/* ---- reference ---- */

struct twister {
    uint32_t key[WORDS];
    int used;
    bool has_normal;
    double normal;
};

static void seed(struct twister *t, uint32_t value) {
    t->key[0] = value;
    for (uint32_t i = 1; i < WORDS; i++)
        t->key[i] = 1812433253u * (t->key[i - 1] ^ t->key[i - 1] >> 30) + i;
    t->used = WORDS;
    t->has_normal = false;
    t->normal = 0;
}

static uint32_t word(struct twister *t) {
    if (t->used == WORDS) {
        for (int i = 0; i < WORDS; i++) {
            const uint32_t y = (t->key[i] & 0x80000000u) | (t->key[(i + 1) % WORDS] & 0x7fffffffu);
            t->key[i] = t->key[(i + 397) % WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        t->used = 0;
    }
    uint32_t y = t->key[t->used++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

static uint64_t long_word(struct twister *t) {
    const uint64_t high = word(t);
    return high << 32 | word(t);
}

static double uniform(struct twister *t, bool is_double) {
    return is_double ? (double)(long_word(t) & ((1ull << 53) - 1)) * 0x1p-53
                     : (word(t) & 0xffffff) * 0x1p-24;
}

static void pair(double u, double angle, double *first, double *second) {
    const double radius = sqrt(-2 * log1p(-u));
    *first = radius * cos(angle);
    *second = radius * sin(angle);
}

static double serial_normal(struct twister *t) {
    double first = t->normal;
    t->has_normal = !t->has_normal;
    if (t->has_normal) {
        const double angle = TWO_PI * uniform(t, true);
        pair(uniform(t, true), angle, &first, &t->normal);
    }
    return first;
}

static void normal_block(struct twister *t, bool is_double, double *y) {
    double u[16];
    for (int i = 0; i < 16; i++)
        u[i] = uniform(t, is_double);
    for (int i = 0; i < 8; i++)
        pair(u[i], is_double ? TWO_PI * u[8 + i] : (float)TWO_PI * (float)u[8 + i], &y[i],
             &y[8 + i]);
}

/* Numbers that are integers come as int64. */
static void draw(struct twister *t, const char *law, bool is_double, int64_t limit, int64_t n,
                 double *y, int64_t *integers) {
    const bool normal = strcmp(law, "normal") == 0, half = strcmp(law, "half_normal") == 0;
    if (strcmp(law, "uniform") == 0) {
        for (int64_t i = 0; i < n; i++)
            y[i] = uniform(t, is_double);
    } else if (strcmp(law, "integer") == 0) {
        for (int64_t i = 0; i < n; i++) {
            if (limit > 0 && limit < 1 << 28)
                integers[i] = (int64_t)(word(t) % (uint64_t)limit);
            else if (limit > 0)
                integers[i] = (int64_t)(long_word(t) % (uint64_t)limit);
            else
                integers[i] = (int64_t)long_word(t);
        }
    } else if (strcmp(law, "permutation") == 0) {
        for (int64_t i = 0; i < n; i++)
            integers[i] = i;
        for (int64_t i = 0; i + 1 < n; i++) {
            const int64_t other = i + word(t) % (n - i), kept = integers[i];
            integers[i] = integers[other];
            integers[other] = kept;
        }
    } else if (n < 16 || !(normal || half)) {
        for (int64_t i = 0; i < n; i++)
            y[i] = serial_normal(t);
    } else {
        for (int64_t i = 0; i + 16 <= n; i += 16)
            normal_block(t, is_double, y + i);
        for (int64_t i = 0; normal && i < n % 16; i++)
            uniform(t, is_double);
        if (n % 16)
            normal_block(t, is_double, y + n - 16);
    }
}

/* ---- states ---- */

static void store(const struct twister *t, int64_t *state) {
    for (int i = 0; i < WORDS; i++)
        state[i] = t->key[i];
    state[USED] = t->used;
    state[HAS_NORMAL] = t->has_normal;
    state[NORMAL] = 0;
    if (t->has_normal)
        memcpy(state + NORMAL, &t->normal, sizeof t->normal);
}

static bool same_state(const int64_t *got, const struct twister *t) {
    int64_t want[STATE_SIZE];
    store(t, want);
    double left;
    memcpy(&left, got + NORMAL, sizeof left);
    if (t->has_normal && fabs(left - t->normal) <= 1e-14 * (1 + fabs(left)))
        want[NORMAL] = got[NORMAL];
    return memcmp(got, want, sizeof want) == 0;
}

static taper_tensor state_of(int64_t *data) {
    return check_tensor(data, TAPER_INT64, 1, (int64_t[]){STATE_SIZE});
}

/* ---- cases ---- */

static void word_10000(void) {
    struct twister t;
    seed(&t, 5489);
    int64_t state[STATE_SIZE], after[STATE_SIZE], drawn = 0;
    store(&t, state);
    taper_tensor inputs[] = {state_of(state),
                             check_tensor(NULL, TAPER_INT64, 1, (int64_t[]){9999})};
    const taper_tensor next = state_of(after), y = check_tensor(&drawn, TAPER_INT64, 0, NULL);
    const struct random_next_attrs words = {"integer", 1};
    CHECK(check_run("RANDOM_NEXT", NULL, inputs, 2, &next, &words, 1) == TAPER_OK, "runs");
    inputs[0] = next;
    const struct random_attrs all = {{NULL, 0}, "int64", "integer", 0};
    CHECK(check_run("RANDOM", NULL, inputs, 1, &y, &all, 1) == TAPER_OK, "runs");
    CHECK((uint64_t)drawn >> 32 == 4123659995u, "%llx", (unsigned long long)drawn);
}

static void check_law(struct twister *t, const char *law, taper_dtype dtype, int64_t limit,
                      int64_t n) {
    const size_t bytes = taper_dtype_size(dtype);
    int64_t *state = check_alloc(STATE_SIZE * sizeof *state, 0), shape[] = {n};
    int64_t *after = check_alloc(STATE_SIZE * sizeof *after, 0), *integers = malloc(MOST * 8);
    double *want = malloc(MOST * sizeof *want);
    store(t, state);
    for (int i = 0; i < WORDS; i++)
        state[i] |= (int64_t)check_int(0, 1) << 40; /* only 32 bits count */
    const taper_tensor y = check_tensor(check_alloc((size_t)n * bytes, bytes), dtype, 1, shape);
    taper_tensor inputs[] = {state_of(state), y}, next = state_of(after);
    inputs[1].data = NULL;
    const struct random_attrs attrs = {{shape, 1}, taper_dtype_name(dtype), law, limit};
    const struct random_next_attrs attrs_next = {law, limit};
    check_threads("RANDOM", NULL, inputs, 1, &y, &attrs);
    check_threads("RANDOM_NEXT", NULL, inputs, 2, &next, &attrs_next);
    draw(t, law, dtype == TAPER_FLOAT64, limit, n, want, integers);
    const bool exact = strstr(law, "normal") == NULL;
    for (int64_t i = 0; i < n; i++) {
        if (dtype == TAPER_INT64) {
            const int64_t got = ((int64_t *)y.data)[i];
            CHECK(got == integers[i], "%s %lld: %lld, not %lld", law, (long long)i, (long long)got,
                  (long long)integers[i]);
            continue;
        }
        const bool is_double = dtype == TAPER_FLOAT64;
        const double got = is_double ? ((double *)y.data)[i] : ((float *)y.data)[i];
        const double bound = exact ? 0 : (is_double ? 4e-16 : 2.5e-7) * (2 + 2 * fabs(want[i]));
        CHECK(fabs(got - want[i]) <= bound, "%s %lld of %lld: %.17g, not %.17g", law, (long long)i,
              (long long)n, got, want[i]);
    }
    CHECK(same_state(after, t), "%s %lld: the state after it", law, (long long)n);
    check_free(y.data);
    check_free(state);
    check_free(after);
    free(integers);
    free(want);
}

static void laws(void) {
    static const struct {
        const char *name;
        taper_dtype dtype;
        int64_t limit;
    } all[] = {
        {"uniform", TAPER_FLOAT32, 0},       {"uniform", TAPER_FLOAT64, 0},
        {"normal", TAPER_FLOAT32, 0},        {"normal", TAPER_FLOAT64, 0},
        {"half_normal", TAPER_FLOAT32, 0},   {"serial_normal", TAPER_FLOAT32, 0},
        {"serial_normal", TAPER_FLOAT64, 0}, {"integer", TAPER_INT64, 1},
        {"integer", TAPER_INT64, 7},         {"integer", TAPER_INT64, (1 << 28) - 1},
        {"integer", TAPER_INT64, 1 << 28},   {"integer", TAPER_INT64, INT64_MAX},
        {"integer", TAPER_INT64, 0},         {"permutation", TAPER_INT64, 0},
    };
    static const int64_t sizes[] = {0, 1, 2, 7, 15, 16, 17, 40, 624, 625, 1024, 1031, 2050, MOST};
    struct twister t;
    seed(&t, 3);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
            check_law(&t, all[i].name, all[i].dtype, all[i].limit, sizes[n]);
}

/* Quotients next to integers, which rounding would change to the next integer. */
static void remainders(void) {
    struct twister t;
    seed(&t, 4);
    for (int64_t limit = 1; limit < 1 << 28; limit = limit * 5 / 2 + 1)
        check_law(&t, "integer", TAPER_INT64, limit, 1500);
}

static void not_served(void) {
    int64_t state[STATE_SIZE] = {0};
    float numbers[4];
    taper_tensor inputs[] = {state_of(state),
                             check_tensor(numbers, TAPER_FLOAT32, 1, (int64_t[]){4})};
    const taper_tensor next = state_of(state);
    struct random_attrs attrs = {{NULL, 0}, "float32", "integer", 9};
    CHECK(check_run("RANDOM", NULL, inputs, 1, &inputs[1], &attrs, 1) == TAPER_UNSUPPORTED,
          "integers that are floats");
    attrs.law = "cauchy";
    CHECK(check_run("RANDOM", NULL, inputs, 1, &inputs[1], &attrs, 1) == TAPER_UNSUPPORTED,
          "an unknown law");
    attrs.law = "uniform";
    const struct random_next_attrs attrs_next = {"uniform", 0};
    for (int bad = 0; bad < 2; bad++) {
        state[USED] = bad ? -1 : WORDS + 1;
        CHECK(check_run("RANDOM", NULL, inputs, 1, &inputs[1], &attrs, 1) == TAPER_BAD_INDEX,
              "no state");
        CHECK(check_run("RANDOM_NEXT", NULL, inputs, 2, &next, &attrs_next, 1) == TAPER_BAD_INDEX,
              "no state");
    }
    inputs[0].shape[0]--;
    CHECK(check_run("RANDOM", NULL, inputs, 1, &inputs[1], &attrs, 1) == TAPER_UNSUPPORTED,
          "too short");
}

static const check_case cases[] = {{"word_10000", word_10000},
                                   {"laws", laws},
                                   {"remainders", remainders},
                                   {"not_served", not_served}};

/* ---- benchmarks ---- */

static void bench(const char *name, const char *law, taper_dtype dtype, int64_t limit, int64_t n) {
    struct twister t;
    seed(&t, 1);
    int64_t state[STATE_SIZE];
    store(&t, state);
    const double bytes = (double)n * (double)taper_dtype_size(dtype);
    const taper_tensor x = state_of(state);
    const taper_tensor y = check_tensor(malloc((size_t)bytes), dtype, 1, &n);
    const struct random_attrs attrs = {{&n, 1}, taper_dtype_name(dtype), law, limit};
    check_bench_op(name, "RANDOM", NULL, &x, 1, &y, &attrs, 0, bytes);
    free(y.data);
}

static void bench_10(void) { bench("uniform, 10", "uniform", TAPER_FLOAT32, 0, 10); }
static void bench_uniform(void) { bench("uniform, 1e5", "uniform", TAPER_FLOAT32, 0, 100000); }
static void bench_doubles(void) { bench("doubles, 1e5", "uniform", TAPER_FLOAT64, 0, 100000); }
static void bench_normal(void) { bench("normal, 1e5", "normal", TAPER_FLOAT32, 0, 100000); }
static void bench_integer(void) { bench("integer, 1e5", "integer", TAPER_INT64, 1000, 100000); }
static void bench_order(void) { bench("permutation, 1e5", "permutation", TAPER_INT64, 0, 100000); }

static const check_case benches[] = {{"10", bench_10},           {"uniform", bench_uniform},
                                     {"doubles", bench_doubles}, {"normal", bench_normal},
                                     {"integer", bench_integer}, {"permutation", bench_order}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
