/* Functions of the operating system that tests need and src/os/os.h does not have. */
#ifndef TAPER_HOST_H
#define TAPER_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns at least `usable` bytes, readable, writable and zeroed, up to a page that is neither;
 * writes their end to *end. Returns NULL if there is no memory. */
void *host_map(size_t usable, uint8_t **end);
void host_unmap(void *pages, const uint8_t *end);

typedef struct host_thread host_thread;

/* Returns NULL if no thread can be created. */
host_thread *host_start(void (*body)(void *), void *arg);
void host_join(host_thread *thread);

#endif /* TAPER_HOST_H */
