/* Windows 8 and later, with native threads. CPUs are those of the process' processor group. */
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "os/os.h"

static void (*thread_body)(int32_t index);

static DWORD WINAPI start(void *index) {
    thread_body((int32_t)(intptr_t)index);
    return 0;
}

bool taper_os_start_thread(void (*body)(int32_t index), int32_t index) {
    if (!thread_body)
        thread_body = body;
    const HANDLE thread = CreateThread(NULL, 0, start, (void *)(intptr_t)index, 0, NULL);
    if (thread)
        CloseHandle(thread);
    return thread != NULL;
}

void taper_os_at_fork(void (*child)(void)) { (void)child; } /* there is no fork */

void taper_os_yield(void) { SwitchToThread(); }

void taper_os_wait(_Atomic uint32_t *word, uint32_t seen) {
    WaitOnAddress((volatile void *)word, &seen, sizeof seen, INFINITE);
}

void taper_os_wake_all(_Atomic uint32_t *word) { WakeByAddressAll((void *)word); }

void taper_os_forget_waiters(void) {}

int32_t taper_os_cpu(void) { return (int32_t)GetCurrentProcessorNumber(); }

int32_t taper_os_thread(void) { return 0; }

/* Returns the CPUs that the process may use, as a mask; 0 where it has several processor groups. */
static DWORD_PTR process_cpus(void) {
    DWORD_PTR process, system;
    return GetProcessAffinityMask(GetCurrentProcess(), &process, &system) ? process : 0;
}

void taper_os_leave(const int32_t *cpus, int32_t count, int32_t like) {
    (void)like; /* Windows does not tell the mask of another thread */
    const DWORD_PTR all = process_cpus();
    DWORD_PTR others = all;
    for (int32_t i = 0; i < count; i++)
        others &= ~((DWORD_PTR)1 << cpus[i]);
    if (others && SetThreadAffinityMask(GetCurrentThread(), others))
        SetThreadAffinityMask(GetCurrentThread(), all);
}

int32_t taper_os_cpu_count(void) {
    const DWORD_PTR cpus = process_cpus();
    const int32_t all = (int32_t)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return cpus ? __builtin_popcountll(cpus) : all > 0 ? all : 1;
}

double taper_os_cpu_limit(const char *root, char *file, size_t bytes) {
    (void)root, (void)file, (void)bytes;
    return 0;
}

bool taper_os_cpu_limited(void) { return false; }

int64_t taper_os_now(void) {
    LARGE_INTEGER ticks, rate; /* per second */
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&rate);
    const int64_t seconds = ticks.QuadPart / rate.QuadPart, rest = ticks.QuadPart % rate.QuadPart;
    return seconds * 1000000000 + rest * 1000000000 / rate.QuadPart;
}

int64_t taper_os_coarse_now(void) { return (int64_t)GetTickCount64() * 1000000; }

int64_t taper_os_cache_bytes(int32_t level) {
    enum { MAX_RECORDS = 1024 };
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION records[MAX_RECORDS];
    DWORD bytes = sizeof records;
    if (!GetLogicalProcessorInformation(records, &bytes))
        return 0;
    for (DWORD i = 0; i < bytes / sizeof *records; i++) {
        const CACHE_DESCRIPTOR *cache = &records[i].Cache;
        if (records[i].Relationship == RelationCache && cache->Level == level &&
            cache->Type != CacheInstruction)
            return cache->Size;
    }
    return 0;
}

int64_t taper_os_memory_bytes(void) {
    MEMORYSTATUSEX memory = {.dwLength = sizeof memory};
    return GlobalMemoryStatusEx(&memory) ? (int64_t)memory.ullTotalPhys : 0;
}

void *taper_os_map(size_t bytes) {
    return VirtualAlloc(NULL, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void taper_os_unmap(void *memory, size_t bytes) {
    (void)bytes;
    VirtualFree(memory, 0, MEM_RELEASE);
}
