#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, setenv */
#include "host.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void *host_map(size_t usable, uint8_t **end) {
    const size_t page = page_bytes(), size = (usable + page - 1) / page * page;
    uint8_t *pages =
        mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + size, page, PROT_NONE) != 0)
        return NULL;
    *end = pages + size;
    return pages;
}

void host_unmap(void *pages, const uint8_t *end) {
    munmap(pages, (size_t)(end - (uint8_t *)pages) + page_bytes());
}

struct host_thread {
    void (*body)(void *);
    void *arg;
    pthread_t thread;
};

static void *start(void *thread) {
    const host_thread *t = thread;
    t->body(t->arg);
    return NULL;
}

host_thread *host_start(void (*body)(void *), void *arg) {
    host_thread *t = malloc(sizeof *t);
    if (t) {
        t->body = body;
        t->arg = arg;
        if (pthread_create(&t->thread, NULL, start, t) == 0)
            return t;
    }
    free(t);
    return NULL;
}

void host_join(host_thread *t) {
    pthread_join(t->thread, NULL);
    free(t);
}
