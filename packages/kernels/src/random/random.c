/*
 * RANDOM draws numbers from the state of a Mersenne Twister. RANDOM_NEXT computes the state after
 * that.
 *
 * The state is [STATE_SIZE]: the twister's words, how many of them are used, whether a normal is
 * left over from a pair, and its bits. Words are drawn one after the other, so a node is one task.
 * RANDOM_NEXT twists as often as RANDOM, which is a tenth of the work of drawing, but makes no
 * numbers.
 *
 * M. Matsumoto and T. Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform
 * pseudorandom number generator", 1998. G. Box and M. Muller, "A note on the generation of random
 * normal deviates", 1958. docs/random-numbers.md describes how numbers are made from words.
 */
#include <math.h>
#include <string.h>

#include "common/tensor.h"
#include "isa/isa.h"
#include "random/kernels.inc"
#include "simd/math.h"

TAPER_DEFINE_ATTRS(random)
TAPER_DEFINE_ATTRS(random_next)

enum {
    WORDS = 624,
    MIDDLE = 397,
    USED = WORDS, /* places in a state */
    HAS_NORMAL,
    NORMAL,
    STATE_SIZE,
    TILE = 1024,           /* numbers that are made at a time; their words stay in L1 */
    BLOCK = 16,            /* normals that are made together where there are so many */
    LARGE_LIMIT = 1 << 28, /* integers below this limit or a higher one take two words each */
    /* torch draws permutations of this size and longer ones otherwise; they are refused. */
    MAX_PERMUTATION = (int)(UINT32_MAX / 20),
};

#define TWO_PI 6.283185307179586

/* A state in use, and the words of a tile. */
struct generator {
    uint32_t key[WORDS + 1]; /* the first once more at the end while they are twisted */
    int64_t used;
    bool has_normal;
    double normal;
    uint32_t words[2 * TILE];
    float parts[TILE]; /* of normals */
};

struct random_state;

/* Draws numbers [first, last) of y. */
typedef void random_fill(const struct random_state *s, struct generator *g, void *y, int64_t first,
                         int64_t last);

struct random_state {
    random_fill *fill;
    int64_t count, limit;
    int64_t words;  /* for all numbers, where the count of words is known */
    bool serial;    /* the count is not known: a normal may be left over */
    int64_t whole;  /* numbers in full blocks; a last block for the others overlaps them */
    int64_t passed; /* words that are drawn and not used, before the last block */
};

/* ---- words ---- */

/* Computes words [first, last) from those `ahead` of them. */
TENSOR_INLINE void twist_words(uint32_t *key, int64_t first, int64_t last, const int64_t ahead) {
    for (int64_t i = first; i < last; i++) {
        const uint32_t pair = (key[i] & 0x80000000u) | (key[i + 1] & 0x7fffffffu);
        key[i] = key[i + ahead] ^ (pair >> 1) ^ ((0 - (pair & 1)) & 0x9908b0dfu);
    }
}

static __attribute__((noinline)) void twist(struct generator *g) {
    twist_words(g->key, 0, WORDS - MIDDLE, MIDDLE);
    g->key[WORDS] = g->key[0];
    twist_words(g->key, WORDS - MIDDLE, WORDS, MIDDLE - WORDS);
    g->used = 0;
}

static void skip_words(struct generator *g, int64_t n) {
    while (n > WORDS - g->used) {
        n -= WORDS - g->used;
        twist(g);
    }
    g->used += n;
}

/* Returns the next n words, n <= 2 TILE. */
static const uint32_t *draw_words(struct generator *g, int64_t n) {
    for (int64_t drawn = 0; drawn < n;) {
        if (g->used == WORDS)
            twist(g);
        const int64_t part = i64_min(n - drawn, WORDS - g->used);
        const uint32_t *restrict key = g->key + g->used;
        uint32_t *restrict words = g->words + drawn;
        for (int64_t i = 0; i < part; i++) {
            uint32_t word = key[i];
            word ^= word >> 11;
            word ^= word << 7 & 0x9d2c5680u;
            word ^= word << 15 & 0xefc60000u;
            words[i] = word ^ word >> 18;
        }
        g->used += part;
        drawn += part;
    }
    return g->words;
}

/* Returns false if data is not a state. */
static bool generator_load(struct generator *g, const int64_t *data) {
    g->used = data[USED];
    g->has_normal = data[HAS_NORMAL] != 0;
    memcpy(&g->normal, data + NORMAL, sizeof g->normal);
    for (int64_t i = 0; i < WORDS; i++)
        g->key[i] = (uint32_t)data[i];
    return g->used >= 0 && g->used <= WORDS;
}

static void generator_store(const struct generator *g, int64_t *data) {
    for (int64_t i = 0; i < WORDS; i++)
        data[i] = g->key[i];
    data[USED] = g->used;
    data[HAS_NORMAL] = g->has_normal;
    data[NORMAL] = 0;
    if (g->has_normal)
        memcpy(data + NORMAL, &g->normal, sizeof g->normal);
}

/* ---- uniform in [0, 1) ---- */

TENSOR_INLINE float f32_number(uint32_t word) {
    return (float)(int32_t)(word & 0xffffff) * 0x1p-24f;
}

static void f32_uniform(const struct random_state *s, struct generator *g, void *data,
                        int64_t first, int64_t last) {
    const uint32_t *restrict words = draw_words(g, last - first);
    float *restrict y = (float *)data + first;
    (void)s;
    for (int64_t i = 0; i < last - first; i++)
        y[i] = f32_number(words[i]);
}

/* Converts the lower 53 bits of two words, the upper one first: in two parts, whose sum is exact.
 */
static void f64_uniform(const struct random_state *s, struct generator *g, void *data,
                        int64_t first, int64_t last) {
    const uint32_t *restrict words = draw_words(g, 2 * (last - first));
    double *restrict y = (double *)data + first;
    (void)s;
    for (int64_t i = 0; i < last - first; i++) {
        const double high = (int32_t)(words[2 * i] & 0x1fffff);
        const double low = (int32_t)(words[2 * i + 1] ^ 0x80000000u); /* below by 2^31 */
        y[i] = high * 0x1p-21 + (low + 0x1p31) * 0x1p-53;
    }
}

/* ---- normal ---- */

/* Turns blocks of 8 radii and 8 angles into cosines and sines. Radii and angles are stored
 * separately, because vectors may be longer than a block. */
static void f32_normal(const struct random_state *s, struct generator *g, void *data, int64_t first,
                       int64_t last) {
    enum { HALF = BLOCK / 2 };
    const uint32_t *words = draw_words(g, last - first);
    float *radii = g->parts, *angles = g->parts + TILE / 2, *y = (float *)data + first;
    const int64_t blocks = (last - first) / BLOCK;
    (void)s;
    for (int64_t b = 0; b < blocks; b++, words += BLOCK)
        for (int64_t i = 0; i < HALF; i++) {
            radii[b * HALF + i] = 1.0f - f32_number(words[i]);
            angles[b * HALF + i] = (float)TWO_PI * f32_number(words[HALF + i]);
        }
    for (int64_t i = 0; i < blocks * HALF; i += V_LEN) { /* nothing behind them is read */
        const vf log = v_log_bounded(v_load(radii + i)), angle = v_load(angles + i);
        const vf radius = v_sqrt(v_mul(v_set1(-2.0f), log));
        v_store(radii + i, v_mul(radius, v_sin_bounded(angle, 1)));
        v_store(angles + i, v_mul(radius, v_sin_bounded(angle, 0)));
    }
    for (int64_t b = 0; b < blocks; b++, y += BLOCK) {
        memcpy(y, radii + b * HALF, HALF * sizeof *y);
        memcpy(y + HALF, angles + b * HALF, HALF * sizeof *y);
    }
}

static void f64_normal(const struct random_state *s, struct generator *g, void *data, int64_t first,
                       int64_t last) {
    f64_uniform(s, g, data, first, last);
    for (double *y = (double *)data + first; y < (double *)data + last; y += BLOCK)
        for (int64_t i = 0; i < BLOCK / 2; i++) {
            const double radius = sqrt(-2 * log(1 - y[i])), angle = TWO_PI * y[BLOCK / 2 + i];
            y[i] = radius * cos(angle);
            y[BLOCK / 2 + i] = radius * sin(angle);
        }
}

/* Makes normals one after the other, in pairs: the second of a pair may be left for the next call.
 */
static double serial_normal(struct generator *g) {
    g->has_normal = !g->has_normal;
    if (!g->has_normal)
        return g->normal;
    double u[2];
    f64_uniform(NULL, g, u, 0, 2);
    const double radius = sqrt(-2 * log1p(-u[1])), angle = TWO_PI * u[0];
    g->normal = radius * sin(angle);
    return radius * cos(angle);
}

static void f32_serial_normal(const struct random_state *s, struct generator *g, void *data,
                              int64_t first, int64_t last) {
    (void)s;
    for (int64_t i = first; i < last; i++)
        ((float *)data)[i] = (float)serial_normal(g);
}

static void f64_serial_normal(const struct random_state *s, struct generator *g, void *data,
                              int64_t first, int64_t last) {
    (void)s;
    for (int64_t i = first; i < last; i++)
        ((double *)data)[i] = serial_normal(g);
}

/* Passes over n normals: only the last pair is made, if one of its normals is left over. */
static void skip_serial_normals(struct generator *g, int64_t n) {
    if (n > 0 && g->has_normal) {
        g->has_normal = false;
        n--;
    }
    skip_words(g, n / 2 * 4);
    if (n % 2)
        serial_normal(g);
}

/* ---- integers ---- */

/* Makes integers below the limit, which is less than LARGE_LIMIT: then a quotient in float64, which
 * vectors can compute, never rounds up to an integer. */
static void i64_below(const struct random_state *s, struct generator *g, void *data, int64_t first,
                      int64_t last) {
    const uint32_t *restrict words = draw_words(g, last - first);
    int64_t *restrict y = (int64_t *)data + first;
    const double limit = (double)s->limit;
    for (int64_t i = 0; i < last - first; i++) {
        const double word = (double)(int32_t)(words[i] ^ 0x80000000u) + 0x1p31;
        y[i] = (int32_t)(word - floor(word / limit) * limit);
    }
}

/* Makes integers from two words, the upper one first: below the limit, or any integer if it is 0.
 */
static void i64_wide(const struct random_state *s, struct generator *g, void *data, int64_t first,
                     int64_t last) {
    const uint32_t *words = draw_words(g, 2 * (last - first));
    int64_t *y = data;
    for (int64_t i = first; i < last; i++, words += 2) {
        const uint64_t word = (uint64_t)words[0] << 32 | words[1];
        y[i] = (int64_t)(s->limit ? word % (uint64_t)s->limit : word);
    }
}

/* Swaps each element except the last with one that is not before it. */
static void i64_permutation(const struct random_state *s, struct generator *g, void *data,
                            int64_t first, int64_t last) {
    int64_t *y = data;
    for (int64_t i = 0; first == 0 && i < s->count; i++)
        y[i] = i;
    last -= last == s->count;
    const uint32_t *words = draw_words(g, last - first);
    for (int64_t i = first; i < last; i++) {
        const int64_t other = i + words[i - first] % (uint32_t)(s->count - i), moved = y[i];
        y[i] = y[other];
        y[other] = moved;
    }
}

/* ---- prepare ---- */

static const struct random_law {
    const char *name;
    int32_t dtype;
    random_fill *fill;
    int64_t words;    /* of a number; 0: two for each number of a pair */
    random_fill *few; /* for fewer than BLOCK; NULL: the same function, without blocks */
    bool redrawn; /* the words of an incomplete last block are drawn and not used; then a full block
                     is drawn, which overlaps others */
} random_laws[] = {
    {"uniform", TAPER_FLOAT32, f32_uniform, 1, NULL, false},
    {"uniform", TAPER_FLOAT64, f64_uniform, 2, NULL, false},
    {"normal", TAPER_FLOAT32, f32_normal, 1, f32_serial_normal, true},
    {"normal", TAPER_FLOAT64, f64_normal, 2, f64_serial_normal, true},
    {"half_normal", TAPER_FLOAT32, f32_normal, 1, f32_serial_normal, false},
    {"serial_normal", TAPER_FLOAT32, f32_serial_normal, 0, NULL, false},
    {"serial_normal", TAPER_FLOAT64, f64_serial_normal, 0, NULL, false},
    {"integer", TAPER_INT64, i64_below, 1, NULL, false},
    {"permutation", TAPER_INT64, i64_permutation, 1, NULL, false},
};

static taper_status random_prepare(const taper_call *call, const taper_tensor *drawn,
                                   const char *name, int64_t limit, taper_work *work) {
    struct random_state *s = call->state;
    const struct random_law *law = random_laws, *end = law + sizeof random_laws / sizeof *law;
    while (law < end && (drawn->dtype != law->dtype || strcmp(name, law->name) != 0))
        law++;
    if (law == end || limit < 0 || !tensor_is(&call->inputs[0], TAPER_INT64, STATE_SIZE))
        return TAPER_UNSUPPORTED;
    *s = (struct random_state){law->fill, tensor_numel(drawn), limit, 0, false, 0, 0};
    int64_t words = law->words, rest = 0;
    if (law->few && s->count < BLOCK) {
        s->fill = law->few;
        words = 0;
    } else if (law->few) {
        rest = s->count % BLOCK;
    } else if (law->fill == i64_below && (limit == 0 || limit >= LARGE_LIMIT)) {
        s->fill = i64_wide;
        words = 2;
    } else if (law->fill == i64_permutation && s->count >= MAX_PERMUTATION) {
        return TAPER_UNSUPPORTED;
    }
    s->serial = words == 0;
    s->whole = s->count - rest;
    s->passed = law->redrawn ? rest * words : 0;
    s->words = (s->whole + (rest ? BLOCK : 0)) * words + s->passed;
    if (law->fill == i64_permutation && s->count > 0)
        s->words--;
    *work = (taper_work){.tasks = 1, .scratch_bytes = sizeof(struct generator)};
    return TAPER_OK;
}

static taper_status any_random_prepare(const taper_call *call, taper_work *work) {
    const struct random_attrs *attrs = call->attrs;
    if (call->n_inputs != 1 || !tensor_is_contiguous(call->output))
        return TAPER_UNSUPPORTED;
    return random_prepare(call, call->output, attrs->law, attrs->limit, work);
}

static taper_status any_random_next_prepare(const taper_call *call, taper_work *work) {
    const struct random_next_attrs *attrs = call->attrs;
    if (call->n_inputs != 2 || !tensor_is(call->output, TAPER_INT64, STATE_SIZE))
        return TAPER_UNSUPPORTED;
    return random_prepare(call, &call->inputs[1], attrs->law, attrs->limit, work);
}

/* ---- run ---- */

static taper_status any_random_run(const taper_call *call, int64_t begin, int64_t end,
                                   void *scratch) {
    const struct random_state *s = call->state;
    struct generator *g = scratch;
    void *y = call->output->data;
    if (begin == end)
        return TAPER_OK;
    if (!generator_load(g, call->inputs[0].data))
        return TAPER_BAD_INDEX;
    for (int64_t i = 0; i < s->whole; i += TILE)
        s->fill(s, g, y, i, i64_min(i + TILE, s->whole));
    if (s->whole < s->count) {
        skip_words(g, s->passed);
        s->fill(s, g, y, s->count - BLOCK, s->count);
    }
    return TAPER_OK;
}

static taper_status any_random_next_run(const taper_call *call, int64_t begin, int64_t end,
                                        void *scratch) {
    const struct random_state *s = call->state;
    struct generator *g = scratch;
    if (begin == end)
        return TAPER_OK;
    if (!generator_load(g, call->inputs[0].data))
        return TAPER_BAD_INDEX;
    if (s->serial)
        skip_serial_normals(g, s->count);
    else
        skip_words(g, s->words);
    generator_store(g, call->output->data);
    return TAPER_OK;
}

/* ---- table ---- */

#define TAPER_KERNEL_ROWS
static const taper_kernel random_kernels[] = {
#include "random/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_random);
const taper_family TAPER_ISA_SYM(taper_random) = {TAPER_ROWS(random_kernels)};
