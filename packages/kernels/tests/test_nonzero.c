/* Compares NONZERO exactly. */
#include "check.h"

enum { ROOM = 300 };

/* Runs on n elements of x, with garbage in the output. */
static taper_status run(const void *x, int dtype, int64_t n, int64_t *places) {
    taper_tensor in = check_tensor((void *)x, dtype, 1, &n);
    taper_tensor out = check_tensor(places, TAPER_INT64, 1, &n);
    for (int64_t i = 0; i < ROOM; i++)
        places[i] = -7;
    return check_run("NONZERO", NULL, &in, 1, &out, NULL, 1);
}

static void bytes(void) {
    uint8_t x[ROOM];
    int64_t places[ROOM];
    for (int64_t n = 0; n < 40; n++)
        for (int step = 1; step < 20; step++) {
            int64_t found = 0;
            for (int64_t i = 0; i < n; i++)
                x[i] = i % step == step - 1 ? 1 : 0;
            CHECK(run(x, TAPER_BOOL, n, places) == TAPER_OK, "runs");
            for (int64_t i = 0; i < n; i++)
                if (x[i])
                    CHECK(places[found++] == i, "place %lld", (long long)i);
            for (int64_t i = found; i < n; i++)
                CHECK(places[i] == n, "behind the last");
            CHECK(places[n] == -7, "nothing beyond");
        }
}

static void numbers(void) {
    static const float x[] = {0.0f, -0.0f, 1e-45f, -1.0f, 0.0f, 1.0f / 0.0f};
    static const int64_t y[] = {0, INT64_MIN, 1LL << 40, 0};
    int64_t places[ROOM];
    CHECK(run(x, TAPER_FLOAT32, 6, places) == TAPER_OK, "float32");
    CHECK(places[0] == 2 && places[1] == 3 && places[2] == 5 && places[3] == 6, "not -0");
    CHECK(run(y, TAPER_INT64, 4, places) == TAPER_OK, "int64");
    CHECK(places[0] == 1 && places[1] == 2 && places[2] == 4, "all bits count");
    CHECK(run(x, TAPER_FLOAT16, 4, places) == TAPER_UNSUPPORTED, "float16");
}

static const check_case cases[] = {{"bytes", bytes}, {"numbers", numbers}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
