#include "cpu/cpu.h"

#include <string.h>

#include "taper/kernels.h"

/* The register bits that a feature needs: each of them must be set in the CPU's registers. A CPU
 * can have registers that the OS does not save: using them then corrupts other processes' state or
 * traps, so XCR0 decides beside CPUID. */
typedef struct feature {
    const char *name;
    bool here; /* whether this architecture can have it */
    taper_cpuid needs;
} feature;

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { X86 = true, ARM = false };

#define YMM_STATE 0x06
#define ZMM_STATE 0xe6
#define V2_ECX (bit_SSE4_2 | bit_SSSE3 | bit_POPCNT)
#define V3_ECX (V2_ECX | bit_AVX | bit_FMA | bit_F16C | bit_MOVBE)
#define V3_EBX (bit_AVX2 | bit_BMI | bit_BMI2)
#define V4_EBX (V3_EBX | bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512CD)
#define TILE_STATE UINT64_C(0x60000)
#define NEEDS(ecx1, ebx7, ecx7, edx7, eax7_1, xcr)                                                 \
    {.leaf1_ecx = (ecx1),                                                                          \
     .leaf7_ebx = (ebx7),                                                                          \
     .leaf7_ecx = (ecx7),                                                                          \
     .leaf7_edx = (edx7),                                                                          \
     .leaf7_1_eax = (eax7_1),                                                                      \
     .xcr0 = (xcr)}

/* The bits of CPUID that compilers name in different ways, or not at all. */
#define BF16 (UINT32_C(1) << 5)
#define TILES (UINT32_C(1) << 24 | UINT32_C(1) << 25) /* AMX-TILE and AMX-INT8 */

#ifndef TAPER_EMULATED
/* Returns whether this process may use tiles: Linux gives their state to one that asks for it
 * (Documentation/arch/x86/xstate.rst), and on others they are not used. */
static bool tiles_allowed(const taper_cpuid *id) {
#ifdef __linux__
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };
    return (id->leaf7_edx & TILES) == TILES && (id->xcr0 & TILE_STATE) == TILE_STATE &&
           syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
    (void)id;
    return false;
#endif
}
#endif

taper_cpuid taper_cpuid_read(void) {
    taper_cpuid id = {0};
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx))
        id.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        id.leaf7_ebx = ebx, id.leaf7_ecx = ecx, id.leaf7_edx = edx;
    if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) /* zeros where there is no such subleaf */
        id.leaf7_1_eax = eax;
    if (id.leaf1_ecx & bit_OSXSAVE) {
        uint32_t low, high;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        id.xcr0 = (uint64_t)high << 32 | low;
    }
#ifdef TAPER_EMULATED /* a build for tests: AVX2 stands for these features */
    id.leaf7_ebx |= V4_EBX & ~V3_EBX;
    id.leaf7_ecx |= bit_AVX512VNNI;
    id.leaf7_edx |= TILES;
    id.leaf7_1_eax |= BF16;
    id.xcr0 |= (ZMM_STATE & ~YMM_STATE) | TILE_STATE;
#else
    if (!tiles_allowed(&id))
        id.leaf7_edx &= ~(uint32_t)TILES;
#endif
    return id;
}

#else

#if defined(__aarch64__)
enum { X86 = false, ARM = true };
#else
enum { X86 = false, ARM = false };
#endif
#define V2_ECX 0
#define NEEDS(...) {0}

taper_cpuid taper_cpuid_read(void) {
    taper_cpuid id = {0};
    return id;
}

#endif /* __x86_64__ */

/* The names are the same on every architecture. Those of the ISA levels are among them. */
static const feature features[] = {
    {"baseline", true, NEEDS(V2_ECX, 0, 0, 0, 0, 0)},
    {"neon", ARM, NEEDS(0, 0, 0, 0, 0, 0)}, /* part of the architecture */
    {"avx2", X86, NEEDS(V3_ECX, V3_EBX, 0, 0, 0, YMM_STATE)},
    {"avx512", X86, NEEDS(V3_ECX, V4_EBX, 0, 0, 0, ZMM_STATE)},
    {"avx512_vnni", X86, NEEDS(V3_ECX, V4_EBX, bit_AVX512VNNI, 0, 0, ZMM_STATE)},
    {"avx512_bf16", X86, NEEDS(V3_ECX, V4_EBX, 0, 0, BF16, ZMM_STATE)},
    {"amx_int8", X86, NEEDS(V3_ECX, V4_EBX, bit_AVX512VNNI, TILES, 0, ZMM_STATE | TILE_STATE)},
};

enum { N_FEATURES = sizeof features / sizeof features[0] };

const char *taper_feature_name(size_t i) { return i < N_FEATURES ? features[i].name : NULL; }

static bool all(uint64_t have, uint64_t want) { return (have & want) == want; }

uint64_t taper_cpu_features(const taper_cpuid *id) {
    uint64_t found = 0;
    for (size_t i = 0; i < N_FEATURES; i++) {
        const taper_cpuid *needs = &features[i].needs;
        if (features[i].here && all(id->leaf1_ecx, needs->leaf1_ecx) &&
            all(id->leaf7_ebx, needs->leaf7_ebx) && all(id->leaf7_ecx, needs->leaf7_ecx) &&
            all(id->leaf7_edx, needs->leaf7_edx) && all(id->leaf7_1_eax, needs->leaf7_1_eax) &&
            all(id->xcr0, needs->xcr0))
            found |= UINT64_C(1) << i;
    }
    return found;
}

bool taper_cpu_covers(uint64_t found, const char *names) {
    const char *name = names;
    for (;;) {
        const size_t length = strcspn(name, " ");
        size_t i = 0;
        while (i < N_FEATURES &&
               (strlen(features[i].name) != length || memcmp(features[i].name, name, length) != 0))
            i++;
        if (i == N_FEATURES || (found >> i & 1) == 0)
            return false;
        if (name[length] == '\0')
            return true;
        name += length + 1;
    }
}

bool taper_cpu_has(const char *names) {
    /* On a virtual machine CPUID traps into the hypervisor, so it is read once. All threads write
     * the same value; every CPU has the baseline, so that 0 means "not read". */
    static uint64_t found;
    uint64_t known = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (known == 0) {
        const taper_cpuid id = taper_cpuid_read();
        known = taper_cpu_features(&id);
        __atomic_store_n(&found, known, __ATOMIC_RELAXED);
    }
    return taper_cpu_covers(known, names);
}
