#include "gemm_case.h"
#include "packed.h"

#include <math.h>

static double apply_none(double x, const double *extras) {
    (void)extras;
    return x;
}
static double apply_add(double x, const double *extras) { return x + extras[0]; }
static double apply_relu(double x, const double *extras) {
    (void)extras;
    return x > 0 || isnan(x) ? x : 0;
}
static double apply_chain(double x, const double *extras) {
    const double y = x + extras[0];
    return y * 0.5 * (1 + erf(y * 0.70710678118654752)) * 3 + extras[1];
}
static double apply_head(double x, const double *extras) {
    const double y = x + extras[0] + extras[1];
    return isnan(y) ? y : fmin(3, fmax(0, y));
}
static const taper_scalar three = {3.0, 3};
const epilogue none = {{NULL}, 0, {0}, 0, apply_none};
const epilogue add = {{"ADD"}, 1, {0, 1}, 2, apply_add};
const epilogue relu = {{"RELU"}, 1, {0}, 1, apply_relu};
const epilogue chain = {{"ADD", "GELU", "MUL", "ADD"}, 4, {0, 1, 3, 4, -1, 5, 2}, 7, apply_chain};
const epilogue head = {{"ADD", "ADD", "RELU", "MINIMUM"}, 4, {0, 1, 3, 2, 4, 5, -1}, 7, apply_head};

float *keep(tensors *t, int64_t n, size_t misalign) {
    float *p = check_alloc((size_t)n * sizeof(float), misalign);
    t->memory[t->n_memory++] = p;
    return p;
}

static taper_tensor make_operand(tensors *t, const operand *o) {
    taper_tensor x = check_tensor(NULL, TAPER_FLOAT32, o->rank, o->dims);
    int64_t numel = 1, offset = 0;
    int order[TAPER_MAX_RANK] = {0};
    for (int d = 0; d < o->rank; d++) {
        const int other = o->layout == STRIDED ? (int)check_int(0, d) : d;
        order[d] = order[other];
        order[other] = d;
    }
    if (o->layout == COLUMNS && o->rank > 1) {
        order[o->rank - 2] = o->rank - 1;
        order[o->rank - 1] = o->rank - 2;
    }
    for (int i = o->rank - 1; i >= 0; i--) {
        const int d = order[i];
        const int64_t kind = o->layout == STRIDED ? check_int(0, 5) : 5;
        const int64_t step = kind == 0 ? 0 : kind == 1 ? 3 : kind == 2 ? -1 : 1;
        if (o->dims[d] > 1 && step < 0)
            offset += (o->dims[d] - 1) * numel;
        x.strides[d] = step * numel;
        numel *= o->dims[d] == 0 ? 0
                 : step == 0     ? 1
                                 : (o->dims[d] - 1) * (step < 0 ? -step : step) + 1;
    }
    float *p = keep(t, numel, o->layout == MISALIGNED ? 4 : 0);
    check_fill_uniform(p, numel, -1, 1);
    x.data = p + offset;
    return x;
}

taper_tensor pack(tensors *t, const taper_tensor *b, bool transposed, layout l) {
    const int n_dim = transposed ? 0 : 1;
    const int64_t k = b->shape[1 - n_dim], n = b->shape[n_dim], panels = (n + 15) / 16;
    float *p = keep(t, panels * k * 16, l == MISALIGNED ? 4 : 0);
    pack_panels(p, b->data, k, n, b->strides[1 - n_dim], b->strides[n_dim]);
    return check_tensor(p, TAPER_FLOAT32, 3, (int64_t[]){panels, k, 16});
}

tensors make(const product *p) {
    tensors t = {.n_memory = 0};
    t.inputs[0] = make_operand(&t, &p->a);
    t.inputs[1] = t.b = make_operand(&t, &p->b);
    const int n_dim = p->b.rank - (p->transpose_b ? 2 : 1);
    if (p->packed) {
        t.inputs[1] = pack(&t, &t.b, p->transpose_b, p->b.layout);
        t.inputs[1].format = p->transpose_b ? TAPER_PANELS_0 : TAPER_PANELS_1;
        t.inputs[1].logical = p->b.dims;
    }
    for (int i = 0; i < p->n_extras; i++)
        t.inputs[2 + i] = make_operand(&t, &p->extras[i]);

    const int a_batch = p->a.rank > 2 ? p->a.rank - 2 : 0;
    const int b_batch = p->b.rank > 2 ? p->b.rank - 2 : 0;
    int64_t dims[TAPER_MAX_RANK];
    int rank = 0;
    for (int d = a_batch > b_batch ? a_batch : b_batch; d > 0; d--) {
        const int64_t da = d <= a_batch ? p->a.dims[a_batch - d] : 1;
        const int64_t db = d <= b_batch ? p->b.dims[b_batch - d] : 1;
        dims[rank++] = da == 1 ? db : da;
    }
    if (p->a.rank > 1)
        dims[rank++] = p->a.dims[p->a.rank - 2];
    if (p->b.rank > 1)
        dims[rank++] = p->b.dims[n_dim];
    t.output = check_tensor(NULL, TAPER_FLOAT32, rank, dims);
    t.output.data = keep(&t, check_numel(&t.output), p->a.layout == MISALIGNED ? 4 : 0);

    const epilogue *e = p->epilogue ? p->epilogue : &none;
    t.attrs = (struct matmul_attrs){.alpha = p->alpha != 0 ? p->alpha : 1,
                                    .transpose_b = p->transpose_b,
                                    .code = {e->code, e->n_code},
                                    .args = {e->args, e->n_args},
                                    .scalars = {&three, 1}};
    return t;
}

void release(tensors *t) {
    for (int i = 0; i < t->n_memory; i++)
        check_free(t->memory[i]);
}

taper_status run(tensors *t, const product *p, int workers) {
    return check_run("MATMUL", NULL, t->inputs, 2 + p->n_extras, &t->output, &t->attrs, workers);
}

/* Element of x at the output's index, broadcast; the output's last `skip` dims are not batch dims.
 */
static const float *broadcast_at(const taper_tensor *x, int x_dims, const int64_t *index,
                                 int dims) {
    int64_t at = 0;
    for (int d = 0; d < x_dims; d++)
        at += x->shape[d] == 1 ? 0 : index[dims - x_dims + d] * x->strides[d];
    return (const float *)x->data + at;
}

void compare(const tensors *t, const product *p) {
    const taper_tensor *a = &t->inputs[0], *b = &t->b, *c = &t->output;
    const epilogue *e = p->epilogue ? p->epilogue : &none;
    const bool a_matrix = a->rank > 1, b_matrix = b->rank > 1;
    const int batch = c->rank - a_matrix - b_matrix;
    const int b_col = b->rank - (p->transpose_b ? 2 : 1), b_k = b->rank - (p->transpose_b ? 1 : 2);
    const int64_t k = a->shape[a->rank - 1], a_k_stride = a->strides[a->rank - 1];
    const int64_t b_k_stride = b->strides[b_matrix ? b_k : 0];
    const int64_t numel = check_numel(c);
    for (int64_t i = 0; i < numel; i++) {
        int64_t index[TAPER_MAX_RANK];
        for (int64_t d = c->rank - 1, rest = i; d >= 0; rest /= c->shape[d--])
            index[d] = rest % c->shape[d];
        const float *pa = broadcast_at(a, a_matrix ? a->rank - 2 : 0, index, batch);
        const float *pb = broadcast_at(b, b_matrix ? b->rank - 2 : 0, index, batch);
        pa += a_matrix ? index[batch] * a->strides[a->rank - 2] : 0;
        pb += b_matrix ? index[c->rank - 1] * b->strides[b_col] : 0;
        double sum = 0, size = 0, extras[MAX_EXTRAS];
        for (int64_t kk = 0; kk < k; kk++) {
            const double x = (double)pa[kk * a_k_stride] * (double)pb[kk * b_k_stride];
            sum += x;
            size += fabs(x);
        }
        for (int x = 0; x < p->n_extras; x++)
            extras[x] = *broadcast_at(&t->inputs[2 + x], t->inputs[2 + x].rank, index, c->rank);
        const double want = e->reference(t->attrs.alpha * sum, extras);
        /* Roundings of k products go in all directions; the epilogues have slopes below 4 and
         * values below 4 * (size + 2). */
        const double bound =
            0x1p-24 * ((8 + 2 * sqrt((double)k)) * fabs(t->attrs.alpha) * size * 4 + 32);
        const float got = ((const float *)c->data)[i];
        const bool ok = isnan(want)          ? isnan(got)
                        : isinf((float)want) ? got == (float)want
                                             : fabs(got - want) <= bound;
        CHECK(ok, "element %lld of %lld, k %lld: got %.9g, want %.9g, bound %.3g", (long long)i,
              (long long)numel, (long long)k, got, want, bound);
        if (!ok)
            return;
    }
}

void check_product(const product *p) {
    tensors t = make(p);
    const taper_status status = run(&t, p, 1);
    CHECK(status == TAPER_OK, "%s", taper_status_string(status));
    if (status == TAPER_OK)
        compare(&t, p);
    release(&t);
}

product matrices(int64_t m, int64_t n, int64_t k) {
    return (product){.a = {2, {m, k}, ROWS}, .b = {2, {k, n}, ROWS}};
}

void transpose(product *p) {
    const int64_t k = p->b.dims[p->b.rank - 2];
    p->b.dims[p->b.rank - 2] = p->b.dims[p->b.rank - 1];
    p->b.dims[p->b.rank - 1] = k;
    p->transpose_b = true;
}

void check_ways(product p) {
    check_product(&p);
    p.packed = true;
    check_product(&p);
    transpose(&p);
    check_product(&p);
    p.packed = false;
    check_product(&p);
}

void bench_tensors(const char *name, const product *p, tensors *t) {
    const double flops = 2.0 * (double)check_numel(&t->output) * (double)p->a.dims[p->a.rank - 1];
    double bytes = 4.0 * (double)check_numel(&t->output);
    for (int i = 0; i < 2 + p->n_extras; i++)
        bytes +=
            (double)(taper_dtype_size(t->inputs[i].dtype) * (size_t)check_numel(&t->inputs[i]));
    check_bench_op(name, "MATMUL", NULL, t->inputs, 2 + p->n_extras, &t->output, &t->attrs, flops,
                   bytes);
    release(t);
}
