/* Compares ATTENTION with masks that exclude keys, rows and blocks with double. */
#include "attention_case.h"

#include <math.h>

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

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"mask_broadcasts", mask_broadcasts},
        {"masked_rows", masked_rows},
        {"lowest_number", lowest_number},
        {"dead_ends", dead_ends},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, NULL, 0);
}
