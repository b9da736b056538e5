/* Status codes. Nothing in the library aborts: what can fail returns one of these. */
#ifndef TAPER_STATUS_H
#define TAPER_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are part of the API: stable, never reused. */
typedef enum taper_status {
    TAPER_OK = 0,
    TAPER_UNSUPPORTED = 1,  /* this kernel does not serve this node: try the next candidate */
    TAPER_NO_MEMORY = 2,    /* an allocation failed */
    TAPER_BAD_INDEX = 3,    /* an input holds a value that the op does not allow: an index outside
                               the indexed dimension, a divisor of 0 */
    TAPER_BAD_ARGUMENT = 4, /* an argument outside its documented range */
    TAPER_UNKNOWN_ISA = 5,  /* an ISA level that does not exist or this CPU lacks */
    TAPER_STOPPED = 6,      /* the caller ended the run */
    TAPER_CALL_FAILED = 7   /* code of the caller, called by the run, reported a failure */
} taper_status;

/* Returns a sentence that describes a status, never NULL. */
const char *taper_status_string(taper_status status);

#ifdef __cplusplus
}
#endif
#endif /* TAPER_STATUS_H */
