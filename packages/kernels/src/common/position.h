/* Positions along a dimension that an index tensor holds: int32 or int64, checked before use. */
#ifndef TAPER_POSITION_H
#define TAPER_POSITION_H

#include "common/tensor.h"

struct positions {
    int64_t size; /* of the dimension they are in */
    bool wrap;    /* [-size, 0) counts from the end */
    bool is_int32;
};

/* Returns false unless the index is int32 or int64. */
TENSOR_INLINE bool positions_prepare(struct positions *p, const taper_tensor *index, int64_t size,
                                     bool wrap) {
    *p = (struct positions){size, wrap, index->dtype == TAPER_INT32};
    return p->is_int32 || index->dtype == TAPER_INT64;
}

/* Returns position i of data, or -1 where it is outside. */
TENSOR_INLINE int64_t position_at(const struct positions *p, const void *data, int64_t i) {
    int64_t at = p->is_int32 ? ((const int32_t *)data)[i] : ((const int64_t *)data)[i];
    if (p->wrap && at < 0)
        at += p->size;
    return at >= 0 && at < p->size ? at : -1;
}

#endif /* TAPER_POSITION_H */
