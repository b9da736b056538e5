/*
 * Chains that requantize: they scale sums and quantize them, with operands that all rows share.
 * Most products of bytes end in one. chain.inl includes this file.
 */

/* What such a chain has. */
typedef struct chain_requantization {
    bool subtracts, bounded;
    /* Between these steps perhaps a term and what follows it: operand number, or 0. */
    int term;
    bool is_signed;
    bool is_silu; /* or SILU and a factor */
    bool holds;   /* the term is other sums, scaled, too: what comes first in the chain */
    float low, factor;
} chain_requantization;

/* Returns whether a chain is one. */
static bool chain_requantizes(const program_instruction *chain, const chain_operand *in,
                              chain_requantization *to) {
    const int8_t *step = &chain->step[1];
    *to = (chain_requantization){.subtracts = *step == CHAIN_SUB_SCALE,
                                 .bounded = chain_is_bounded_at_0(chain),
                                 .low = -INFINITY,
                                 .factor = 1};
    if (chain->step[0] != CHAIN_LOAD || in[0].step == 0 || (!to->subtracts && *step != CHAIN_SCALE))
        return false;
    int shared = to->subtracts ? 4 : 3;
    step++;
    if (*step == CHAIN_HOLD) {
        if (to->subtracts || !to->bounded || step[1] != CHAIN_SCALE || step[2] != CHAIN_ADD_HELD)
            return false;
        to->holds = true;
        step += 2;
        shared = 6;
    }
    for (int k = 1; k < shared; k++)
        if ((in[k].step == 0 || in[k].row != 0) && !(to->holds && k == 3))
            return false;
    if (*step == CHAIN_ADD_I8 || *step == CHAIN_ADD_U8 || to->holds) {
        to->term = shared;
        to->is_signed = *step++ == CHAIN_ADD_I8;
        shared += !to->holds;
        if (*step == CHAIN_RELU) {
            to->low = 0;
            step++;
        }
        if (*step == CHAIN_MUL && in[shared].step == 0 && in[shared].row == 0) {
            memcpy(&to->factor, in[shared].data, sizeof to->factor);
            step++;
        }
    } else if (*step == CHAIN_SILU) {
        to->is_silu = true;
        step++;
        if (*step == CHAIN_MUL && in[shared].step == 0 && in[shared].row == 0) {
            memcpy(&to->factor, in[shared].data, sizeof to->factor);
            step++;
        }
    }
    return *step == CHAIN_QUANTIZE;
}

/*
 * Computes rows of n columns of such a chain, which is that of most products of bytes, from
 * CHAIN_LEAST to a panel's, or CHAIN_WIDE: the operands are in registers, and no step is looked up.
 * panel: vectors of a row.
 */
V_INLINE void chain_requantize(const program_instruction *chain, const chain_requantization *c,
                               const chain_operand *in, char *out, int64_t out_row, int64_t rows,
                               int64_t n, const int panel, const bool bounded, const bool adds,
                               const bool is_silu, const bool holds) {
    enum { ALL = 4, STEP = V_LEN * sizeof(int32_t) };
    const int all_rows = ALL / panel;
    const int64_t columns = panel * V_LEN, lanes = panel > CHAIN_PANEL ? V_LEN : n;
    const chain_operand *const sums_of = &in[holds ? 3 : 0];
    const chain_operand *const scale = &sums_of[c->subtracts ? 2 : 1];
    const vf low = v_set1(chain->low), shift = v_set1(chain->shift);
    const vf high = v_set1(bounded ? chain->high - chain->shift : chain->high);
    const vf less_bytes = v_set1(chain->less), byte_factor = v_set1(chain->factor);
    const vf term_low = v_set1(c->low), term_factor = v_set1(c->factor);
    vi less[ALL];
    vf factor[ALL], term[ALL], held_factor[ALL], held_term[ALL];
#pragma GCC unroll 4
    for (int v = 0; v < panel; v++) {
        if (holds) {
            held_factor[v] = chain_floats(in[1].data + v * STEP, lanes);
            held_term[v] = chain_floats(in[2].data + v * STEP, lanes);
        }
        less[v] = c->subtracts ? chain_sums(in[1].data + v * STEP, lanes) : vi_set1(0);
        factor[v] = chain_floats(scale[0].data + v * STEP, lanes);
        term[v] = chain_floats(scale[1].data + v * STEP, lanes);
    }
    const chain_operand *const more_of = &in[holds ? 0 : c->term];
    const char *from = sums_of->data, *added = more_of->data;
    int64_t from_row = sums_of->row, added_row = more_of->row;
    const char *from_at[ALL], *added_at[ALL];
    for (int64_t left = rows; left > 0; left -= all_rows) {
        const bool whole = left >= all_rows && n == columns;
#pragma GCC unroll 4
        for (int row = 0; row < all_rows; row++) { /* those beyond the last are the last */
            from_at[row] = from;
            added_at[row] = added;
            from += left > row + 1 ? from_row : 0;
            added += left > row + 1 ? added_row : 0;
        }
        vi bytes[ALL];
#pragma GCC unroll 4
        for (int v = 0; v < ALL; v++) {
            const int column = v % panel, row = v / panel;
            const vi sums = vi_sub(chain_sums(from_at[row] + column * STEP, lanes), less[column]);
            vf x = v_add(v_mul(v_from_int(sums), factor[column]), term[column]);
            if (holds) {
                const vi held = chain_sums(added_at[row] + column * STEP, lanes);
                const vf scaled = v_mul(v_from_int(held), held_factor[column]);
                x = v_add(v_add(scaled, held_term[column]), x);
            } else if (adds) {
                const vi more = chain_bytes(added_at[row] + column * V_LEN, c->is_signed, lanes);
                x = v_add(x, chain_term_of(more, less_bytes, byte_factor));
            }
            if (holds || adds)
                x = v_mul(v_max(term_low, x), term_factor);
            if (is_silu)
                x = v_mul(v_silu(x), term_factor);
            if (!bounded)
                x = v_max(low, chain->shift != 0 ? v_add(v_round(x), shift) : x);
            bytes[v] = v_to_int(v_min(high, x));
        }
        uint8_t some[ALL][PROGRAM_PANEL];
        uint8_t *const to = whole ? (uint8_t *)out : some[0];
        const int64_t to_row = whole ? out_row : PROGRAM_PANEL;
#if CHAIN_PACKS
        if (bounded)
            chain_store_bounded(to, to_row, bytes, (int16_t)chain->shift, all_rows, panel);
        else
#endif
            vi_store_bytes_of(to, to_row, bytes, all_rows, panel);
        for (int64_t row = 0; !whole && row < i64_min(left, all_rows); row++) {
            enum { HALF = PROGRAM_PANEL / 2 };
            memcpy(out + row * out_row, some[row], HALF);
            memcpy(out + row * out_row + n - HALF, some[row] + n - HALF, HALF);
        }
        out += all_rows * out_row;
    }
}

static void chain_requantize_of(const program_instruction *chain, const chain_requantization *c,
                                const chain_operand *in, char *out, int64_t out_row, int64_t rows,
                                int64_t n) {
#define CHAIN_REQUANTIZE(...) chain_requantize(chain, c, in, out, out_row, rows, n, __VA_ARGS__)
#define CHAIN_REQUANTIZE_WIDE(...) CHAIN_REQUANTIZE(CHAIN_WIDE / V_LEN, true, __VA_ARGS__)
#define CHAIN_REQUANTIZE_AS(bounded)                                                               \
    (c->term      ? CHAIN_REQUANTIZE(CHAIN_PANEL, bounded, true, false, false)                     \
     : c->is_silu ? CHAIN_REQUANTIZE(CHAIN_PANEL, bounded, false, true, false)                     \
                  : CHAIN_REQUANTIZE(CHAIN_PANEL, bounded, false, false, false))
    if (n > PROGRAM_PANEL)
        c->holds  ? CHAIN_REQUANTIZE_WIDE(false, false, true)
        : c->term ? CHAIN_REQUANTIZE_WIDE(true, false, false)
                  : CHAIN_REQUANTIZE_WIDE(false, false, false);
    else if (c->holds)
        CHAIN_REQUANTIZE(CHAIN_PANEL, true, false, false, true);
    else
        c->bounded ? CHAIN_REQUANTIZE_AS(true) : CHAIN_REQUANTIZE_AS(false);
#undef CHAIN_REQUANTIZE
#undef CHAIN_REQUANTIZE_WIDE
#undef CHAIN_REQUANTIZE_AS
}
