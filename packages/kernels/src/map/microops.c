#include "map/microops.h"

#define TAPER_MICROOP(name, function, time4, time8, time16, result, ...)                           \
    {name,   #function,    {time4, time8, time16}, sizeof((int8_t[]){__VA_ARGS__}),                \
     result, {__VA_ARGS__}},
#define TAPER_CAST(to, ...) TAPER_MICROOP("CAST:" to, __VA_ARGS__)
const taper_microop taper_microops[MICROOP_COUNT] = {
#include "map/microops.inc"
};

bool taper_function_at(size_t i, taper_function *function) {
    if (i >= MICROOP_COUNT)
        return false;
    const taper_microop *op = &taper_microops[i];
    function->name = op->name;
    function->dtype = op->operand[op->arity == MICROOP_MAX_ARITY]; /* not that of a condition */
    for (int w = 0; w < TAPER_FUNCTION_WIDTHS; w++)
        function->time[w] = op->time[w];
    return true;
}
