/* How a tensor's memory is walked for a given set of reduced axes. */

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

/* The innermost kept dimension is the columns, the innermost reduced one the n rows. */
struct reduce_state {
    const struct reducer *reducer;
    axis_spans spans; /* outer: all kept loops but the columns; inner: the columns */
    loops kept;       /* outer's */
    loops reduced;    /* all reduced loops but the rows */
    bool along_row;   /* x is [columns][n], not [n][columns]; neither has gaps */
    int64_t count;    /* elements that make one output */
    double divisor;
};

/* Where iteration i of the loops starts. */
static int64_t loops_offset(const loops *l, int64_t i) {
    int64_t offset = 0;
    for (int64_t d = l->n - 1; d > 0; d--) {
        offset += i % l->loop[d].size * l->loop[d].stride;
        i /= l->loop[d].size;
    }
    return l->n ? offset + i * l->loop[0].stride : 0;
}

/* Where the first element of a span lies. */
static int64_t span_offset(const struct reduce_state *s, const axis_span *at) {
    return loops_offset(&s->kept, at->outer) + at->column * (s->along_row ? s->spans.n : 1);
}

static void loops_push(loops *l, int64_t size, int64_t stride) {
    l->loop[l->n].size = size;
    l->loop[l->n++].stride = stride;
    l->count *= size;
}

/* Fills all of s but reducer and divisor; false for what the op's definition excludes. */
static bool reduce_plan(struct reduce_state *s, const taper_tensor *x, const taper_ints *axes) {
    bool reduced[TAPER_MAX_RANK] = {false};
    for (int64_t i = 0; i < axes->count; i++) {
        if (axes->data[i] < 0 || axes->data[i] >= x->rank)
            return false;
        reduced[axes->data[i]] = true;
    }
    /* Innermost first, so that dimensions of one kind can grow outwards. */
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
    for (int64_t d = n - 1; d >= next; d--)
        loops_push(dims[d].reduced ? &s->reduced : &s->kept, dims[d].size, dims[d].stride);
    s->along_row = n == 0 || dims[0].reduced;
    s->count = s->reduced.count * rows;
    s->spans = s->along_row /* memory is read in one go whatever the tile */
                   ? axis_tiled(s->kept.count, rows, columns, rows_per_task(s->count))
                   : axis_split(s->kept.count, rows, columns, INT64_MAX);
    s->spans.per_task = rows_per_task(s->count * s->spans.tile);
    return true;
}
