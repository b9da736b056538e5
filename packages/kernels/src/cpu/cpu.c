#include "cpu/cpu.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

taper_cpuid taper_cpuid_read(void) {
    taper_cpuid id = {0};
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx))
        id.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        id.leaf7_ebx = ebx, id.leaf7_ecx = ecx;
    if (id.leaf1_ecx & bit_OSXSAVE) {
        uint32_t low, high;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        id.xcr0 = (uint64_t)high << 32 | low;
    }
    return id;
}

static bool all(uint64_t have, uint64_t want) { return (have & want) == want; }

bool taper_cpu_has(const taper_cpuid *id, const char *level) {
    /* A CPU can have registers that the OS does not save: using them then corrupts other
     * processes' state or traps, so XCR0 decides beside CPUID. */
    const uint64_t ymm = 0x06, zmm = 0xe6;
    const bool v2 = all(id->leaf1_ecx, bit_SSE4_2 | bit_SSSE3 | bit_POPCNT);
    const bool v3 = v2 && all(id->leaf1_ecx, bit_AVX | bit_FMA | bit_F16C | bit_MOVBE) &&
                    all(id->leaf7_ebx, bit_AVX2 | bit_BMI | bit_BMI2) && all(id->xcr0, ymm);
    const bool v4 = v3 &&
                    all(id->leaf7_ebx,
                        bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512CD) &&
                    all(id->xcr0, zmm);
    if (strcmp(level, "baseline") == 0)
        return v2;
    if (strcmp(level, "avx2") == 0)
        return v3;
    if (strcmp(level, "avx512_vnni") == 0)
        return v4 && all(id->leaf7_ecx, bit_AVX512VNNI);
    return strcmp(level, "avx512") == 0 && v4;
}

#else

taper_cpuid taper_cpuid_read(void) {
    taper_cpuid id = {0};
    return id;
}

bool taper_cpu_has(const taper_cpuid *id, const char *level) {
    (void)id;
#if defined(__aarch64__)
    if (strcmp(level, "neon") == 0)
        return true; /* part of the architecture */
#endif
    return strcmp(level, "baseline") == 0;
}

#endif /* __x86_64__ */
