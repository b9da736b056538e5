#include "map/microops.h"

#define TAPER_MICROOP(name, function, cost, result, ...)                                           \
    {name, #function, cost, sizeof((int8_t[]){__VA_ARGS__}), result, {__VA_ARGS__}},
#define TAPER_CAST(to, ...) TAPER_MICROOP("CAST:" to, __VA_ARGS__)
const taper_microop taper_microops[MICROOP_COUNT] = {
#include "map/microops.inc"
};
