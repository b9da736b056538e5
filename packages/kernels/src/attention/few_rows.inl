/* Few rows: computes scores [rows][keys] by dot products with keys that are read in place, then
 * softmax along each row. Packing keys, or vectors across rows, would cost more than they save. */

/* Computes scores += bias; returns the largest score, ignoring NaN. */
static float few_add_bias(float *scores, const float *bias, int64_t n) {
    vf max = v_set1(-INFINITY);
    for (int64_t j = 0, lanes; j < n; j += lanes) {
        lanes = i64_min(V_LEN, n - j);
        const vf fill = v_set1(-INFINITY);
        const vf x = v_add(v_load_fill(scores + j, lanes, fill), v_load_n(bias + j, lanes));
        v_store_n(scores + j, x, lanes);
        max = v_max(x, max);
    }
    return v_hmax(max);
}

/* Turns row r's scores into weights, and updates its maximum, total and sums with them. */
static void few_weights(attention_unit *u, int64_t r, float *scores, int64_t keys) {
    const struct attention_state *s = u->s;
    const int64_t reach = attention_reach(u, r);
    if (reach < keys)
        memset(scores + reach, 0, (size_t)(keys - reach) * sizeof *scores);
    if (reach == 0)
        return;
    const float block_max = s->masked ? few_add_bias(scores, attention_bias(u, r, u->bias), reach)
                                      : row_fold_block(ROW_MAX_NUMBER, scores, reach);
    const float old_max = u->max[r], max = block_max > old_max ? block_max : old_max;
    /* If all scores are -inf, any finite number can replace the maximum. */
    const float center = max == -INFINITY ? 0.0f : max;
    if (max != old_max && u->begun) {
        float shrink[V_LEN];
        v_store(shrink, v_exp_nonpositive(v_set1(old_max - center)));
        u->total[r] *= shrink[0];
        attention_scale(u->sums + r * s->dv, u->sums + r * s->dv, shrink[0], s->dv);
    }
    u->max[r] = max;
    u->total[r] += (float)softmax_exp_row(true, scores, scores, center, reach);
}

static void few_start(const attention_unit *u) {
    const struct attention_state *s = u->s;
    GEMM.copy(u->q, s->d, attention_q(u, 0), s->q.row, s->q.col, u->rows, s->d);
}

static void few_block(attention_unit *u, int64_t keys) {
    const struct attention_state *s = u->s;
    const int64_t stride = s->block_keys + SCORE_PAD;
    const dot_block scores = {.a = u->q,
                              .a_row_stride = s->d,
                              .b = u->block_k,
                              .b_col_stride = s->k_read.row,
                              .k = s->d,
                              .c = u->scores,
                              .ldc = stride,
                              .alpha = s->scale};
    GEMM.dot(&scores, u->rows, keys);
    for (int64_t r = 0; r < u->rows; r++)
        few_weights(u, r, u->scores + r * stride, keys);
    attention_sum_values(u, u->scores, stride, 1, 0, u->rows, keys);
}
