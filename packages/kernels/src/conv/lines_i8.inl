/*
 * Lines of x for convolutions of bytes whose engine takes A in several runs: the taps of a row of
 * the kernel are adjacent in a line of x, with all their channels, so that a window is a run of
 * each of some lines. These are in scratch with what pads them, or they are those of x itself.
 * Windows are not copied. conv_i8.inl includes this file.
 */

/* Returns whether windows can be read in lines of x. */
static bool i8_lines_serve(const conv_shape *s, const i8_engine *engine) {
    return engine->direct && s->groups == 1 && conv_idle(&s->dims[0]) && s->dims[1].dilation == 1 &&
           s->dims[2].dilation == 1 && s->dims[2].kernel * s->in % I8_GROUP == 0;
}

/* Returns whether the lines are those of x. */
static bool i8_lines_are_of_x(const conv_shape *s, bool is_signed) {
    return !s->padded && !is_signed;
}

/* Returns about how many pixels a unit has, for the best at least `rows`: whole rows of the output,
 * or parts of one. */
static int64_t i8_lines_pixels(const conv_shape *s, int64_t rows) {
    const int64_t width = s->dims[2].out;
    if (width <= rows)
        return i64_ceil_div(rows, width) * width;
    return i64_ceil_div(width, width / rows);
}

/* Returns the bytes of the lines of m pixels in scratch, at most. */
static int64_t i8_lines_bytes(const conv_shape *s, int64_t m) {
    const window_dim *h = &s->dims[1], *w = &s->dims[2];
    const int64_t span = h->kernel, step = i64_min(h->stride, span);
    const int64_t rows = w->out % m == 0 || m % w->out == 0 ? i64_ceil_div(m, w->out)
                                                            : (m + w->out - 2) / w->out + 1;
    const int64_t width = rows > 1 ? w->out : i64_min(m, w->out);
    const int64_t images = i64_min(s->batch, rows > 1 ? (rows - 2) / h->out + 2 : 1);
    const int64_t lines = i64_plus(i64_times(rows, step), i64_times(images, span - step));
    const int64_t pixels = i64_plus(i64_times(width - 1, w->stride), w->kernel);
    return i64_times(lines, i64_times(pixels, s->in));
}

/* Writes a line of x, from column `first` on, with the border around it. */
static void i8_put_line(const i8_engine *engine, const conv_shape *s, char *to, const char *x,
                        int64_t image, int64_t y, int64_t first, int64_t pixels, char border,
                        bool is_signed) {
    const int64_t height = s->dims[1].in, width = s->dims[2].in, step = s->in;
    const bool is_line = y >= 0 && y < height;
    const int64_t before = is_line ? i64_min(i64_max(0, -first), pixels) : pixels;
    const int64_t whole = is_line ? i64_max(0, i64_min(pixels, width - first) - before) : 0;
    memset(to, border, (size_t)(before * step));
    to += before * step;
    if (whole > 0) {
        const char *from = x + ((image * height + y) * width + first + before) * step;
        if (is_signed)
            engine->put(to, from, 1, whole * step, true);
        else
            memcpy(to, from, (size_t)(whole * step));
    }
    memset(to + whole * step, border, (size_t)((pixels - before - whole) * step));
}

/* Puts the lines of m pixels into scratch, if they are not those of x, and fills the block's A.
 * rows: for m pointers. */
static void i8_put_lines(const i8_engine *engine, const conv_shape *s, i8_block *g, char *lines,
                         const char **rows, const char *x, char border, int64_t row, int64_t m) {
    const window_dim *h = &s->dims[1], *w = &s->dims[2];
    const int64_t span = h->kernel, past = row + m;
    g->rows = rows;
    g->runs = h->kernel;
    if (i8_lines_are_of_x(s, g->is_signed)) {
        g->run_step = w->in * s->in;
        for (int64_t r = row; r < past; r++) {
            int64_t at[WINDOW_DIMS];
            const int64_t image = i8_conv_pixel(s, r, at);
            *rows++ = x + ((image * h->in + at[1]) * w->in + at[2]) * s->in;
        }
        return;
    }
    char outside;
    engine->put(&outside, &border, 1, 1, g->is_signed);
    const bool one = row / w->out == (past - 1) / w->out; /* row of the output */
    const int64_t first = one ? row % w->out : 0, columns = one ? m : w->out;
    const int64_t pixels = (columns - 1) * w->stride + w->kernel, bytes = pixels * s->in;
    g->run_step = bytes;
    int64_t next = 0; /* line of the image that is put next, where rows share lines */
    for (int64_t r = row, n; r < past; r += n) {
        const int64_t y = r / w->out % h->out, image = r / w->out / h->out;
        n = i64_min(past - r, w->out - r % w->out);
        const int64_t top = y * h->stride - h->low;
        int64_t from = r > row && y > 0 ? i64_max(next, top) : top;
        lines -= (from - top) * bytes;
        for (next = top + span; from < next; from++)
            i8_put_line(engine, s, lines + (from - top) * bytes, x, image, from,
                        first * w->stride - w->low, pixels, outside, g->is_signed);
        for (int64_t i = 0; i < n; i++)
            *rows++ = lines + ((r + i) % w->out - first) * w->stride * s->in;
        lines += span * bytes;
    }
}
