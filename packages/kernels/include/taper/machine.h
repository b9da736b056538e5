/* Limits of this machine: cache sizes, memory, CPU time, and loops that measure speeds. */
#ifndef TAPER_MACHINE_H
#define TAPER_MACHINE_H

#include "taper/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the bytes of a data cache of the first CPU, level 1 to 3; 0 where the system does not
 * tell. */
int64_t taper_cache_bytes(int32_t level);

/* Returns the bytes of main memory; 0 where the system does not tell. */
int64_t taper_memory_bytes(void);

/* Returns how many CPUs the process's control groups (Linux; both versions, the groups that contain
 * its own included) let it keep busy, such as 0.5; 0 where they set no limit. Writes the path of
 * the file with that limit to file[bytes], cut where it is longer. root: a folder that has /proc
 * and what is mounted; "" for the system's. */
double taper_cpu_limit(const char *root, char *file, size_t bytes);

/* Allocates zeroed memory from the system, in whole pages; returns NULL where it fails. */
void *taper_map_memory(size_t bytes);

/* Gives such memory back to the system at once; free() would keep the pages of large blocks. */
void taper_unmap_memory(void *memory, size_t bytes);

/*
 * A loop that does one thing as fast as the code of one ISA level can:
 *
 *   "fma"   multiply-adds in registers; work is in floating-point operations, two for each
 *   "int8"  multiply-adds of bytes into int32, where one instruction does it; work is in operations
 *   "read"  loads of `bytes` bytes, in order; work is in bytes
 *   "copy"  the first half of the bytes to the second; work is in bytes read and bytes written
 */
typedef struct taper_probe {
    const char *name;
    const char *needs; /* features that the CPU must have beyond the level, or NULL */
    /* Returns the work done. memory: aligned to TAPER_ALIGNMENT; bytes: at least one cache line. */
    double (*run)(void *memory, size_t bytes, int64_t passes);
} taper_probe;

/* Returns the level's probe of that name; NULL where there is none, or where this CPU lacks a
 * feature that it needs. */
const taper_probe *taper_probe_find(const taper_level *level, const char *name);

typedef struct taper_measurement {
    double work; /* of all workers */
    int64_t ns;  /* from the first worker's start to the last one's end */
} taper_measurement;

/*
 * Runs a probe on up to `workers` threads of the pool at once, each on `bytes` bytes of its own, a
 * multiple of TAPER_ALIGNMENT, of memory[workers][bytes]. Each runs once untimed before all start.
 */
taper_status taper_measure(const taper_probe *probe, int32_t workers, void *memory, size_t bytes,
                           int64_t passes, taper_measurement *result);

#ifdef __cplusplus
}
#endif
#endif /* TAPER_MACHINE_H */
