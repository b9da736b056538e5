/* What differs between operating systems: threads and where they run, waiting, time, sizes. */
#ifndef TAPER_OS_H
#define TAPER_OS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Starts body(index) in a thread of its own, which nobody joins and which takes none of the host's
 * signals. The body is the same in every call. False where no thread can be had. */
bool taper_os_start_thread(void (*body)(int32_t index), int32_t index);

/* Has `child` called in each child of a fork, which has but the thread that forked. */
void taper_os_at_fork(void (*child)(void));

/* Lets another thread have the CPU. */
void taper_os_yield(void);

/* Sleeps until a wake; returns at once where *word is not `seen`, and may return without cause. */
void taper_os_wait(_Atomic uint32_t *word, uint32_t seen);

/* Wakes all who wait on the word. */
void taper_os_wake_all(_Atomic uint32_t *word);

/* In the child of a fork: whoever waited is gone. */
void taper_os_forget_waiters(void);

/* The CPU this thread runs on; -1 where the system does not say. */
int32_t taper_os_cpu(void);

/* This thread, as taper_os_leave takes it. */
int32_t taper_os_thread(void);

/* Moves this thread off `count` CPUs, to another that the thread `like` may use, and then lets it
 * run wherever that one may. Does nothing where there is no other, or no such call. */
void taper_os_leave(const int32_t *cpus, int32_t count, int32_t like);

/* CPUs this process may use; at least 1. */
int32_t taper_os_cpu_count(void);

/* Nanoseconds of a clock that never goes back. */
int64_t taper_os_now(void);

/* Nanoseconds of a clock that goes on every few milliseconds and costs next to nothing to read. */
int64_t taper_os_coarse_now(void);

/* Bytes of a data cache of level 1 to 3 as the first CPU has it; 0 where the system does not say.
 */
int64_t taper_os_cache_bytes(int32_t level);

/* Bytes of main memory; 0 where the system does not say. */
int64_t taper_os_memory_bytes(void);

/* Zeroed memory straight from the system, in whole pages; NULL where there is none. */
void *taper_os_map(size_t bytes);

/* Gives it back to the system, at once. */
void taper_os_unmap(void *memory, size_t bytes);

#endif /* TAPER_OS_H */
