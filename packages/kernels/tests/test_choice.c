/*
 * The choice of a level, which a process makes once, from TAPER_ISA.
 *
 *     test_choice best        TAPER_ISA is unset or empty
 *     test_choice LEVEL       TAPER_ISA is LEVEL
 *     test_choice refuse      TAPER_ISA names none
 */
#include "check.h"

static bool takes_best(void) {
    return taper_init() == TAPER_OK && taper_isa() == taper_isa_available(0) &&
           taper_kernel_at(0) != NULL;
}

static bool takes(const char *level) {
    return taper_init() == TAPER_OK && strcmp(taper_isa(), level) == 0 &&
           taper_kernel_at(0) != NULL && taper_init() == TAPER_OK;
}

static bool refuses(void) {
    size_t position = 0;
    return taper_init() == TAPER_UNKNOWN_ISA && !taper_isa() && !taper_kernel_at(0) &&
           !taper_kernel_next("COPY", &position) && taper_max_state_bytes() == 0 &&
           taper_max_attrs_bytes() == 0;
}

static bool available(const char *name) {
    const char *level;
    for (size_t i = 0; (level = taper_isa_available(i)) != NULL; i++)
        if (strcmp(level, name) == 0)
            return true;
    return false;
}

int main(int argc, char **argv) {
    const char *expected = argc == 2 ? argv[1] : "", *isa = getenv("TAPER_ISA");
    const bool good = strcmp(expected, "best") == 0     ? takes_best()
                      : strcmp(expected, "refuse") == 0 ? refuses()
                      : available(expected)             ? takes(expected)
                                                        : refuses(); /* this CPU lacks it */
    printf("1..1\n%s 1 - TAPER_ISA=%s: %s\n", good ? "ok" : "not ok", isa ? isa : "(unset)",
           expected);
    return good ? 0 : 1;
}
