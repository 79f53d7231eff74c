// Lanes in SSE2, which every x86-64 processor has.
#pragma once

#include <emmintrin.h>

struct Bytes { __m128i a, b; };
struct Ints { __m128i a, b; };
struct Floats { __m128 a, b; };

INLINE __m128i half_bytes(const void * p) { return _mm_loadu_si128((const __m128i *) p); }
INLINE Bytes bytes(const void * p) {
    return {half_bytes(p), half_bytes((const char *) p + 16)};
}
INLINE Bytes masked(Bytes x, int with) {
    const __m128i mask = _mm_set1_epi8((char) with);
    return {_mm_and_si128(x.a, mask), _mm_and_si128(x.b, mask)};
}
INLINE Bytes either(Bytes x, Bytes y) { return {_mm_or_si128(x.a, y.a), _mm_or_si128(x.b, y.b)}; }
INLINE Bytes less(Bytes x, int by) {
    const __m128i all = _mm_set1_epi8((char) by);
    return {_mm_sub_epi8(x.a, all), _mm_sub_epi8(x.b, all)};
}
template <int N> INLINE Bytes left(Bytes x) {
    return {_mm_slli_epi16(x.a, N), _mm_slli_epi16(x.b, N)};
}
template <int N> INLINE Bytes right(Bytes x) {
    return {_mm_srli_epi16(x.a, N), _mm_srli_epi16(x.b, N)};
}
INLINE Bytes nibbles(const uint8_t * p) {
    const __m128i both = half_bytes(p);
    return masked({both, _mm_srli_epi16(both, 4)}, 0x0f);
}
INLINE Bytes equal(Bytes x, Bytes y) {
    return {_mm_cmpeq_epi8(x.a, y.a), _mm_cmpeq_epi8(x.b, y.b)};
}
INLINE Bytes bits(const uint8_t * p) {
    int32_t word;
    memcpy(&word, p, 4);
    __m128i x = _mm_cvtsi32_si128(word);
    x = _mm_unpacklo_epi8(x, x);
    x = _mm_unpacklo_epi16(x, x);
    const __m128i one = _mm_set1_epi64x((long long) 0x8040201008040201ull);
    const __m128i low = _mm_unpacklo_epi32(x, x), high = _mm_unpackhi_epi32(x, x);
    return equal({_mm_and_si128(low, one), _mm_and_si128(high, one)}, {one, one});
}

INLINE Ints no_ints() { return {_mm_setzero_si128(), _mm_setzero_si128()}; }
INLINE __m128i signed_low(__m128i x) { return _mm_srai_epi16(_mm_unpacklo_epi8(x, x), 8); }
INLINE __m128i signed_high(__m128i x) { return _mm_srai_epi16(_mm_unpackhi_epi8(x, x), 8); }
// Sums of four neighbours, from sums of two.
INLINE __m128i fours(__m128i low, __m128i high) {
    const __m128 x = _mm_castsi128_ps(low), y = _mm_castsi128_ps(high);
    return _mm_add_epi32(_mm_castps_si128(_mm_shuffle_ps(x, y, 0x88)),
                         _mm_castps_si128(_mm_shuffle_ps(x, y, 0xdd)));
}
INLINE __m128i half_dot(__m128i x, __m128i y) {
    return fours(_mm_madd_epi16(signed_low(x), signed_low(y)),
                 _mm_madd_epi16(signed_high(x), signed_high(y)));
}
INLINE Ints dot(Bytes x, Bytes y) { return {half_dot(x.a, y.a), half_dot(x.b, y.b)}; }
INLINE __m128i half_scaled(__m128i x, __m128i y, int by) {
    const __m128i scale = _mm_set1_epi16((short) by);
    return fours(_mm_madd_epi16(_mm_mullo_epi16(signed_low(x), scale), signed_low(y)),
                 _mm_madd_epi16(_mm_mullo_epi16(signed_high(x), scale), signed_high(y)));
}
INLINE Ints dot_scaled(Ints sum, Bytes x, Bytes y, int first, int second) {
    return {_mm_add_epi32(sum.a, half_scaled(x.a, y.a, first)),
            _mm_add_epi32(sum.b, half_scaled(x.b, y.b, second))};
}
INLINE int32_t dot8(const int16_t * x, const int16_t * y) {
    __m128i sum = _mm_madd_epi16(half_bytes(x), half_bytes(y));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    return _mm_cvtsi128_si32(sum);
}

INLINE Floats no_floats() { return {_mm_setzero_ps(), _mm_setzero_ps()}; }
INLINE Floats floats(const float * p) { return {_mm_loadu_ps(p), _mm_loadu_ps(p + 4)}; }
INLINE float widened(uint16_t half) { return GGML_FP16_TO_FP32(half); }
// Halves to floats: exponents moved by a multiplication, which is exact for subnormals too;
// infinities and NaNs get their exponent by hand.
INLINE __m128 half_floats(__m128i x) {
    const __m128i sign = _mm_slli_epi32(_mm_and_si128(x, _mm_set1_epi32(0x8000)), 16);
    const __m128i rest = _mm_and_si128(x, _mm_set1_epi32(0x7fff));
    const __m128i special = _mm_cmpgt_epi32(rest, _mm_set1_epi32(0x7bff));
    const __m128 moved = _mm_mul_ps(_mm_castsi128_ps(_mm_slli_epi32(rest, 13)),
                                    _mm_castsi128_ps(_mm_set1_epi32(0x77800000)));
    const __m128i endless = _mm_and_si128(special, _mm_set1_epi32(0x7f800000));
    return _mm_castsi128_ps(_mm_or_si128(_mm_or_si128(_mm_castps_si128(moved), endless), sign));
}
INLINE Floats floats(const uint16_t * p) {
    const __m128i x = half_bytes(p), zero = _mm_setzero_si128();
    return {half_floats(_mm_unpacklo_epi16(x, zero)), half_floats(_mm_unpackhi_epi16(x, zero))};
}
INLINE Floats plus(Floats x, Floats y) { return {_mm_add_ps(x.a, y.a), _mm_add_ps(x.b, y.b)}; }
INLINE Floats times(Floats x, Floats y) { return {_mm_mul_ps(x.a, y.a), _mm_mul_ps(x.b, y.b)}; }
INLINE Floats all(float x) { return {_mm_set1_ps(x), _mm_set1_ps(x)}; }
INLINE Floats converted(Ints x) { return {_mm_cvtepi32_ps(x.a), _mm_cvtepi32_ps(x.b)}; }
INLINE float total(Floats x) {
    const __m128 four = _mm_add_ps(x.a, x.b);
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
INLINE void put(float * p, Floats x) {
    _mm_storeu_ps(p, x.a);
    _mm_storeu_ps(p + 4, x.b);
}
