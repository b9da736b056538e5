#include <stdatomic.h>

#include "os/os.h"
#include "taper/machine.h"

enum { LEVELS = 4 };

int64_t taper_cache_bytes(int32_t level) {
    static _Atomic int64_t known[LEVELS]; /* plus one; 0 stands for not read yet */
    if (level < 1 || level >= LEVELS)
        return 0;
    if (atomic_load(&known[level]) == 0)
        atomic_store(&known[level], taper_os_cache_bytes(level) + 1);
    return atomic_load(&known[level]) - 1;
}

int64_t taper_memory_bytes(void) { return taper_os_memory_bytes(); }

double taper_cpu_limit(const char *root, char *file, size_t bytes) {
    return taper_os_cpu_limit(root, file, bytes);
}

void *taper_map_memory(size_t bytes) { return taper_os_map(bytes); }

void taper_unmap_memory(void *memory, size_t bytes) { taper_os_unmap(memory, bytes); }
