/* EMBEDDING, INDEX_SELECT and GATHER against element-by-element reads; EMBEDDING_BAG against sums
 * in order. */
#include <math.h>

#include "check.h"
#include "gather/kernels.inc"

CHECK_ATTRS(gather)
CHECK_ATTRS(bag)

static const taper_dtype dtypes[] = {TAPER_BOOL, TAPER_INT16, TAPER_FLOAT32, TAPER_INT64};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static taper_tensor random_bytes(taper_dtype dtype, int rank, const int64_t *dims) {
    taper_tensor t = check_tensor(NULL, dtype, rank, dims);
    const int64_t bytes = check_numel(&t) * (int64_t)taper_dtype_size(dtype);
    t.data = check_alloc((size_t)bytes, 0);
    check_fill_bytes(t.data, bytes);
    return t;
}

static void set_index(const taper_tensor *t, int64_t i, int64_t value) {
    if (t->dtype == TAPER_INT32)
        ((int32_t *)t->data)[i] = (int32_t)value;
    else
        ((int64_t *)t->data)[i] = value;
}

static int64_t get_index(const taper_tensor *t, int64_t i) {
    return t->dtype == TAPER_INT32 ? ((int32_t *)t->data)[i] : ((int64_t *)t->data)[i];
}

static taper_tensor random_index(taper_dtype dtype, int rank, const int64_t *dims, int64_t low,
                                 int64_t high) {
    taper_tensor t = check_tensor(NULL, dtype, rank, dims);
    const int64_t numel = check_numel(&t);
    t.data = check_alloc((size_t)numel * taper_dtype_size(dtype), 0);
    for (int64_t i = 0; i < numel; i++)
        set_index(&t, i, check_int(low, high));
    return t;
}

/* x [outer][size][row]: every op here is one of these copies, GATHER with row its own element. */
static void expect_select(const char *op, const void *attrs, const taper_tensor *x, int axis,
                          const taper_tensor *index) {
    int64_t dims[TAPER_MAX_RANK], outer = 1, row = 1;
    int rank = 0;
    for (int d = 0; d < axis; d++)
        outer *= dims[rank++] = x->shape[d];
    for (int d = 0; d < index->rank; d++)
        dims[rank++] = index->shape[d];
    for (int d = axis + 1; d < x->rank; d++)
        row *= dims[rank++] = x->shape[d];
    taper_tensor y = check_tensor(NULL, (taper_dtype)x->dtype, rank, dims);
    const int64_t size = (int64_t)taper_dtype_size(x->dtype), bytes = row * size;
    const int64_t count = check_numel(index), n = x->shape[axis];
    const taper_tensor inputs[] = {*x, *index};
    for (int workers = 1; workers <= 3; workers++) {
        y.data = check_alloc((size_t)(check_numel(&y) * size), workers == 2 ? (size_t)size : 0);
        CHECK(check_run(op, NULL, inputs, 2, &y, attrs, workers) == TAPER_OK, "%s", op);
        int64_t wrong = 0;
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < count; i++) {
                const int64_t value = get_index(index, i), at = value < 0 ? value + n : value;
                wrong += memcmp((uint8_t *)y.data + (o * count + i) * bytes,
                                (uint8_t *)x->data + (o * n + at) * bytes, (size_t)bytes) != 0;
            }
        CHECK(wrong == 0, "%s of %s, rows of %lld bytes: %lld wrong", op,
              taper_dtype_name(x->dtype), (long long)bytes, (long long)wrong);
        check_free(y.data);
    }
}

/* Rows from one element to more than a task. */
static void embedding(void) {
    static const int64_t widths[] = {1, 2, 3, 5, 8, 15, 33, 64, 129, 384, 1000, 40000};
    for (int t = 0; t < N_DTYPES; t++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (int narrow = 0; narrow < 2; narrow++) {
                const int64_t dims[] = {11, widths[w]}, index_dims[] = {3, 7};
                const taper_tensor x = random_bytes(dtypes[t], 2, dims);
                const taper_tensor index =
                    random_index(narrow ? TAPER_INT32 : TAPER_INT64, 2, index_dims, 0, 10);
                expect_select("EMBEDDING", NULL, &x, 0, &index);
                check_free(index.data);
                check_free(x.data);
            }
}

/* A table in panels of 16 rows. */
static void packed_embedding(void) {
    static const int64_t columns[] = {1, 16, 37}, ks[] = {1, 5, 9000};
    for (int t = 0; t < N_DTYPES; t++)
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < 3; i++) {
                const int64_t table[] = {columns[c], ks[i]};
                const int64_t size = (int64_t)taper_dtype_size(dtypes[t]), k = ks[i];
                const int64_t dims[] = {(columns[c] + 15) / 16, k, 16}, index_dims[] = {2, 5};
                const int64_t out[] = {2, 5, k};
                taper_tensor inputs[] = {
                    random_bytes(dtypes[t], 3, dims),
                    random_index(t ? TAPER_INT64 : TAPER_INT32, 2, index_dims, 0, columns[c] - 1)};
                inputs[0].format = TAPER_PANELS_0;
                inputs[0].logical = table;
                taper_tensor y = check_tensor(NULL, dtypes[t], 3, out);
                for (int workers = 1; workers <= 3; workers++) {
                    y.data = check_alloc((size_t)(10 * k * size), workers == 2 ? (size_t)size : 0);
                    CHECK(check_run("EMBEDDING", NULL, inputs, 2, &y, NULL, workers) == TAPER_OK,
                          "packed");
                    int64_t wrong = 0;
                    for (int64_t r = 0; r < 10; r++)
                        for (int64_t e = 0; e < k; e++) {
                            const int64_t at = get_index(&inputs[1], r);
                            const int64_t from = (at / 16 * k + e) * 16 + at % 16;
                            wrong +=
                                memcmp((uint8_t *)y.data + (r * k + e) * size,
                                       (uint8_t *)inputs[0].data + from * size, (size_t)size) != 0;
                        }
                    CHECK(wrong == 0, "%lld columns of %lld: %lld wrong", (long long)columns[c],
                          (long long)k, (long long)wrong);
                    check_free(y.data);
                }
                y.data = check_alloc((size_t)(10 * k * size), 0);
                inputs[0].format = TAPER_PANELS_1;
                CHECK(check_run("EMBEDDING", NULL, inputs, 2, &y, NULL, 1) == TAPER_UNSUPPORTED,
                      "cut along the other axis");
                inputs[0].format = TAPER_PANELS_0;
                inputs[0].logical = (int64_t[]){dims[0] * 16 + 1, k};
                CHECK(check_run("EMBEDDING", NULL, inputs, 2, &y, NULL, 1) == TAPER_UNSUPPORTED,
                      "more rows than panels have");
                inputs[0].logical = table;
                set_index(&inputs[1], 7, columns[c]); /* in the padding, or beyond it */
                CHECK(check_run("EMBEDDING", NULL, inputs, 2, &y, NULL, 2) == TAPER_BAD_INDEX,
                      "index");
                check_free(y.data);
                check_free(inputs[1].data);
                check_free(inputs[0].data);
            }
}

static void index_select(void) {
    static const int64_t dims[] = {5, 9, 40};
    for (int t = 0; t < N_DTYPES; t++)
        for (int axis = 0; axis < 3; axis++)
            for (int rank = 0; rank < 3; rank++) {
                const struct gather_attrs attrs = {axis, true};
                const int64_t index_dims[] = {13, 2}, n = dims[axis];
                const taper_tensor x = random_bytes(dtypes[t], 3, dims);
                const taper_tensor index = random_index(rank == 1 ? TAPER_INT32 : TAPER_INT64, rank,
                                                        index_dims, -n, n - 1);
                expect_select("INDEX_SELECT", &attrs, &x, axis, &index);
                check_free(index.data);
                check_free(x.data);
            }
}

/* The index is no longer than x but along axis. reversed: x lies in memory first dimension last. */
static void gather_random(taper_dtype dtype, int rank, int axis, int64_t longest, bool reversed) {
    const struct gather_attrs attrs = {axis, true};
    int64_t dims[TAPER_MAX_RANK] = {0}, index_dims[TAPER_MAX_RANK] = {0};
    for (int d = 0; d < rank; d++) {
        dims[d] = check_int(1, longest);
        index_dims[d] = d == axis ? check_int(0, 2 * longest) : check_int(0, dims[d]);
    }
    taper_tensor x = random_bytes(dtype, rank, dims);
    int64_t stride = 1;
    for (int d = 0; d < rank && reversed; stride *= dims[d++])
        x.strides[d] = stride;
    const int64_t n = rank ? x.shape[axis] : 1;
    const taper_tensor index =
        random_index(longest % 2 ? TAPER_INT32 : TAPER_INT64, rank, index_dims, -n, n - 1);
    const size_t size = taper_dtype_size(dtype);
    const int64_t numel = check_numel(&index);
    const taper_tensor inputs[] = {x, index};
    taper_tensor y = check_tensor(NULL, dtype, rank, index_dims);
    for (int workers = 1; workers <= 3; workers++) {
        y.data = check_alloc((size_t)numel * size, workers == 2 ? size : 0);
        CHECK(check_run("GATHER", NULL, inputs, 2, &y, &attrs, workers) == TAPER_OK, "GATHER");
        int64_t at[TAPER_MAX_RANK] = {0}, wrong = 0;
        for (int64_t i = 0; i < numel; i++) {
            const int64_t value = get_index(&index, i);
            int64_t from = 0;
            for (int d = 0; d < rank; d++)
                from += x.strides[d] * (d != axis ? at[d] : value < 0 ? value + n : value);
            wrong += memcmp((uint8_t *)y.data + (size_t)i * size,
                            (uint8_t *)x.data + (size_t)from * size, size) != 0;
            for (int d = rank - 1; d >= 0 && ++at[d] == index_dims[d]; d--)
                at[d] = 0;
        }
        CHECK(wrong == 0, "GATHER of %s, rank %d, axis %d: %lld wrong", taper_dtype_name(dtype),
              rank, axis, (long long)wrong);
        check_free(y.data);
    }
    check_free(index.data);
    check_free(x.data);
}

static void gather(void) {
    for (int t = 0; t < N_DTYPES; t++) {
        gather_random(dtypes[t], 0, 0, 1, false);
        gather_random(dtypes[t], 1, 0, 30001, false);
        for (int rank = 1; rank <= 4; rank++)
            for (int axis = 0; axis < rank; axis++)
                for (int i = 0; i < 8; i++)
                    gather_random(dtypes[t], rank, axis, rank > 2 ? 7 + i : 150, i % 3);
    }
}

/* Every task may see the bad index; none reads or writes through it. */
/* Of single elements of every size, in the first row and the last. */
static void bad_element(void) {
    static const int64_t dims[] = {3, 50}, index_dims[] = {70}, out[] = {3, 70};
    const struct gather_attrs last = {1, true};
    for (int t = 0; t < N_DTYPES; t++)
        for (int narrow = 0; narrow < 2; narrow++)
            for (int64_t bad = -51; bad <= 50; bad += 101) {
                const taper_tensor x = random_bytes(dtypes[t], 2, dims);
                const taper_tensor index =
                    random_index(narrow ? TAPER_INT32 : TAPER_INT64, 1, index_dims, -50, 49);
                const taper_tensor inputs[] = {x, index};
                taper_tensor y = check_tensor(NULL, dtypes[t], 2, out);
                y.data = check_alloc((size_t)check_numel(&y) * taper_dtype_size(dtypes[t]), 0);
                CHECK(check_run("INDEX_SELECT", NULL, inputs, 2, &y, &last, 1) == TAPER_OK, "good");
                set_index(&index, check_int(0, 69), bad);
                CHECK(check_run("INDEX_SELECT", NULL, inputs, 2, &y, &last, 1) == TAPER_BAD_INDEX,
                      "%lld of 50", (long long)bad);
                check_free(y.data);
                check_free(index.data);
                check_free(x.data);
            }
}

static void bad_index(void) {
    static const int64_t dims[] = {6, 50},
                         bad[] = {6, -7, -1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    static const char *const ops[] = {"EMBEDDING", "INDEX_SELECT", "GATHER"};
    const struct gather_attrs first[] = {{0, true}, {0, false}}; /* with and without wrap */
    const taper_tensor x = random_bytes(TAPER_FLOAT32, 2, dims);
    for (int i = 0; i < 5; i++) {
        const int op = (i + 1) / 2, wrap = i % 2;
        for (int narrow = 0; narrow < 2; narrow++)
            for (int b = 0; b < (narrow ? 5 : 7); b++) {
                const int64_t index_dims[] = {600, 50};
                const int rank = op == 2 ? 2 : 1;
                const taper_tensor index =
                    random_index(narrow ? TAPER_INT32 : TAPER_INT64, rank, index_dims, 0, 5);
                const taper_tensor inputs[] = {x, index};
                taper_tensor y = check_tensor(NULL, TAPER_FLOAT32, 2, index_dims);
                y.data = check_alloc((size_t)check_numel(&y) * 4, 0);
                set_index(&index, check_int(0, check_numel(&index) - 1), bad[b]);
                const bool ok = bad[b] == -1 && wrap; /* counts from the end */
                for (int workers = 1; workers <= 2; workers++)
                    CHECK(check_run(ops[op], NULL, inputs, 2, &y, op == 0 ? NULL : &first[!wrap],
                                    workers) == (ok ? TAPER_OK : TAPER_BAD_INDEX),
                          "%s with index %lld of 6", ops[op], (long long)bad[b]);
                check_free(y.data);
                check_free(index.data);
            }
    }
    check_free(x.data);
}

static void empty(void) {
    static const int64_t dims[] = {6, 4}, none[] = {0}, no_rows[] = {0, 4}, no_cols[] = {6, 0};
    static const int64_t some[] = {3};
    const struct gather_attrs attrs = {0, true};
    taper_tensor x = random_bytes(TAPER_FLOAT32, 2, dims);
    taper_tensor index = random_index(TAPER_INT64, 1, none, 0, 0);
    expect_select("EMBEDDING", NULL, &x, 0, &index);
    expect_select("INDEX_SELECT", &attrs, &x, 0, &index);
    check_free(index.data);
    index = random_index(TAPER_INT64, 1, some, 0, 0);
    x = check_tensor(x.data, TAPER_FLOAT32, 2, no_cols);
    expect_select("EMBEDDING", NULL, &x, 0, &index);
    x = check_tensor(x.data, TAPER_FLOAT32, 2, no_rows); /* no index is inside */
    const taper_tensor inputs[] = {x, index};
    const int64_t out[] = {3, 4};
    const taper_tensor y = check_tensor(check_alloc(48, 0), TAPER_FLOAT32, 2, out);
    CHECK(check_run("EMBEDDING", NULL, inputs, 2, &y, NULL, 1) == TAPER_BAD_INDEX, "no rows");
    check_free(y.data);
    check_free(index.data);
    check_free(x.data);
}

static void refused(void) {
    static const int64_t dims[] = {4, 6}, one[] = {4};
    const taper_tensor x = random_bytes(TAPER_FLOAT32, 2, dims);
    const taper_tensor floats = random_bytes(TAPER_FLOAT32, 1, one);
    const struct gather_attrs outside = {2, true};
    taper_tensor inputs[] = {x, floats};
    CHECK(check_run("EMBEDDING", NULL, inputs, 2, &x, NULL, 1) == TAPER_UNSUPPORTED, "float index");
    CHECK(check_run("EMBEDDING", NULL, inputs, 1, &x, NULL, 1) == TAPER_UNSUPPORTED, "one input");
    inputs[1] = random_index(TAPER_INT64, 1, one, 0, 3);
    CHECK(check_run("INDEX_SELECT", NULL, inputs, 2, &x, &outside, 1) == TAPER_UNSUPPORTED, "axis");
    CHECK(check_run("GATHER", NULL, inputs, 2, &x, &outside, 1) == TAPER_UNSUPPORTED, "axis");
    inputs[0].strides[0] = 12;
    CHECK(check_run("EMBEDDING", NULL, inputs, 2, &x, NULL, 1) == TAPER_UNSUPPORTED, "strided");
    check_free(inputs[1].data);
    check_free(floats.data);
    check_free(x.data);
}

/* ---- EMBEDDING_BAG ---- */

enum { BAG_TABLE = 50 };

/* Bits are those of adding one row after the other, in the table's dtype. */
static void check_bags(taper_dtype dtype, taper_dtype of_index, const char *mode, int64_t cols,
                       int64_t bags, int64_t padding, bool weighted) {
    const bool is_double = dtype == TAPER_FLOAT64, is_max = strcmp(mode, "max") == 0;
    const int64_t dims[] = {BAG_TABLE, cols}, out[] = {bags, cols};
    const size_t size = taper_dtype_size(dtype);
    int64_t count = 0;
    taper_tensor offsets = random_index(of_index, 1, &bags, 0, 0);
    for (int64_t b = 0; b < bags; b++) {
        set_index(&offsets, b, count);
        count += check_int(0, 1) ? check_int(0, 3) : check_int(0, 20);
    }
    taper_tensor inputs[] = {random_bytes(dtype, 2, dims),
                             random_index(of_index, 1, &count, 0, BAG_TABLE - 1), offsets,
                             random_bytes(dtype, 1, &count)};
    for (int i = 0; i < 4; i += 3)
        for (int64_t e = 0; e < check_numel(&inputs[i]); e++) {
            const float value = check_uniform(-3, 3);
            if (is_double)
                ((double *)inputs[i].data)[e] = value / 3.0;
            else
                ((float *)inputs[i].data)[e] = value;
        }
    const taper_tensor y =
        check_tensor(check_alloc((size_t)(bags * cols) * size, 0), dtype, 2, out);
    const struct bag_attrs attrs = {mode, padding};
    check_threads("EMBEDDING_BAG", NULL, inputs, weighted ? 4 : 3, &y, &attrs);
    for (int64_t b = 0; b < bags; b++)
        for (int64_t j = 0; j < cols; j++) {
            double want = is_max ? -INFINITY : 0;
            int64_t rows = 0;
            const int64_t end = b + 1 < bags ? get_index(&offsets, b + 1) : count;
            for (int64_t i = get_index(&offsets, b); i < end; i++) {
                const int64_t at = get_index(&inputs[1], i), e = at * cols + j;
                if (at == padding)
                    continue;
                rows++;
                if (is_double) {
                    const double scale = weighted ? ((double *)inputs[3].data)[i] : 1;
                    const double row = ((double *)inputs[0].data)[e];
                    want = is_max ? fmax(want, row) : want + row * scale;
                } else {
                    const float scale = weighted ? ((float *)inputs[3].data)[i] : 1;
                    const float row = ((float *)inputs[0].data)[e];
                    const float product = row * scale;
                    want = is_max ? fmax(want, row) : (float)want + product;
                }
            }
            if (is_max && rows == 0)
                want = 0;
            if (strcmp(mode, "mean") == 0 && rows > 1)
                want = is_double ? want / (double)rows : (float)want / (float)rows;
            const int64_t e = b * cols + j;
            const double got = is_double ? ((double *)y.data)[e] : ((float *)y.data)[e];
            CHECK(got == want, "%s of bag %lld: %.17g, not %.17g", mode, (long long)b, got, want);
        }
    for (int i = 0; i < 4; i++)
        check_free(inputs[i].data);
    check_free(y.data);
}

static void embedding_bag(void) {
    static const char *const modes[] = {"sum", "mean", "max"};
    static const int64_t widths[] = {1, 7, 16, 33, 130, 0}, bags[] = {1, 2, 40, 700, 0};
    for (int m = 0; m < 3; m++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (size_t b = 0; b < sizeof bags / sizeof bags[0]; b++) {
                const int64_t padding = check_int(-1, BAG_TABLE - 1);
                check_bags(TAPER_FLOAT32, TAPER_INT64, modes[m], widths[w], bags[b], padding,
                           false);
                check_bags(TAPER_FLOAT64, TAPER_INT32, modes[m], widths[w], bags[b], padding,
                           m == 0);
                check_bags(TAPER_FLOAT32, TAPER_INT64, modes[m], widths[w], bags[b], -1, m == 0);
            }
}

static void bad_bags(void) {
    static const int64_t dims[] = {4, 3}, three[] = {3}, two[] = {2}, out[] = {2, 3};
    static const int64_t bad[][2] = {{1, 2}, {0, 4}, {0, -1}, {-1, 0}};
    const taper_tensor y = random_bytes(TAPER_FLOAT32, 2, out);
    taper_tensor inputs[] = {
        random_bytes(TAPER_FLOAT32, 2, dims), random_index(TAPER_INT64, 1, three, 0, 3),
        random_index(TAPER_INT64, 1, two, 0, 0), random_bytes(TAPER_FLOAT32, 1, three)};
    struct bag_attrs attrs = {"sum", -1};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        set_index(&inputs[2], 0, bad[i][0]);
        set_index(&inputs[2], 1, bad[i][1]);
        CHECK(check_run("EMBEDDING_BAG", NULL, inputs, 3, &y, &attrs, 1) == TAPER_BAD_INDEX,
              "offsets %lld, %lld", (long long)bad[i][0], (long long)bad[i][1]);
    }
    set_index(&inputs[2], 0, 0);
    set_index(&inputs[2], 1, 1);
    CHECK(check_run("EMBEDDING_BAG", NULL, inputs, 4, &y, &attrs, 1) == TAPER_OK, "good offsets");
    set_index(&inputs[1], 2, 4);
    CHECK(check_run("EMBEDDING_BAG", NULL, inputs, 3, &y, &attrs, 1) == TAPER_BAD_INDEX, "index");
    attrs.mode = "max";
    CHECK(check_run("EMBEDDING_BAG", NULL, inputs, 4, &y, &attrs, 1) == TAPER_UNSUPPORTED,
          "factors of a maximum");
    attrs.mode = "prod";
    CHECK(check_run("EMBEDDING_BAG", NULL, inputs, 3, &y, &attrs, 1) == TAPER_UNSUPPORTED, "mode");
    for (int i = 0; i < 4; i++)
        check_free(inputs[i].data);
    check_free(y.data);
}

/* ---- benchmarks ---- */

static void time_rows(const char *name, const char *op, const void *attrs, int64_t rows,
                      int64_t width, int64_t count) {
    const int64_t dims[] = {rows, width}, index_dims[] = {count}, out[] = {count, width};
    taper_tensor x =
        check_tensor(check_alloc((size_t)(rows * width) * 4, 0), TAPER_FLOAT32, 2, dims);
    const taper_tensor index = random_index(TAPER_INT64, 1, index_dims, 0, rows - 1);
    const taper_tensor inputs[] = {x, index};
    taper_tensor y =
        check_tensor(check_alloc((size_t)(count * width) * 4, 0), TAPER_FLOAT32, 2, out);
    check_bench_op(name, op, NULL, inputs, 2, &y, attrs, 0, 8.0 * (double)(count * width));
    check_free(y.data);
    check_free(index.data);
    check_free(x.data);
}

static void bench_rows(void) {
    time_rows("embedding 30522x384, 128", "EMBEDDING", NULL, 30522, 384, 128);
    time_rows("embedding 50257x768, 32", "EMBEDDING", NULL, 50257, 768, 32);
    time_rows("embedding 1000x16, 4096", "EMBEDDING", NULL, 1000, 16, 4096);
    const struct gather_attrs first = {0, true};
    time_rows("index_select 1000x1, 4096", "INDEX_SELECT", &first, 1000, 1, 4096);
}

static void bench_bags(void) {
    static const int64_t dims[] = {50000, 128}, count = 2000, bags = 100, out[] = {100, 128};
    const taper_tensor inputs[] = {random_bytes(TAPER_FLOAT32, 2, dims),
                                   random_index(TAPER_INT64, 1, &count, 0, 49999),
                                   random_index(TAPER_INT64, 1, &bags, 0, 0)};
    for (int64_t b = 0; b < bags; b++)
        set_index(&inputs[2], b, b * count / bags);
    memset(inputs[0].data, 0, 50000 * 128 * 4);
    const taper_tensor y = random_bytes(TAPER_FLOAT32, 2, out);
    const struct bag_attrs attrs = {"sum", -1};
    check_bench_op("100 bags of 20x128", "EMBEDDING_BAG", NULL, inputs, 3, &y, &attrs, 256000,
                   1024000);
    for (int i = 0; i < 3; i++)
        check_free(inputs[i].data);
    check_free(y.data);
}

/* Single elements along the last axis. */
static void bench_elements(void) {
    static const int64_t dims[] = {64, 1000}, index_dims[] = {900}, out[] = {64, 900};
    const struct gather_attrs attrs = {1, true};
    for (int is_int32 = 0; is_int32 < 2; is_int32++) {
        const taper_tensor x = random_bytes(TAPER_FLOAT32, 2, dims);
        const taper_tensor index =
            random_index(is_int32 ? TAPER_INT32 : TAPER_INT64, 1, index_dims, 0, 999);
        const taper_tensor inputs[] = {x, index};
        taper_tensor y = check_tensor(check_alloc(64 * 900 * 4, 0), TAPER_FLOAT32, 2, out);
        check_bench_op(is_int32 ? "elements 64x900, int32" : "elements 64x900, int64",
                       "INDEX_SELECT", NULL, inputs, 2, &y, &attrs, 0, 8.0 * 64 * 900);
        check_free(y.data);
        check_free(index.data);
        check_free(x.data);
    }
}

static void bench_gather(void) {
    static const int64_t dims[] = {64, 1000}, index_dims[] = {64, 1000};
    const struct gather_attrs attrs = {1, true};
    const taper_tensor x = random_bytes(TAPER_FLOAT32, 2, dims);
    const taper_tensor index = random_index(TAPER_INT64, 2, index_dims, 0, 999);
    const taper_tensor inputs[] = {x, index};
    taper_tensor y = check_tensor(check_alloc(256000, 0), TAPER_FLOAT32, 2, index_dims);
    check_bench_op("gather 64x1000", "GATHER", NULL, inputs, 2, &y, &attrs, 0, 16.0 * 64000);
    check_free(y.data);
    check_free(index.data);
    check_free(x.data);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"embedding", embedding},
        {"packed_embedding", packed_embedding},
        {"index_select", index_select},
        {"gather", gather},
        {"bad_index", bad_index},
        {"bad_element", bad_element},
        {"empty", empty},
        {"refused", refused},
        {"embedding_bag", embedding_bag},
        {"bad_bags", bad_bags},
    };
    static const check_case benches[] = {{"rows", bench_rows},
                                         {"bags", bench_bags},
                                         {"elements", bench_elements},
                                         {"gather", bench_gather}};
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
