/* Sizes of an attention node, as prepare() finds them, and its split into tasks. */

TAPER_DEFINE_ATTRS(attention)

/* Rows are the queries of a head. They are split into blocks, and a block into tiles. */
enum {
    ROW_TILE = 32, /* rows taken through a block of keys together: 32 x 256 scores, 32 KB, fit L1 */
    MAX_BLOCK_ROWS =
        128, /* four tiles, so that a block's keys and values are read from L2 four times */
    MIN_BLOCK_KEYS = 64,      /* for each block a row's sums are rescaled once */
    MAX_BLOCK_KEYS = 256,     /* see ROW_TILE */
    BLOCK_ELEMENTS = 1 << 15, /* elements of queries and sums, and of keys and values: half of L2 */
    LIVE_KEYS = 32,           /* keys that softmax takes at a time: whole vectors at any level */
    FEW_ROWS = 8,             /* up to so many rows, vectors across rows would not be full */
    SCORE_PAD = 16, /* floats after a row of scores: rows a power of two apart share sets */
};

/* Scores are computed by dot products, or by vectors across rows. The two variants add the terms of
 * a score in different orders. */
enum { ATTENTION_FEW_ROWS = 1, ATTENTION_ROW_TILES };
static const taper_variant attention_variants[] = {
    {.name = "few_rows", .other_bits = true}, /* where elements of a key and a value adjoin */
    {.name = "row_tiles", .other_bits = true, .rows = ROW_TILE, .columns = GEMM_NR},
    {0},
};

/* [batch][head][row][col] of a tensor; 0 for dimensions that are missing or broadcast. Rank 3 is a
 * batch of one, whose heads are the tensor's batch. */
typedef struct attention_strides {
    int64_t batch;
    int64_t head;
    int64_t row;
    int64_t col;
} attention_strides;

struct attention_state {
    int64_t batch;
    int64_t heads;
    int64_t group; /* heads that share keys and values */
    int64_t rows;  /* queries of a head */
    int64_t keys;
    int64_t d;  /* of queries and keys */
    int64_t dv; /* of values */
    attention_strides q, k, v, mask, out;
    int32_t
        stored; /* taper_dtype of keys and values; what is not float32 is widened block by block */
    attention_strides k_scale, v_scale; /* of int8 keys and values, [batch][kv_head][key][1] */
    struct {
        int64_t row, col;
    } k_read, v_read; /* strides of a block of keys, and of values, as floats */
    bool masked;
    bool mask_is_bool;
    bool causal;
    int64_t diagonal;
    float scale;
    float nothing; /* the output of a row that attends to no key */

    /* A unit of work is a block of a head's rows. */
    int64_t block_rows;
    int64_t row_blocks;
    int64_t block_keys;
    int64_t units;
    int64_t units_per_task;
    bool few_rows;

    /* Scratch, in floats. */
    struct {
        int64_t q;       /* [block_rows / 16][d][16], or few rows [block_rows][d] */
        int64_t values;  /* [GEMM_WIDE_PANELS][block_keys][16] what cannot be read in place */
        int64_t scores;  /* [block_keys][ROW_TILE], or few rows [block_rows][block_keys + 16] */
        int64_t sums;    /* [block_rows][dv] weighted sums of values so far */
        int64_t max;     /* [block_rows] largest score so far */
        int64_t total;   /* [block_rows] sum of weights so far */
        int64_t bias;    /* [V_LEN][block_keys] */
        int64_t widened; /* keys [block_keys][d] and values [block_keys][dv] */
        int64_t floats;
    } at;
};

/* Size of dimension i of the four, counted from the last. */
static int64_t attention_size(const taper_tensor *t, int32_t i) {
    const int32_t d = t->rank - 4 + i;
    return d < 0 ? 1 : t->shape[d];
}

static attention_strides attention_strides_of(const taper_tensor *t) {
    int64_t s[4];
    for (int32_t i = 0; i < 4; i++) {
        const int32_t d = t->rank - 4 + i;
        s[i] = d < 0 || t->shape[d] == 1 ? 0 : t->strides[d];
    }
    return (attention_strides){s[0], s[1], s[2], s[3]};
}

static bool attention_is(const taper_tensor *t, int64_t batch, int64_t head, int64_t row,
                         int64_t col) {
    return attention_size(t, 0) == batch && attention_size(t, 1) == head &&
           attention_size(t, 2) == row && attention_size(t, 3) == col;
}

static bool attention_broadcasts(const taper_tensor *t, const int64_t *sizes) {
    for (int32_t i = 0; i < 4; i++)
        if (attention_size(t, i) != 1 && attention_size(t, i) != sizes[i])
            return false;
    return true;
}

/* Blocks of about equal size, whole panels, at most max. */
static int64_t attention_block(int64_t n, int64_t max) {
    const int64_t blocks = i64_max(1, i64_ceil_div(n, i64_max(max / GEMM_NR * GEMM_NR, GEMM_NR)));
    return i64_max(GEMM_NR, i64_ceil_div(i64_ceil_div(n, blocks), GEMM_NR) * GEMM_NR);
}

static int64_t attention_take(int64_t *floats, int64_t n) {
    const int64_t at = *floats;
    *floats += i64_ceil_div(n, GEMM_NR) * GEMM_NR; /* whole cache lines */
    return at;
}

/* `few`: whether there are few queries; `variant`: 0, or the variant that the call asks for.
 * Returns false where it does not serve such keys. */
static bool attention_cut(struct attention_state *s, bool few, int32_t variant) {
    const bool adjoin = (s->k.col == 1 || s->d <= 1) && (s->v.col == 1 || s->dv <= 1);
    s->few_rows = variant ? variant == ATTENTION_FEW_ROWS : few && adjoin;
    if (s->few_rows && !adjoin)
        return false;
    const int64_t heads = s->batch * s->heads;
    const int64_t widest = BLOCK_ELEMENTS / i64_max(1, s->d + s->dv);
    const int64_t most = s->few_rows ? ROW_TILE : i64_min(widest, MAX_BLOCK_ROWS);
    s->block_rows = attention_block(s->rows, i64_max(ROW_TILE, most));
    while (heads * i64_ceil_div(s->rows, s->block_rows) < TASK_PARTS &&
           s->block_rows >= 2 * ROW_TILE)
        s->block_rows = attention_block(s->block_rows, s->block_rows / 2);
    s->row_blocks = i64_ceil_div(s->rows, s->block_rows);
    s->units = s->dv > 0 ? heads * s->row_blocks : 0;
    s->block_keys =
        attention_block(s->keys, i64_max(MIN_BLOCK_KEYS, i64_min(widest, MAX_BLOCK_KEYS)));
    /* Cost in vectors of multiply-adds. Where there are few rows, reading keys and values takes the
     * time. */
    s->units_per_task = rows_per_task(s->block_rows * s->keys * (s->d + s->dv) / GEMM_NR);

    int64_t floats = 0;
    s->at.q = attention_take(&floats, s->block_rows * s->d);
    const int64_t packed = s->few_rows ? 0 : GEMM_WIDE_PANELS * s->block_keys * GEMM_NR;
    s->at.values = attention_take(&floats, packed);
    s->at.scores = attention_take(&floats, (s->block_keys + SCORE_PAD) * ROW_TILE);
    s->at.sums = attention_take(&floats, s->block_rows * s->dv);
    s->at.max = attention_take(&floats, s->block_rows);
    s->at.total = attention_take(&floats, s->block_rows);
    s->at.bias = attention_take(&floats, s->masked ? V_LEN * s->block_keys : 0);
    const bool widens = s->stored != TAPER_FLOAT32 && !s->few_rows;
    s->at.widened = attention_take(&floats, widens ? s->block_keys * (s->d + s->dv) : 0);
    s->at.floats = floats;
    return true;
}

/* Work of the variant beyond the products; see taper_work. */
static void attention_weigh(const struct attention_state *s, taper_work *work) {
    const int64_t heads = i64_times(s->batch, s->heads), moved = 2 * sizeof(float);
    if (s->few_rows) {
        /* Sums over lanes; and two loads for a multiply-add, which takes as long as one of them
         * where a vector is a whole cache line. */
        const int64_t each = V_LEN * V_LEN + (V_LEN < GEMM_NR ? 2 * (s->d + s->dv) : 0);
        work->extra_flops = i64_times(heads, i64_times(s->rows, i64_times(s->keys, each)));
        return;
    }
    const int64_t rows = i64_ceil_div(s->rows, GEMM_NR) * GEMM_NR;
    work->extra_flops = i64_times(heads, i64_times(rows - s->rows, i64_times(s->keys, 2 * s->d)));
    work->scratch_traffic = i64_times(heads, i64_times(rows, i64_times(s->d, moved)));
}

/* Where each head has one query, the heads that share keys become the rows of one head. */
static void attention_heads_as_rows(struct attention_state *s) {
    attention_strides *const strides[] = {&s->q, &s->mask, &s->out};
    for (int i = 0; i < 3; i++) {
        strides[i]->row = strides[i]->head;
        strides[i]->head *= s->group;
    }
    s->rows = s->group;
    s->heads /= s->group;
    s->group = 1;
}

static taper_status f32_attention_prepare(const taper_call *call, taper_work *work) {
    const struct attention_attrs *attrs = call->attrs;
    const taper_tensor *q = &call->inputs[0], *k = &call->inputs[1], *v = &call->inputs[2];
    const taper_tensor *mask = call->n_inputs > 3 ? &call->inputs[3] : NULL, *out = call->output;
    struct attention_state *s = call->state;
    const bool scaled = call->n_inputs == 6;
    if (call->n_inputs < 3 || (call->n_inputs > 4 && !scaled) || (q->rank != 3 && q->rank != 4) ||
        k->rank != q->rank || v->rank != q->rank || out->rank != q->rank)
        return TAPER_UNSUPPORTED;
    const int64_t kv_heads = attention_size(k, 1);
    s->batch = attention_size(q, 0);
    s->heads = attention_size(q, 1);
    s->rows = attention_size(q, 2);
    s->keys = attention_size(k, 2);
    s->d = attention_size(q, 3);
    s->dv = attention_size(v, 3);
    s->group = kv_heads > 0 ? s->heads / kv_heads : 1;
    if (s->group < 1 || s->group * kv_heads != s->heads ||
        (q->rank == 3 && (s->group > 1 || attrs->transpose_output)) ||
        !attention_is(k, s->batch, kv_heads, s->keys, s->d) ||
        !attention_is(v, s->batch, kv_heads, s->keys, s->dv) ||
        !(attrs->transpose_output ? attention_is(out, s->batch, s->rows, s->heads, s->dv)
                                  : attention_is(out, s->batch, s->heads, s->rows, s->dv)))
        return TAPER_UNSUPPORTED;
    if (q->dtype != TAPER_FLOAT32 || k->dtype != v->dtype || scaled != (k->dtype == TAPER_INT8) ||
        !tensor_is(out, TAPER_FLOAT32, tensor_numel(out)))
        return TAPER_UNSUPPORTED;
    s->q = attention_strides_of(q);
    s->k = attention_strides_of(k);
    s->v = attention_strides_of(v);
    s->out = attention_strides_of(out);
    s->stored = k->dtype;
    if (scaled) {
        const taper_tensor *k_scale = &call->inputs[4], *v_scale = &call->inputs[5];
        if (k_scale->dtype != TAPER_FLOAT32 || v_scale->dtype != TAPER_FLOAT32 ||
            k_scale->rank != k->rank || v_scale->rank != k->rank ||
            !attention_is(k_scale, s->batch, kv_heads, s->keys, 1) ||
            !attention_is(v_scale, s->batch, kv_heads, s->keys, 1))
            return TAPER_UNSUPPORTED;
        s->k_scale = attention_strides_of(k_scale);
        s->v_scale = attention_strides_of(v_scale);
    }
    s->k_read.row = s->k.row;
    s->k_read.col = s->k.col;
    s->v_read.row = s->v.row;
    s->v_read.col = s->v.col;
    if (s->stored != TAPER_FLOAT32) {
        s->k_read.row = s->d;
        s->v_read.row = s->dv;
        s->k_read.col = s->v_read.col = 1;
    }
    if (attrs->transpose_output) {
        const int64_t row = s->out.head;
        s->out.head = s->out.row;
        s->out.row = row;
    }

    s->masked = mask != NULL;
    s->mask_is_bool = mask && mask->dtype == TAPER_BOOL;
    s->mask = (attention_strides){0};
    if (mask) {
        const int64_t sizes[] = {s->batch, s->heads, s->rows, s->keys};
        if ((mask->dtype != TAPER_BOOL && mask->dtype != TAPER_FLOAT32) || mask->rank > q->rank ||
            !attention_broadcasts(mask, sizes))
            return TAPER_UNSUPPORTED;
        s->mask = attention_strides_of(mask);
    }
    if (fabs(attrs->scale) > FLT_MAX)
        return TAPER_UNSUPPORTED; /* its float is infinite, which times 0 is no number */
    s->scale = (float)attrs->scale;
    s->nothing = attrs->safe_softmax || s->keys == 0 ? 0.0f : NAN;
    s->causal = attrs->causal;
    s->diagonal = i64_max(-s->rows, i64_min(attrs->diagonal, s->keys)); /* beyond: all or none */

    /* Counted before heads become rows: up to so many queries, each has the bits that it has
     * alone, which a decoder's guesses need. */
    const bool few = s->rows <= FEW_ROWS;
    if (s->rows == 1) { /* decoding */
        if (s->causal)
            s->keys = i64_max(0, i64_min(s->diagonal + 1, s->keys));
        s->causal = false;
        attention_heads_as_rows(s);
    }

    if (!attention_cut(s, few, call->variant))
        return TAPER_UNSUPPORTED;
    work->tasks = i64_ceil_div(s->units, s->units_per_task);
    work->scratch_bytes = (size_t)s->at.floats * sizeof(float);
    work->variant = s->few_rows ? ATTENTION_FEW_ROWS : ATTENTION_ROW_TILES;
    attention_weigh(s, work);
    return TAPER_OK;
}
