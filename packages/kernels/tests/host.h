/* What the tests ask of the operating system, beyond what src/os/os.h has. */
#ifndef TAPER_HOST_H
#define TAPER_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* At least `usable` bytes, readable and writable, zeroed, up to a page that is neither; where the
 * former end in *end. NULL where there is no memory. */
void *host_map(size_t usable, uint8_t **end);
void host_unmap(void *pages, const uint8_t *end);

typedef struct host_thread host_thread;

/* NULL where no thread can be had. */
host_thread *host_start(void (*body)(void *), void *arg);
void host_join(host_thread *thread);

#endif /* TAPER_HOST_H */
