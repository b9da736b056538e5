/* main() of the tests that are compiled once per level: test_simd.c and test_program.c. It is
 * compiled separately, so that it runs on a CPU without the level and can report that. */
#include "check.h"

extern const check_case level_cases[], level_benches[];
extern const size_t level_n_cases, level_n_benches;

int main(int argc, char **argv) {
    return check_main(argc, argv, level_cases, level_n_cases, level_benches, level_n_benches);
}
