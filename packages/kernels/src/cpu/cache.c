#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "taper/machine.h"

enum { LEVELS = 4, MAX_CACHES = 16 };

/* One word of a file of the first CPU's i-th cache. */
static bool read_word(int i, const char *file, char word[32]) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    const bool good = fscanf(f, "%31s", word) == 1;
    fclose(f);
    return good;
}

static int64_t read_size(int32_t level) {
    char word[32];
    for (int i = 0; i < MAX_CACHES && read_word(i, "level", word); i++) {
        int32_t of = 0;
        long long size = 0;
        char unit = 'B';
        if (sscanf(word, "%d", &of) != 1 || of != level || !read_word(i, "type", word) ||
            strcmp(word, "Instruction") == 0 || !read_word(i, "size", word) ||
            sscanf(word, "%lld%c", &size, &unit) < 1)
            continue;
        const long long scale = unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : 1;
        return size > 0 && size < 1ll << 40 ? (int64_t)(size * scale) : 0;
    }
    return 0;
}

int64_t taper_cache_bytes(int32_t level) {
    static _Atomic int64_t known[LEVELS]; /* plus one: 0 is not read yet */
    if (level < 1 || level >= LEVELS)
        return 0;
    if (atomic_load(&known[level]) == 0)
        atomic_store(&known[level], read_size(level) + 1);
    return atomic_load(&known[level]) - 1;
}
