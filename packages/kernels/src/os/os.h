/* Functions that differ between operating systems: threads and their CPUs, waiting, time, sizes. */
#ifndef TAPER_OS_H
#define TAPER_OS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Starts body(index) in a new detached thread that receives none of the host's signals. The body is
 * the same in every call. Returns false where no thread can be created. */
bool taper_os_start_thread(void (*body)(int32_t index), int32_t index);

/* Registers `child` to be called in each child of a fork, which has only the thread that forked. */
void taper_os_at_fork(void (*child)(void));

/* Yields the CPU to another thread. */
void taper_os_yield(void);

/* Sleeps until woken; returns at once where *word is not `seen`, and may return without a wake. */
void taper_os_wait(_Atomic uint32_t *word, uint32_t seen);

/* Wakes all threads that wait on the word. */
void taper_os_wake_all(_Atomic uint32_t *word);

/* For the child of a fork: forgets the waiting threads, which it does not have. */
void taper_os_forget_waiters(void);

/* Returns the CPU that this thread runs on; -1 where the system does not tell. */
int32_t taper_os_cpu(void);

/* Returns this thread, for taper_os_leave. */
int32_t taper_os_thread(void);

/* Moves this thread off `count` CPUs to another CPU that the thread `like` may use, and then lets
 * it run wherever that thread may. Does nothing where there is no other CPU, or where the system
 * has no such call. */
void taper_os_leave(const int32_t *cpus, int32_t count, int32_t like);

/* Returns how many CPUs this process may use, by its affinity mask and its limit on CPU time,
 * rounded up; at least 1. */
int32_t taper_os_cpu_count(void);

/* Returns how many CPUs the process's control groups let it keep busy, such as 0.5; 0 where they
 * set no limit. Writes the path of the file with that limit to file[bytes]. root: the folder with
 * /proc and what is mounted; "" for the system's. */
double taper_os_cpu_limit(const char *root, char *file, size_t bytes);

/* Returns whether this process's control groups limit its CPU time. */
bool taper_os_cpu_limited(void);

/* Returns the nanoseconds of a monotonic clock. */
int64_t taper_os_now(void);

/* Returns the nanoseconds of a monotonic clock that advances every few milliseconds and is cheap to
 * read. */
int64_t taper_os_coarse_now(void);

/* Returns the bytes of a data cache of the first CPU, level 1 to 3; 0 where the system does not
 * tell.
 */
int64_t taper_os_cache_bytes(int32_t level);

/* Returns the bytes of main memory; 0 where the system does not tell. */
int64_t taper_os_memory_bytes(void);

/* Allocates zeroed memory from the system, in whole pages; returns NULL where it fails. */
void *taper_os_map(size_t bytes);

/* Gives such memory back to the system at once. */
void taper_os_unmap(void *memory, size_t bytes);

#endif /* TAPER_OS_H */
