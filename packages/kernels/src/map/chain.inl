/*
 * Chains: micro-ops that follow each other and read the result of the one before. They become one
 * instruction, which computes some vectors at a time in registers, with the bits of the micro-ops
 * one by one. These vectors are of one row, or of the same columns of some rows, for which an
 * operand that all rows share is loaded once. Included by map.c.
 *
 * What quantizes and what follows integer sums are such chains: many micro-ops that each take a
 * fraction of the time that their results would take to be stored and loaded again.
 */

enum {
    CHAIN_VECTORS = V_REGISTERS == 32 ? 8 : 4, /* of a row, computed at a time */
    CHAIN_PANEL = PROGRAM_PANEL / V_LEN,       /* vectors of a row of a panel */
    CHAIN_ROWS = 8 / CHAIN_PANEL,              /* of a panel, computed at a time */
};

/* Whether packs bound bytes: SIMDe has not all of them. */
#if V_LEN == 8 || (V_LEN == 16 && !defined(TAPER_EMULATED))
#define CHAIN_PACKS 1
#else
#define CHAIN_PACKS 0
#endif
#define HAS_WIDE_PANELS (V_LEN == 16 && CHAIN_PACKS)

/* Columns of a panel from which on chain_requantize computes it. */
enum { CHAIN_LEAST = HAS_WIDE_PANELS ? PROGRAM_PANEL / 2 : PROGRAM_PANEL };

/* Columns of a wide panel: a row of bytes is a cache line, which is stored whole. */
enum { CHAIN_WIDE = HAS_WIDE_PANELS ? 4 * PROGRAM_PANEL : PROGRAM_PANEL };

typedef enum chain_kind {
    CHAIN_LOAD, /* the first step, of a float32 or int32 */
    CHAIN_LOAD_I8,
    CHAIN_LOAD_U8,
    CHAIN_I32_ADD, /* from here on: of the value so far and the next operand */
    CHAIN_I32_SUB,
    CHAIN_ADD,
    CHAIN_SUB,
    CHAIN_MUL,
    CHAIN_MAX, /* with a number, not NaN */
    CHAIN_MIN,
    CHAIN_ADD_I8, /* a term of bytes: (operand - less) * factor */
    CHAIN_ADD_U8,
    CHAIN_HOLD,  /* keeps the value so far, and loads the next operand, an int32 */
    CHAIN_FLOAT, /* from here on: of the value so far alone */
    CHAIN_RELU,
    CHAIN_ROUND,
    CHAIN_SILU,
    CHAIN_ADD_HELD,
    CHAIN_STORE, /* the last step, of a float32 or int32 */
    CHAIN_STORE_BYTE,
    /* Steps of several micro-ops that often follow each other. */
    CHAIN_SUB_SCALE, /* I32_SUB, then SCALE */
    CHAIN_SCALE,     /* FLOAT, MUL, ADD */
    CHAIN_QUANTIZE,  /* ROUND, perhaps ADD, bounds, STORE_BYTE */
} chain_kind;

/* ---- finding them ---- */

static const struct {
    program_microop run;
    chain_kind kind;
} chain_steps[] = {{i32_add, CHAIN_I32_ADD},    {i32_sub, CHAIN_I32_SUB}, {f32_add, CHAIN_ADD},
                   {f32_sub, CHAIN_SUB},        {f32_mul, CHAIN_MUL},     {f32_maximum, CHAIN_MAX},
                   {f32_minimum, CHAIN_MIN},    {f32_relu, CHAIN_RELU},   {f32_round, CHAIN_ROUND},
                   {f32_from_i32, CHAIN_FLOAT}, {f32_silu, CHAIN_SILU}};

/* Returns the kind of an instruction's step where value `so_far` is the chain's, or -1. *other: the
 * other operand's slot, or -1. */
static int chain_step(const taper_program *p, const program_instruction *instruction,
                      int16_t so_far, int *other) {
    *other = -1;
    for (size_t i = 0; i < sizeof chain_steps / sizeof *chain_steps; i++) {
        const chain_kind kind = chain_steps[i].kind;
        if (chain_steps[i].run != instruction->run)
            continue;
        if (kind >= CHAIN_FLOAT)
            return instruction->operand[0] == so_far ? (int)kind : -1;
        const bool second = instruction->operand[0] != so_far;
        if (instruction->operand[second] != so_far)
            return -1;
        *other = instruction->operand[!second];
        const bool commutes = kind == CHAIN_I32_ADD || kind == CHAIN_ADD || kind == CHAIN_MUL;
        if (*other == so_far || (second && !commutes))
            return -1;
        const bool bounds = kind == CHAIN_MAX || kind == CHAIN_MIN;
        if (bounds && (*other < SCALAR_SLOT || isnan(p->scalars[*other - SCALAR_SLOT].f32)))
            return -1;
        return (int)kind;
    }
    return -1;
}

/* A term that is added to a chain's value: bytes less a number, times a number. */
typedef struct chain_term {
    int32_t count; /* instructions; 0: there is none */
    int16_t bytes, result;
    chain_kind kind;
    float less, factor;
} chain_term;

/* Returns the term that begins with an instruction. reads: how often each value is read. */
static chain_term chain_term_at(const taper_program *p, int32_t from, const int *reads) {
    const program_instruction *const first = &p->code[from];
    chain_term term = {.bytes = first->operand[0]};
    if ((first->run != f32_from_i8 && first->run != f32_from_u8) || term.bytes >= RESULT_SLOT ||
        p->inputs[term.bytes].col_stride == 0)
        return term;
    term.kind = first->run == f32_from_i8 ? CHAIN_ADD_I8 : CHAIN_ADD_U8;
    term.result = (int16_t)(RESULT_SLOT + from);
    for (int32_t j = from + 1; j < p->count && reads[term.result] == 1; j++) {
        int other;
        const int kind = chain_step(p, &p->code[j], term.result, &other);
        if (other < SCALAR_SLOT || (kind != CHAIN_SUB && kind != CHAIN_MUL) ||
            (kind == CHAIN_SUB && j > from + 1))
            break;
        term.result = (int16_t)(RESULT_SLOT + j);
        const float number = p->scalars[other - SCALAR_SLOT].f32;
        if (kind == CHAIN_SUB) {
            term.less = number;
        } else {
            term.factor = number;
            term.count = reads[term.result] == 1 ? j + 1 - from : 0;
            break;
        }
    }
    return term;
}

/* Makes adding the term the chain's next step. */
static void chain_add_term(program_instruction *chain, const chain_term *term) {
    chain->step[chain->steps++] = (int8_t)term->kind;
    chain->operand[chain->arity++] = term->bytes;
    chain->less = term->less;
    chain->factor = term->factor;
}

/* Returns whether the chain's last steps keep its value from `low` to `high`, unless it is NaN. */
static bool chain_is_bounded(const taper_program *p, const program_instruction *chain, float low,
                             float high) {
    bool is_low = false, is_high = false;
    int operand = chain->arity;
    for (int s = chain->steps - 1; s > 0; s--) {
        const int kind = chain->step[s];
        if (kind != CHAIN_MAX && kind != CHAIN_MIN)
            break;
        const float bound = p->scalars[chain->operand[--operand] - SCALAR_SLOT].f32;
        if (!(bound >= low && bound <= high))
            return false;
        is_low |= kind == CHAIN_MAX;
        is_high |= kind == CHAIN_MIN;
    }
    return is_low && is_high;
}

/* Returns what the chain's steps from `from` on, of which none scales, make of a number. */
static float chain_applied(const taper_program *p, const program_instruction *chain, int from,
                           int operand, float x) {
    for (int s = from; s < chain->steps - 1; s++) {
        const int kind = chain->step[s];
        const bool reads = kind < CHAIN_FLOAT;
        const float b = reads ? p->scalars[chain->operand[operand++] - SCALAR_SLOT].f32 : 0;
        x = kind == CHAIN_ADD     ? x + b
            : kind == CHAIN_MAX   ? fmaxf(x, b)
            : kind == CHAIN_MIN   ? fminf(x, b)
            : kind == CHAIN_RELU  ? fmaxf(x, 0)
            : kind == CHAIN_ROUND ? nearbyintf(x)
                                  : x;
    }
    return x;
}

/*
 * Makes one step of those that end in bytes. Bounds before and after ROUND are monotonous, so they
 * are the bounds that they make of the infinities; these must be whole. Without ADD the conversion
 * rounds.
 */
static void chain_quantizes(const taper_program *p, program_instruction *chain) {
    int from = chain->steps - 1, operand = chain->arity;
    int32_t rounds = 0, shifts = 0;
    for (; from > 1; from--) {
        const int kind = chain->step[from - 1];
        const bool is_shift =
            kind == CHAIN_ADD && !rounds && !shifts && chain->operand[operand - 1] >= SCALAR_SLOT;
        const bool is_bound = kind == CHAIN_MAX || kind == CHAIN_MIN || kind == CHAIN_RELU;
        if (!is_bound && !is_shift && (kind != CHAIN_ROUND || rounds))
            break;
        rounds += kind == CHAIN_ROUND;
        shifts += is_shift;
        operand -= is_bound || is_shift ? kind != CHAIN_RELU : 0;
        if (is_shift)
            chain->shift = p->scalars[chain->operand[operand] - SCALAR_SLOT].f32;
    }
    const float low = chain_applied(p, chain, from, operand, -INFINITY);
    const float high = chain_applied(p, chain, from, operand, INFINITY);
    if (!rounds || low != nearbyintf(low) || high != nearbyintf(high) ||
        chain->shift != nearbyintf(chain->shift))
        return;
    chain->low = low;
    chain->high = high;
    chain->arity = (int8_t)operand;
    chain->step[from] = CHAIN_QUANTIZE;
    chain->steps = (int8_t)(from + 1);
}

/* Makes one step of those that scale sums, after each that loads them. */
static void chain_scales(program_instruction *chain) {
    for (int8_t *step = chain->step, *end = step + chain->steps; step + 4 < end; step++) {
        const bool subtracts = step[1] == CHAIN_I32_SUB;
        const int joined = subtracts ? 3 : 2;
        if ((*step != CHAIN_LOAD && *step != CHAIN_HOLD) || step[joined - 1] != CHAIN_FLOAT ||
            step[joined] != CHAIN_MUL || step[joined + 1] != CHAIN_ADD)
            continue;
        step[1] = subtracts ? CHAIN_SUB_SCALE : CHAIN_SCALE;
        end -= joined;
        chain->steps = (int8_t)(chain->steps - joined);
        memmove(&step[2], &step[2 + joined], (size_t)(end - &step[2]));
    }
}

/* Returns whether an instruction adds two values. */
static bool chain_is_sum(const program_instruction *instruction, int16_t a, int16_t b) {
    const int16_t *const o = instruction->operand;
    return instruction->run == f32_add && ((o[0] == a && o[1] == b) || (o[0] == b && o[1] == a));
}

/* Returns whether an instruction that does not read the value so far begins another one, of sums
 * that an operand has. */
static bool chain_holds(const taper_program *p, const program_instruction *instruction,
                        int16_t so_far) {
    const int16_t sums = instruction->operand[0];
    return instruction->run == f32_from_i32 && sums != so_far && sums < RESULT_SLOT &&
           p->inputs[sums].col_stride != 0;
}

/* Returns how many instructions from `from` on are one chain, which it makes; 0 if none is. reads:
 * how often each value is read. before: a term that the chain must add, or NULL. */
static int32_t chain_of(const taper_program *p, int32_t from, const int *reads,
                        const chain_term *before, program_instruction *chain) {
    int32_t j = from, held_to = 0;
    int16_t so_far = -1, held = -1;
    bool is_added = false; /* a term */
    program_instruction before_hold;
    *chain = (program_instruction){.arity = 1, .steps = 1};
    const program_instruction *first = &p->code[from];
    for (int k = 0; k < first->arity && so_far < 0; k++) {
        int other;
        if (first->operand[k] < SCALAR_SLOT && chain_step(p, first, first->operand[k], &other) >= 0)
            so_far = first->operand[k];
    }
    if (so_far < 0 && (first->run == f32_from_i8 || first->run == f32_from_u8)) {
        chain->step[0] = first->run == f32_from_i8 ? CHAIN_LOAD_I8 : CHAIN_LOAD_U8;
        chain->operand[0] = first->operand[0];
        chain->cost = first->cost;
        so_far = (int16_t)(RESULT_SLOT + j++);
    } else {
        chain->step[0] = CHAIN_LOAD;
        chain->operand[0] = so_far;
    }
    for (; so_far >= 0 && j < p->count; j++) {
        const program_instruction *instruction = &p->code[j];
        int other;
        if (j > from && reads[so_far] != 1)
            break;
        const bool to_i8 = instruction->run == i8_from_f32;
        if ((to_i8 || instruction->run == u8_from_f32) && instruction->operand[0] == so_far) {
            if (held >= 0 || !chain_is_bounded(p, chain, to_i8 ? -128 : 0, to_i8 ? 127 : 255))
                break;
            chain->step[chain->steps++] = CHAIN_STORE_BYTE;
            chain->cost = (int16_t)(chain->cost + instruction->cost);
            chain_quantizes(p, chain);
            chain_scales(chain);
            return before && !is_added ? 0 : ++j - from;
        }
        if (chain->steps > PROGRAM_MAX_STEPS - 3 || chain->arity == PROGRAM_MAX_OPERANDS)
            break;
        const chain_term next = chain_term_at(p, j, reads);
        const chain_term *const term = next.count ? &next : before;
        const int32_t sum = next.count ? j + next.count : j;
        if (term && !is_added && j > from && sum < p->count &&
            chain_is_sum(&p->code[sum], so_far, term->result)) {
            for (; j < sum; j++)
                chain->cost = (int16_t)(chain->cost + p->code[j].cost);
            chain->cost = (int16_t)(chain->cost + p->code[sum].cost);
            chain_add_term(chain, term);
            is_added = true;
        } else if (held >= 0 && chain_is_sum(instruction, so_far, held)) {
            chain->step[chain->steps++] = CHAIN_ADD_HELD;
            chain->cost = (int16_t)(chain->cost + instruction->cost);
            held = -1;
        } else if (held_to == 0 && j > from && chain_holds(p, instruction, so_far)) {
            before_hold = *chain;
            held_to = j;
            held = so_far;
            chain->step[chain->steps++] = CHAIN_HOLD;
            chain->step[chain->steps++] = CHAIN_FLOAT;
            chain->operand[chain->arity++] = instruction->operand[0];
            chain->cost = (int16_t)(chain->cost + instruction->cost);
        } else {
            const int kind = chain_step(p, instruction, so_far, &other);
            if (kind < 0)
                break;
            chain->step[chain->steps++] = (int8_t)kind;
            if (other >= 0)
                chain->operand[chain->arity++] = (int16_t)other;
            chain->cost = (int16_t)(chain->cost + instruction->cost);
        }
        so_far = (int16_t)(RESULT_SLOT + j);
    }
    if (held >= 0) { /* and never added */
        *chain = before_hold;
        j = held_to;
    }
    chain->step[chain->steps++] = CHAIN_STORE;
    chain_scales(chain);
    return before && !is_added ? 0 : j - from;
}

/* The same; a chain may begin with a term that it adds later. */
static int32_t chain_from(const taper_program *p, int32_t from, const int *reads,
                          program_instruction *chain) {
    const chain_term term = chain_term_at(p, from, reads);
    if (term.count && from + term.count < p->count) {
        const int32_t taken = chain_of(p, from + term.count, reads, &term, chain);
        for (int32_t j = from; taken && j < from + term.count; j++)
            chain->cost = (int16_t)(chain->cost + p->code[j].cost);
        if (taken)
            return term.count + taken;
    }
    return chain_of(p, from, reads, NULL, chain);
}

/* Replaces chains of instructions by one each. */
static void make_chains(taper_program *p, int *dtypes) {
    int reads[PROGRAM_SLOTS] = {0};
    int16_t slot[PROGRAM_SLOTS];
    for (int s = 0; s < PROGRAM_SLOTS; s++)
        slot[s] = (int16_t)s;
    for (int32_t j = 0; j < p->count; j++)
        for (int k = 0; k < p->code[j].arity; k++)
            reads[p->code[j].operand[k]]++;
    const uint64_t uniform = uniform_results(p, false) | uniform_results(p, true);
    int32_t count = 0;
    for (int32_t j = 0, taken; j < p->count; j += taken, count++) {
        program_instruction chain;
        taken = uniform >> j & 1 ? 0 : chain_from(p, j, reads, &chain);
        if (taken < 2) {
            taken = 1;
            chain = p->code[j];
        }
        for (int k = 0; k < chain.arity; k++)
            chain.operand[k] = slot[chain.operand[k]];
        p->code[count] = chain;
        slot[RESULT_SLOT + j + taken - 1] = (int16_t)(RESULT_SLOT + count);
        dtypes[RESULT_SLOT + count] = dtypes[RESULT_SLOT + j + taken - 1];
    }
    p->count = count;
}

/* ---- computing them ---- */

/* An operand of a block of rows: elements side by side (step 1), or one for a row (step 0). */
typedef struct chain_operand {
    const char *data;
    int64_t row; /* bytes from row to row; 0: all rows share it */
    int64_t step;
} chain_operand;

/* Returns an operand of one element, a float32 or int32, in all lanes. */
V_INLINE vf chain_set1(const void *p) {
    float bits;
    memcpy(&bits, p, sizeof bits);
    return v_set1(bits);
}

/* Returns the first n elements at p, 0 beyond them. */
V_INLINE vi chain_sums(const char *p, int64_t n) {
    return HAS_WIDE_PANELS ? v_as_int(v_load_n((const float *)(const void *)p, n))
                           : vi_load((const int32_t *)(const void *)p);
}

V_INLINE vf chain_floats(const char *p, int64_t n) { return v_as_float(chain_sums(p, n)); }

/* Returns the first n bytes, widened. */
V_INLINE vi chain_bytes(const char *p, bool is_signed, int64_t n) {
#if HAS_WIDE_PANELS
    const __m128i bytes = _mm_maskz_loadu_epi8((__mmask16)v_first_n(n), p);
    return is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
#else
    (void)n;
    return is_signed ? vi_load_i8((const int8_t *)p) : vi_load_u8((const uint8_t *)p);
#endif
}

/* Returns a vector of a term. */
V_INLINE vf chain_term_of(vi x, vf less, vf factor) {
    return v_mul(v_sub(v_from_int(x), less), factor);
}

/* Returns whether packs can bound what a chain quantizes: from 0 on. NaN, and what is below int32,
 * become its least number, and so 0. */
V_INLINE bool chain_is_bounded_at_0(const program_instruction *chain) {
    return CHAIN_PACKS && chain->low == 0 && chain->shift >= 0 && chain->shift <= 255;
}

#if CHAIN_PACKS && V_LEN == 8
/* Stores x + shift of some vectors of some rows, bounded to 0 and 255: packs do that. shift: from 0
 * to 255, rows * vectors: a multiple of 4, vectors: 2 or 4. row: from row to row. */
V_INLINE void chain_store_bounded(uint8_t *p, int64_t row, const vi *x, int16_t shift,
                                  const int rows, const int vectors) {
    const vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), added = _mm256_set1_epi16(shift);
#pragma GCC unroll 16
    for (int v = 0; v < rows * vectors; v += 4) {
        const vi first = _mm256_adds_epi16(_mm256_packs_epi32(x[v], x[v + 1]), added);
        const vi second = _mm256_adds_epi16(_mm256_packs_epi32(x[v + 2], x[v + 3]), added);
        const vi bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order);
        uint8_t *const to = p + v / vectors * row;
        _mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(bytes));
        _mm_storeu_si128((__m128i *)(void *)(vectors == 2 ? to + row : to + 16),
                         _mm256_extracti128_si256(bytes, 1));
    }
}
#elif CHAIN_PACKS
/* The same; vectors: 1 or a multiple of 4. */
V_INLINE void chain_store_bounded(uint8_t *p, int64_t row, const vi *x, int16_t shift,
                                  const int rows, const int vectors) {
    const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const vi added = _mm512_set1_epi16(shift);
#pragma GCC unroll 16
    for (int v = 0; v < rows * vectors; v += 4) {
        const vi first = _mm512_adds_epi16(_mm512_packs_epi32(x[v], x[v + 1]), added);
        const vi second = _mm512_adds_epi16(_mm512_packs_epi32(x[v + 2], x[v + 3]), added);
        const vi bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(first, second));
        uint8_t *const to = p + v / vectors * row + v % vectors * V_LEN;
        if (vectors > 1) {
            vi_store((int32_t *)(void *)to, bytes);
            continue;
        }
        _mm_storeu_si128((__m128i *)(void *)to, _mm512_castsi512_si128(bytes));
        _mm_storeu_si128((__m128i *)(void *)(to + row), _mm512_extracti32x4_epi32(bytes, 1));
        _mm_storeu_si128((__m128i *)(void *)(to + 2 * row), _mm512_extracti32x4_epi32(bytes, 2));
        _mm_storeu_si128((__m128i *)(void *)(to + 3 * row), _mm512_extracti32x4_epi32(bytes, 3));
    }
}
#endif

/* Computes the elements of some vectors of some rows from column i on, or the first n of one.
 * out_row: bytes from row to row of the result. */
V_INLINE void chain_vectors(const program_instruction *chain, const chain_operand *in, char *out,
                            int64_t out_row, int64_t i, const int rows, const int vectors,
                            const bool whole, int64_t n) {
    const int all = rows * vectors;
    vf x[8];
#define CHAIN_EACH(expr)                                                                           \
    _Pragma("GCC unroll 16") for (int v = 0; v < all; v++) { expr; }
#define CHAIN_ROW(p, row) ((p) + v / vectors * (row))
#define CHAIN_COLUMN (i + v % vectors * V_LEN)
#define CHAIN_FLOATS(p) ((const float *)(const void *)(p))
#define CHAIN_LOAD_AT(p)                                                                           \
    (whole ? v_load(CHAIN_FLOATS(p) + CHAIN_COLUMN) : v_load_n(CHAIN_FLOATS(p) + CHAIN_COLUMN, n))
#define CHAIN_OTHER(expr)                                                                          \
    {                                                                                              \
        in++;                                                                                      \
        if (in->step && rows > 1 && in->row == 0) {                                                \
            vf shared[8];                                                                          \
            _Pragma("GCC unroll 16") for (int v = 0; v < vectors; v++) shared[v] =                 \
                v_load(CHAIN_FLOATS(in->data) + CHAIN_COLUMN);                                     \
            CHAIN_EACH(const vf b = shared[v % vectors]; x[v] = expr)                              \
        } else if (in->step) {                                                                     \
            CHAIN_EACH(const vf b = CHAIN_LOAD_AT(CHAIN_ROW(in->data, in->row)); x[v] = expr)      \
        } else if (rows > 1 && in->row) {                                                          \
            CHAIN_EACH(const vf b = chain_set1(CHAIN_ROW(in->data, in->row)); x[v] = expr)         \
        } else {                                                                                   \
            const vf b = chain_set1(in->data);                                                     \
            CHAIN_EACH(x[v] = expr)                                                                \
        }                                                                                          \
    }
#define CHAIN_NUMBER(expr) /* of an operand that is a number */                                    \
    {                                                                                              \
        const vf b = chain_set1((++in)->data);                                                     \
        CHAIN_EACH(x[v] = expr)                                                                    \
    }
#define CHAIN_STORE_BYTES(expr)                                                                    \
    {                                                                                              \
        vi bytes[8];                                                                               \
        CHAIN_EACH(bytes[v] = expr)                                                                \
        if (whole) {                                                                               \
            vi_store_bytes_of((uint8_t *)out + i, out_row, bytes, rows, vectors);                  \
        } else {                                                                                   \
            vi_store_bytes(last, bytes[0]);                                                        \
            memcpy(out + i, last, (size_t)n);                                                      \
        }                                                                                          \
    }
    uint8_t last[V_LEN] = {0}; /* bytes of a part of a vector */
    vf held[8]; /* of CHAIN_HOLD; compilers do not see that CHAIN_ADD_HELD comes after it */
    CHAIN_EACH(held[v] = v_zero())
    if (chain->step[0] == CHAIN_LOAD) {
        CHAIN_EACH(const char *p = CHAIN_ROW(in->data, in->row);
                   x[v] = in->step ? CHAIN_LOAD_AT(p) : chain_set1(p))
    } else {
        CHAIN_EACH(const uint8_t *p = (const uint8_t *)CHAIN_ROW(in->data, in->row);
                   if (in->step == 0) memset(last, *p, sizeof last);
                   else if (!whole) memcpy(last, p + i, (size_t)n);
                   const uint8_t *at = in->step && whole ? p + CHAIN_COLUMN : last;
                   x[v] =
                       v_from_int(chain->step[0] == CHAIN_LOAD_I8 ? vi_load_i8((const int8_t *)at)
                                                                  : vi_load_u8(at)))
    }
    for (int s = 1;; s++)
        switch (chain->step[s]) {
        case CHAIN_I32_ADD:
            CHAIN_OTHER(v_as_float(vi_add(v_as_int(x[v]), v_as_int(b))))
            break;
        case CHAIN_I32_SUB:
            CHAIN_OTHER(v_as_float(vi_sub(v_as_int(x[v]), v_as_int(b))))
            break;
        case CHAIN_ADD:
            CHAIN_OTHER(v_add(x[v], b))
            break;
        case CHAIN_SUB:
            CHAIN_OTHER(v_sub(x[v], b))
            break;
        case CHAIN_MUL:
            CHAIN_OTHER(v_mul(x[v], b))
            break;
        case CHAIN_MAX:
            CHAIN_NUMBER(v_max(b, x[v]))
            break;
        case CHAIN_MIN:
            CHAIN_NUMBER(v_min(b, x[v]))
            break;
        case CHAIN_ADD_I8:
        case CHAIN_ADD_U8: {
            const vf less = v_set1(chain->less), factor = v_set1(chain->factor);
            const bool is_signed = chain->step[s] == CHAIN_ADD_I8;
            in++;
            if (!whole)
                memcpy(last, in->data + i, (size_t)n);
            CHAIN_EACH(const char *p = CHAIN_ROW(in->data, in->row);
                       const char *at = whole ? p + CHAIN_COLUMN : (char *)last;
                       const vi bytes = chain_bytes(at, is_signed, V_LEN);
                       x[v] = v_add(x[v], chain_term_of(bytes, less, factor)))
            break;
        }
        case CHAIN_HOLD:
            in++;
            CHAIN_EACH(held[v] = x[v]; x[v] = CHAIN_LOAD_AT(CHAIN_ROW(in->data, in->row)))
            break;
        case CHAIN_ADD_HELD:
            CHAIN_EACH(x[v] = v_add(held[v], x[v]))
            break;
        case CHAIN_FLOAT:
            CHAIN_EACH(x[v] = v_from_int(v_as_int(x[v])))
            break;
        case CHAIN_RELU:
            CHAIN_EACH(x[v] = v_max(v_zero(), x[v]))
            break;
        case CHAIN_ROUND:
            CHAIN_EACH(x[v] = v_round(x[v]))
            break;
        case CHAIN_SILU:
            CHAIN_EACH(x[v] = v_silu(x[v]))
            break;
        case CHAIN_SUB_SCALE:
            CHAIN_OTHER(v_as_float(vi_sub(v_as_int(x[v]), v_as_int(b))))
            /* fall through */
        case CHAIN_SCALE:
            CHAIN_EACH(x[v] = v_from_int(v_as_int(x[v])))
            CHAIN_OTHER(v_mul(x[v], b))
            CHAIN_OTHER(v_add(x[v], b))
            break;
        case CHAIN_QUANTIZE: {
            const vf low = v_set1(chain->low), high = v_set1(chain->high);
#if CHAIN_PACKS
            if (whole && all % 4 == 0 && chain_is_bounded_at_0(chain)) {
                const vf most = v_set1(chain->high - chain->shift);
                vi bytes[8];
                CHAIN_EACH(bytes[v] = v_to_int(v_min(most, x[v])))
                chain_store_bounded((uint8_t *)out + i, out_row, bytes, (int16_t)chain->shift, rows,
                                    vectors);
                return;
            }
#endif
            if (chain->shift != 0)
                CHAIN_EACH(x[v] = v_add(v_round(x[v]), v_set1(chain->shift)))
            CHAIN_EACH(x[v] = v_min(high, v_max(low, x[v])))
            CHAIN_STORE_BYTES(v_to_int(x[v]))
            return;
        }
        case CHAIN_STORE:
            CHAIN_EACH(float *to = (float *)(void *)CHAIN_ROW(out, out_row) + CHAIN_COLUMN;
                       if (whole) v_store(to, x[v]); else v_store_n(to, x[v], n))
            return;
        default:
            CHAIN_STORE_BYTES(v_to_int(v_trunc(x[v])))
            return;
        }
#undef CHAIN_EACH
#undef CHAIN_ROW
#undef CHAIN_COLUMN
#undef CHAIN_FLOATS
#undef CHAIN_LOAD_AT
#undef CHAIN_OTHER
#undef CHAIN_NUMBER
#undef CHAIN_STORE_BYTES
}

/* Computes n elements of a row. */
static void chain_row(const program_instruction *chain, const chain_operand *in, char *out,
                      int64_t n) {
    int64_t i = 0;
    for (; i + CHAIN_VECTORS * V_LEN <= n; i += CHAIN_VECTORS * V_LEN)
        chain_vectors(chain, in, out, 0, i, 1, CHAIN_VECTORS, true, 0);
    for (; i + V_LEN <= n; i += V_LEN)
        chain_vectors(chain, in, out, 0, i, 1, 1, true, 0);
    if (i < n)
        chain_vectors(chain, in, out, 0, i, 1, 1, false, n - i);
}

static void run_chain(const program_instruction *chain, const program_operand *operands, char *out,
                      int64_t n) {
    chain_operand in[PROGRAM_MAX_OPERANDS];
    float once[PROGRAM_MAX_OPERANDS];
    for (int k = 0; k < chain->arity; k++) {
        in[k] = (chain_operand){operands[k].data, 0, operands[k].step};
        if (in[k].step == 0) { /* its register may be that of the result */
            memcpy(&once[k], in[k].data, chain->step[0] == CHAIN_LOAD || k > 0 ? sizeof *once : 1);
            in[k].data = (const char *)&once[k];
        }
    }
    chain_row(chain, in, out, n);
}

#include "map/requantize.inl"

/* Computes rows of n columns, at most PROGRAM_PANEL, or CHAIN_WIDE if is_wide says so. in: the
 * operands of the first row. */
static void run_chain_of_panel(const program_instruction *chain, chain_operand *in, char *out,
                               int64_t out_row, int64_t rows, int64_t n) {
    int64_t r = 0;
#define CHAIN_NEXT(some)                                                                           \
    {                                                                                              \
        const int64_t done = (some);                                                               \
        for (int k = 0; k < chain->arity; k++)                                                     \
            in[k].data += done * in[k].row;                                                        \
        out += done * out_row;                                                                     \
        r += done;                                                                                 \
    }
    chain_requantization requantization;
    if (n >= CHAIN_LEAST && chain_requantizes(chain, in, &requantization)) {
        chain_requantize_of(chain, &requantization, in, out, out_row, rows, n);
        return;
    }
    while (n == PROGRAM_PANEL && r + CHAIN_ROWS <= rows) {
        chain_vectors(chain, in, out, out_row, 0, CHAIN_ROWS, CHAIN_PANEL, true, 0);
        CHAIN_NEXT(CHAIN_ROWS)
    }
    while (r < rows) {
        chain_row(chain, in, out, n);
        CHAIN_NEXT(1)
    }
#undef CHAIN_NEXT
}
