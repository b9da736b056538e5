#include "attention_case.h"

#include <math.h>

/* The bound: float32 epsilons of the largest value to which a row attends, times the size of the
 * errors of the exponents, which are those of the scores. */
enum { EPSILONS = 16 };

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

void node_make(attention_node *node, const attention_case *c) {
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

void node_free(attention_node *node) {
    for (int i = 0; i < 5; i++)
        if (node->data[i])
            check_free(node->data[i]);
}

double at4(const taper_tensor *t, int64_t a, int64_t b, int64_t i, int64_t j) {
    const int64_t index[] = {a, b, i, j};
    int64_t offset = 0;
    for (int d = 0; d < t->rank; d++)
        offset += t->shape[d] == 1 ? 0 : index[4 - t->rank + d] * t->strides[d];
    if (t->dtype == TAPER_BOOL)
        return ((const uint8_t *)t->data)[offset] ? 0.0 : -INFINITY;
    return ((const float *)t->data)[offset];
}

/* Row [a][b][i] of a float32 tensor of rank 4. Loops step through it: at4() costs a sanitizer or an
 * emulator a hundred times as much. */
static const float *row4(const taper_tensor *t, int64_t a, int64_t b, int64_t i) {
    return (const float *)t->data + a * t->strides[0] + b * t->strides[1] + i * t->strides[2];
}

/* Computes row [b][h][i]: its weights into w [lk]. Returns false if it attends to no key. */
static bool reference_weights(const attention_node *node, int64_t b, int64_t h, int64_t i,
                              double *w) {
    const attention_case *c = node->c;
    const taper_tensor *q = &node->inputs[0], *k = &node->inputs[1];
    const int64_t kv = h / (c->heads / c->kv_heads);
    double max = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < c->lk; j++) {
        const float *x = row4(q, b, h, i), *y = row4(k, b, kv, j);
        double product = 0.0;
        for (int64_t d = 0; d < c->d; d++)
            product += (double)x[d * q->strides[3]] * (double)y[d * k->strides[3]];
        w[j] = product * node->attrs.scale;
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

void node_check(const attention_node *node) {
    const attention_case *c = node->c;
    const double range = c->range > 0.0f ? (double)c->range : 1.0;
    const double bound = EPSILONS * 0x1p-24 * (1.0 + range * sqrt((double)max_of(1, c->d)) / 4);
    const taper_tensor *v = &node->inputs[2];
    double *w = malloc((size_t)(c->lk + 1) * sizeof *w);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t i = 0; i < c->lq; i++) {
                const bool attends = reference_weights(node, b, h, i, w);
                const int64_t kv = h / (c->heads / c->kv_heads);
                for (int64_t e = 0; e < c->dv; e++) {
                    const float *value = row4(v, b, kv, 0) + e * v->strides[3];
                    double want = 0.0;
                    for (int64_t j = 0; j < c->lk; j++)
                        want += w[j] * (double)value[j * v->strides[2]];
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

void check_attention(attention_case c) {
    attention_node node;
    node_make(&node, &c);
    check_threads("ATTENTION", NULL, node.inputs, node.n_inputs, &node.output, &node.attrs);
    node_check(&node);
    node_free(&node);
}
