/* Running prepared nodes: the functions that an executor calls once per run. */
#ifndef TAPER_RUN_H
#define TAPER_RUN_H

#include "taper/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Steps of a body: `count` of taper_run_args.steps, from `first` on. */
typedef struct taper_block {
    int64_t first, count;
} taper_block;

/* Bytes that a loop copies; none where both are the same memory. */
typedef struct taper_copy {
    void *to;
    const void *from;
    size_t bytes;
} taper_copy;

/* A pointer that moves along an array from one iteration to the next: in iteration i, *pointer is
 * first + i * stride. */
typedef struct taper_slice {
    void **pointer;
    char *first;
    int64_t stride; /* bytes */
} taper_slice;

typedef enum taper_control_kind {
    TAPER_IF,    /* blocks[0] where *predicate is not 0, else blocks[1] */
    TAPER_WHILE, /* blocks[0], which sets *predicate, then blocks[1], as long as that is not 0 */
    TAPER_SCAN   /* blocks[0], `trips` times */
} taper_control_kind;

/*
 * A step that contains steps. A loop's values are in memory that its body reads: `enter` copies the
 * first values there, and after each iteration `next` copies there what the body has computed.
 */
typedef struct taper_control {
    taper_control_kind kind;
    taper_block blocks[2];
    const uint8_t *predicate;
    int64_t trips;
    const taper_copy *enter; /* [n_enter], in order, before the first iteration */
    int64_t n_enter;
    const taper_copy *next; /* [n_next], in order, after each iteration */
    int64_t n_next;
    const taper_slice *slices; /* [n_slices], of a TAPER_SCAN: set before each iteration */
    int64_t n_slices;
} taper_control;

/*
 * A prepared node: prepare() accepted the call and said how much work it is. Where code of the
 * caller computes the node, the call has a kernel for it, whose run() finds what it needs in
 * call.state. Such a step has one task, one worker and on_caller.
 */
typedef struct taper_step {
    taper_call call;
    taper_work work;
    void *scratch;   /* worker 0's work.scratch_bytes, aligned; may be NULL when 0 */
    int32_t workers; /* how many workers the step keeps busy; 1 for a small step. For control, the
                        most that a step inside keeps busy */
    bool on_caller;  /* runs on the thread that called taper_run; so does control with such a step
                        inside */
    const taper_control *control; /* NULL for a kernel, else the step's control flow */
} taper_step;

/* Which steps of a run wait for which: a partial order that the order of the steps extends. */
typedef struct taper_order {
    const int32_t *producers;  /* [count]: how many steps each waits for */
    const int32_t *first_user; /* [count + 1] */
    const int32_t *users;      /* of step i: first_user[i] up to first_user[i + 1], ascending */
} taper_order;

/* When one worker worked at one step, by taper_now; zeros where it did not. For a step that runs
 * several times: the begin of the first time, and the sum of all times. */
typedef struct taper_span {
    int64_t begin, end;
    int64_t times; /* how many times the worker did */
} taper_span;

/* Arguments of one run. */
typedef struct taper_run_args {
    const taper_step *steps; /* the run's [count] steps, then the steps of all blocks inside */
    int64_t count;
    int32_t workers;             /* at most this many threads, the caller included */
    char *worker_scratch;        /* [workers - 1][worker_scratch_bytes], aligned: workers 1.. */
    size_t worker_scratch_bytes; /* at least every step's scratch_bytes; a multiple of 64 */
    taper_span *spans;           /* per step [workers], zeroed by the caller; or NULL */
    /* Another thread ends the run by writing a value other than 0 here; or NULL. The run reads it
     * between steps and between iterations, atomically. */
    const int32_t *stop;
    /* Called with poll_context on the caller's thread, about every 25 ms of the run, between steps
     * and between iterations; the run ends where it returns false; or NULL. */
    bool (*poll)(void *poll_context);
    void *poll_context;
    const taper_order *order; /* NULL: steps run one after the other */
    int32_t leaders; /* with an order: at most this many steps run at a time; other workers help
                        with their tasks */
    void *schedule;  /* with an order: taper_schedule_bytes, aligned; the run's own */
} taper_run_args;

/*
 * Runs the steps, one after the other or, with an order, each as soon as the steps that it waits
 * for have ended. Steps inside a step of control run one after the other. All callers in the
 * process share a pool. The caller and threads of the pool are one team for the whole run: the
 * threads compute tasks of large steps, spin between steps and sleep between runs, and the run
 * waits only for those that have begun a task. A run that finds the pool busy with another run
 * computes alone, and so does one where waiting for threads has lately cost more time than they
 * saved. The bits do not depend on the number of threads, nor on which steps run at the same time.
 * After a failure no further step begins; the function returns the status of the failing step (of
 * the first one if several fail) and writes its index to *failed. If the run was told to end, the
 * function returns TAPER_STOPPED, and *failed is the step that was next.
 */
taper_status taper_run(const taper_run_args *args, int64_t *failed);

/* Returns the bytes of taper_run_args.schedule for this many steps, workers and leaders. */
size_t taper_schedule_bytes(int64_t count, int32_t workers, int32_t leaders);

/* Returns whether a run with an order, which has ended, began that step of its `count`. */
bool taper_has_begun(const taper_run_args *args, int64_t step);

/* Returns how many CPUs this process may use: on Linux and Windows by its affinity mask, on Linux
 * also by the control groups' limit (taper_cpu_limit), rounded up; elsewhere all CPUs that are
 * online. */
int32_t taper_cpu_count(void);

/* Nanoseconds of a clock that never goes back. */
int64_t taper_now(void);

#ifdef __cplusplus
}
#endif
#endif /* TAPER_RUN_H */
