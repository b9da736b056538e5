/* What the CPU and the OS allow: features by name, and the ISA levels among them. */
#ifndef TAPER_CPU_H
#define TAPER_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The registers detection reads: a test hands in a table instead of a CPU. All zero off x86. */
typedef struct taper_cpuid {
    uint32_t leaf1_ecx;
    uint32_t leaf7_ebx;
    uint64_t xcr0; /* 0 where OSXSAVE is clear */
    uint32_t leaf7_ecx;
} taper_cpuid;

taper_cpuid taper_cpuid_read(void);

/* Which features of the table a CPU with these registers has: a bit each, in the table's order. */
uint64_t taper_cpu_features(const taper_cpuid *id);

/* Are all of these features, names with a space between two, among those bits? No unknown one is.
 */
bool taper_cpu_covers(uint64_t features, const char *names);

/* Does this CPU have all of these features? Its registers are read once for the process. */
bool taper_cpu_has(const char *names);

#endif /* TAPER_CPU_H */
