/* An ATTENTION that tests draw: its tensors, and the comparison of its results with double. */
#ifndef TAPER_ATTENTION_CASE_H
#define TAPER_ATTENTION_CASE_H

#include "check.h"
#include "attention/kernels.inc"

CHECK_ATTRS(attention)

typedef enum mask_kind { NO_MASK, BOOL_MASK, FLOAT_MASK } mask_kind;
typedef enum layout {
    CONTIGUOUS, /* [B, H, L, D] */
    PROJECTED,  /* [B, L, H, D] seen as [B, H, L, D] */
    FUSED,      /* a third of [B, L, 3, H, D], so seen */
    TRANSPOSED, /* [B, H, D, L] so seen */
    BROADCAST   /* heads of stride 0 */
} layout;

typedef struct attention_case {
    int64_t batch, heads, kv_heads, lq, lk, d, dv;
    layout layout;
    mask_kind mask;
    unsigned mask_dims; /* bit i: dimension i of the mask is not broadcast; 0 batch, ... 3 key */
    int mask_rank;      /* 0 is 4 */
    bool mask_transposed;
    float masked; /* share of keys */
    bool causal;
    int64_t diagonal;
    bool not_safe;
    bool transpose_output;
    float range; /* of the queries; 0 is 1 */
    size_t misalign;
} attention_case;

typedef struct attention_node {
    const attention_case *c;
    taper_tensor inputs[4];
    int n_inputs;
    taper_tensor output;
    void *data[5]; /* what to free */
    struct attention_attrs attrs;
} attention_node;

void node_make(attention_node *node, const attention_case *c);
void node_free(attention_node *node);
/* Returns an element of a tensor of rank 4 or less, whose dims of size 1 are broadcast; of a mask,
 * the number that is added. */
double at4(const taper_tensor *t, int64_t a, int64_t b, int64_t i, int64_t j);
/* Compares the node's output. */
void node_check(const attention_node *node);

/* Makes a node, runs it with several numbers of threads, and compares. */
void check_attention(attention_case c);

#endif /* TAPER_ATTENTION_CASE_H */
