/*
 * What a MATMUL node computes, as a batch of C[m][n] = A[m][k] * B[k][n]. C is the output itself,
 * [batches][m][n] without gaps.
 */

typedef struct matmul_batch_dim {
    int64_t size;
    int64_t a_stride; /* in elements, 0 where the operand is broadcast */
    int64_t b_stride;
} matmul_batch_dim;

typedef struct matmul_shape {
    int64_t m, n, k;
    int64_t a_row_stride, a_k_stride; /* in elements */
    int64_t b_k_stride, b_col_stride;
    matmul_batch_dim batch[TAPER_MAX_RANK];
    int32_t batch_dims;
    bool packed;            /* B is [ceil(n/16)][k][16], or such panels in blocks */
    gemm_element b_element; /* GEMM_F32 unless B is packed */
    gemm_head b_head;       /* of levels */
    bool swapped;           /* A is the node's second operand, transposed, and B is its first */
} matmul_shape;

/* Writes an operand's stride along batch dim d of `dims`; the operand has `own` batch dims, aligned
 * at the right. Returns false if it does not broadcast to size. */
static bool matmul_batch_stride(const taper_tensor *t, int32_t own, int32_t d, int32_t dims,
                                int64_t size, int64_t *stride) {
    const int32_t i = d - (dims - own);
    *stride = i < 0 || t->shape[i] == 1 ? 0 : t->strides[i];
    return i < 0 || t->shape[i] == 1 || t->shape[i] == size;
}

static bool matmul_batch(matmul_shape *s, const taper_tensor *a, int32_t a_dims,
                         const taper_tensor *b, int32_t b_dims, const taper_tensor *output) {
    const int32_t dims = a_dims > b_dims ? a_dims : b_dims;
    s->batch_dims = 0;
    for (int32_t d = 0; d < dims; d++) {
        matmul_batch_dim dim = {.size = output->shape[d]};
        if (!matmul_batch_stride(a, a_dims, d, dims, dim.size, &dim.a_stride) ||
            !matmul_batch_stride(b, b_dims, d, dims, dim.size, &dim.b_stride))
            return false;
        if (dim.size != 1)
            s->batch[s->batch_dims++] = dim;
    }
    return true;
}

/* Turns batch dims that share B and continue the rows of A into rows: [b, m, k] x [k, n] is one
 * product.
 */
static void matmul_flatten(matmul_shape *s) {
    for (; s->batch_dims > 0; s->batch_dims--) {
        const matmul_batch_dim *dim = &s->batch[s->batch_dims - 1];
        if (dim->b_stride != 0 || (s->m != 1 && dim->a_stride != s->m * s->a_row_stride))
            break;
        if (s->m == 1)
            s->a_row_stride = dim->a_stride;
        s->m *= dim->size;
    }
}

/* A single column: C is also [1][m], the product of B as a row with the transpose of A. */
static void matmul_swap(matmul_shape *s) {
    const matmul_shape from = *s;
    s->m = 1;
    s->n = from.m;
    s->a_row_stride = 0;
    s->a_k_stride = from.b_k_stride;
    s->b_k_stride = from.a_k_stride;
    s->b_col_stride = from.a_row_stride;
    for (int32_t d = 0; d < s->batch_dims; d++) {
        s->batch[d].a_stride = from.batch[d].b_stride;
        s->batch[d].b_stride = from.batch[d].a_stride;
    }
    s->swapped = true;
}

/* Fills the shape of B in panels for dot products (engine_i8.h). */
static bool matmul_dots(matmul_shape *s, const taper_tensor *b, bool transposed) {
    if (transposed || !b->logical || b->rank != 4 || b->shape[0] != 1)
        return false;
    s->n = b->logical[1];
    const int64_t lines = 1 + i64_ceil_div(b->logical[0], I8_GROUP);
    return tensor_is(b, TAPER_INT8, i64_ceil_div(s->n, GEMM_NR) * lines * I8_LINE);
}

/* false if the tensors are not those of a MATMUL node of this dtype; beside a float32 A, B may be
 * packed and narrow. TAPER_INT8: of bytes with sums in int32, whose dtypes the kernel's row says.
 */
static bool matmul_shape_of(matmul_shape *s, const taper_call *call,
                            const struct matmul_attrs *attrs, taper_dtype dtype) {
    const taper_tensor *a = &call->inputs[0], *b = &call->inputs[1], *output = call->output;
    const bool bytes = dtype == TAPER_INT8;
    if ((!bytes && (a->dtype != (int32_t)dtype || output->dtype != (int32_t)dtype)) ||
        a->rank < 1 || b->rank < 1 || !tensor_is_contiguous(output))
        return false;

    *s = (matmul_shape){.m = 1, .n = 1, .packed = b->format != TAPER_PLAIN};
    s->b_element = gemm_element_of(b);
    if (a->format != TAPER_PLAIN)
        return false;
    if (dtype == TAPER_FLOAT32 ? s->b_element == GEMM_ELEMENTS
                               : !bytes && (s->packed || b->dtype != (int32_t)dtype))
        return false;
    const int32_t a_row = a->rank - 2, a_k = a->rank - 1;
    if (a_row >= 0) {
        s->m = a->shape[a_row];
        s->a_row_stride = a->strides[a_row];
    }
    s->k = a->shape[a_k];
    s->a_k_stride = a->strides[a_k];

    int64_t k = b->shape[0];
    if (s->packed && bytes) {
        if (!matmul_dots(s, b, attrs->transpose_b))
            return false;
        k = b->logical[0];
    } else if (s->packed) {
        if (attrs->transpose_b != (b->format == TAPER_PANELS_0) || b->rank != 3)
            return false;
        s->n = b->logical[attrs->transpose_b ? 0 : 1];
        s->b_k_stride = gemm_floats(s->b_element, 1); /* in a panel; 0 for levels */
        s->b_col_stride = 1;
        k = b->shape[1];
        int64_t items = k * GEMM_NR; /* of the storage, in a panel */
        if (gemm_has_levels(s->b_element)) {
            k = b->logical[0];
            if (!gemm_find_head(&s->b_head, b, s->b_element, k))
                return false;
            items = b->shape[1] * b->shape[2];
        }
        if (!tensor_is(b, b->dtype, i64_ceil_div(s->n, GEMM_NR) * items))
            return false;
    } else if (b->rank == 1) {
        s->b_k_stride = b->strides[0];
    } else {
        const int32_t b_col = b->rank - (attrs->transpose_b ? 2 : 1);
        const int32_t b_k = b->rank - (attrs->transpose_b ? 1 : 2);
        s->n = b->shape[b_col];
        s->b_col_stride = b->strides[b_col];
        k = b->shape[b_k];
        s->b_k_stride = b->strides[b_k];
    }

    const int32_t a_dims = a_row > 0 ? a_row : 0;
    const int32_t b_dims = s->packed || b->rank < 2 ? 0 : b->rank - 2;
    int32_t rank = a_dims > b_dims ? a_dims : b_dims;
    rank += (a->rank > 1) + (s->packed || b->rank > 1);
    if (k != s->k || output->rank != rank || !matmul_batch(s, a, a_dims, b, b_dims, output))
        return false;
    int64_t numel = s->m * s->n;
    for (int32_t d = 0; d < s->batch_dims; d++)
        numel *= s->batch[d].size;
    if (numel != tensor_numel(output))
        return false;

    matmul_flatten(s);
    if (s->n == 1 && !s->packed && !bytes) {
        matmul_swap(s);
        matmul_flatten(s);
    }
    return true;
}

/* Where the operands of a product of the batch begin, in elements. */
static void matmul_batch_begin(const matmul_shape *s, int64_t batch, int64_t *a, int64_t *b) {
    *a = *b = 0;
    for (int32_t d = s->batch_dims - 1; d >= 0; d--) {
        const int64_t i = batch % s->batch[d].size;
        batch /= s->batch[d].size;
        *a += i * s->batch[d].a_stride;
        *b += i * s->batch[d].b_stride;
    }
}
