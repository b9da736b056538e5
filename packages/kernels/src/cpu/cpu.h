/* Features that the CPU and the OS support, by name; the ISA levels are among them. */
#ifndef TAPER_CPU_H
#define TAPER_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The registers from which features are detected; a test passes a table instead of a CPU's. All are
 * zero on CPUs other than x86. */
typedef struct taper_cpuid {
    uint32_t leaf1_ecx;
    uint32_t leaf7_ebx;
    uint64_t xcr0; /* 0 where OSXSAVE is clear */
    uint32_t leaf7_ecx;
    uint32_t leaf7_edx; /* of tiles only if this process may use them */
    uint32_t leaf7_1_eax;
} taper_cpuid;

taper_cpuid taper_cpuid_read(void);

/* Returns the features of a CPU with these registers: one bit for each row of the table, in order.
 */
uint64_t taper_cpu_features(const taper_cpuid *id);

/* Returns whether all of these features (names separated by spaces) are among those bits. An
 * unknown name never is.
 */
bool taper_cpu_covers(uint64_t features, const char *names);

/* Returns whether this CPU has all of these features. Its registers are read once per process. */
bool taper_cpu_has(const char *names);

#endif /* TAPER_CPU_H */
