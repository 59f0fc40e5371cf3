// The highest level of kernels.c that this processor and its operating system support: 1, 3 or 4, as in x86-64-v3.

int diloco_level(void);

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

// Register states that the operating system saves: bits 1, 2 for AVX; 5, 6, 7 for AVX-512.
static uint64_t saved_states(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

int diloco_level(void) {
  const unsigned v3_leaf1 = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C;
  const unsigned v3_leaf7 = bit_AVX2 | bit_BMI | bit_BMI2;
  const unsigned v4_leaf7 = bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL;
  unsigned a, b, c, d, leaf1, leaf7, lzcnt;
  if (!__get_cpuid(1, &a, &b, &leaf1, &d)) return 1;
  if (!__get_cpuid_count(7, 0, &a, &leaf7, &c, &d)) return 1;
  if (!__get_cpuid(0x80000001u, &a, &b, &lzcnt, &d)) return 1;
  if ((leaf1 & v3_leaf1) != v3_leaf1 || (leaf7 & v3_leaf7) != v3_leaf7 || !(lzcnt & bit_LZCNT)) return 1;
  uint64_t saved = saved_states();
  if ((saved & 0x06) != 0x06) return 1;
  if ((leaf7 & v4_leaf7) != v4_leaf7 || (saved & 0xe0) != 0xe0) return 3;
  return 4;
}
#else
int diloco_level(void) { return 1; }
#endif
