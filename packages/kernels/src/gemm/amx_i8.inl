/*
 * The blocks of products of bytes by tiles: one instruction adds 16 rows of A times 64 k of a panel
 * to a tile of 16 x 16 sums. 16 lines of a panel are a tile as they are. Rows of A are those of the
 * engine of AVX-512 VNNI, uint8, shifted if they were int8; that one computes few rows and few k.
 */

enum {
    AMX_LINES = TILE_BYTES / I8_GROUP, /* of a tile of B, which are also groups of a row of A */
    AMX_TILE = AMX_LINES * I8_LINE,    /* bytes of a tile of B */
};

/* Tiles 0 to 3 have sums of two tiles of rows and two panels, 4 and 5 these rows of A, 6 and 7 B.
 * All are whole: to configure them takes as long as the products of some tiles, so that it is done
 * once in a task. */
static void i8_amx_begin(void) {
    tiles_shape shape = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shape.rows[tile] = TILE_ROWS;
        shape.row_bytes[tile] = TILE_BYTES;
    }
    tiles_configure(&shape);
}

static void i8_amx_end(void) { tiles_release(); }

/* Two panels: their lines, the last of them behind zeros for a whole tile, and what their sums
 * begin with. */
typedef struct amx_panels {
    const int8_t *lines[2];
    int8_t last[2][AMX_TILE] __attribute__((aligned(TAPER_ALIGNMENT)));
    int32_t begin[2][GEMM_NR] __attribute__((aligned(TAPER_ALIGNMENT)));
} amx_panels;

/* Computes the sums of one or two tiles of rows, the second from row `second` on, and of one or two
 * panels. The numbers of both are constants wherever this is inlined. */
I8_INLINE void amx_tiles(const i8_block *g, const amx_panels *p, int64_t first, int64_t second,
                         const int row_tiles, const int panels) {
    const int64_t a_row = g->a_row_bytes, c_row = g->ldc * (int64_t)sizeof(int32_t);
    const char *const a = g->a + first * a_row, *const a_second = g->a + second * a_row;
    int32_t *const c = g->c + first * g->ldc, *const c_second = g->c + second * g->ldc;
    tile_load(0, p->begin[0], 0); /* the same line in each row */
    if (panels == 2)
        tile_load(1, p->begin[1], 0);
    if (row_tiles == 2)
        tile_load(2, p->begin[0], 0);
    if (row_tiles == 2 && panels == 2)
        tile_load(3, p->begin[1], 0);
    const int64_t whole = g->groups / AMX_LINES, steps = i64_ceil_div(g->groups, AMX_LINES);
    for (int64_t step = 0; step < steps; step++) {
        const bool is_last = step == whole;
        tile_load(6, is_last ? p->last[0] : p->lines[0] + step * AMX_TILE, I8_LINE);
        const int64_t k = is_last ? g->groups * I8_GROUP - TILE_BYTES : step * TILE_BYTES;
        tile_load(4, a + k, a_row);
        tile_dot_u8_i8(0, 4, 6);
        if (panels == 2) {
            tile_load(7, is_last ? p->last[1] : p->lines[1] + step * AMX_TILE, I8_LINE);
            tile_dot_u8_i8(1, 4, 7);
        }
        if (row_tiles == 2) {
            tile_load(5, a_second + k, a_row);
            tile_dot_u8_i8(2, 5, 6);
        }
        if (row_tiles == 2 && panels == 2)
            tile_dot_u8_i8(3, 5, 7);
    }
    tile_store(0, c, c_row);
    if (panels == 2)
        tile_store(1, c + GEMM_NR, c_row);
    if (row_tiles == 2)
        tile_store(2, c_second, c_row);
    if (row_tiles == 2 && panels == 2)
        tile_store(3, c_second + GEMM_NR, c_row);
}

/* Computes m >= TILE_ROWS rows and one or two panels. The last tile overlaps the one before it: its
 * sums are stored twice. */
static void amx_rows(const i8_block *g, const amx_panels *p, int64_t m, int64_t panels) {
    for (int64_t row = 0; row < m; row += 2 * TILE_ROWS) {
        const int64_t first = i64_min(row, m - TILE_ROWS);
        const int64_t second = i64_min(row + TILE_ROWS, m - TILE_ROWS);
        if (second > first && panels == 2)
            amx_tiles(g, p, first, second, 2, 2);
        else if (second > first)
            amx_tiles(g, p, first, second, 2, 1);
        else if (panels == 2)
            amx_tiles(g, p, first, second, 1, 2);
        else
            amx_tiles(g, p, first, second, 1, 1);
    }
}

static void i8_amx_block(const i8_block *block, int64_t m, int64_t panels) {
    if (m < TILE_ROWS || block->groups < AMX_LINES) { /* a tile would be largely empty */
        i8_vnni_block(block, m, panels);
        return;
    }
    const int64_t whole = block->groups / AMX_LINES, past = block->groups % AMX_LINES;
    i8_block g = *block;
    amx_panels p;
    for (int64_t panel = 0, some; panel < panels; panel += some) {
        some = i64_min(2, panels - panel);
        for (int64_t i = 0; i < some; i++) {
            const int8_t *const at = g.b + i * i8_panel_bytes(g.groups);
            const vi sums = vi_load((const int32_t *)(const void *)at);
            const vi shift = g.is_signed ? vi_shl(sums, 7) : vi_set1(0);
            vi_store(p.begin[i], vi_sub(vi_set1(0), shift));
            p.lines[i] = at + I8_LINE;
            if (past > 0) { /* k that a tile before has are multiplied by 0 */
                const size_t zeros = (size_t)(AMX_LINES - past) * I8_LINE;
                memset(p.last[i], 0, zeros);
                memcpy(p.last[i] + zeros, p.lines[i] + whole * AMX_TILE, AMX_TILE - zeros);
            }
        }
        amx_rows(&g, &p, m, some);
        g.b += some * i8_panel_bytes(g.groups);
        g.c += some * GEMM_NR;
    }
}
