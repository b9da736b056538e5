/* Compares LSTM, GRU and RNN with steps in double. */
#include <math.h>

#include "check.h"
#include "recurrent/kernels.inc"

CHECK_ATTRS(recurrent)
CHECK_ATTRS(rnn)

enum { PANEL = 16, MAX_HIDDEN = 300 };

typedef enum cell { LSTM, GRU, TANH, RELU } cell;

typedef struct problem {
    cell cell;
    int64_t steps, batch, hidden;
    int64_t out; /* columns of h: `hidden`, except for a projected LSTM */
    bool reverse;
} problem;

typedef struct tensors {
    taper_tensor inputs[5], outputs[2];
    int n_inputs;
    const char *op;
    struct rnn_attrs attrs;
} tensors;

static int gates_of(cell cell) { return cell == LSTM ? 4 : cell == GRU ? 3 : 1; }

static taper_tensor floats(int rank, const int64_t *dims, float scale) {
    taper_tensor t = check_tensor(NULL, TAPER_FLOAT32, rank, dims);
    t.data = check_alloc((size_t)check_numel(&t) * sizeof(float), 0);
    check_fill_uniform(t.data, check_numel(&t), -scale, scale);
    return t;
}

/* [gates * rows, columns] as kernels read it, what is beyond the rows NaN. */
static taper_tensor weight(int64_t rows, int64_t gates, int64_t columns) {
    const int64_t blocks = (rows + PANEL - 1) / PANEL;
    /* So small that the rounding errors of a step do not grow in the next. */
    taper_tensor t = floats(4, (int64_t[]){blocks, gates, columns, PANEL},
                            1.0f / sqrtf((float)(columns > 0 ? columns : 1)));
    for (int64_t i = 0; i < check_numel(&t); i++)
        if (i / (gates * columns * PANEL) * PANEL + i % PANEL >= rows)
            ((float *)t.data)[i] = NAN;
    return t;
}

static double at(const taper_tensor *w, int64_t gate, int64_t row, int64_t column) {
    const int64_t line = (row / PANEL * w->shape[1] + gate) * w->shape[2] + column;
    return (double)((const float *)w->data)[line * PANEL + row % PANEL];
}

static tensors make(const problem *p) {
    tensors t = {.op = p->cell == LSTM ? "LSTM" : p->cell == GRU ? "GRU" : "RNN"};
    const int gates = gates_of(p->cell);
    t.attrs = (struct rnn_attrs){p->reverse, p->cell == RELU ? "relu" : "tanh"};
    t.inputs[t.n_inputs++] = floats(3, (int64_t[]){p->steps, p->batch, gates * p->hidden}, 2.0f);
    t.inputs[t.n_inputs++] = floats(2, (int64_t[]){p->batch, p->out}, 1.0f);
    if (p->cell == LSTM)
        t.inputs[t.n_inputs++] = floats(2, (int64_t[]){p->batch, p->hidden}, 1.0f);
    t.inputs[t.n_inputs++] = weight(p->hidden, gates, p->out);
    if (p->cell == GRU)
        t.inputs[t.n_inputs++] = floats(1, &p->hidden, 1.0f);
    if (p->out != p->hidden)
        t.inputs[t.n_inputs++] = weight(p->out, 1, p->hidden);
    check_n_outputs = p->cell == LSTM ? 2 : 1;
    t.outputs[0] = floats(3, (int64_t[]){p->steps, p->batch, p->out}, 0.0f);
    if (p->cell == LSTM)
        t.outputs[1] = floats(2, (int64_t[]){p->batch, p->hidden}, 0.0f);
    return t;
}

static void release(const tensors *t) {
    for (int i = 0; i < t->n_inputs; i++)
        check_free(t->inputs[i].data);
    for (int i = 0; i < check_n_outputs; i++)
        check_free(t->outputs[i].data);
}

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

/* One row of one step. h and c: before it, and after it. */
static void step(const problem *p, const tensors *t, const float *x, double *h, double *c) {
    const taper_tensor *w = &t->inputs[p->cell == LSTM ? 3 : 2];
    double next[MAX_HIDDEN];
    for (int64_t j = 0; j < p->hidden; j++) {
        double share[4] = {0}, given[4];
        for (int g = 0; g < gates_of(p->cell); g++) {
            given[g] = (double)x[g * p->hidden + j];
            for (int64_t k = 0; k < p->out; k++)
                share[g] += h[k] * at(w, g, j, k);
        }
        const double sum = given[0] + share[0];
        if (p->cell == LSTM) {
            c[j] = sigmoid(given[1] + share[1]) * c[j] + sigmoid(sum) * tanh(given[2] + share[2]);
            next[j] = sigmoid(given[3] + share[3]) * tanh(c[j]);
        } else if (p->cell == GRU) {
            const double b_hn = (double)((const float *)t->inputs[3].data)[j];
            const double own = tanh(given[2] + sigmoid(sum) * (share[2] + b_hn));
            const double update = sigmoid(given[1] + share[1]);
            next[j] = (1.0 - update) * own + update * h[j];
        } else {
            next[j] = p->cell == RELU ? fmax(sum, 0.0) : tanh(sum);
        }
    }
    for (int64_t j = 0; j < p->out; j++) {
        h[j] = p->out == p->hidden ? next[j] : 0.0;
        for (int64_t k = 0; k < p->hidden && p->out != p->hidden; k++)
            h[j] += next[k] * at(&t->inputs[4], 0, j, k);
    }
}

static int64_t differ(const float *got, const double *want, int64_t n) {
    int64_t wrong = 0;
    for (int64_t j = 0; j < n; j++)
        wrong += !(fabs((double)got[j] - want[j]) <= 4e-6 * (1.0 + fabs(want[j])));
    return wrong;
}

static int64_t count_wrong(const problem *p, const tensors *t) {
    const int64_t gates = gates_of(p->cell);
    int64_t wrong = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        double h[MAX_HIDDEN], c[MAX_HIDDEN];
        for (int64_t j = 0; j < p->out; j++)
            h[j] = (double)((const float *)t->inputs[1].data)[b * p->out + j];
        for (int64_t j = 0; j < p->hidden && p->cell == LSTM; j++)
            c[j] = (double)((const float *)t->inputs[2].data)[b * p->hidden + j];
        for (int64_t n = 0; n < p->steps; n++) {
            const int64_t row = (p->reverse ? p->steps - 1 - n : n) * p->batch + b;
            step(p, t, (const float *)t->inputs[0].data + row * gates * p->hidden, h, c);
            wrong += differ((const float *)t->outputs[0].data + row * p->out, h, p->out);
        }
        if (p->cell == LSTM)
            wrong += differ((const float *)t->outputs[1].data + b * p->hidden, c, p->hidden);
    }
    return wrong;
}

static void expect(const problem *p) {
    const tensors t = make(p);
    check_threads(t.op, NULL, t.inputs, t.n_inputs, t.outputs, &t.attrs);
    const int64_t wrong = count_wrong(p, &t);
    CHECK(wrong == 0, "%s %lld x %lld x %lld (%lld): %lld wrong elements", t.op,
          (long long)p->steps, (long long)p->batch, (long long)p->hidden, (long long)p->out,
          (long long)wrong);
    release(&t);
}

static void every_cell(void) {
    static const int64_t sizes[][3] = {{1, 1, 1},   {3, 1, 15},  {2, 2, 16}, {4, 3, 17},
                                       {5, 7, 33},  {2, 15, 64}, {3, 43, 8}, {2, 100, 5},
                                       {6, 1, 256}, {3, 8, 256}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (cell cell = LSTM; cell <= RELU; cell++)
            for (int reverse = 0; reverse < 2; reverse++)
                expect(
                    &(problem){cell, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][2], reverse});
}

static void projections(void) {
    static const int64_t sizes[][4] = {
        {3, 1, 16, 5}, {4, 2, 17, 16}, {2, 45, 40, 7}, {2, 3, 20, 33}, {5, 1, 128, 64}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int reverse = 0; reverse < 2; reverse++)
            expect(&(problem){LSTM, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], reverse});
}

static void empty(void) {
    static const int64_t sizes[][3] = {{0, 2, 3}, {4, 0, 3}, {2, 3, 0}, {INT32_MAX, 0, 5}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (cell cell = LSTM; cell <= RELU; cell++)
            expect(&(problem){cell, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][2], false});
}

/* A NaN stays in its row of the batch; an infinite gate is closed or open. */
static void special_values(void) {
    for (cell cell = LSTM; cell <= RELU; cell++) {
        const problem p = {cell, 3, 2, 20, 20, false};
        const tensors t = make(&p);
        const int64_t width = p.out, gates = gates_of(cell);
        float *x = t.inputs[0].data;
        x[3] = NAN;
        if (cell != RELU)
            for (int64_t j = 0; j < gates * p.hidden; j++)
                x[gates * p.hidden + j] = j % 2 ? INFINITY : -INFINITY;
        check_threads(t.op, NULL, t.inputs, t.n_inputs, t.outputs, &t.attrs);
        const float *y = t.outputs[0].data, *c = t.outputs[1].data;
        CHECK(isnan(y[3]) && !isnan(y[2]), "%s: NaN in the first step", t.op);
        CHECK(isnan(y[2 * width]), "%s: NaN of the step before", t.op);
        for (int64_t n = 0; n < p.steps; n++)
            for (int64_t j = 0; j < width; j++)
                CHECK(isfinite(y[(2 * n + 1) * width + j]), "%s: step %lld, element %lld", t.op,
                      (long long)n, (long long)j);
        if (cell == LSTM)
            CHECK(isnan(c[3]) && isfinite(c[width + 3]), "%s: c", t.op);
        release(&t);
    }
}

static void not_served(void) {
    const problem p = {LSTM, 2, 3, 20, 20, false};
    for (int i = 0; i < 4; i++) {
        tensors t = make(&p);
        t.inputs[i].dtype = TAPER_FLOAT64;
        CHECK(check_run("LSTM", NULL, t.inputs, 4, t.outputs, &t.attrs, 1) == TAPER_UNSUPPORTED,
              "input %d of float64", i);
        t.inputs[i].dtype = TAPER_FLOAT32;
        t.inputs[i].strides[0]++;
        CHECK(check_run("LSTM", NULL, t.inputs, 4, t.outputs, &t.attrs, 1) == TAPER_UNSUPPORTED,
              "input %d with gaps", i);
        t.inputs[i].strides[0]--;
        t.inputs[i].shape[t.inputs[i].rank - 1] += 4;
        CHECK(check_run("LSTM", NULL, t.inputs, 4, t.outputs, &t.attrs, 1) == TAPER_UNSUPPORTED,
              "input %d of another shape", i);
        release(&t);
    }
    tensors other = make(&p);
    other.outputs[1].shape[0]++;
    CHECK(check_run("LSTM", NULL, other.inputs, 4, other.outputs, &other.attrs, 1) ==
              TAPER_UNSUPPORTED,
          "c of another shape");
    release(&other);
    const problem no_columns = {LSTM, 2, 3, 20, 0, false};
    other = make(&no_columns);
    CHECK(check_run("LSTM", NULL, other.inputs, 5, other.outputs, &other.attrs, 1) ==
              TAPER_UNSUPPORTED,
          "h of no columns");
    release(&other);
    const problem unknown = {TANH, 2, 3, 20, 20, false};
    tensors t = make(&unknown);
    t.attrs.activation = "sigmoid";
    CHECK(check_run("RNN", NULL, t.inputs, 3, t.outputs, &t.attrs, 1) == TAPER_UNSUPPORTED,
          "another activation");
    release(&t);
}

static void bench(void) {
    static const problem problems[] = {
        {LSTM, 160, 1, 256, 256, false},  {LSTM, 160, 8, 256, 256, false},
        {GRU, 160, 1, 256, 256, false},   {GRU, 160, 8, 256, 256, false},
        {TANH, 160, 1, 256, 256, false},  {TANH, 160, 8, 256, 256, false},
        {LSTM, 160, 64, 256, 256, false},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const problem *p = &problems[i];
        const tensors t = make(p);
        char name[64];
        snprintf(name, sizeof name, "%s %lldx%lldx%lld", t.op, (long long)p->steps,
                 (long long)p->batch, (long long)p->hidden);
        const double weights = (double)(gates_of(p->cell) * p->hidden * p->hidden);
        check_bench_op(name, t.op, NULL, t.inputs, t.n_inputs, t.outputs, &t.attrs,
                       2.0 * weights * (double)(p->steps * p->batch),
                       4.0 * weights * (double)p->steps);
        release(&t);
    }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_cell", every_cell},         {"projections", projections}, {"empty", empty},
        {"special_values", special_values}, {"not_served", not_served},
    };
    static const check_case benches[] = {{"recurrent", bench}};
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
