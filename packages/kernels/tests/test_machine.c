/* The measuring loops: the work that they report, the memory that they write, and cache sizes. */
#include "taper/machine.h"

#include "check.h"

enum { BYTES = 1 << 14 };

static const char *const names[] = {"fma", "int8", "read", "copy"};

/* Each probe counts in proportion to its passes and stays inside its memory (guarded). */
static void probes(void) {
    char *memory = check_alloc(BYTES, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const taper_probe *probe = taper_probe_find(check_level, names[i]);
        if (!probe) {
            CHECK(strcmp(names[i], "int8") == 0, "%s has no %s", taper_level_name(check_level),
                  names[i]);
            continue;
        }
        memset(memory, 0, BYTES);
        const double once = probe->run(memory, BYTES, 1);
        CHECK(once > 0 && probe->run(memory, BYTES, 3) == 3 * once, "%s", names[i]);
        CHECK(probe->run(memory, 64, 1) >= 0, "%s: one line", names[i]);
        const bool streams = i >= 2;
        CHECK(!streams || once == BYTES, "%s: %g of %d bytes", names[i], once, BYTES);
    }
    check_free(memory);
}

static void copy_copies(void) {
    float *memory = check_alloc(BYTES, 0);
    const size_t half = BYTES / 2 / sizeof *memory;
    check_fill_uniform(memory, BYTES / sizeof *memory, -1, 1);
    taper_probe_find(check_level, "copy")->run(memory, BYTES, 1);
    CHECK(memcmp(memory, memory + half, BYTES / 2) == 0, "the halves differ");
    check_free(memory);
}

static void unknown(void) { CHECK(!taper_probe_find(check_level, "fly"), "no such"); }

/* Every worker has a part of the memory, and all parts count. */
static void measure(void) {
    char *memory = check_alloc(3 * BYTES, 0);
    memset(memory, 0, 3 * BYTES);
    const taper_probe *probe = taper_probe_find(check_level, "read");
    for (int32_t workers = 1; workers <= 3; workers++) {
        taper_measurement m = {0};
        CHECK(taper_measure(probe, workers, memory, BYTES, 5, &m) == TAPER_OK, "%d", workers);
        CHECK(m.work == 5.0 * BYTES * workers, "%d workers: %g bytes", workers, m.work);
        CHECK(m.ns > 0, "%d workers: no time", workers);
    }
    taper_measurement m;
    CHECK(taper_measure(probe, 0, memory, BYTES, 1, &m) == TAPER_BAD_ARGUMENT, "no worker");
    CHECK(taper_measure(probe, 1000, memory, BYTES, 1, &m) == TAPER_BAD_ARGUMENT, "too many");
    CHECK(taper_measure(probe, 1, memory, 8, 1, &m) == TAPER_BAD_ARGUMENT, "less than a line");
    CHECK(taper_measure(probe, 1, memory, BYTES, 0, &m) == TAPER_BAD_ARGUMENT, "no pass");
    check_free(memory);
}

static void caches(void) {
    int64_t smaller = 0;
    for (int32_t level = 1; level <= 3; level++) {
        const int64_t bytes = taper_cache_bytes(level);
        CHECK(bytes == 0 || (bytes >= 4096 && bytes >= smaller), "level %d", level);
        CHECK(bytes == taper_cache_bytes(level), "level %d: asked again", level);
        smaller = bytes ? bytes : smaller;
    }
    CHECK(taper_cache_bytes(0) == 0 && taper_cache_bytes(4) == 0 && taper_cache_bytes(-1) == 0,
          "levels that are none");
}

static void memory(void) {
    const int64_t bytes = taper_memory_bytes();
    CHECK(bytes == 0 || bytes >= 1 << 26, "%lld bytes", (long long)bytes);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"probes", probes},   {"copy_copies", copy_copies}, {"unknown", unknown},
        {"measure", measure}, {"caches", caches},           {"memory", memory},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
