/*
 * Many rows: scores are transposed, [keys][rows of a tile], so that softmax runs down the columns
 * with one row per lane, without a sum over lanes and without tails. The queries are the packed
 * operand, packed once for all keys; the keys are read in place, one number at a time.
 */

static void tile_start(const attention_unit *u) {
    GEMM.pack_b(u->q, attention_q(u, 0), u->s->q.col, u->s->q.row, u->s->d, u->rows);
}

/* Adds the mask of rows [r, r + V_LEN), fewer at the end of the unit, to their lanes' scores. */
static void tile_add_bias(const attention_unit *u, int64_t r, float *scores, int64_t stride,
                          int64_t keys) {
    const struct attention_state *s = u->s;
    if (s->mask.row == 0) {
        const float *bias = attention_bias(u, r, u->bias, keys);
        for (int64_t j = 0; j < keys; j++)
            v_store(scores + j * stride, v_add(v_load(scores + j * stride), v_set1(bias[j])));
        return;
    }
    const float *bias[V_LEN];
    for (int64_t i = 0; i < V_LEN; i++)
        bias[i] = attention_bias(u, i64_min(r + i, u->rows - 1), u->bias + i * s->block_keys, keys);
    for (int64_t j = 0, n; j < keys; j += n) {
        vf t[V_LEN];
        n = i64_min(V_LEN, keys - j);
        for (int i = 0; i < V_LEN; i++)
            t[i] = n == V_LEN ? v_load(bias[i] + j) : v_load_n(bias[i] + j, n);
        v_transpose(t);
        float *p = scores + j * stride;
        for (int64_t l = 0; l < n; l++, p += stride)
            v_store(p, v_add(v_load(p), t[l]));
    }
}

/* Writes -inf to lanes that do not attend to a key, from the first key to which one of them does
 * not. */
static void tile_mask_causal(const attention_unit *u, int64_t r, float *scores, int64_t stride,
                             int64_t keys) {
    float reach[V_LEN];
    for (int64_t i = 0; i < V_LEN; i++)
        reach[i] = (float)attention_reach(u, r + i);
    for (int64_t j = (int64_t)reach[0]; j < keys; j++) {
        const vm attends = v_lt(v_set1((float)j), v_load(reach));
        float *p = scores + j * stride;
        v_store(p, v_select(attends, v_load(p), v_set1(-INFINITY)));
    }
}

/* Returns the largest score of each lane, ignoring NaN. */
static vf tile_max(const float *scores, int64_t stride, int64_t keys) {
    vf max[4];
    for (int c = 0; c < 4; c++)
        max[c] = v_set1(-INFINITY);
    int64_t j = 0;
    for (; j + 4 <= keys; j += 4)
        for (int c = 0; c < 4; c++)
            max[c] = v_max(v_load(scores + (j + c) * stride), max[c]);
    for (; j < keys; j++)
        max[0] = v_max(v_load(scores + j * stride), max[0]);
    return v_max(v_max(max[0], max[1]), v_max(max[2], max[3]));
}

/* Computes scores = e^(scores - center); returns the sum of each lane. */
static vf tile_exp(float *scores, int64_t stride, int64_t keys, vf center) {
    vf sum[2] = {v_zero(), v_zero()};
    int64_t j = 0;
    for (; j + 2 <= keys; j += 2)
        for (int c = 0; c < 2; c++) {
            float *p = scores + (j + c) * stride;
            const vf e = v_exp_nonpositive(v_sub(v_load(p), center));
            sum[c] = v_add(sum[c], e);
            v_store(p, e);
        }
    if (j < keys) {
        float *p = scores + j * stride;
        const vf e = v_exp_nonpositive(v_sub(v_load(p), center));
        sum[0] = v_add(sum[0], e);
        v_store(p, e);
    }
    return v_add(sum[0], sum[1]);
}

/* Turns the scores of rows [r, r + V_LEN) into weights, and updates their maxima, totals and sums
 * with them. Numbers in lanes beyond the last row are never read. */
static void tile_weights(attention_unit *u, int64_t r, float *scores, int64_t stride,
                         int64_t keys) {
    const struct attention_state *s = u->s;
    if (s->masked)
        tile_add_bias(u, r, scores, stride, keys);
    if (s->causal)
        tile_mask_causal(u, r, scores, stride, keys);
    const vf old_max = v_load(u->max + r), lowest = v_set1(-INFINITY);
    const vf max = v_max(tile_max(scores, stride, keys), old_max);
    /* If all scores are -inf, any finite number can replace the maximum. */
    const vf center = v_select(v_eq(max, lowest), v_zero(), max);
    const vf shrink = v_exp_nonpositive(v_sub(old_max, center));
    const vf total = tile_exp(scores, stride, keys, center);
    v_store(u->total + r, v_fma(v_load(u->total + r), shrink, total));
    v_store(u->max + r, max);
    if (u->begun && vm_any(v_lt(old_max, max))) {
        float factor[V_LEN];
        v_store(factor, shrink);
        for (int64_t i = 0; i < i64_min(V_LEN, u->rows - r); i++)
            attention_scale(u->sums + (r + i) * s->dv, u->sums + (r + i) * s->dv, factor[i], s->dv);
    }
}

static void tile_block(attention_unit *u, int64_t keys) {
    const struct attention_state *s = u->s;
    for (int64_t r = 0; r < u->rows; r += ROW_TILE) {
        const int64_t rows = i64_min(ROW_TILE, u->rows - r);
        const int64_t stride = i64_ceil_div(rows, GEMM_NR) * GEMM_NR;
        const int64_t n = i64_min(keys, attention_reach(u, r + rows - 1));
        if (n == 0)
            continue;
        gemm_f32_block(n, stride, s->d, u->block_k, s->k_read.row, s->k_read.col, u->q + r * s->d,
                       s->scale, u->scores, stride, false);
        for (int64_t i = 0; i < rows; i += V_LEN)
            tile_weights(u, r + i, u->scores + i, stride, n);
        attention_sum_values(u, u->scores, 1, stride, r, rows, n);
    }
}
