/* Compares ATTENTION with double. */
#include "check.h"
#include "attention/kernels.inc"

#include <math.h>

CHECK_ATTRS(attention)

/* The bound: float32 epsilons of the largest value to which a row attends, times the size of the
 * errors of the exponents, which are those of the scores. */
enum { EPSILONS = 16 };

typedef enum mask_kind { NO_MASK, BOOL_MASK, FLOAT_MASK } mask_kind;
typedef enum layout {
    CONTIGUOUS, /* [B, H, L, D] */
    PROJECTED,  /* [B, L, H, D] seen as [B, H, L, D] */
    FUSED,      /* a third of [B, L, 3, H, D], so seen */
    TRANSPOSED, /* [B, H, D, L] so seen */
    BROADCAST   /* heads of stride 0 */
} layout;

typedef struct attention_case {
    int64_t batch, heads, kv_heads, lq, lk, d, dv;
    layout layout;
    mask_kind mask;
    unsigned mask_dims; /* bit i: dimension i of the mask is not broadcast; 0 batch, ... 3 key */
    int mask_rank;      /* 0 is 4 */
    bool mask_transposed;
    float masked; /* share of keys */
    bool causal;
    int64_t diagonal;
    bool not_safe;
    bool transpose_output;
    float range; /* of the queries; 0 is 1 */
    size_t misalign;
} attention_case;

typedef struct attention_node {
    const attention_case *c;
    taper_tensor inputs[4];
    int n_inputs;
    taper_tensor output;
    void *data[5]; /* what to free */
    struct attention_attrs attrs;
} attention_node;

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* A [batch, heads, rows, cols] view of memory of the case's layout. */
static taper_tensor operand_make(void **data, const attention_case *c, int64_t heads, int64_t rows,
                                 int64_t cols, float low, float high) {
    taper_tensor t = check_tensor(NULL, TAPER_FLOAT32, 4, (int64_t[]){c->batch, heads, rows, cols});
    int64_t *s = t.strides, numel = c->batch * heads * rows * cols;
    const int64_t apart = c->layout == FUSED ? 3 : 1;
    if (c->layout == PROJECTED || c->layout == FUSED) {
        s[0] = rows * apart * heads * cols;
        s[1] = cols;
        s[2] = apart * heads * cols;
        numel = numel ? numel + (c->batch * rows - 1) * (apart - 1) * heads * cols : 0;
    } else if (c->layout == TRANSPOSED) {
        s[2] = 1;
        s[3] = rows;
    } else if (c->layout == BROADCAST) {
        s[0] = rows * cols;
        s[1] = 0;
        numel = c->batch * rows * cols;
    }
    *data = t.data = check_alloc((size_t)numel * sizeof(float), c->misalign);
    if (apart == 1) /* elements between stay NaN */
        check_fill_uniform(t.data, numel, low, high);
    else
        for (int64_t i = 0; i < (numel ? c->batch * rows : 0); i++)
            check_fill_uniform((float *)t.data + i * s[2], heads * cols, low, high);
    return t;
}

static taper_tensor mask_make(void **data, const attention_case *c) {
    const int64_t sizes[] = {c->batch, c->heads, c->lq, c->lk};
    int64_t dims[4];
    for (int i = 0; i < 4; i++)
        dims[i] = c->mask_dims >> i & 1 ? sizes[i] : 1;
    const int rank = c->mask_rank ? c->mask_rank : 4;
    taper_tensor t = check_tensor(NULL, c->mask == BOOL_MASK ? TAPER_BOOL : TAPER_FLOAT32, rank,
                                  dims + 4 - rank);
    if (c->mask_transposed) {
        t.strides[rank - 2] = 1;
        t.strides[rank - 1] = dims[2];
    }
    const int64_t numel = check_numel(&t);
    *data = t.data = check_alloc((size_t)numel * taper_dtype_size(t.dtype), c->misalign % 8);
    for (int64_t i = 0; i < numel; i++) {
        const bool attend = check_uniform(0.0f, 1.0f) >= c->masked;
        if (c->mask == BOOL_MASK)
            ((uint8_t *)t.data)[i] = attend;
        else
            ((float *)t.data)[i] = attend ? check_uniform(-2.0f, 2.0f) : -INFINITY;
    }
    return t;
}

static void node_make(attention_node *node, const attention_case *c) {
    memset(node, 0, sizeof *node);
    const float range = c->range > 0.0f ? c->range : 1.0f;
    node->c = c;
    node->inputs[0] = operand_make(&node->data[0], c, c->heads, c->lq, c->d, -range, range);
    node->inputs[1] = operand_make(&node->data[1], c, c->kv_heads, c->lk, c->d, -1.0f, 1.0f);
    node->inputs[2] = operand_make(&node->data[2], c, c->kv_heads, c->lk, c->dv, -1.0f, 1.0f);
    node->n_inputs = 3;
    if (c->mask != NO_MASK)
        node->inputs[node->n_inputs++] = mask_make(&node->data[3], c);
    const int64_t plain[] = {c->batch, c->heads, c->lq, c->dv};
    const int64_t transposed[] = {c->batch, c->lq, c->heads, c->dv};
    node->output = check_tensor(NULL, TAPER_FLOAT32, 4, c->transpose_output ? transposed : plain);
    node->data[4] = node->output.data =
        check_alloc((size_t)check_numel(&node->output) * sizeof(float), c->misalign);
    node->attrs = (struct attention_attrs){1.0 / sqrt((double)max_of(1, c->d)), c->causal,
                                           c->diagonal, !c->not_safe, c->transpose_output};
}

static void node_free(attention_node *node) {
    for (int i = 0; i < 5; i++)
        if (node->data[i])
            check_free(node->data[i]);
}

static double at4(const taper_tensor *t, int64_t a, int64_t b, int64_t i, int64_t j) {
    const int64_t index[] = {a, b, i, j};
    int64_t offset = 0;
    for (int d = 0; d < t->rank; d++)
        offset += t->shape[d] == 1 ? 0 : index[4 - t->rank + d] * t->strides[d];
    if (t->dtype == TAPER_BOOL)
        return ((const uint8_t *)t->data)[offset] ? 0.0 : -INFINITY;
    return ((const float *)t->data)[offset];
}

/* Computes row [b][h][i]: its weights into w [lk]. Returns false if it attends to no key. */
static bool reference_weights(const attention_node *node, int64_t b, int64_t h, int64_t i,
                              double *w) {
    const attention_case *c = node->c;
    const int64_t kv = h / (c->heads / c->kv_heads);
    double max = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < c->lk; j++) {
        w[j] = 0.0;
        for (int64_t d = 0; d < c->d; d++)
            w[j] += at4(&node->inputs[0], b, h, i, d) * at4(&node->inputs[1], b, kv, j, d);
        w[j] *= node->attrs.scale;
        if (c->mask != NO_MASK)
            w[j] += at4(&node->inputs[3], b, h, i, j);
        if (c->causal && j > i + c->diagonal)
            w[j] = -INFINITY;
        max = fmax(max, w[j]);
    }
    for (int64_t j = 0; j < c->lk; j++)
        sum += w[j] = max == -INFINITY ? 0.0 : exp(w[j] - max);
    for (int64_t j = 0; j < c->lk; j++)
        w[j] /= sum > 0.0 ? sum : 1.0;
    return sum > 0.0;
}

static void node_check(const attention_node *node) {
    const attention_case *c = node->c;
    const double range = c->range > 0.0f ? (double)c->range : 1.0;
    const double bound = EPSILONS * 0x1p-24 * (1.0 + range * sqrt((double)max_of(1, c->d)) / 4);
    double *w = malloc((size_t)(c->lk + 1) * sizeof *w);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t i = 0; i < c->lq; i++) {
                const bool attends = reference_weights(node, b, h, i, w);
                const int64_t kv = h / (c->heads / c->kv_heads);
                for (int64_t e = 0; e < c->dv; e++) {
                    double want = 0.0;
                    for (int64_t j = 0; j < c->lk; j++)
                        want += w[j] * at4(&node->inputs[2], b, kv, j, e);
                    if (!attends && c->not_safe && c->lk > 0)
                        want = NAN;
                    const double got = c->transpose_output ? at4(&node->output, b, i, h, e)
                                                           : at4(&node->output, b, h, i, e);
                    CHECK(isnan(want) ? isnan(got) : fabs(got - want) <= bound,
                          "[%d,%d,%d,%d] of Lk %d, D %d, Dv %d: %.9g, not %.9g", (int)b, (int)h,
                          (int)i, (int)e, (int)c->lk, (int)c->d, (int)c->dv, got, want);
                }
            }
    free(w);
}

static void check_attention(attention_case c) {
    attention_node node;
    node_make(&node, &c);
    check_threads("ATTENTION", NULL, node.inputs, node.n_inputs, &node.output, &node.attrs);
    node_check(&node);
    node_free(&node);
}

static void compare_node(void *node) { node_check(node); }

/* Each variant computes any number of rows, with and without masks. Dot products need keys whose
 * elements are contiguous. */
static void every_variant(void) {
    static const int64_t rows[] = {1, 3, 4, 5, 33, 150};
    for (int i = 0; i < 6; i++)
        for (int layouts = 0; layouts < 2; layouts++) {
            attention_case c = {.batch = 2, .heads = 4, .kv_heads = 2, .lq = rows[i], .lk = 300};
            c.d = 20;
            c.dv = 17;
            c.layout = layouts ? TRANSPOSED : PROJECTED;
            c.causal = i % 2 == 1;
            c.diagonal = 200;
            attention_node node;
            node_make(&node, &c);
            const int served = check_variants("ATTENTION", node.inputs, node.n_inputs, &node.output,
                                              &node.attrs, compare_node, &node);
            CHECK(served == (node.inputs[1].strides[3] == 1 ? 2 : 1), "%d rows: %d variants",
                  (int)rows[i], served);
            node_free(&node);
        }
}

static void lengths(void) {
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 15, 16, 17, 29, 33};
    enum { N = sizeof sizes / sizeof sizes[0] };
    for (int q = 0; q < N; q++)
        for (int k = 0; k < N; k++)
            check_attention((attention_case){.batch = 1,
                                             .heads = 2,
                                             .kv_heads = 2,
                                             .lq = sizes[q],
                                             .lk = sizes[k],
                                             .d = 16,
                                             .dv = 16});
}

static void head_sizes(void) {
    static const int64_t sizes[] = {1, 3, 8, 15, 16, 17, 24, 32, 33, 64, 80, 100};
    enum { N = sizeof sizes / sizeof sizes[0] };
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j += 2)
            for (int64_t lq = 1; lq <= 41; lq += 20)
                check_attention((attention_case){.batch = 1,
                                                 .heads = 1,
                                                 .kv_heads = 1,
                                                 .lq = lq,
                                                 .lk = 19,
                                                 .d = sizes[i],
                                                 .dv = sizes[(i + j) % N]});
}

static void large_heads(void) {
    check_attention((attention_case){
        .batch = 1, .heads = 1, .kv_heads = 1, .lq = 70, .lk = 150, .d = 520, .dv = 300});
}

/* Several blocks of keys, several of queries, and both. */
static void many_blocks(void) {
    static const int64_t sizes[][2] = {{3, 255},  {3, 256},   {3, 257},  {1, 1000},  {5, 1000},
                                       {40, 700}, {600, 300}, {300, 40}, {130, 1030}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_attention((attention_case){.batch = 1,
                                         .heads = 1,
                                         .kv_heads = 1,
                                         .lq = sizes[i][0],
                                         .lk = sizes[i][1],
                                         .d = 32,
                                         .dv = 40});
}

static void layouts(void) {
    for (layout l = CONTIGUOUS; l <= BROADCAST; l++)
        for (int64_t lq = 1; lq <= 51; lq += 25)
            for (int transpose = 0; transpose < 2; transpose++)
                check_attention((attention_case){.batch = 2,
                                                 .heads = 3,
                                                 .kv_heads = 3,
                                                 .lq = lq,
                                                 .lk = 37,
                                                 .d = 20,
                                                 .dv = 24,
                                                 .layout = l,
                                                 .transpose_output = transpose});
}

static void causal(void) {
    static const int64_t sizes[][2] = {{1, 1},    {17, 17}, {64, 64},   {100, 30},
                                       {30, 100}, {70, 64}, {300, 600}, {600, 300}};
    static const int64_t diagonals[] = {0, -1, 1, -20, 40, 1000, -1000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t k = 0; k < sizeof diagonals / sizeof diagonals[0]; k++)
            for (int unsafe = 0; unsafe < (sizes[i][0] < 300 ? 2 : 1); unsafe++)
                check_attention((attention_case){.batch = 1,
                                                 .heads = 2,
                                                 .kv_heads = 2,
                                                 .lq = sizes[i][0],
                                                 .lk = sizes[i][1],
                                                 .d = 16,
                                                 .dv = 16,
                                                 .causal = true,
                                                 .diagonal = diagonals[k],
                                                 .not_safe = unsafe});
    /* Decoding: the last query attends to every key. */
    check_attention((attention_case){.batch = 2,
                                     .heads = 2,
                                     .kv_heads = 2,
                                     .lq = 1,
                                     .lk = 500,
                                     .d = 16,
                                     .dv = 16,
                                     .causal = true,
                                     .diagonal = 499});
}

static void grouped_heads(void) {
    static const int64_t heads[][2] = {{4, 1}, {6, 2}, {6, 3}, {8, 8}};
    for (size_t i = 0; i < 4; i++)
        for (int64_t lq = 1; lq <= 61; lq += 30)
            for (int is_causal = 0; is_causal < 2; is_causal++)
                check_attention((attention_case){.batch = 2,
                                                 .heads = heads[i][0],
                                                 .kv_heads = heads[i][1],
                                                 .lq = lq,
                                                 .lk = 70,
                                                 .d = 16,
                                                 .dv = 17,
                                                 .layout = PROJECTED,
                                                 .mask = is_causal ? NO_MASK : BOOL_MASK,
                                                 .mask_dims = 15,
                                                 .masked = 0.3f,
                                                 .causal = is_causal,
                                                 .diagonal = 70 - lq,
                                                 .transpose_output = true});
}

static void mask_broadcasts(void) {
    for (mask_kind kind = BOOL_MASK; kind <= FLOAT_MASK; kind++)
        for (unsigned dims = 0; dims < 16; dims++)
            for (int transposed = 0; transposed < 2; transposed++)
                for (int64_t lq = 1; lq <= 38; lq += 37)
                    check_attention((attention_case){.batch = 2,
                                                     .heads = 4,
                                                     .kv_heads = 2,
                                                     .lq = lq,
                                                     .lk = 45,
                                                     .d = 8,
                                                     .dv = 9,
                                                     .mask = kind,
                                                     .mask_dims = dims,
                                                     .mask_transposed = transposed,
                                                     .masked = 0.4f});
    for (int rank = 1; rank < 4; rank++)
        check_attention((attention_case){.batch = 2,
                                         .heads = 2,
                                         .kv_heads = 2,
                                         .lq = 20,
                                         .lk = 21,
                                         .d = 8,
                                         .dv = 8,
                                         .mask = FLOAT_MASK,
                                         .mask_dims = 15,
                                         .mask_rank = rank,
                                         .masked = 0.4f});
    for (mask_kind kind = BOOL_MASK; kind <= FLOAT_MASK; kind++) /* in several blocks of keys */
        for (unsigned dims = 8; dims < 16; dims += 4)
            check_attention((attention_case){.batch = 1,
                                             .heads = 2,
                                             .kv_heads = 1,
                                             .lq = 40,
                                             .lk = 600,
                                             .d = 8,
                                             .dv = 8,
                                             .mask = kind,
                                             .mask_dims = dims,
                                             .masked = 0.5f,
                                             .causal = dims == 8,
                                             .diagonal = 300});
}

/* The mask excludes whole rows, whole blocks of keys, and all keys before a row's first one. */
static void masked_rows(void) {
    static const float shares[] = {0.7f, 0.99f, 1.0f};
    for (mask_kind kind = BOOL_MASK; kind <= FLOAT_MASK; kind++)
        for (int k = 0; k < 3; k++)
            for (int unsafe = 0; unsafe < 2; unsafe++)
                for (int64_t lk = 3; lk < 700; lk += 696)
                    for (int64_t lq = 2; lq <= 40; lq += 38)
                        check_attention((attention_case){.batch = 1,
                                                         .heads = 2,
                                                         .kv_heads = 2,
                                                         .lq = lq,
                                                         .lk = lk,
                                                         .d = 8,
                                                         .dv = 8,
                                                         .mask = kind,
                                                         .mask_dims = 15,
                                                         .masked = shares[k],
                                                         .not_safe = unsafe});
}

/* Rows masked with the lowest number instead of -inf attend equally to all keys, as in plain
 * softmax. */
static void lowest_number(void) {
    const attention_case c = {.batch = 1,
                              .heads = 1,
                              .kv_heads = 1,
                              .lq = 20,
                              .lk = 300,
                              .d = 8,
                              .dv = 8,
                              .mask = FLOAT_MASK,
                              .mask_dims = 12};
    attention_node node;
    node_make(&node, &c);
    float *mask = node.inputs[3].data;
    for (int64_t i = 0; i < c.lq * c.lk; i++)
        mask[i] = i / c.lk % 2 || i % c.lk < 280 ? -0x1.fffffep127f : 0.0f;
    CHECK(check_run("ATTENTION", NULL, node.inputs, 4, &node.output, &node.attrs, 1) == TAPER_OK,
          "unsupported");
    for (int64_t i = 0; i < c.lq; i++)
        for (int64_t e = 0; e < c.dv; e++) {
            double mean = 0.0;
            for (int64_t j = 0; j < c.lk; j++)
                mean += at4(&node.inputs[2], 0, 0, j, e) / (double)c.lk;
            if (i % 2)
                CHECK(fabs(at4(&node.output, 0, 0, i, e) - mean) < 1e-6, "row %d", (int)i);
            else
                CHECK(isfinite(at4(&node.output, 0, 0, i, e)), "row %d", (int)i);
        }
    node_free(&node);
}

/* Keys [first, last) are live and the others masked; `gap` is the mask's column stride. */
static void mask_live(attention_node *node, int64_t first, int64_t last, int64_t gap) {
    const attention_case *c = node->c;
    taper_tensor *mask = &node->inputs[3];
    check_free(node->data[3]);
    *mask = check_tensor(NULL, mask->dtype, 2, (int64_t[]){c->lq, c->lk});
    mask->strides[0] = c->lk * gap;
    mask->strides[1] = gap;
    const size_t bytes = (size_t)(c->lq * c->lk * gap) * taper_dtype_size(mask->dtype);
    node->data[3] = mask->data = check_alloc(bytes, 0);
    for (int64_t i = 0; i < c->lq; i++)
        for (int64_t j = 0; j < c->lk; j++) {
            /* Each row attends to one key more, as with positions; the first attends only to its
             * first key. */
            const bool live = j >= first + i && j < (i ? last - c->lq + i + 1 : first + 1);
            const int64_t at = i * mask->strides[0] + j * gap;
            if (mask->dtype == TAPER_BOOL)
                ((uint8_t *)mask->data)[at] = live;
            else
                ((float *)mask->data)[at] = live ? 0.5f : -INFINITY;
        }
}

static void attention_run(const attention_node *node) {
    CHECK(check_run("ATTENTION", NULL, node->inputs, 4, &node->output, &node->attrs, 1) == TAPER_OK,
          "unsupported");
}

/* Keys that the mask excludes at both ends are not read, and the bits are those of reading them. If
 * the mask's columns are not adjacent, all keys are read. */
static void dead_ends(void) {
    static const int64_t lives[][2] = {{0, 45}, {0, 600}, {33, 90}, {300, 401}, {511, 700}};
    for (mask_kind kind = BOOL_MASK; kind <= FLOAT_MASK; kind++)
        for (int64_t lq = 1; lq <= 39; lq += 19)
            for (int i = 0; i < 5; i++) {
                const int64_t first = lives[i][0], last = lives[i][1];
                const attention_case c = {.batch = 1,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .lq = lq,
                                          .lk = 700,
                                          .d = 24,
                                          .dv = 16,
                                          .mask = kind,
                                          .mask_dims = 12};
                attention_node node;
                node_make(&node, &c);
                mask_live(&node, first, last, 2);
                attention_run(&node);
                node_check(&node);
                const size_t bytes = (size_t)check_numel(&node.output) * sizeof(float);
                float *want = malloc(bytes);
                memcpy(want, node.output.data, bytes);
                mask_live(&node, first, last, 1);
                for (int64_t h = 0; h < c.kv_heads; h++)
                    for (int64_t j = last + 48; j < c.lk; j++) {
                        ((float *)node.inputs[1].data)[(h * c.lk + j) * c.d] = NAN;
                        ((float *)node.inputs[2].data)[(h * c.lk + j) * c.dv] = NAN;
                    }
                attention_run(&node);
                CHECK(memcmp(want, node.output.data, bytes) == 0, "%d rows of [%d, %d)", (int)lq,
                      (int)first, (int)last);
                free(want);
                node_free(&node);
            }
}

static void large_scores(void) {
    for (int64_t lk = 30; lk <= 700; lk += 670)
        for (int64_t lq = 2; lq <= 40; lq += 38)
            check_attention((attention_case){.batch = 1,
                                             .heads = 2,
                                             .kv_heads = 2,
                                             .lq = lq,
                                             .lk = lk,
                                             .d = 64,
                                             .dv = 32,
                                             .range = 500.0f});
}

/* A NaN or infinity in a query makes its row NaN; one in a key does so to every row that attends to
 * it. */
static void special_values(void) {
    for (int64_t lk = 40; lk <= 600; lk += 560)
        for (int64_t lq = 3; lq <= 40; lq += 37) {
            const attention_case c = {
                .batch = 1, .heads = 2, .kv_heads = 2, .lq = lq, .lk = lk, .d = 16, .dv = 16};
            attention_node node;
            node_make(&node, &c);
            ((float *)node.data[0])[1 * c.d + 3] = NAN;            /* head 0, query 1 */
            ((float *)node.data[0])[2 * c.d + 5] = INFINITY;       /* head 0, query 2 */
            ((float *)node.data[1])[(c.lk + 20) * c.d + 15] = NAN; /* head 1, key 20 */
            CHECK(check_run("ATTENTION", NULL, node.inputs, 3, &node.output, &node.attrs, 1) ==
                      TAPER_OK,
                  "unsupported");
            for (int64_t i = 0; i < 2 * c.lq; i++) {
                const bool spoiled = i == 1 || i == 2 || i >= c.lq;
                CHECK(isnan(at4(&node.output, 0, i / c.lq, i % c.lq, 0)) == spoiled, "row %d",
                      (int)i);
            }
            node_free(&node);
        }
}

static void misaligned(void) {
    for (size_t misalign = 4; misalign < 64; misalign += 28)
        for (layout l = CONTIGUOUS; l <= FUSED; l++)
            for (int64_t lq = 1; lq < 40; lq += 32)
                check_attention((attention_case){.batch = 1,
                                                 .heads = 2,
                                                 .kv_heads = 2,
                                                 .lq = lq,
                                                 .lk = 45,
                                                 .d = 19,
                                                 .dv = 21,
                                                 .layout = l,
                                                 .mask = FLOAT_MASK,
                                                 .mask_dims = 12,
                                                 .misalign = misalign});
}

static void empty(void) {
    const attention_case none = {
        .batch = 2, .heads = 2, .kv_heads = 2, .lq = 3, .lk = 4, .d = 8, .dv = 8};
    for (int k = 0; k < 6; k++) {
        attention_case c = none;
        *(k == 0   ? &c.batch
          : k == 1 ? &c.lq
          : k == 2 ? &c.lk
          : k == 3 ? &c.d
          : k == 4 ? &c.dv
                   : &c.kv_heads) = 0;
        if (k == 5)
            c.heads = 0;
        for (int unsafe = 0; unsafe < 2; unsafe++) {
            c.not_safe = unsafe;
            check_attention(c);
        }
    }
}

static void rank_3(void) {
    for (int masked = 0; masked < 2; masked++)
        for (int64_t lq = 1; lq <= 30; lq += 29) {
            const attention_case c = {.batch = 1,
                                      .heads = 5,
                                      .kv_heads = 5,
                                      .lq = lq,
                                      .lk = 20,
                                      .d = 12,
                                      .dv = 10,
                                      .mask = masked ? BOOL_MASK : NO_MASK,
                                      .mask_dims = 14,
                                      .masked = 0.3f};
            attention_node node;
            node_make(&node, &c);
            taper_tensor inputs[4], output = node.output;
            for (int i = 0; i < 4; i++) {
                inputs[i] = node.inputs[i];
                inputs[i].rank = 3;
                memmove(inputs[i].shape, inputs[i].shape + 1, 3 * sizeof(int64_t));
                memmove(inputs[i].strides, inputs[i].strides + 1, 3 * sizeof(int64_t));
            }
            output.rank = 3;
            memmove(output.shape, output.shape + 1, 3 * sizeof(int64_t));
            memmove(output.strides, output.strides + 1, 3 * sizeof(int64_t));
            check_threads("ATTENTION", NULL, inputs, node.n_inputs, &output, &node.attrs);
            node_check(&node);
            node_free(&node);
        }
}

static void not_served(void) {
    const attention_case c = {
        .batch = 1, .heads = 3, .kv_heads = 3, .lq = 3, .lk = 4, .d = 8, .dv = 8};
    attention_node node;
    node_make(&node, &c);
    taper_tensor *k = &node.inputs[1];
    k->dtype = TAPER_FLOAT16;
    CHECK(check_run("ATTENTION", NULL, node.inputs, 3, &node.output, &node.attrs, 1) ==
              TAPER_UNSUPPORTED,
          "float16 keys");
    k->dtype = TAPER_FLOAT32;
    k->shape[1] = 2;
    CHECK(check_run("ATTENTION", NULL, node.inputs, 3, &node.output, &node.attrs, 1) ==
              TAPER_UNSUPPORTED,
          "3 heads over 2");
    node_free(&node);
}

static const check_case cases[] = {
    {"every_variant", every_variant},
    {"lengths", lengths},
    {"head_sizes", head_sizes},
    {"large_heads", large_heads},
    {"many_blocks", many_blocks},
    {"layouts", layouts},
    {"causal", causal},
    {"grouped_heads", grouped_heads},
    {"mask_broadcasts", mask_broadcasts},
    {"masked_rows", masked_rows},
    {"lowest_number", lowest_number},
    {"dead_ends", dead_ends},
    {"large_scores", large_scores},
    {"special_values", special_values},
    {"misaligned", misaligned},
    {"empty", empty},
    {"rank_3", rank_3},
    {"not_served", not_served},
};

static void bench_attention(const char *name, attention_case c) {
    attention_node node;
    node_make(&node, &c);
    /* Causal: the keys to which rows attend. */
    double pairs = 0.0;
    for (int64_t i = 0; i < c.lq; i++)
        pairs += (double)(c.causal ? i + c.diagonal + 1 : c.lk);
    const double heads = (double)(c.batch * c.heads);
    const double kv = (double)(c.batch * c.kv_heads * c.lk * (c.d + c.dv)) * 4.0;
    check_bench_op(name, "ATTENTION", NULL, node.inputs, node.n_inputs, &node.output, &node.attrs,
                   2.0 * heads * pairs * (double)(c.d + c.dv), kv);
    node_free(&node);
}

/* Layouts: as projections write them, or as in a cache. */
static void bench_encoder(void) {
    attention_case c = {.batch = 8,
                        .heads = 12,
                        .kv_heads = 12,
                        .lq = 128,
                        .lk = 128,
                        .d = 32,
                        .dv = 32,
                        .layout = PROJECTED,
                        .transpose_output = true};
    bench_attention("minilm b8 s128", c);
    c.batch = 1;
    bench_attention("minilm b1 s128", c);
    c.mask = BOOL_MASK;
    c.mask_dims = 1 | 8;
    c.masked = 0.2f;
    bench_attention("minilm b1 s128 mask", c);
    c.mask = NO_MASK;
    c.lq = c.lk = 16;
    bench_attention("minilm b1 s16", c);
    c.d = c.dv = 64;
    c.lq = c.lk = 197;
    bench_attention("vit s197", c);
    c.heads = c.kv_heads = 2;
    c.lq = c.lk = 512;
    bench_attention("bert 2 heads s512", c);
    c.heads = c.kv_heads = 16;
    c.lq = c.lk = 128;
    bench_attention("bert large s128", c);
}

static void bench_decoder(void) {
    attention_case c = {.batch = 1,
                        .heads = 12,
                        .kv_heads = 12,
                        .lq = 16,
                        .lk = 16,
                        .d = 64,
                        .dv = 64,
                        .layout = FUSED,
                        .causal = true,
                        .transpose_output = true};
    bench_attention("gpt2 s16", c);
    c.lq = c.lk = 64;
    bench_attention("gpt2 s64", c);
    c.mask = FLOAT_MASK;
    c.mask_dims = 1 | 4 | 8;
    c.causal = false;
    bench_attention("gpt2 s64 mask", c);
    c.causal = true;
    c.mask = NO_MASK;
    c.heads = c.kv_heads = 1;
    c.lq = c.lk = 1024;
    bench_attention("gpt2 1 head s1024", c);
    c.causal = false;
    c.heads = c.kv_heads = 12;
    c.layout = CONTIGUOUS;
    c.lq = 1;
    bench_attention("gpt2 1 of 1024", c);
    c.lk = 64;
    bench_attention("gpt2 1 of 64", c);
    c.heads = 32;
    c.kv_heads = 8;
    c.d = c.dv = 128;
    c.lk = 1024;
    bench_attention("llama 1 of 1024", c);
    c.lq = 8;
    bench_attention("llama 8 of 1024", c);
}

static const check_case benches[] = {{"encoder", bench_encoder}, {"decoder", bench_decoder}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
