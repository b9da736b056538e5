#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <stdlib.h>

#include "host.h"

static size_t page_bytes(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}

void *host_map(size_t usable, uint8_t **end) {
    const size_t page = page_bytes(), size = (usable + page - 1) / page * page;
    uint8_t *pages = VirtualAlloc(NULL, size + page, MEM_RESERVE, PAGE_NOACCESS);
    if (!pages || !VirtualAlloc(pages, size, MEM_COMMIT, PAGE_READWRITE))
        return NULL;
    *end = pages + size;
    return pages;
}

void host_unmap(void *pages, const uint8_t *end) {
    (void)end;
    VirtualFree(pages, 0, MEM_RELEASE);
}

struct host_thread {
    void (*body)(void *);
    void *arg;
    HANDLE thread;
};

static DWORD WINAPI start(void *thread) {
    const host_thread *t = thread;
    t->body(t->arg);
    return 0;
}

host_thread *host_start(void (*body)(void *), void *arg) {
    host_thread *t = malloc(sizeof *t);
    if (t) {
        t->body = body;
        t->arg = arg;
        t->thread = CreateThread(NULL, 0, start, t, 0, NULL);
        if (t->thread)
            return t;
    }
    free(t);
    return NULL;
}

void host_join(host_thread *t) {
    WaitForSingleObject(t->thread, INFINITE);
    CloseHandle(t->thread);
    free(t);
}
