#include "kernels/cpu/e4m3_avx512.h"

/* The two bytes of the bf16 of a magnitude, from number.h's rule: subnormals, then shift and rebias, then NaN. */
#define TINY_HIGH(m) ((m) == 0 ? 0x00 : (m) < 4 ? 0x3b : 0x3c)
#define TINY_LOW(m) ((m) == 2 ? 0x80 : (m) == 3 ? 0xc0 : (m) == 5 ? 0x20 : (m) == 6 ? 0x40 : (m) == 7 ? 0x60 : 0x00)
#define HIGH(m) (uint8_t)((m) < 8 ? TINY_HIGH(m) : (m) == 127 ? 0x7f : ((m)*16 + (120 << 7)) >> 8)
#define LOW(m) (uint8_t)((m) < 8 ? TINY_LOW(m) : (m) == 127 ? 0xc0 : ((m)*16) & 0xff)
#define FOUR(of, m) of(m), of((m) + 1), of((m) + 2), of((m) + 3)
#define SIXTEEN(of, m) FOUR(of, m), FOUR(of, (m) + 4), FOUR(of, (m) + 8), FOUR(of, (m) + 12)
#define ALL(of)                                                                                                        \
  {                                                                                                                    \
    SIXTEEN(of, 0), SIXTEEN(of, 16), SIXTEEN(of, 32), SIXTEEN(of, 48), SIXTEEN(of, 64), SIXTEEN(of, 80),               \
        SIXTEEN(of, 96), SIXTEEN(of, 112)                                                                              \
  }

const uint8_t quire_e4m3_high[128] = ALL(HIGH);
const uint8_t quire_e4m3_low[128] = ALL(LOW);
