#include "isa/isa.h"

extern const taper_family TAPER_ISA_SYM(taper_attention);
const taper_family TAPER_ISA_SYM(taper_attention) = {NULL, 0};
