/* The list of kernels, the levels, and the names by which other languages find codes. */
#include "check.h"

static void levels(void) {
    size_t n = 0;
    bool here = false;
    const taper_level *found;
    for (const taper_level *level; (level = taper_level_at(n)) != NULL; n++) {
        const char *name = taper_level_name(level);
        here = here || level == check_level;
        for (size_t i = 0; i < n; i++)
            CHECK(strcmp(name, taper_level_name(taper_level_at(i))) != 0, "%s is there twice",
                  name);
        CHECK(taper_level_find(name, &found) == TAPER_OK && found == level, "%s by name", name);
    }
    CHECK(n > 0 && strcmp(taper_level_name(taper_level_at(n - 1)), "baseline") == 0,
          "the last is the baseline");
    CHECK(here, "%s is tested but not here", taper_level_name(check_level));
    CHECK(taper_level_find("sse9", &found) == TAPER_UNKNOWN_ISA && !found, "no such level");
    CHECK(taper_level_find("", &found) == TAPER_UNKNOWN_ISA && !found, "a level without a name");
}

/* Every level has its own kernels, whichever other level the process uses. */
static void levels_side_by_side(void) {
    for (size_t i = 0; taper_level_at(i + 1); i++) {
        const taper_level *one = taper_level_at(i), *other = taper_level_at(i + 1);
        size_t a = 0, b = 0;
        taper_kernel k, l;
        CHECK(taper_kernel_next(one, "MATMUL", &a, &k) &&
                  taper_kernel_next(other, "MATMUL", &b, &l) && k.run != l.run,
              "%s and %s", taper_level_name(one), taper_level_name(other));
    }
}

/* ---- the list ---- */

static void kernel_list(void) {
    size_t n = 0;
    taper_kernel kernel, other;
    const taper_kernel *k = &kernel;
    for (; taper_kernel_at(check_level, n, &kernel); n++) {
        CHECK(k->name && *k->name && k->op && *k->op && k->prepare && k->run, "row %zu", n);
        CHECK(k->n_operands >= 1 && k->n_operands <= TAPER_KERNEL_OPERANDS, "%s: inputs", k->name);
        CHECK((uint32_t)k->output && k->output >> 32, "%s: output", k->name);
        int32_t variants = 0;
        for (const taper_variant *v = k->variants; v && v->name; v++, variants++) {
            CHECK(*v->name && (v->rows > 0) == (v->columns > 0), "%s: variant %s", k->name,
                  v->name);
            for (const taper_variant *w = k->variants; w < v; w++)
                CHECK(strcmp(v->name, w->name) != 0, "%s: %s is there twice", k->name, v->name);
            for (size_t i = 0; taper_kernel_at(check_level, i, &other); i++)
                CHECK(strcmp(v->name, other.name) != 0, "%s: %s is also a kernel", k->name,
                      v->name);
        }
        CHECK(!k->variants || variants > 0, "%s: a list of no variant", k->name);
        CHECK(k->state_bytes <= taper_max_state_bytes(check_level), "%s: state_bytes", k->name);
        CHECK(k->attrs_bytes <= taper_max_attrs_bytes(check_level), "%s: attrs_bytes", k->name);
        for (size_t i = 0; i < n && taper_kernel_at(check_level, i, &other); i++)
            CHECK(strcmp(k->name, other.name) != 0, "%s is there twice", k->name);
    }
    CHECK(n > 0, "%s has no kernels", taper_level_name(check_level));
    CHECK(!taper_kernel_at(check_level, n + 1, &other) &&
              !taper_kernel_at(check_level, SIZE_MAX, &other),
          "past the end");
}

/* taper_kernel_takes answers by what a row states. */
static void takes_what_it_states(void) {
    const uint64_t plain = (uint64_t)1 << (32 + TAPER_PLAIN);
    const uint64_t panels = (uint64_t)1 << (32 + TAPER_PANELS_1);
    const taper_kernel k = {
        .output = plain | 1u << TAPER_FLOAT32,
        .inputs = {plain | 1u << TAPER_FLOAT32, panels | 1u << TAPER_FLOAT32 | 1u << TAPER_FLOAT16},
        .n_operands = 2};
    taper_tensor inputs[3], output = {.dtype = TAPER_FLOAT32};
    for (int i = 0; i < 3; i++)
        inputs[i] = (taper_tensor){.dtype = TAPER_FLOAT32, .format = i ? TAPER_PANELS_1 : 0};
    const taper_call call = {.inputs = inputs, .output = &output, .n_inputs = 3, .n_outputs = 1};
    CHECK(taper_kernel_takes(&k, &call), "as stated");
    inputs[1].dtype = inputs[2].dtype = TAPER_FLOAT16;
    CHECK(taper_kernel_takes(&k, &call), "the last stands for all further ones");
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        const int32_t was = field;                                                                 \
        field = value;                                                                             \
        CHECK(!taper_kernel_takes(&k, &call), #field " = " #value);                                \
        field = was;                                                                               \
    } while (0)
    REFUSED(inputs[0].dtype, TAPER_FLOAT16);
    REFUSED(inputs[0].format, TAPER_PANELS_1);
    REFUSED(inputs[1].format, TAPER_PLAIN);
    REFUSED(inputs[2].format, TAPER_PANELS_0);
    REFUSED(inputs[2].dtype, TAPER_BFLOAT16);
    REFUSED(inputs[1].format, TAPER_FORMAT_COUNT);
    REFUSED(inputs[1].format, -1);
    REFUSED(inputs[1].dtype, TAPER_DTYPE_COUNT);
    REFUSED(output.dtype, TAPER_INT64);
    REFUSED(output.format, TAPER_PANELS_1);
    CHECK(taper_kernel_takes(&k, &call), "all undone");
}

/* Rows as the macros write them: they have the features that they need. */
#define TAPER_ATTRS_needing(A, id) A(id, axis, INT)
TAPER_DEFINE_ATTRS(needing)
static taper_status some_prepare(const taper_call *call, taper_work *work) {
    (void)call;
    (void)work;
    return TAPER_UNSUPPORTED;
}
static taper_status some_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    (void)call;
    (void)begin;
    (void)end;
    (void)scratch;
    return TAPER_OK;
}
static const taper_variant some_variants[] = {{.name = "only"}, {0}};
static const taper_kernel rows[] = {
    TAPER_KERNEL(some, "SOME", needing, int64_t, TENSOR(D_F32), TENSOR(D_F32))
        TAPER_KERNEL_WITH((NEEDS("baseline")), some, "SOME", needing, int64_t, TENSOR(D_F32),
                          TENSOR(D_F32), TENSOR(D_I64))
            TAPER_KERNEL_WITH((NEEDS("baseline no_such_feature"), VARIANTS(some_variants)), some,
                              "SOME", needing, int64_t, TENSOR(D_F32), TENSOR(D_F32))};

static void macros_say_needs(void) {
    CHECK(rows[0].needs == NULL && taper_kernel_runs(&rows[0]), "a row that needs nothing");
    CHECK(strcmp(rows[1].needs, "baseline") == 0 && taper_kernel_runs(&rows[1]), "what is here");
    CHECK(!taper_kernel_runs(&rows[2]), "one of two is not");
    CHECK(!rows[1].variants && strcmp(rows[2].variants->name, "only") == 0, "variants");
    CHECK(rows[1].n_attrs == 1 && rows[1].attrs_bytes == sizeof(int64_t) &&
              rows[1].state_bytes == sizeof(int64_t) && rows[1].n_operands == 2 &&
              strcmp(rows[1].op, "SOME") == 0 && rows[1].run == some_run,
          "the rest of the row");
}

/* A row is skipped if it needs a feature that this CPU lacks, and found if the CPU has the feature.
 */
static void rows_need_features(void) {
    taper_kernel k, kernel, next;
    CHECK(taper_kernel_at(check_level, 0, &k), "the first");
    k.needs = NULL;
    CHECK(taper_kernel_runs(&k), "nothing");
    k.needs = "no such feature";
    CHECK(!taper_kernel_runs(&k), "%s", k.needs);
    k.needs = taper_level_name(check_level);
    CHECK(taper_kernel_runs(&k), "%s, the level at hand", k.needs);
    for (size_t row = 0; taper_kernel_at(check_level, row, &kernel); row++) { /* only these */
        size_t position = row;
        const bool found = taper_kernel_next(check_level, kernel.op, &position, &next);
        CHECK((found && position == row + 1) == taper_kernel_runs(&kernel), "%s", kernel.name);
        for (const char *name = kernel.needs; name; name = strchr(name, ' ')) {
            size_t i = 0;
            const char *feature;
            name += *name == ' ';
            while ((feature = taper_feature_name(i)) && (strncmp(feature, name, strlen(feature)) ||
                                                         strcspn(name, " ") != strlen(feature)))
                i++;
            CHECK(feature, "%s needs %s, which no table has", kernel.name, name);
        }
    }
}

/* For every op, taper_kernel_next finds all its rows of the list, in order. */
static void next_walks_in_order(void) {
    size_t position;
    taper_kernel kernel, other, next;
    for (size_t i = 0; taper_kernel_at(check_level, i, &kernel); i++) {
        const char *op = kernel.op;
        position = 0;
        for (size_t row = 0; taper_kernel_at(check_level, row, &other); row++)
            if (strcmp(other.op, op) == 0 && taper_kernel_runs(&other)) {
                CHECK(taper_kernel_next(check_level, op, &position, &next) &&
                          strcmp(next.name, other.name) == 0,
                      "%s", op);
                CHECK(position == row + 1, "%s: position %zu after row %zu", op, position, row);
            }
        CHECK(!taper_kernel_next(check_level, op, &position, &next), "%s: one too many", op);
    }
    position = 0;
    CHECK(!taper_kernel_next(check_level, "NO_SUCH_OP", &position, &next),
          "an unknown op has no kernel");
}

static void attrs_inside_struct(void) {
    taper_kernel kernel;
    const taper_kernel *k = &kernel;
    for (size_t row = 0; taper_kernel_at(check_level, row, &kernel); row++) {
        size_t end = 0;
        for (size_t i = 0; i < k->n_attrs; i++) {
            const taper_attr *a = &k->attrs[i];
            CHECK(a->name && *a->name && taper_attr_type_name((int)a->type), "%s: attr %zu",
                  k->name, i);
            CHECK(a->offset >= end, "%s: %s overlaps the attr before it", k->name, a->name);
            end = a->offset + check_attr_bytes(a->type);
        }
        CHECK(end <= k->attrs_bytes, "%s: attrs_bytes", k->name);
    }
}

/* A kernel accepts or refuses a node without meaning; it does not crash. */
static void prepare_survives(void) {
    enum { MOST_INPUTS = 4 };
    taper_tensor inputs[MOST_INPUTS];
    void *attrs = calloc(1, taper_max_attrs_bytes(check_level) + 1);
    taper_kernel kernel;
    const taper_kernel *k = &kernel;
    for (size_t row = 0; taper_kernel_at(check_level, row, &kernel); row++) {
        for (size_t i = 0; i < k->n_attrs; i++)
            if (k->attrs[i].type == TAPER_ATTR_STRING)
                *(const char **)(void *)((char *)attrs + k->attrs[i].offset) = "";
        for (int dtype = 0; dtype < TAPER_DTYPE_COUNT; dtype++)
            for (int n = 0; n <= MOST_INPUTS; n++) {
                const taper_tensor scalar = check_tensor(NULL, (taper_dtype)dtype, 0, NULL);
                for (int i = 0; i < MOST_INPUTS; i++)
                    inputs[i] = scalar;
                void *state = check_alloc((k->state_bytes + 63) / 64 * 64, 0);
                const taper_call call = {.kernel = k,
                                         .inputs = inputs,
                                         .output = &scalar,
                                         .attrs = attrs,
                                         .state = state,
                                         .n_inputs = n,
                                         .n_outputs = 1};
                taper_work work;
                taper_status status = k->prepare(&call, &work);
                for (int32_t v = 0; status < TAPER_NO_MEMORY && k->variants && k->variants[v].name;
                     v++) {
                    taper_call as = call;
                    as.variant = v + 1;
                    status = k->prepare(&as, &work);
                }
                CHECK(status == TAPER_OK || status == TAPER_UNSUPPORTED, "%s: %s", k->name,
                      taper_status_string(status));
                check_free(state);
            }
        memset(attrs, 0, taper_max_attrs_bytes(check_level));
    }
    free(attrs);
}

/* ---- names ---- */

static void names(void) {
    static const struct {
        taper_dtype dtype;
        const char *name;
        size_t size;
    } dtypes[] = {
        {TAPER_FLOAT32, "float32", 4}, {TAPER_FLOAT64, "float64", 8},
        {TAPER_FLOAT16, "float16", 2}, {TAPER_BFLOAT16, "bfloat16", 2},
        {TAPER_INT64, "int64", 8},     {TAPER_INT32, "int32", 4},
        {TAPER_INT16, "int16", 2},     {TAPER_INT8, "int8", 1},
        {TAPER_UINT8, "uint8", 1},     {TAPER_BOOL, "bool", 1},
    };
    static const char *const attr_types[] = {"int",    "float", "bool",    "string",
                                             "scalar", "ints",  "strings", "scalars"};
    CHECK(sizeof dtypes / sizeof dtypes[0] == TAPER_DTYPE_COUNT, "a dtype is missing here");
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        CHECK(strcmp(taper_dtype_name(dtypes[i].dtype), dtypes[i].name) == 0, "%s", dtypes[i].name);
        CHECK(taper_dtype_size(dtypes[i].dtype) == dtypes[i].size, "%s", dtypes[i].name);
    }
    CHECK(!taper_dtype_name(-1) && !taper_dtype_name(TAPER_DTYPE_COUNT), "dtype names end");
    CHECK(strcmp(taper_format_name(TAPER_PLAIN), "plain") == 0, "plain");
    CHECK(strcmp(taper_format_name(TAPER_WINOGRAD_4), "winograd.4") == 0, "winograd.4");
    CHECK(!taper_format_name(-1) && !taper_format_name(TAPER_FORMAT_COUNT), "format names end");
    CHECK(!taper_dtype_size(-1) && !taper_dtype_size(TAPER_DTYPE_COUNT), "dtype sizes end");
    for (int i = 0; i < TAPER_ATTR_TYPE_COUNT; i++)
        CHECK(strcmp(taper_attr_type_name(i), attr_types[i]) == 0, "%s", attr_types[i]);
    CHECK(!taper_attr_type_name(-1) && !taper_attr_type_name(TAPER_ATTR_TYPE_COUNT),
          "attr type names end");
}

/* The numbers are part of the API; each has its own sentence, and any other number has one too. */
static void statuses(void) {
    CHECK(TAPER_OK == 0 && TAPER_UNSUPPORTED == 1 && TAPER_NO_MEMORY == 2 && TAPER_BAD_INDEX == 3 &&
              TAPER_BAD_ARGUMENT == 4 && TAPER_UNKNOWN_ISA == 5 && TAPER_STOPPED == 6 &&
              TAPER_CALL_FAILED == 7,
          "a status changed its number");
    for (int i = TAPER_OK; i <= TAPER_CALL_FAILED + 1; i++)
        for (int j = TAPER_OK; j < i; j++)
            CHECK(strcmp(taper_status_string((taper_status)i),
                         taper_status_string((taper_status)j)) != 0,
                  "%d and %d read the same", i, j);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"levels", levels},
        {"levels_side_by_side", levels_side_by_side},
        {"kernel_list", kernel_list},
        {"takes_what_it_states", takes_what_it_states},
        {"macros_say_needs", macros_say_needs},
        {"rows_need_features", rows_need_features},
        {"next_walks_in_order", next_walks_in_order},
        {"attrs_inside_struct", attrs_inside_struct},
        {"prepare_survives", prepare_survives},
        {"names", names},
        {"statuses", statuses},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
