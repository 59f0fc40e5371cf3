// The loops over fragments that must run at the speed of memory: codings, norms, weighted sums and the outer step, each in one pass.
// See docs/decisions/0062-merge-numerics.md.
//
// Every result is the same on every processor: each operation is rounded to its type as written (-ffp-contract=off: no fused
// multiply-add), and sums have a fixed number of lanes, so that wider vectors do not change their order. No function allocates,
// keeps state or calls anything; arrays are as long as the caller says, and do not overlap unless a comment allows it.
// The only caller is diloco/kernels/__init__.py, which checks types and sizes.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Compiled once for each level of the processor. The functions' names end with it: LEVEL is v1, v3 or v4, as in x86-64-v3.
#define NAMED_FOR(name, level) diloco_##name##_##level
#define NAMED(name, level) NAMED_FOR(name, level)
#define LOOP(name) NAMED(name, LEVEL)
#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 256, PART = 2048, LANES = 16 };
enum status { OK = 0, INPUT_NOT_FINITE = 1, RESULT_NOT_FINITE = 2 };
// What becomes of a decoded value v: v, -v, base + v or base - v.
enum mode { PLAIN, NEGATED, ADDED, SUBTRACTED };

static const uint32_t MAGNITUDE = 0x7fffffffu;
static const uint32_t INFINITE = 0x7f800000u;
static const float SMALLEST_NORMAL = 0x1p-126f;

INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

INLINE float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The bits without the sign order as the magnitudes do, with NaN above infinity. So the largest shows whether all values are finite.
INLINE uint32_t larger(uint32_t so_far, float x) {
  uint32_t magnitude = bits_of(x) & MAGNITUDE;
  return magnitude > so_far ? magnitude : so_far;
}

INLINE float placed(float v, float base, enum mode mode) {
  switch (mode) {
    case PLAIN: return v;
    case NEGATED: return -v;
    case ADDED: return base + v;
    default: return base - v;
  }
}

INLINE size_t least(size_t a, size_t b) { return a < b ? a : b; }

// --- norms -----------------------------------------------------------------------------------------------------------

// x[0] is element number `before`. Element i goes to lane i mod 16. Squares of float32 neither overflow nor vanish in double.
INLINE void add_squares(const float *x, size_t n, size_t before, double lanes[LANES]) {
  size_t i = 0;
  for (; i < n && (before + i) % LANES; i++) lanes[(before + i) % LANES] += (double)x[i] * (double)x[i];
  for (; i + LANES <= n; i += LANES)
    for (int lane = 0; lane < LANES; lane++) lanes[lane] += (double)x[i + (size_t)lane] * (double)x[i + (size_t)lane];
  for (int lane = 0; i < n; i++, lane++) lanes[lane] += (double)x[i] * (double)x[i];
}

INLINE double total(const double lanes[LANES]) {
  double sum = 0;
  for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
  return sum;
}

// The sums of squares of consecutive tensors, while an array is filled from its beginning to its end.
struct squares {
  const size_t *ends;  // of each tensor; the last is the array's
  double *sums;        // of each tensor; NULL if they are not wanted
  size_t tensor, start;
  double lanes[LANES];
};

// Adds the array's elements `from` to `to - 1`, which begin at x[0].
INLINE void note_squares(struct squares *s, const float *x, size_t from, size_t to) {
  if (s->sums == NULL) return;
  while (from < to) {
    size_t end = least(to, s->ends[s->tensor]);
    add_squares(x, end - from, from - s->start, s->lanes);
    x += end - from;
    from = end;
    if (end == s->ends[s->tensor]) {
      s->sums[s->tensor++] = total(s->lanes);
      s->start = end;
      memset(s->lanes, 0, sizeof s->lanes);
    }
  }
}

// --- float32 ---------------------------------------------------------------------------------------------------------

int LOOP(finite)(const float *x, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; i++) largest = larger(largest, x[i]);
  return largest < INFINITE;
}

INLINE int place_float32(const float *x, size_t n, const float *base, float *out, enum mode mode, struct squares *squares) {
  uint32_t in = 0, result = 0;
  float buffer[PART];
  for (size_t start = 0; start < n; start += PART) {
    size_t count = least(PART, n - start);
    float *o = out == NULL ? buffer : out + start;
    for (size_t i = 0; i < count; i++) {
      in = larger(in, x[start + i]);
      o[i] = placed(x[start + i], base[start + i], mode);
      result = larger(result, o[i]);
    }
    note_squares(squares, o, start, start + count);
  }
  return in >= INFINITE ? INPUT_NOT_FINITE : result >= INFINITE ? RESULT_NOT_FINITE : OK;
}

// --- bfloat16 --------------------------------------------------------------------------------------------------------

// Codes x - base, or x if `base` is NULL.
int LOOP(encode_bfloat16)(const float *x, const float *base, size_t n, uint16_t *out) {
  uint32_t largest = 0;
  if (base == NULL) {
    for (size_t i = 0; i < n; i++) {
      uint32_t bits = bits_of(x[i]);
      largest = larger(largest, x[i]);
      out[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
  } else {
    for (size_t i = 0; i < n; i++) {
      float delta = x[i] - base[i];
      uint32_t bits = bits_of(delta);
      largest = larger(largest, delta);
      out[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
  }
  // 0x7f7f8000 lies half a step above bfloat16's largest number and rounds to infinity.
  return largest >= INFINITE ? INPUT_NOT_FINITE : largest >= 0x7f7f8000u ? RESULT_NOT_FINITE : OK;
}

INLINE int place_bfloat16(const uint16_t *coded, size_t n, const float *base, float *out, enum mode mode, struct squares *squares) {
  uint32_t in = 0, result = 0;
  float buffer[PART];
  for (size_t start = 0; start < n; start += PART) {
    size_t count = least(PART, n - start);
    float *o = out == NULL ? buffer : out + start;
    for (size_t i = 0; i < count; i++) {
      float v = float_of((uint32_t)coded[start + i] << 16);
      in = larger(in, v);
      o[i] = placed(v, mode == PLAIN || mode == NEGATED ? 0 : base[start + i], mode);
      result = larger(result, o[i]);
    }
    note_squares(squares, o, start, start + count);
  }
  return in >= INFINITE ? INPUT_NOT_FINITE : result >= INFINITE ? RESULT_NOT_FINITE : OK;
}

// --- int4 ------------------------------------------------------------------------------------------------------------

// Codes a block of 256 values as a scale and 128 bytes. Returns the bits of the largest magnitude.
INLINE uint32_t encode_block(const float *x, float *scale, uint8_t *packed) {
  uint32_t largest = 0;
  for (int i = 0; i < BLOCK; i++) largest = larger(largest, x[i]);
  float s = float_of(largest) / 7.0f;
  // A scale that would be subnormal becomes 0, and so do the block's levels.
  s = s < SMALLEST_NORMAL ? 0.0f : s;
  *scale = s;
  float divisor = s > 0 ? s : __builtin_inff();
  uint8_t levels[BLOCK];
  // Floats from 2^23 to 2^24 are integers, so adding 1.5 * 2^23 (and 8) rounds to nearest, ties to even. The low byte is the level + 8.
  for (int i = 0; i < BLOCK; i++) levels[i] = (uint8_t)bits_of(x[i] / divisor + 12582920.0f);
  for (int i = 0; i < BLOCK / 2; i++) packed[i] = (uint8_t)(levels[2 * i] | levels[2 * i + 1] << 4);
  return largest;
}

// Codes x - base, or x if `base` is NULL.
int LOOP(encode_int4)(const float *x, const float *base, size_t n, float *scales, uint8_t *packed) {
  for (size_t start = 0; start < n; start += BLOCK) {
    size_t count = least(BLOCK, n - start);
    float block[BLOCK] = {0};
    const float *values = x + start;
    if (base != NULL) {
      if (count == BLOCK) for (int i = 0; i < BLOCK; i++) block[i] = values[i] - base[start + (size_t)i];
      else for (size_t i = 0; i < count; i++) block[i] = values[i] - base[start + i];
      values = block;
    } else if (count < BLOCK) {
      memcpy(block, values, count * sizeof(float));
      values = block;
    }
    uint8_t pairs[BLOCK / 2];
    if (encode_block(values, scales + start / BLOCK, count == BLOCK ? packed + start / 2 : pairs) >= INFINITE) return INPUT_NOT_FINITE;
    if (count < BLOCK) memcpy(packed + start / 2, pairs, (count + 1) / 2);
  }
  return OK;
}

INLINE uint32_t decode_block(float scale, const uint8_t *packed, const float *base, float *out, enum mode mode) {
  uint8_t levels[BLOCK];
  for (int i = 0; i < BLOCK / 2; i++) {
    levels[2 * i] = packed[i] & 15;
    levels[2 * i + 1] = packed[i] >> 4;
  }
  uint32_t result = 0;
  for (int i = 0; i < BLOCK; i++) {
    out[i] = placed((float)((int)levels[i] - 8) * scale, mode == PLAIN || mode == NEGATED ? 0 : base[i], mode);
    result = larger(result, out[i]);
  }
  return result;
}

INLINE int place_int4(const float *scales, const uint8_t *packed, size_t n, const float *base, float *out, enum mode mode,
                      struct squares *squares) {
  uint32_t result = 0;
  for (size_t start = 0; start < n; start += BLOCK) {
    float scale = scales[start / BLOCK];
    if (larger(0, scale) >= INFINITE) return INPUT_NOT_FINITE;
    size_t count = least(BLOCK, n - start);
    uint32_t largest;
    float values[BLOCK];
    float *o = out == NULL ? values : out + start;
    if (count == BLOCK) {
      largest = decode_block(scale, packed + start / 2, mode == PLAIN || mode == NEGATED ? NULL : base + start, o, mode);
    } else {
      uint8_t pairs[BLOCK / 2];
      memset(pairs, 0x88, sizeof pairs);
      memcpy(pairs, packed + start / 2, (count + 1) / 2);
      // With an odd count the high half of the last byte has no meaning, and may be anything.
      if (count % 2) pairs[count / 2] = (uint8_t)((pairs[count / 2] & 15) | 0x80);
      float bases[BLOCK] = {0};
      if (mode == ADDED || mode == SUBTRACTED) memcpy(bases, base + start, count * sizeof(float));
      largest = decode_block(scale, pairs, bases, values, mode);
      if (out != NULL) memcpy(o, values, count * sizeof(float));
    }
    result = largest > result ? largest : result;
    note_squares(squares, o, start, start + count);
  }
  return result >= INFINITE ? RESULT_NOT_FINITE : OK;
}

// --- placing decoded values ------------------------------------------------------------------------------------------
// `out` may be `base`. It is NULL if only the squares are wanted. `base` is not read in the modes PLAIN and NEGATED. `sums`, unless it is
// NULL, gets the sum of squares of each tensor in `out`. The tensors end at `ends`, and none is empty.

int LOOP(place_float32)(const float *x, size_t n, const float *base, float *out, int mode, const size_t *ends, double *sums) {
  struct squares squares = {.ends = ends, .sums = sums};
  return mode == ADDED ? place_float32(x, n, base, out, ADDED, &squares) : place_float32(x, n, base, out, SUBTRACTED, &squares);
}

int LOOP(place_bfloat16)(const uint16_t *coded, size_t n, const float *base, float *out, int mode, const size_t *ends, double *sums) {
  struct squares squares = {.ends = ends, .sums = sums};
  switch (mode) {
    case PLAIN: return place_bfloat16(coded, n, base, out, PLAIN, &squares);
    case NEGATED: return place_bfloat16(coded, n, base, out, NEGATED, &squares);
    case ADDED: return place_bfloat16(coded, n, base, out, ADDED, &squares);
    default: return place_bfloat16(coded, n, base, out, SUBTRACTED, &squares);
  }
}

int LOOP(place_int4)(const float *scales, const uint8_t *packed, size_t n, const float *base, float *out, int mode, const size_t *ends,
                     double *sums) {
  struct squares squares = {.ends = ends, .sums = sums};
  switch (mode) {
    case PLAIN: return place_int4(scales, packed, n, base, out, PLAIN, &squares);
    case NEGATED: return place_int4(scales, packed, n, base, out, NEGATED, &squares);
    case ADDED: return place_int4(scales, packed, n, base, out, ADDED, &squares);
    default: return place_int4(scales, packed, n, base, out, SUBTRACTED, &squares);
  }
}

// --- portions of an int4 fragment ------------------------------------------------------------------------------------
// A portion's elements come in runs of `length` elements, which begin at `starts` in the fragment. The portion's own arrays hold one run
// after the other, the first of them at element `at`.

// Writes levels `from` to `from + n - 1`, one to a byte.
INLINE void unpack_levels(const uint8_t *packed, size_t from, size_t n, uint8_t *levels) {
  if (n && from % 2) {
    *levels++ = packed[from / 2] >> 4;
    from++;
    n--;
  }
  const uint8_t *pairs = packed + from / 2;
  for (size_t i = 0; i < n / 2; i++) {
    levels[2 * i] = pairs[i] & 15;
    levels[2 * i + 1] = pairs[i] >> 4;
  }
  if (n % 2) levels[n - 1] = pairs[n / 2] & 15;
}

// Copies the levels of the runs. If only the low half of the last byte is used, its high half becomes 0.
void LOOP(cut_int4)(const uint8_t *packed, const size_t *starts, size_t runs, size_t length, uint8_t *out, size_t at) {
  for (size_t r = 0; r < runs; r++) {
    size_t from = starts[r], n = length;
    if (at % 2) {
      uint8_t level = (uint8_t)(packed[from / 2] >> (from % 2 ? 4 : 0) & 15);
      out[at / 2] = (uint8_t)((out[at / 2] & 15) | level << 4);
      from++;
      at++;
      n--;
    }
    const uint8_t *pairs = packed + from / 2;
    uint8_t *to = out + at / 2;
    if (from % 2)
      for (size_t i = 0; i < n / 2; i++) to[i] = (uint8_t)(pairs[i] >> 4 | pairs[i + 1] << 4);
    else
      memcpy(to, pairs, n / 2);
    if (n % 2) to[n / 2] = (uint8_t)(from % 2 ? pairs[n / 2] >> 4 : pairs[n / 2] & 15);
    at += n;
  }
}

// Sets `marked` for each block of the fragment that the runs touch.
void LOOP(mark_blocks)(const size_t *starts, size_t runs, size_t length, uint8_t *marked) {
  for (size_t r = 0; r < runs; r++)
    for (size_t block = starts[r] / BLOCK; block <= (starts[r] + length - 1) / BLOCK; block++) marked[block] = 1;
}

// out = base + decoded. `scales` has one for each block of the fragment; `packed`, `base` and `out` are the portion's.
int LOOP(add_int4_runs)(const float *scales, const uint8_t *packed, const size_t *starts, size_t runs, size_t length, const float *base,
                        float *out, size_t at) {
  uint32_t result = 0;
  for (size_t r = 0; r < runs; r++) {
    for (size_t from = starts[r], end = from + length; from < end;) {
      size_t count = least(end, (from / BLOCK + 1) * BLOCK) - from;
      float scale = scales[from / BLOCK];
      uint8_t levels[BLOCK];
      unpack_levels(packed, at, count, levels);
      for (size_t i = 0; i < count; i++) {
        out[at + i] = placed((float)((int)levels[i] - 8) * scale, base[at + i], ADDED);
        result = larger(result, out[at + i]);
      }
      from += count;
      at += count;
    }
  }
  return result >= INFINITE ? RESULT_NOT_FINITE : OK;
}

// --- merge and outer step --------------------------------------------------------------------------------------------

double LOOP(squares)(const float *x, size_t n) {
  double lanes[LANES] = {0};
  add_squares(x, n, 0, lanes);
  return total(lanes);
}

// A vector that is merged: values, or the outer gradient that a payload codes, which is `anchor` less a value, or the opposite of a delta.
enum kind { VALUES, VALUE_FLOAT32, DELTA_BFLOAT16, DELTA_INT4 };
struct vector {
  const void *data;     // float32, bfloat16, or the levels of int4
  const float *other;   // the anchor of VALUE_FLOAT32, the scales of DELTA_INT4
  int64_t kind;
};

// Returns `count` elements (at most PART) from `start` on, a multiple of BLOCK: a pointer to where they lie, or to `buffer` if decoded.
INLINE const float *elements(const struct vector *v, size_t start, size_t count, float *restrict buffer) {
  struct squares none = {.sums = NULL};
  switch (v->kind) {
    case VALUES: return (const float *)v->data + start;
    case VALUE_FLOAT32: {
      const float *restrict value = (const float *)v->data + start, *restrict anchor = v->other + start;
      for (size_t i = 0; i < count; i++) buffer[i] = anchor[i] - value[i];
      return buffer;
    }
    case DELTA_BFLOAT16: {
      const uint16_t *restrict delta = (const uint16_t *)v->data + start;
      for (size_t i = 0; i < count; i++) buffer[i] = -float_of((uint32_t)delta[i] << 16);
      return buffer;
    }
    default:
      place_int4(v->other + start / BLOCK, (const uint8_t *)v->data + start / 2, count, NULL, buffer, NEGATED, &none);
      return buffer;
  }
}

// out = (sum over k of factors[k] * vectors[k], in order) / divisor, float32, of the n elements from `begin`. Returns the sum of out's
// squares. m >= 1.
double LOOP(combine)(const struct vector *vectors, const float *factors, size_t m, size_t begin, size_t n, float divisor, float *restrict out) {
  double lanes[LANES] = {0};
  float decoded[4][PART];
  size_t count;
  for (size_t from = begin; from < begin + n; from += count) {
    // Parts end at multiples of PART, and are read from multiples of BLOCK on.
    count = least(PART - from % PART, begin + n - from);
    size_t before = from % BLOCK, start = from - before;
    float *restrict o = out + (from - begin);
    const float *restrict first = elements(vectors, start, before + count, decoded[0]) + before;
    for (size_t i = 0; i < count; i++) o[i] = factors[0] * first[i];
    size_t k = 1;
    for (; k + 4 <= m; k += 4) {
      const float *restrict a = elements(vectors + k, start, before + count, decoded[0]) + before;
      const float *restrict b = elements(vectors + k + 1, start, before + count, decoded[1]) + before;
      const float *restrict c = elements(vectors + k + 2, start, before + count, decoded[2]) + before;
      const float *restrict d = elements(vectors + k + 3, start, before + count, decoded[3]) + before;
      const float fa = factors[k], fb = factors[k + 1], fc = factors[k + 2], fd = factors[k + 3];
      for (size_t i = 0; i < count; i++) o[i] = (((o[i] + fa * a[i]) + fb * b[i]) + fc * c[i]) + fd * d[i];
    }
    for (; k < m; k++) {
      const float *restrict a = elements(vectors + k, start, before + count, decoded[0]) + before;
      const float f = factors[k];
      for (size_t i = 0; i < count; i++) o[i] += f * a[i];
    }
    if (divisor != 1.0f)
      for (size_t i = 0; i < count; i++) o[i] /= divisor;
    add_squares(o, count, from - begin, lanes);
  }
  return total(lanes);
}

// SGD with Nesterov momentum: buffer = mu * momentum + delta; out = onto - rate * (delta + mu * buffer). A NULL `onto` counts as 0.
int LOOP(nesterov)(const float *delta, const float *momentum, const float *onto, size_t n, float mu, float rate,
                           float *restrict buffer, float *restrict out) {
  uint32_t result = 0;
  for (size_t start = 0; start < n; start += PART) {
    size_t end = start + least(PART, n - start);
    for (size_t i = start; i < end; i++) {
      buffer[i] = momentum[i] * mu + delta[i];
      out[i] = -((buffer[i] * mu + delta[i]) * rate);
      result = larger(result, buffer[i]);
    }
    if (onto != NULL)
      for (size_t i = start; i < end; i++) out[i] += onto[i];
    for (size_t i = start; i < end; i++) result = larger(result, out[i]);
  }
  return result >= INFINITE ? RESULT_NOT_FINITE : OK;
}
