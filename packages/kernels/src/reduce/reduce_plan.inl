/* Order in which a tensor's memory is read for a given set of reduced axes. */

/* Loops outside the innermost dimension of their kind, outermost first. */
typedef struct loops {
    int64_t count; /* product of sizes */
    int64_t n;
    struct {
        int64_t size;
        int64_t stride;
    } loop[TAPER_MAX_RANK];
} loops;

struct reducer;

/* Along rows of the innermost dimension, or across columns. */
enum { REDUCE_ROWS = 1, REDUCE_COLUMNS };
static const taper_variant reduce_variants[] = {{.name = "rows"}, {.name = "columns"}, {0}};
/* The variants give other bits for floats: sums and products round, and among zeros of both signs,
 * or several NaN, the one that comes first is the largest. The kernel chooses columns wherever they
 * serve. */
static const taper_variant reduce_float_variants[] = {
    {.name = "rows", .other_bits = true}, {.name = "columns"}, {0}};

/* Rows of at most this many elements, four cache lines, are treated as columns where another
 * reduced dimension can be the rows: a sum over the lanes of a vector for each row would cost as
 * much as the row itself. */
enum { REDUCE_SHORT = 64 };

/* The innermost kept dimension is the columns, the innermost reduced one is the n rows. Where x is
 * [n][columns][neighbours] and the neighbours are few and reduced too, each of them is at first a
 * column.
 */
struct reduce_state {
    const struct reducer *reducer;
    axis_spans spans;   /* outer: all kept loops except the columns; inner: the columns */
    loops kept;         /* outer's */
    loops reduced;      /* all reduced loops except the rows */
    bool along_row;     /* x is [columns][n], not [n][columns]; neither has gaps */
    int64_t neighbours; /* adjacent columns that make one output */
    int64_t count;      /* elements that do */
    double divisor;
};

/* Returns the offset at which iteration i of the loops starts. */
static int64_t loops_offset(const loops *l, int64_t i) {
    int64_t offset = 0;
    for (int64_t d = l->n - 1; d > 0; d--) {
        offset += i % l->loop[d].size * l->loop[d].stride;
        i /= l->loop[d].size;
    }
    return l->n ? offset + i * l->loop[0].stride : 0;
}

/* Returns how many outputs this many columns make. */
static int64_t reduce_outputs(const struct reduce_state *s, int64_t columns) {
    return s->neighbours == 1 ? columns : columns / s->neighbours; /* seldom a division */
}

/* Returns the offset of a span's outputs. */
static int64_t span_output(const struct reduce_state *s, const axis_span *at) {
    return reduce_outputs(s, at->outer * s->spans.inner + at->column);
}

/* Returns the offset of a span's first element. */
static int64_t span_offset(const struct reduce_state *s, const axis_span *at) {
    return loops_offset(&s->kept, at->outer) + at->column * (s->along_row ? s->spans.n : 1);
}

static void loops_push(loops *l, int64_t size, int64_t stride) {
    l->loop[l->n].size = size;
    l->loop[l->n++].stride = stride;
    l->count *= size;
}

/* Fills all of s except reducer and divisor, and the variant's fields of work. Returns false for
 * tensors that the op's definition, or the variant that the call asks for, excludes. */
static bool reduce_plan(struct reduce_state *s, const taper_call *call, const taper_ints *axes,
                        taper_work *work) {
    const taper_tensor *x = &call->inputs[0];
    bool reduced[TAPER_MAX_RANK] = {false};
    for (int64_t i = 0; i < axes->count; i++) {
        if (axes->data[i] < 0 || axes->data[i] >= x->rank)
            return false;
        reduced[axes->data[i]] = true;
    }
    /* Goes from the innermost dimension outwards, and merges dimensions of one kind. */
    struct {
        int64_t size, stride;
        bool reduced;
    } dims[TAPER_MAX_RANK];
    int64_t n = 0, stride = 1;
    for (int64_t d = x->rank - 1; d >= 0; stride *= x->shape[d], d--) {
        if (x->shape[d] == 1)
            continue;
        if (n > 0 && dims[n - 1].reduced == reduced[d]) {
            dims[n - 1].size *= x->shape[d];
            continue;
        }
        dims[n].size = x->shape[d];
        dims[n].stride = stride;
        dims[n++].reduced = reduced[d];
    }

    s->kept = s->reduced = (loops){.count = 1};
    int64_t rows = 1, columns = 1, next = n < 2 ? n : 2;
    for (int64_t d = 0; d < next; d++)
        *(dims[d].reduced ? &rows : &columns) = dims[d].size;
    s->neighbours = 1;
    s->along_row = n == 0 || dims[0].reduced;
    if (n > 2 && s->along_row && rows > 0 && rows <= REDUCE_SHORT &&
        call->variant != REDUCE_ROWS) { /* dims[2] is reduced too */
        s->neighbours = rows;
        s->along_row = false;
        columns *= rows;
        rows = dims[next++].size;
    }
    work->variant = s->along_row ? REDUCE_ROWS : REDUCE_COLUMNS;
    if (call->variant && call->variant != work->variant)
        return false;
    for (int64_t d = n - 1; d >= next; d--)
        loops_push(dims[d].reduced ? &s->reduced : &s->kept, dims[d].size, dims[d].stride);
    if (tensor_numel(x) == 0) /* nothing to read, however large the other dims */
        s->reduced.count = 0;
    s->count = s->reduced.count * rows * s->neighbours;
    s->spans = s->along_row /* memory is read in order whatever the tile */
                   ? axis_tiled(s->kept.count, rows, columns, rows_per_task(s->count))
                   : axis_split(s->kept.count, rows, columns, (int64_t)taper_dtype_size(x->dtype),
                                INT64_MAX);
    if (s->neighbours > 1) /* neighbours stay in one span */
        s->spans =
            axis_tiled(s->kept.count, rows, columns, s->spans.tile / s->neighbours * s->neighbours);
    s->spans.per_task = rows_per_task(s->count / s->neighbours * s->spans.tile);
    /* A row ends with a sum over lanes; the parts of columns go through scratch. */
    const int64_t folds = i64_times(s->kept.count, i64_times(columns, s->reduced.count));
    work->extra_flops = s->along_row ? i64_times(folds, 2 * V_LEN) : 0;
    work->scratch_traffic = s->along_row ? 0 : i64_times(folds, 2 * sizeof(double));
    return true;
}
