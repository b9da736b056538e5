/*
 * The default level, which a process chooses once, from TAPER_ISA.
 *
 *     test_choice best        TAPER_ISA is unset or empty
 *     test_choice LEVEL       TAPER_ISA is LEVEL
 *     test_choice refuse      TAPER_ISA names none
 */
#include "check.h"

static bool takes(const taper_level *expected) {
    const taper_level *first, *again;
    return taper_level_find(NULL, &first) == TAPER_OK && first == expected &&
           taper_level_find(NULL, &again) == TAPER_OK && again == expected;
}

static bool refuses(void) {
    const taper_level *level;
    return taper_level_find(NULL, &level) == TAPER_UNKNOWN_ISA && !level;
}

/* Returns the level of that name without asking for the default; NULL if this CPU lacks it. */
static const taper_level *named(const char *name) {
    const taper_level *level;
    for (size_t i = 0; (level = taper_level_at(i)) != NULL; i++)
        if (strcmp(taper_level_name(level), name) == 0)
            break;
    return level;
}

int main(int argc, char **argv) {
    const char *expected = argc == 2 ? argv[1] : "", *isa = getenv("TAPER_ISA");
    const bool good = strcmp(expected, "best") == 0     ? takes(taper_level_at(0))
                      : strcmp(expected, "refuse") == 0 ? refuses()
                      : named(expected)                 ? takes(named(expected))
                                                        : refuses(); /* this CPU lacks it */
    printf("1..1\n%s 1 - TAPER_ISA=%s: %s\n", good ? "ok" : "not ok", isa ? isa : "(unset)",
           expected);
    return good ? 0 : 1;
}
