/*
 * The blocks of products of bytes by tiles: one instruction adds 16 rows of A times 64 k of a panel
 * to a tile of 16 x 16 sums. 16 lines of a panel are a tile as they are. Rows of A are those of the
 * engine of AVX-512 VNNI, uint8, shifted if they were int8; that one computes the fewest rows.
 */

enum {
    AMX_LINES = TILE_BYTES / I8_GROUP, /* of a tile of B, which are also groups of a row of A */
    AMX_TILE = AMX_LINES * I8_LINE,    /* bytes of a tile of B */
    AMX_WORTH = 5,                     /* rows for which tiles pay */
};

/* Configures tiles 0 to 3 for sums of two tiles of rows and two panels, 4 and 5 for these rows of
 * A, 6 and 7 for B. The second may have no rows: then its tiles are not used. */
static void amx_configure(int64_t first, int64_t second) {
    const int64_t rows[] = {first, first, second, second, first, second, AMX_LINES, AMX_LINES};
    tiles_shape shape = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shape.rows[tile] = (uint8_t)rows[tile];
        shape.row_bytes[tile] = rows[tile] ? TILE_BYTES : 0;
    }
    tiles_configure(&shape);
}

/* Two panels: their lines, the last of them up to a whole tile, and what their sums begin with. */
typedef struct amx_panels {
    const int8_t *lines[2];
    int8_t last[2][AMX_TILE] __attribute__((aligned(TAPER_ALIGNMENT)));
    int32_t begin[2][GEMM_NR] __attribute__((aligned(TAPER_ALIGNMENT)));
} amx_panels;

/* Computes the sums of one or two tiles of rows and one or two panels. The numbers are constants
 * wherever this is inlined. */
I8_INLINE void amx_tiles(const i8_block *g, const amx_panels *p, const char *a, int32_t *c,
                         const int row_tiles, const int panels) {
    const size_t a_row = (size_t)g->a_row_bytes, c_row = (size_t)g->ldc * sizeof *c;
    const char *const a_second = a + TILE_ROWS * g->a_row_bytes;
    int32_t *const c_second = c + TILE_ROWS * g->ldc;
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
        tile_load(4, a + step * TILE_BYTES, a_row);
        tile_dot_u8_i8(0, 4, 6);
        if (panels == 2) {
            tile_load(7, is_last ? p->last[1] : p->lines[1] + step * AMX_TILE, I8_LINE);
            tile_dot_u8_i8(1, 4, 7);
        }
        if (row_tiles == 2) {
            tile_load(5, a_second + step * TILE_BYTES, a_row);
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

/* Computes rows of one or two tiles, in steps of `step` rows, for one or two panels. */
static void amx_rows(const i8_block *g, const amx_panels *p, int64_t begin, int64_t end,
                     int64_t step, int64_t panels) {
    for (int64_t row = begin; row < end; row += step) {
        const char *a = g->a + row * g->a_row_bytes;
        int32_t *c = g->c + row * g->ldc;
        if (end - row > TILE_ROWS && panels == 2)
            amx_tiles(g, p, a, c, 2, 2);
        else if (end - row > TILE_ROWS)
            amx_tiles(g, p, a, c, 2, 1);
        else if (panels == 2)
            amx_tiles(g, p, a, c, 1, 2);
        else
            amx_tiles(g, p, a, c, 1, 1);
    }
}

static void i8_amx_block(const i8_block *block, int64_t m, int64_t panels) {
    if (m < AMX_WORTH) {
        i8_vnni_block(block, m, panels);
        return;
    }
    const int64_t whole = block->groups / AMX_LINES, past = block->groups % AMX_LINES;
    const int64_t step = 2 * TILE_ROWS, steady = m / step * step;
    /* First the rows of whole tiles, then the others, whose tiles are configured anew. */
    for (int64_t begin = 0, end; begin < m; begin = end) {
        end = begin < steady ? steady : m;
        const int64_t rows = i64_min(step, end - begin), first = i64_min(TILE_ROWS, rows);
        amx_configure(first, rows - first);
        i8_block g = *block;
        amx_panels p;
        for (int64_t panel = 0, some; panel < panels; panel += some) {
            some = i64_min(2, panels - panel);
            for (int64_t i = 0; i < some; i++) {
                const int8_t *const at = g.b + i * i8_panel_bytes(g.groups);
                int32_t sums[GEMM_NR];
                memcpy(sums, at, sizeof sums);
                for (int j = 0; j < GEMM_NR; j++)
                    p.begin[i][j] = g.is_signed ? (int32_t)(-128 * (uint32_t)sums[j]) : 0;
                p.lines[i] = at + I8_LINE;
                if (past > 0) { /* beyond them A has any bytes: they are multiplied by 0 */
                    memcpy(p.last[i], p.lines[i] + whole * AMX_TILE, (size_t)(past * I8_LINE));
                    memset(p.last[i] + past * I8_LINE, 0, (size_t)((AMX_LINES - past) * I8_LINE));
                }
            }
            amx_rows(&g, &p, begin, end, step, some);
            g.b += some * i8_panel_bytes(g.groups);
            g.c += some * GEMM_NR;
        }
    }
    tiles_release(); /* so that the system need not save the tiles */
}

/* A tile reads whole rows of 64 bytes, also of A in place. */
static bool i8_amx_reads(const void *from, int64_t row, int64_t rows, int64_t n, bool is_signed) {
    return n % TILE_BYTES == 0 && i8_vnni_reads(from, row, rows, n, is_signed);
}
