/* Vectors of numbers as wide as the processor's registers, and functions of their entries.

   REAL is float or double. GNU C's vectors become the processor's own instructions, whatever it has. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef REAL real;

#if defined(__AVX512F__)
#define BYTES 64
#define WIDE 4 /* vectors in a row of a tile */
#elif defined(__AVX__)
#define BYTES 32
#define WIDE 2
#elif defined(__aarch64__)
#define BYTES 16
#define WIDE 4
#else
#define BYTES 16
#define WIDE 2
#endif
#define LANES ((int64_t)(BYTES / sizeof(real)))
#define INLINE static inline __attribute__((always_inline))

typedef real vec __attribute__((vector_size(BYTES)));
/* The same anywhere in memory. */
typedef real loose __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

#ifdef DOUBLE
typedef int64_t bits __attribute__((vector_size(BYTES)));
#define MANTISSA 52
#define BIAS 1023
#define MAGIC 6755399441055744.0 /* 1.5 * 2^52: adding it rounds to a whole number */
#define LARGEST 708.0
#define LN2_HIGH 0.693147180369123816490
#define LN2_LOW 1.90821492927058770002e-10
#define TERMS 13
#else
typedef int32_t bits __attribute__((vector_size(BYTES)));
#define MANTISSA 23
#define BIAS 127
#define MAGIC 12582912.0f
#define LARGEST 87.0f
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#define TERMS 7
#endif

INLINE vec load(const real *from) { return *(const loose *)from; }
INLINE void store(real *to, vec x) { *(loose *)to = x; }
INLINE vec all(real x) { return x - (vec){0}; }

/* a where the mask is set, b elsewhere */
INLINE vec chosen(bits mask, vec a, vec b) {
  return (vec)(((bits)a & mask) | ((bits)b & ~mask));
}

/* exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1) with x = n log 2 + r. NaN stays NaN. */
INLINE vec expm1_of(vec x) {
  static const real inverse[] = {1.0,        1.0,         1.0 / 2,       1.0 / 6,       1.0 / 24,
                                 1.0 / 120,  1.0 / 720,   1.0 / 5040,    1.0 / 40320,   1.0 / 362880,
                                 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
  x = chosen(x > all(LARGEST), all(LARGEST), x);
  x = chosen(x < all(-LARGEST), all(-LARGEST), x);
  vec shifted = x * (real)1.44269504088896340736 + MAGIC;
  vec n = shifted - MAGIC;
  vec power = (vec)(((bits)shifted - (bits)all(MAGIC) + BIAS) << MANTISSA);
  vec r = (x - n * LN2_HIGH) - n * LN2_LOW;
  vec sum = all(inverse[TERMS]);
  for (int k = TERMS - 1; k > 0; k--) sum = sum * r + inverse[k];
  return power * (sum * r) + (power - 1);
}

/* Activations, each with what derivatives need of it, from its output u. */
enum { STRAIGHT, RELU, LEAKY_RELU, ELU, TANH, SIGMOID };

INLINE vec activated(int64_t kind, real slant, vec h) {
  vec zero = {0};
  switch (kind) {
  case RELU: return chosen(h <= zero, zero, h);
  case LEAKY_RELU: return chosen(h > zero, h, slant * h);
  case ELU: return chosen(h > zero, h, slant * expm1_of(h));
  case TANH: {
    vec e = expm1_of(2 * h);
    return e / (e + 2);
  }
  case SIGMOID: {
    vec e = expm1_of(-h);
    return 1 / (2 + e);
  }
  default: return h;
  }
}

/* f'(h) */
INLINE vec slope(int64_t kind, real slant, vec u) {
  vec zero = {0}, one = all(1);
  switch (kind) {
  case RELU: return chosen(u <= zero, zero, one);
  case LEAKY_RELU: return chosen(u > zero, one, all(slant));
  case ELU: return chosen(u > zero, one, u + slant);
  case TANH: return 1 - u * u;
  case SIGMOID: return u * (1 - u);
  default: return one;
  }
}

/* f''(h) / f'(h) */
INLINE vec bend(int64_t kind, vec u) {
  vec zero = {0};
  switch (kind) {
  case ELU: return chosen(u < zero, all(1), zero);
  case TANH: return -2 * u;
  case SIGMOID: return 1 - 2 * u;
  default: return zero;
  }
}
