/* The lists of kernel tables, one for each ISA level, and which of them this CPU can run. */
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "isa/isa.h"
#include "machine/probes.h"
#include "taper_config.h" /* TAPER_ISA_LIST, TAPER_FAMILY_LIST: meson writes it */

#define TAPER_DECLARE_FAMILY(isa, family) extern const taper_family taper_##family##__##isa;
#define TAPER_DECLARE_ISA(isa)                                                                     \
    TAPER_FAMILY_LIST(TAPER_DECLARE_FAMILY, isa)                                                   \
    extern const taper_probes taper_probes__##isa;
TAPER_ISA_LIST(TAPER_DECLARE_ISA)

#define TAPER_FAMILY_ROW(isa, family) &taper_##family##__##isa,
#define TAPER_ISA_TABLE(isa)                                                                       \
    static const taper_family *const families_##isa[] = {TAPER_FAMILY_LIST(TAPER_FAMILY_ROW, isa)};
TAPER_ISA_LIST(TAPER_ISA_TABLE)

struct taper_level {
    const char *name;
    const taper_family *const *families;
    const taper_probes *probes;
};

#define TAPER_LEVEL_ROW(isa) {#isa, families_##isa, &taper_probes__##isa},
static const taper_level levels[] = {TAPER_ISA_LIST(TAPER_LEVEL_ROW)}; /* best first */

enum {
    N_LEVELS = sizeof levels / sizeof levels[0],
#define TAPER_COUNT_FAMILY(isa, family) +1
    N_FAMILIES = 0 TAPER_FAMILY_LIST(TAPER_COUNT_FAMILY, any)
};

const taper_level *taper_level_at(size_t i) {
    for (size_t l = 0; l < N_LEVELS; l++)
        if (taper_cpu_has(levels[l].name) && i-- == 0)
            return &levels[l];
    return NULL;
}

static const taper_level *level_named(const char *name) {
    const taper_level *level;
    for (size_t i = 0; (level = taper_level_at(i)) != NULL; i++)
        if (strcmp(level->name, name) == 0)
            break;
    return level;
}

static const taper_level *default_level(void) {
    /* Every thread writes the same value. */
    static const taper_level *chosen;
    const taper_level *level = __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
    if (!level) {
        const char *forced = getenv("TAPER_ISA");
        level = forced && *forced ? level_named(forced) : taper_level_at(0);
        __atomic_store_n(&chosen, level, __ATOMIC_RELEASE);
    }
    return level;
}

taper_status taper_level_find(const char *name, const taper_level **level) {
    *level = name ? level_named(name) : default_level();
    return *level ? TAPER_OK : TAPER_UNKNOWN_ISA;
}

const char *taper_level_name(const taper_level *level) { return level->name; }

bool taper_kernel_at(const taper_level *level, size_t i, taper_kernel *kernel) {
    for (size_t f = 0; f < N_FAMILIES; f++) {
        const taper_family *family = level->families[f];
        if (i < family->count) {
            *kernel = family->kernels[i];
            return true;
        }
        i -= family->count;
        if (i < family->n_made) {
            family->make(i, kernel);
            return true;
        }
        i -= family->n_made;
    }
    return false;
}

bool taper_kernel_runs(const taper_kernel *kernel) {
    return !kernel->needs || taper_cpu_has(kernel->needs);
}

bool taper_kernel_next(const taper_level *level, const char *op, size_t *position,
                       taper_kernel *kernel) {
    while (taper_kernel_at(level, (*position)++, kernel))
        if (strcmp(kernel->op, op) == 0 && taper_kernel_runs(kernel))
            return true;
    return false;
}

/* More elements than a process can address. */
#define MAX_ELEMENTS (INT64_C(1) << 48)

/* Returns whether products of any of the dims fit in 64 bits with room to spare, also for an empty
 * tensor: prepare() multiplies them. */
static bool has_countable_dims(const taper_tensor *t) {
    int64_t count = 1;
    for (int32_t d = 0; d < t->rank; d++)
        if (t->shape[d] < 0 ||
            __builtin_mul_overflow(count, t->shape[d] > 0 ? t->shape[d] : 1, &count))
            return false;
    return count <= MAX_ELEMENTS;
}

static bool operand_takes(taper_operand operand, const taper_tensor *t) {
    return t->rank >= 0 && t->rank <= TAPER_MAX_RANK && has_countable_dims(t) && t->dtype >= 0 &&
           t->dtype < TAPER_DTYPE_COUNT && t->format >= 0 && t->format < TAPER_FORMAT_COUNT &&
           (operand >> t->dtype & 1) != 0 && (operand >> (32 + t->format) & 1) != 0;
}

bool taper_kernel_takes(const taper_kernel *kernel, const taper_call *call) {
    for (int32_t i = 0; i < call->n_inputs; i++) {
        const int32_t at = i < kernel->n_operands ? i : kernel->n_operands - 1;
        if (call->inputs[i].dtype != TAPER_ABSENT &&
            (at < 0 || !operand_takes(kernel->inputs[at], &call->inputs[i])))
            return false;
    }
    for (int32_t i = 0; i < call->n_outputs; i++)
        if (!operand_takes(kernel->output, &call->output[i]))
            return false;
    return true;
}

const taper_probe *taper_probe_find(const taper_level *level, const char *name) {
    for (size_t p = 0; p < level->probes->count; p++) {
        const taper_probe *probe = &level->probes->probes[p];
        if (strcmp(probe->name, name) == 0 && (!probe->needs || taper_cpu_has(probe->needs)))
            return probe;
    }
    return NULL;
}

size_t taper_max_state_bytes(const taper_level *level) {
    size_t max = 0;
    taper_kernel kernel;
    for (size_t i = 0; taper_kernel_at(level, i, &kernel); i++)
        max = kernel.state_bytes > max ? kernel.state_bytes : max;
    return max;
}

size_t taper_max_attrs_bytes(const taper_level *level) {
    size_t max = 0;
    taper_kernel kernel;
    for (size_t i = 0; taper_kernel_at(level, i, &kernel); i++)
        max = kernel.attrs_bytes > max ? kernel.attrs_bytes : max;
    return max;
}

static const struct {
    const char *name;
    size_t size;
} dtypes[TAPER_DTYPE_COUNT] = {
    [TAPER_FLOAT32] = {"float32", 4}, [TAPER_FLOAT64] = {"float64", 8},
    [TAPER_FLOAT16] = {"float16", 2}, [TAPER_BFLOAT16] = {"bfloat16", 2},
    [TAPER_INT64] = {"int64", 8},     [TAPER_INT32] = {"int32", 4},
    [TAPER_INT16] = {"int16", 2},     [TAPER_INT8] = {"int8", 1},
    [TAPER_UINT8] = {"uint8", 1},     [TAPER_BOOL] = {"bool", 1},
};

const char *taper_dtype_name(int dtype) {
    return dtype >= 0 && dtype < TAPER_DTYPE_COUNT ? dtypes[dtype].name : NULL;
}

size_t taper_dtype_size(int dtype) {
    return dtype >= 0 && dtype < TAPER_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *taper_format_name(int format) {
#define FORMAT_NAME(name, text) [TAPER_##name] = text,
    static const char *const names[TAPER_FORMAT_COUNT] = {TAPER_FORMATS(FORMAT_NAME)};
    return format >= 0 && format < TAPER_FORMAT_COUNT ? names[format] : NULL;
}

const char *taper_attr_type_name(int type) {
    static const char *const names[TAPER_ATTR_TYPE_COUNT] = {
        [TAPER_ATTR_INT] = "int",         [TAPER_ATTR_FLOAT] = "float",
        [TAPER_ATTR_BOOL] = "bool",       [TAPER_ATTR_STRING] = "string",
        [TAPER_ATTR_SCALAR] = "scalar",   [TAPER_ATTR_INTS] = "ints",
        [TAPER_ATTR_STRINGS] = "strings", [TAPER_ATTR_SCALARS] = "scalars",
    };
    return type >= 0 && type < TAPER_ATTR_TYPE_COUNT ? names[type] : NULL;
}

const char *taper_status_string(taper_status status) {
    switch (status) {
    case TAPER_OK:
        return "ok";
    case TAPER_UNSUPPORTED:
        return "no kernel serves this node";
    case TAPER_NO_MEMORY:
        return "out of memory";
    case TAPER_BAD_INDEX:
        return "an input holds a value that the op does not allow";
    case TAPER_BAD_ARGUMENT:
        return "an argument is outside its documented range";
    case TAPER_UNKNOWN_ISA:
        return "this build or this CPU does not have that ISA level";
    case TAPER_STOPPED:
        return "the run was stopped";
    case TAPER_CALL_FAILED:
        return "a call of the caller's own code failed";
    }
    return "unknown status";
}
