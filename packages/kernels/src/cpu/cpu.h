/* What the CPU and the OS allow, as levels rather than single features. */
#ifndef TAPER_CPU_H
#define TAPER_CPU_H

#include <stdbool.h>
#include <stdint.h>

/* The registers detection reads: a test hands in a table instead of a CPU. All zero off x86. */
typedef struct taper_cpuid {
    uint32_t leaf1_ecx;
    uint32_t leaf7_ebx;
    uint64_t xcr0; /* 0 where OSXSAVE is clear */
    uint32_t leaf7_ecx;
} taper_cpuid;

taper_cpuid taper_cpuid_read(void);

/* Does a CPU with these registers run this level? Levels: "baseline", "avx2", "avx512",
 * "neon", and "avx512_vnni", at which only a probe is compiled so far. */
bool taper_cpu_has(const taper_cpuid *id, const char *level);

#endif /* TAPER_CPU_H */
