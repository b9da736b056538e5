/* NONZERO: places and their number, exactly. */
#include "check.h"

enum { ROOM = 300 };

/* Runs on n elements of x, with garbage in both outputs. */
static taper_status run(const void *x, int dtype, int64_t n, int64_t *places, int64_t *count) {
    taper_tensor in = check_tensor((void *)x, dtype, 1, &n);
    taper_tensor out[2] = {check_tensor(places, TAPER_INT64, 1, &n),
                           check_tensor(count, TAPER_INT64, 0, NULL)};
    void *state = check_alloc(taper_max_state_bytes(), 0);
    taper_call call = {.inputs = &in, .output = out, .state = state, .n_inputs = 1, .n_outputs = 2};
    size_t at = 0;
    taper_work work = {0};
    const taper_kernel *kernel = taper_kernel_next("NONZERO", &at);
    taper_status status = TAPER_UNSUPPORTED;
    for (int64_t i = 0; i < ROOM; i++)
        places[i] = -7;
    *count = -7;
    if (taper_kernel_takes(kernel, &call) && kernel->prepare(&call, &work) == TAPER_OK)
        status = kernel->run(&call, 0, work.tasks, NULL);
    check_free(state);
    return status;
}

static void bytes(void) {
    uint8_t x[ROOM];
    int64_t places[ROOM], count;
    for (int64_t n = 0; n < 40; n++)
        for (int step = 1; step < 20; step++) {
            int64_t found = 0;
            for (int64_t i = 0; i < n; i++)
                x[i] = i % step == step - 1 ? 1 : 0;
            CHECK(run(x, TAPER_BOOL, n, places, &count) == TAPER_OK, "runs");
            for (int64_t i = 0; i < n; i++)
                if (x[i])
                    CHECK(places[found++] == i, "place %lld", (long long)i);
            CHECK(count == found, "%lld found", (long long)count);
            for (int64_t i = found; i < n; i++)
                CHECK(places[i] == n, "behind the last");
            CHECK(places[n] == -7, "nothing beyond");
        }
}

static void numbers(void) {
    static const float x[] = {0.0f, -0.0f, 1e-45f, -1.0f, 0.0f, 1.0f / 0.0f};
    static const int64_t y[] = {0, INT64_MIN, 1LL << 40, 0};
    int64_t places[ROOM], count;
    CHECK(run(x, TAPER_FLOAT32, 6, places, &count) == TAPER_OK, "float32");
    CHECK(count == 3 && places[0] == 2 && places[1] == 3 && places[2] == 5, "not -0");
    CHECK(run(y, TAPER_INT64, 4, places, &count) == TAPER_OK, "int64");
    CHECK(count == 2 && places[0] == 1 && places[1] == 2 && places[2] == 4, "all bits count");
    CHECK(run(x, TAPER_FLOAT16, 4, places, &count) == TAPER_UNSUPPORTED, "float16");
}

static const check_case cases[] = {{"bytes", bytes}, {"numbers", numbers}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
