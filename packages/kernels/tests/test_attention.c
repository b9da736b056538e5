/* Compares ATTENTION with double. */
#include "attention_case.h"

#include <math.h>

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

/* Keys and values of 16 bits give what the same numbers in float32 do; the same bits where the
 * scores are computed in the same way, which depends on whether keys are contiguous. */
static void narrow(void) {
    static const attention_case sizes[] = {
        {.batch = 2, .heads = 6, .kv_heads = 3, .lq = 1, .lk = 700, .d = 64, .dv = 32},
        {.batch = 2, .heads = 4, .kv_heads = 4, .lq = 3, .lk = 75, .d = 9, .dv = 5},
        {.batch = 1, .heads = 2, .kv_heads = 1, .lq = 70, .lk = 300, .d = 40, .dv = 17},
        {.batch = 1, .heads = 2, .kv_heads = 2, .lq = 5, .lk = 1, .d = 1, .dv = 1}};
    static const layout layouts[] = {CONTIGUOUS, PROJECTED, FUSED, TRANSPOSED, BROADCAST};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
            for (int half = 0; half < 2; half++) {
                attention_case c = sizes[i];
                c.layout = layouts[l];
                c.mask = half ? BOOL_MASK : NO_MASK;
                c.mask_dims = 15;
                c.masked = 0.3f;
                c.causal = !half && c.lq > 1;
                c.diagonal = c.lk / 2;
                attention_node node;
                node_make(&node, &c);
                taper_tensor *stored = &node.inputs[1], floats[2], narrows[2];
                for (int s = 0; s < 2; s++) {
                    floats[s] = narrows[s] = stored[s];
                    int64_t numel = 1;
                    for (int d = 0; d < 4; d++)
                        numel += (stored[s].shape[d] - 1) * stored[s].strides[d];
                    narrows[s].dtype = half ? TAPER_FLOAT16 : TAPER_BFLOAT16;
                    uint16_t *bits = narrows[s].data = check_alloc((size_t)numel * 2, 0);
                    const uint16_t one = half ? 0x3c00 : 0x3f80;
                    for (int64_t e = 0; e < numel; e++) { /* below 1, of both signs */
                        bits[e] = (uint16_t)(check_int(0, one) | check_int(0, 1) << 15);
                        ((float *)floats[s].data)[e] = check_from_half(narrows[s].dtype, bits[e]);
                    }
                }
                const size_t bytes = (size_t)check_numel(&node.output) * sizeof(float);
                float *want = check_alloc(bytes, 0);
                CHECK(check_run("ATTENTION", NULL, node.inputs, node.n_inputs, &node.output,
                                &node.attrs, 1) == TAPER_OK,
                      "not run");
                memcpy(want, node.output.data, bytes);
                memcpy(stored, narrows, sizeof narrows);
                check_threads("ATTENTION", NULL, node.inputs, node.n_inputs, &node.output,
                              &node.attrs);
                CHECK(c.layout == TRANSPOSED || memcmp(want, node.output.data, bytes) == 0,
                      "case %d, layout %d: other bits than float32", (int)i, (int)l);
                memcpy(stored, floats, sizeof floats);
                node_check(&node);
                check_free(want);
                for (int s = 0; s < 2; s++)
                    check_free(narrows[s].data);
                node_free(&node);
            }
}

static const check_case cases[] = {
    {"narrow", narrow},
    {"every_variant", every_variant},
    {"lengths", lengths},
    {"head_sizes", head_sizes},
    {"large_heads", large_heads},
    {"many_blocks", many_blocks},
    {"layouts", layouts},
    {"causal", causal},
    {"grouped_heads", grouped_heads},
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
