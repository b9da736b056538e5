/* One level's probes. */
#ifndef TAPER_PROBES_H
#define TAPER_PROBES_H

#include "taper/machine.h"

typedef struct taper_probes {
    const taper_probe *probes;
    size_t count;
} taper_probes;

#endif /* TAPER_PROBES_H */
