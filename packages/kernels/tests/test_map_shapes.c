/* Elementwise ops and MAP by shapes of their operands: broadcast, empty, misaligned, large. */
#include "elementwise.h"

CHECK_ATTRS(map)

#define F32 TAPER_FLOAT32

/* Every pair of broadcast patterns of rank 6, against plain indexing. */
static void broadcast_patterns(void) {
    enum { RANK = 6 };
    static const int64_t shape[RANK] = {2, 3, 1, 2, 3, 2};
    const taper_tensor y = check_tensor(check_alloc(72 * sizeof(float), 0), F32, RANK, shape);
    float *a = check_alloc(72 * sizeof(float), 0), *b = check_alloc(72 * sizeof(float), 0);
    check_fill_uniform(a, 72, -1, 1);
    check_fill_uniform(b, 72, -1, 1);
    for (int pattern = 0; pattern < 1 << 2 * RANK; pattern++) {
        int64_t dims[2][RANK];
        for (int d = 0; d < 2 * RANK; d++)
            dims[d / RANK][d % RANK] = pattern >> d & 1 ? 1 : shape[d % RANK];
        const taper_tensor x[2] = {check_tensor(a, F32, RANK, dims[0]),
                                   check_tensor(b, F32, RANK, dims[1])};
        memset(y.data, 0xff, 72 * sizeof(float));
        const taper_status status = check_run("SUB", NULL, x, 2, &y, &no_scalar, 1);
        CHECK(status == TAPER_OK, "pattern %x: status %d", (unsigned)pattern, status);
        for (int64_t i = 0; i < 72; i++) {
            int64_t offset[2] = {0, 0};
            for (int64_t d = RANK - 1, rest = i; d >= 0; rest /= shape[d--])
                for (int k = 0; k < 2; k++)
                    if (x[k].shape[d] != 1)
                        offset[k] += rest % shape[d] * x[k].strides[d];
            CHECK(((float *)y.data)[i] == a[offset[0]] - b[offset[1]], "pattern %x, element %lld",
                  (unsigned)pattern, (long long)i);
        }
    }
    check_free(y.data);
    check_free(a);
    check_free(b);
}

static void empty(void) {
    static const int64_t shapes[][3] = {{0, 4, 5}, {4, 0, 5}, {4, 5, 0}, {0, 0, 0}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        const int64_t one[3] = {1, shapes[s][1], 1};
        float unused = 0;
        const taper_tensor x[2] = {check_tensor(&unused, F32, 3, shapes[s]),
                                   check_tensor(&unused, F32, 3, one)};
        const taper_tensor y = check_tensor(&unused, F32, 3, shapes[s]);
        const taper_status status = check_run("ADD", NULL, x, 2, &y, &no_scalar, 2);
        CHECK(status == TAPER_OK && unused == 0, "shape %zu: status %d", s, status);
    }
}

/* Operands off any vector boundary. */
static void misaligned(void) {
    for (size_t shift = 4; shift < 64; shift += 12) {
        const int64_t n = 777;
        const size_t bytes = (size_t)n * sizeof(float);
        const taper_tensor x[2] = {check_tensor(check_alloc(bytes, shift), F32, 1, &n),
                                   check_tensor(check_alloc(bytes, 64 - shift), F32, 1, &n)};
        const taper_tensor y = check_tensor(check_alloc(bytes, shift), F32, 1, &n);
        check_fill_uniform(x[0].data, n, -1, 1);
        check_fill_uniform(x[1].data, n, -1, 1);
        check_threads("MUL", NULL, x, 2, &y, &no_scalar);
        for (int64_t i = 0; i < n; i++)
            CHECK(((float *)y.data)[i] == ((float *)x[0].data)[i] * ((float *)x[1].data)[i],
                  "shift %zu, element %lld", shift, (long long)i);
        check_free(x[0].data);
        check_free(x[1].data);
        check_free(y.data);
    }
}

/* Large enough for many tasks, by rows and by columns. */
static void threads_same_bits(void) {
    static const int64_t shapes[][2] = {{1, 300001}, {3, 100003}, {1000, 257}, {40000, 3}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        const int64_t n = shapes[s][0] * shapes[s][1];
        const taper_tensor x[2] = {
            check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, shapes[s]),
            check_tensor(check_alloc((size_t)shapes[s][1] * sizeof(float), 0), F32, 1,
                         &shapes[s][1])};
        const taper_tensor y =
            check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, shapes[s]);
        check_fill_uniform(x[0].data, n, -5, 5);
        check_fill_uniform(x[1].data, shapes[s][1], -5, 5);
        check_threads("GELU", NULL, x, 1, &y, &no_scalar);
        check_threads("ELU", NULL, x, 2, &y, &no_scalar);
        check_free(x[0].data);
        check_free(x[1].data);
        check_free(y.data);
    }
}

/* An image of three planes that becomes one of pixels, whole and in parts. */
static void planes(void) {
    static const int64_t pixels[] = {1, 17, 100, 5000};
    for (size_t i = 0; i < COUNT(pixels); i++) {
        const int64_t dims[2] = {pixels[i], 3}, n = 3 * pixels[i];
        const taper_tensor y =
            check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, dims);
        taper_tensor x = check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, dims);
        x.strides[0] = 1;
        x.strides[1] = pixels[i];
        check_fill_uniform(x.data, n, -1, 1);
        check_threads("NEG", NULL, &x, 1, &y, &no_scalar);
        for (int64_t k = 0; k < n; k++)
            CHECK(((float *)y.data)[k] == -((float *)x.data)[k / 3 + k % 3 * pixels[i]],
                  "%lld pixels, element %lld", (long long)pixels[i], (long long)k);
        check_free(x.data);
        check_free(y.data);
    }
}

/* ---- benches ---- */

/* One addition, by shapes of its operands. */
static void bench_shapes(void) {
    static const struct {
        const char *name;
        int64_t y[3], x[3];
    } rows[] = {
        {"ADD 64 (call)", {1, 1, 64}, {1, 1, 64}},
        {"ADD 65536 (L2)", {1, 1, 65536}, {1, 1, 65536}},
        {"ADD 16M (memory)", {1, 1, 16 << 20}, {1, 1, 16 << 20}},
        {"ADD [16384,3] + [3]", {1, 16384, 3}, {1, 1, 3}},
        {"ADD [16384,3] + [16384,1]", {1, 16384, 3}, {1, 16384, 1}},
        {"ADD [1024,64] + [64]", {1, 1024, 64}, {1, 1, 64}},
        {"ADD [1024,64] + [1024,1]", {1, 1024, 64}, {1, 1024, 1}},
        {"ADD [128,768] + [768]", {1, 128, 768}, {1, 1, 768}},
        {"ADD [128,768] + [128,1]", {1, 128, 768}, {1, 128, 1}},
        {"ADD [256,16,16] + [16,1]", {256, 16, 16}, {1, 16, 1}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        taper_tensor x[2], y = check_tensor(NULL, F32, 3, rows[i].y);
        x[0] = y;
        x[1] = check_tensor(NULL, F32, 3, rows[i].x);
        const int64_t n = check_numel(&y), m = check_numel(&x[1]);
        y.data = check_alloc((size_t)n * sizeof(float), 0);
        x[0].data = check_alloc((size_t)n * sizeof(float), 0);
        x[1].data = check_alloc((size_t)m * sizeof(float), 0);
        check_fill_uniform(x[0].data, n, -1, 1);
        check_fill_uniform(x[1].data, m, -1, 1);
        check_bench_op(rows[i].name, "ADD", NULL, x, 2, &y, &no_scalar, (double)n,
                       4.0 * (double)(2 * n + m));
        check_free(x[0].data);
        check_free(x[1].data);
        check_free(y.data);
    }
    static const int64_t shape[2] = {1024, 1024}; /* a transposed operand */
    const taper_tensor y = check_tensor(check_alloc(4 << 20, 0), F32, 2, shape);
    taper_tensor x[2] = {check_tensor(check_alloc(4 << 20, 0), F32, 2, shape),
                         check_tensor(check_alloc(4 << 20, 0), F32, 2, shape)};
    check_fill_uniform(x[0].data, 1 << 20, -1, 1);
    check_fill_uniform(x[1].data, 1 << 20, -1, 1);
    x[1].strides[0] = 1;
    x[1].strides[1] = 1024;
    check_bench_op("ADD [1024,1024] + its transpose", "ADD", NULL, x, 2, &y, &no_scalar, 1 << 20,
                   12 << 20);
    check_free(x[0].data);
    check_free(x[1].data);
    check_free(y.data);
}

static void bench_chains(void) {
    static const char *const two[] = {"ADD", "RELU"};
    static const int64_t two_args[] = {0, 1, 2};
    static const char *const six[] = {"ADD", "MUL", "RELU", "SUB", "MUL", "ADD"};
    static const int64_t six_args[] = {0, 1, 2, -1, 3, 4, 1, 5, 0, 6, -2};
    static const taper_scalar scalars[] = {{0.5, 0}, {0.25, 0}};
    const struct map_attrs chains[] = {
        {{two, COUNT(two)}, {two_args, COUNT(two_args)}, {scalars, 0}},
        {{six, COUNT(six)}, {six_args, COUNT(six_args)}, {scalars, 2}}};
    static const int64_t shapes[][2] = {{32, 512}, {128, 2048}, {1024, 4096}};
    char name[64];
    for (size_t c = 0; c < COUNT(chains); c++)
        for (size_t s = 0; s < COUNT(shapes); s++) {
            const int64_t n = shapes[s][0] * shapes[s][1];
            const taper_tensor y =
                check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, shapes[s]);
            const taper_tensor x[2] = {
                check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, shapes[s]),
                check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 1, &shapes[s][1])};
            check_fill_uniform(x[0].data, n, -1, 1);
            check_fill_uniform(x[1].data, n, -1, 1);
            snprintf(name, sizeof name, "MAP %d ops [%d,%d] + [%d]", (int)chains[c].code.count,
                     (int)shapes[s][0], (int)shapes[s][1], (int)shapes[s][1]);
            check_bench_op(name, "MAP", NULL, x, 2, &y, &chains[c],
                           (double)(n * chains[c].code.count), 8.0 * (double)n);
            check_free(x[0].data);
            check_free(x[1].data);
            check_free(y.data);
        }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"broadcast_patterns", broadcast_patterns}, {"empty", empty},   {"misaligned", misaligned},
        {"threads_same_bits", threads_same_bits},   {"planes", planes},
    };
    static const check_case benches[] = {{"shapes", bench_shapes}, {"chains", bench_chains}};
    return check_main(argc, argv, cases, COUNT(cases), benches, COUNT(benches));
}
