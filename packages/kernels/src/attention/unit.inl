/* One block of query rows against all keys. */

typedef struct attention_unit {
    const struct attention_state *s;
    const float *q_data, *k_data, *v_data; /* of the tensors */
    const void *mask_data;
    float *out_data;
    float *q, *keys, *values, *scores, *sums, *max, *total, *bias; /* scratch: see the state */

    int64_t batch;
    int64_t kv_head;
    int64_t first_row; /* in the group's rows */
    int64_t rows;
    const float *block_k;  /* the block of keys at hand, in the tensors */
    const float *block_v;
    int64_t first_key;
    int64_t block_keys;
    const void *bias_from; /* the mask row that bias holds for these keys, or NULL */
    int64_t packed_head;   /* whose keys and values are in scratch, when they are one block; or -1 */
} attention_unit;

static attention_unit attention_bind(const taper_call *call, float *scratch) {
    const struct attention_state *s = call->state;
    return (attention_unit){.s = s,
                            .q_data = call->inputs[0].data,
                            .k_data = call->inputs[1].data,
                            .v_data = call->inputs[2].data,
                            .mask_data = s->masked ? call->inputs[3].data : NULL,
                            .out_data = call->output->data,
                            .q = scratch + s->at.q,
                            .keys = scratch + s->at.keys,
                            .values = scratch + s->at.values,
                            .scores = scratch + s->at.scores,
                            .sums = scratch + s->at.sums,
                            .max = scratch + s->at.max,
                            .total = scratch + s->at.total,
                            .bias = scratch + s->at.bias,
                            .packed_head = -1};
}

/* The query head and query of the unit's row r. */
static int64_t attention_head(const attention_unit *u, int64_t r) {
    return u->kv_head * u->s->group + (u->first_row + r) / u->s->lq;
}
static int64_t attention_query(const attention_unit *u, int64_t r) {
    return (u->first_row + r) % u->s->lq;
}

/* How many of the block's keys row r attends, a prefix of them. */
static int64_t attention_reach(const attention_unit *u, int64_t r) {
    if (!u->s->causal)
        return u->block_keys;
    const int64_t keys = attention_query(u, r) + u->s->diagonal + 1 - u->first_key;
    return i64_max(0, i64_min(keys, u->block_keys));
}

/* What is added to the scores of row r: a pointer into the mask, or its keys converted. */
static const float *attention_bias(attention_unit *u, int64_t r) {
    const struct attention_state *s = u->s;
    const int64_t offset = u->batch * s->mask.batch + attention_head(u, r) * s->mask.head +
                           attention_query(u, r) * s->mask.row + u->first_key * s->mask.col;
    const float *numbers = (const float *)u->mask_data + offset;
    const uint8_t *flags = (const uint8_t *)u->mask_data + offset;
    if (!s->mask_is_bool && s->mask.col == 1)
        return numbers;
    const void *from = s->mask_is_bool ? (const void *)flags : numbers;
    if (u->bias_from == from)
        return u->bias;
    u->bias_from = from;
    if (!s->mask_is_bool)
        for (int64_t j = 0; j < u->block_keys; j++)
            u->bias[j] = numbers[j * s->mask.col];
    else if (s->mask.col == 1)
        for (int64_t j = 0; j < u->block_keys; j++)
            u->bias[j] = flags[j] ? 0.0f : -INFINITY;
    else
        for (int64_t j = 0; j < u->block_keys; j++)
            u->bias[j] = flags[j * s->mask.col] ? 0.0f : -INFINITY;
    return u->bias;
}

/* scores += bias; the largest of them, NaN aside. */
static float attention_add_bias(float *scores, const float *bias, int64_t n) {
    vf max[2] = {v_set1(-INFINITY), v_set1(-INFINITY)};
    int64_t j = 0;
    for (; j + 2 * V_LEN <= n; j += 2 * V_LEN)
        for (int c = 0; c < 2; c++) {
            const int64_t at = j + c * V_LEN;
            const vf x = v_add(v_load(scores + at), v_load(bias + at));
            v_store(scores + at, x);
            max[c] = v_max(x, max[c]);
        }
    for (int64_t lanes; j < n; j += lanes) {
        lanes = i64_min(V_LEN, n - j);
        const vf x = v_add(v_load_fill(scores + j, lanes, v_set1(-INFINITY)),
                           v_load_n(bias + j, lanes));
        v_store_n(scores + j, x, lanes);
        max[0] = v_max(x, max[0]);
    }
    return v_hmax(v_max(max[0], max[1]));
}

static void attention_scale(float *to, const float *from, float factor, int64_t n) {
    const vf f = v_set1(factor);
    int64_t i = 0;
    for (; i + V_LEN <= n; i += V_LEN)
        v_store(to + i, v_mul(v_load(from + i), f));
    if (i < n)
        v_store_n(to + i, v_mul(v_load_n(from + i, n - i), f), n - i);
}

/* Turns the scores of row r into weights, 0 from reach to keys, and brings the row's maximum, total
 * and sums up to date with them. */
static void attention_weights(attention_unit *u, int64_t r, float *scores, int64_t keys) {
    const int64_t reach = attention_reach(u, r), dv = u->s->dv;
    if (reach < keys)
        memset(scores + reach, 0, (size_t)(keys - reach) * sizeof *scores);
    if (reach == 0)
        return;
    const float block_max = u->mask_data ? attention_add_bias(scores, attention_bias(u, r), reach)
                                         : row_fold_block(ROW_MAX_NUMBER, scores, reach);
    const float old_max = u->max[r], max = block_max > old_max ? block_max : old_max;
    /* While all scores are -inf any finite number will do in place of the maximum. */
    const float center = max == -INFINITY ? 0.0f : max;
    const float total = (float)softmax_exp_row(true, scores, scores, center, reach);
    u->max[r] = max;
    if (u->first_key == 0) {
        u->total[r] = total;
    } else if (max == old_max) {
        u->total[r] += total;
    } else {
        float lanes[V_LEN];
        v_store(lanes, v_exp_nonpositive(v_set1(old_max - center)));
        u->total[r] = u->total[r] * lanes[0] + total;
        attention_scale(u->sums + r * dv, u->sums + r * dv, lanes[0], dv);
    }
}

/* Rows [r, r + rows) of the unit against the block of keys. */
static void attention_strip(attention_unit *u, int64_t r, int64_t rows) {
    const struct attention_state *s = u->s;
    const int64_t score_stride = s->block_keys + 16;
    int64_t keys = 0; /* that any of the rows attends */
    for (int64_t i = 0; i < rows; i++)
        keys = i64_max(keys, attention_reach(u, r + i));
    if (keys == 0)
        return;
    if (s->dot) {
        const dot_block dot = {.a = u->q + r * s->d,
                               .a_row_stride = s->d,
                               .b = u->block_k,
                               .b_col_stride = s->k.row,
                               .k = s->d,
                               .c = u->scores,
                               .ldc = score_stride,
                               .alpha = s->scale};
        dot_block_run(&dot, rows, keys);
    } else {
        gemm_f32_block(rows, keys, s->d, u->q + r * s->d, s->d, 1, u->keys, s->scale, u->scores,
                       score_stride, false);
    }
    for (int64_t i = 0; i < rows; i++)
        attention_weights(u, r + i, u->scores + i * score_stride, keys);
    const gemm_block sum = {
        .a = u->scores,
        .a_row_stride = score_stride,
        .a_k_stride = 1,
        .b = s->pack_values ? u->values : u->block_v,
        .b_panel_stride = s->pack_values ? u->block_keys * GEMM_NR : GEMM_NR,
        .b_k_stride = s->pack_values ? GEMM_NR : s->v.row,
        .b_col_stride = 1,
        .packed = u->values,
        .k = keys,
        .c = u->sums + r * s->dv,
        .ldc = s->dv,
        .alpha = 1.0f,
        .b_form = s->pack_values ? GEMM_B_PANELS : GEMM_B_ROWS,
        .accumulate = u->first_key > 0,
    };
    gemm_block_run(&sum, rows, s->dv);
}

/* The unit against keys [first, first + keys). */
static void attention_keys(attention_unit *u, int64_t first, int64_t keys) {
    const struct attention_state *s = u->s;
    u->first_key = first;
    u->block_keys = keys;
    u->bias_from = NULL;
    u->block_k =
        u->k_data + u->batch * s->k.batch + u->kv_head * s->k.head + first * s->k.row;
    u->block_v =
        u->v_data + u->batch * s->v.batch + u->kv_head * s->v.head + first * s->v.row;
    const int64_t head = u->batch * s->kv_heads + u->kv_head;
    if (u->packed_head != head) {
        if (!s->dot)
            gemm_f32_pack_b(u->keys, u->block_k, s->k.col, s->k.row, s->d, keys);
        if (s->pack_values)
            gemm_f32_pack_b(u->values, u->block_v, s->v.row, s->v.col, keys, s->dv);
        u->packed_head = keys == s->lk ? head : -1;
    }
    const int64_t strips = i64_ceil_div(u->rows, STRIP);
    for (int64_t i = 0, r = 0, rows; i < strips; i++, r += rows) {
        rows = (u->rows + i) / strips;
        attention_strip(u, r, rows);
    }
}

/* The rows' weighted means, or what a row without a key to attend gets. */
static void attention_write(const attention_unit *u) {
    const struct attention_state *s = u->s;
    const float nothing = s->safe || s->lk == 0 ? 0.0f : NAN;
    for (int64_t r = 0; r < u->rows; r++) {
        float *out = u->out_data + u->batch * s->out.batch + attention_head(u, r) * s->out.head +
                     attention_query(u, r) * s->out.row;
        if (u->total[r] == 0.0f)
            for (int64_t i = 0; i < s->dv; i++)
                out[i] = nothing;
        else
            attention_scale(out, u->sums + r * s->dv, 1.0f / u->total[r], s->dv);
    }
}

static void attention_run_unit(attention_unit *u, int64_t unit) {
    const struct attention_state *s = u->s;
    const int64_t head = unit / s->row_blocks;
    u->batch = head / s->kv_heads;
    u->kv_head = head % s->kv_heads;
    u->first_row = unit % s->row_blocks * s->block_rows;
    u->rows = i64_min(s->block_rows, s->rows - u->first_row);
    int64_t keys = s->causal ? 0 : s->lk; /* that any of the rows attends */
    for (int64_t r = 0; r < u->rows; r++) {
        const int64_t query = attention_query(u, r);
        const float *q = u->q_data + u->batch * s->q.batch + attention_head(u, r) * s->q.head +
                         query * s->q.row;
        gemm_copy(u->q + r * s->d, s->d, q, 0, s->q.col, 1, s->d);
        u->max[r] = -INFINITY;
        u->total[r] = 0.0f;
        keys = i64_max(keys, i64_min(s->lk, query + s->diagonal + 1));
    }
    for (int64_t first = 0; first < keys; first += s->block_keys)
        attention_keys(u, first, i64_min(s->block_keys, s->lk - first));
    attention_write(u);
}
