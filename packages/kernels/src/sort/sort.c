/* ARGSORT, of all or only the first places, and SEARCHSORTED. */
#include <math.h>
#include <string.h>

#include "common/tensor.h"
#include "isa/isa.h"
#include "sort/kernels.inc"

TAPER_DEFINE_ATTRS(argsort)
TAPER_DEFINE_ATTRS(searchsorted)

#include "sort/keys.inl"

enum {
    SORT_FEW = 96,    /* most entries that are ranked by comparing all: digits clear counts first */
    SORT_LANES = 16,  /* keys compared at once; divides SORT_FEW */
    SORT_PASSES = 4,  /* over a line of 32-bit keys: one that makes keys, three by wide digits */
    SORT_KEPT = 16,   /* most wanted entries that are kept in order from the start */
    SORT_MANY = 4096, /* least entries for wide digits: twice as many as a wide digit has counts */
    SORT_DIGIT = 11, /* bits of a wide digit: three make 32, and the counts of each, 8 KB, fit L1 */
    SORT_BLOCK = 512, /* keys made at once, in L1 */
    SORT_LEAST = 128, /* least room of a buffer, in entries */
    /* Size of the counts, for 6 wide digits: 64 bits have this many. */
    SORT_COUNTS_BYTES = 6 * (1 << SORT_DIGIT) * sizeof(uint32_t)
};

/* x is [outer][n][inner], with any strides: a line is n elements `step` apart. */
struct argsort_state {
    sort_keys32 *keys32; /* one of the two is NULL */
    sort_keys64 *keys64;
    int64_t size; /* of an element */
    int64_t n, step, count, inner;
    int64_t capacity; /* entries of the buffer */
    bool descending;
    /* The dims over which lines are counted, and their strides in x. */
    int64_t rank, sizes[TAPER_MAX_RANK], strides[TAPER_MAX_RANK];
    int64_t lines, lines_per_task;
};

/* An entry of 64 bits: the place is below 2^32. */
#define NAME(x) x##32
#define KEY uint32_t
#define ENTRY uint64_t
#define ENTRY_OF(key, i) ((uint64_t)(key) << 32 | (uint64_t)(i))
#define ENTRY_KEY(e) ((uint32_t)((e) >> 32))
#define ENTRY_PLACE(e) ((e) & UINT32_MAX)
#include "sort/order.inl"

typedef struct sort_entry {
    uint64_t key;
    int64_t place;
} sort_entry;
#define NAME(x) x##64
#define KEY uint64_t
#define ENTRY sort_entry
#define ENTRY_OF(k, i) ((sort_entry){k, i})
#define ENTRY_KEY(e) ((e).key)
#define ENTRY_PLACE(e) ((e).place)
#include "sort/order.inl"

static taper_status any_argsort_prepare(const taper_call *call, taper_work *work) {
    const struct argsort_attrs *attrs = call->attrs;
    struct argsort_state *s = call->state;
    const taper_tensor *x = &call->inputs[0];
    const int64_t axis = attrs->axis;
    if (call->n_inputs != 1 || axis < 0 || axis >= x->rank || x->shape[axis] > UINT32_MAX)
        return TAPER_UNSUPPORTED;
    s->keys32 = keys32_of[x->dtype];
    s->keys64 = keys64_of[x->dtype];
    s->size = (int64_t)taper_dtype_size(x->dtype);
    s->n = x->shape[axis];
    s->step = x->strides[axis];
    s->count = attrs->count < 0 ? s->n : attrs->count;
    s->inner = tensor_count(x, axis + 1, x->rank);
    s->descending = attrs->descending;
    s->rank = 0;
    s->lines = 1;
    for (int32_t d = 0; d < x->rank; d++)
        if (d != axis) {
            s->sizes[s->rank] = x->shape[d];
            s->strides[s->rank++] = x->strides[d];
            s->lines *= x->shape[d];
        }
    if ((!s->keys32 && !s->keys64) || s->count > s->n ||
        !tensor_is(call->output, TAPER_INT64, s->lines * s->count))
        return TAPER_UNSUPPORTED;
    /* Twice as many as are wanted: half of the buffer fills between two sorts. */
    s->capacity = s->count > s->n / 4 ? s->n : i64_min(s->n, i64_max(SORT_LEAST, 2 * s->count));
    s->lines_per_task = rows_per_task(SORT_PASSES * s->n);
    if (s->count == 0 || s->lines == 0) {
        *work = (taper_work){0};
        return TAPER_OK;
    }
    work->tasks = i64_ceil_div(s->lines, s->lines_per_task);
    const size_t entry = s->keys32 ? sizeof(uint64_t) : sizeof(sort_entry);
    work->scratch_bytes = SORT_COUNTS_BYTES + 2 * (size_t)s->capacity * entry;
    return TAPER_OK;
}

static taper_status any_argsort_run(const taper_call *call, int64_t begin, int64_t end,
                                    void *scratch) {
    const struct argsort_state *s = call->state;
    const int64_t last = i64_min(end * s->lines_per_task, s->lines);
    for (int64_t line = begin * s->lines_per_task; line < last; line++) {
        const char *x = call->inputs[0].data;
        int64_t rest = line;
        for (int64_t d = s->rank - 1; d >= 0; d--) {
            x += rest % s->sizes[d] * s->strides[d] * s->size;
            rest /= s->sizes[d];
        }
        int64_t *y =
            (int64_t *)call->output->data + line / s->inner * s->count * s->inner + line % s->inner;
        (s->keys32 ? sort_line32 : sort_line64)(s, x, y, scratch);
    }
    return TAPER_OK;
}

#include "sort/search.inl"

/* ---- table ---- */

static const taper_kernel sort_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "sort/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_sort);
const taper_family TAPER_ISA_SYM(taper_sort) = {TAPER_ROWS(sort_kernels)};
