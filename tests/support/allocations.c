/* Counts what one library allocates, and has one of its allocations fail; for LD_PRELOAD.
 *
 * An allocation is the library's where the caller's address lies in a file whose path has
 * ALLOCATIONS_OF in it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

enum { TABLE = 1 << 18 };
static void *live[TABLE]; /* open addressing; 1 stands for what was taken out */
static long allocated, fails_at, in_use;
static const char *whose;
static int lock;

static void enter(void) {
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        ;
}
static void leave(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

long allocations_made(void) { return allocated; }
long allocations_in_use(void) { return in_use; }
void allocations_fail_at(long number) {
    allocated = 0;
    fails_at = number;
}
void allocations_of(const char *name) { whose = name; }

static size_t slot(void *p) { return ((size_t)p >> 4) * 0x9E3779B97F4A7C15u >> 46; }

/* Whether the library may have it; counts it. */
static int theirs(void *caller) {
    Dl_info info;
    return whose && dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, whose);
}
static int granted(void) {
    return __atomic_add_fetch(&allocated, 1, __ATOMIC_RELAXED) != fails_at;
}
static void *kept(void *p) {
    if (p) {
        enter();
        size_t i = slot(p);
        while ((size_t)live[i % TABLE] > 1)
            i++;
        live[i % TABLE] = p;
        in_use++;
        leave();
    }
    return p;
}
static void forget(void *p) {
    if (!p || !in_use)
        return;
    enter();
    for (size_t i = slot(p); live[i % TABLE]; i++)
        if (live[i % TABLE] == p) {
            live[i % TABLE] = (void *)1;
            in_use--;
            break;
        }
    leave();
}

#define HOOK(call)                                                                                  \
    if (!theirs(__builtin_return_address(0)))                                                       \
        return call;                                                                                \
    return granted() ? kept(call) : NULL
void *malloc(size_t size) { HOOK(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { HOOK(__libc_calloc(count, size)); }
void *aligned_alloc(size_t alignment, size_t size) { HOOK(__libc_memalign(alignment, size)); }
int posix_memalign(void **p, size_t alignment, size_t size) {
    int mine = theirs(__builtin_return_address(0));
    *p = mine && !granted() ? NULL : __libc_memalign(alignment, size);
    if (mine)
        kept(*p);
    return *p ? 0 : 12;
}
void *realloc(void *p, size_t size) {
    int mine = theirs(__builtin_return_address(0));
    if (mine && !granted())
        return NULL;
    forget(p);
    p = __libc_realloc(p, size);
    return mine ? kept(p) : p;
}
void free(void *p) {
    forget(p);
    __libc_free(p);
}
