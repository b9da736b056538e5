/*
 * Test harness shared by every tests/test_<family>.c.
 *
 * A test program is a list of cases, printed as TAP (meson: protocol 'tap'):
 *
 *     test_<family> [--isa NAME] [--bench] [FILTER]
 *
 * --isa forces a level (a CPU without it prints a TAP skip); --bench times instead of checking and
 * prints one JSON line per benchmark; FILTER keeps the cases whose name contains it. The same
 * program is therefore the unit test and the microbenchmark.
 *
 * Attr structs come from the family's own list, so that no test repeats a layout:
 *
 *     #include "softmax/kernels.inc"
 *     CHECK_ATTRS(softmax)                        // struct softmax_attrs
 */
#ifndef TAPER_CHECK_H
#define TAPER_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isa/isa.h"
#include "taper/kernels.h"

#define CHECK_ATTRS(id)                                                                            \
    struct id##_attrs {                                                                            \
        TAPER_ATTRS_##id(TAPER_FIELD, id)                                                          \
    };

/* Fails the running case with a message when cond is false; the case continues. */
#define CHECK(cond, ...)                                                                           \
    do {                                                                                           \
        if (!(cond))                                                                               \
            check_fail(__FILE__, __LINE__, __VA_ARGS__);                                           \
    } while (0)
void check_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Checks that `status` is TAPER_UNSUPPORTED after a change, which is then undone. */
#define CHECK_REFUSED(status, change, undo)                                                        \
    do {                                                                                           \
        change;                                                                                    \
        CHECK((status) == TAPER_UNSUPPORTED, #change);                                             \
        undo;                                                                                      \
    } while (0)

typedef struct check_case {
    const char *name;
    void (*run)(void);
} check_case;

/* The whole of main(): parses the arguments, runs `cases` or `benches`, prints TAP or JSON. Every
 * case starts from the same seed, whichever ran before it. */
int check_main(int argc, char **argv, const check_case *cases, size_t n_cases,
               const check_case *benches, size_t n_benches);

/* Memory whose last byte lies just before an unmapped page and whose first is preceded by a guard
 * band: a read or write past the end traps, a write before the start is found by check_free.
 * `misalign` shifts the start by that many bytes off a 64-byte boundary (then the end is guarded by
 * a band instead of the page). Filled with NaN bytes (0xff). Under ASan, touching a band traps. */
void *check_alloc(size_t bytes, size_t misalign);
void check_free(void *p);

/* Seeded generator, the same on every platform. */
void check_seed(uint64_t seed);
float check_uniform(float low, float high);
int64_t check_int(int64_t low, int64_t high); /* inclusive */
void check_fill_uniform(float *p, int64_t n, float low, float high);
void check_fill_bytes(void *p, int64_t n);

/* Distance of `got` from the double `want` in units of float32's last place at `want`; 0 when both
 * are NaN or the same infinity, infinite when only one is NaN or `want` alone is infinite. Values
 * beyond float32's range count as the infinity they round to, one step past its largest number. */
double check_ulp(float got, double want);

/* The number that the bits of a float16 or bfloat16 stand for. */
float check_from_half(taper_dtype dtype, uint16_t bits);

/* A contiguous tensor over data. dims: rank sizes. */
taper_tensor check_tensor(void *data, taper_dtype dtype, int rank, const int64_t *dims);
int64_t check_numel(const taper_tensor *t);

/* Returns the bytes of an attr in its struct; for an unknown type, more than any struct has. */
size_t check_attr_bytes(taper_attr_type type);

enum { CHECK_MAX_OUTPUTS = 3 };
/* The number of outputs of the nodes below; `output` points to the first. It is 1 until a test sets
 * it. */
extern int check_n_outputs;
/* The table of the calls below; NULL until a test sets it. */
extern const taper_tensor *check_table;

/* The variant that the nodes below must use. NULL, until a test sets it, lets the kernel choose. */
extern const char *check_variant;

/* Selects the first kernel for op that accepts the call, allocates state and scratch, and runs its
 * tasks split over `workers` threads (each with its own scratch), in ranges of random length and a
 * shuffled order, so that a kernel whose tasks depend on each other is found. kernel_name NULL
 * takes the first candidate, else the named one. Returns the status; TAPER_UNSUPPORTED when no
 * candidate accepts. As a hostile caller would: prepare sees no data pointers, state and scratch
 * hold 0xab bytes, lie against guard pages and are exactly as large as asked for. */
taper_status check_run(const char *op, const char *kernel_name, const taper_tensor *inputs,
                       int n_inputs, const taper_tensor *output, const void *attrs, int workers);

/* Calls check_run with 1, 2 and 3 workers. The calls must succeed, and the outputs have the same
 * bytes. */
void check_threads(const char *op, const char *kernel_name, const taper_tensor *inputs,
                   int n_inputs, const taper_tensor *output, const void *attrs);

/* Computes a node as the kernel's own choice and then as each variant of each kernel that serves
 * it, and calls compare(arg) after each. The bits are those of that kernel's own choice unless its
 * row says that the variant has others. Returns how many variants have served. */
int check_variants(const char *op, const taper_tensor *inputs, int n_inputs,
                   const taper_tensor *output, const void *attrs, void (*compare)(void *arg),
                   void *arg);

/* Returns the level under test: that of --isa, else the process's default. */
extern const taper_level *check_level;

/* Times fn(arg) (best and median of repeated runs) and prints {"name","isa","ns_min","ns_median",
 * "gflops","gbs"}; flops and bytes are per call, 0 where meaningless. */
void check_bench(const char *name, double flops, double bytes, void (*fn)(void *), void *arg);

/* Calls check_bench with one node's run() over all its tasks, prepared once, on one thread. */
void check_bench_op(const char *name, const char *op, const char *kernel_name,
                    const taper_tensor *inputs, int n_inputs, const taper_tensor *output,
                    const void *attrs, double flops, double bytes);

#endif /* TAPER_CHECK_H */
