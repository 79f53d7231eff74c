// Lanes in AVX2 and F16C, and where the compiler may use them AVX-512 and its integer products.
#pragma once

#include <immintrin.h>

typedef __m256i Bytes;
typedef __m256i Ints;
typedef __m256 Floats;

INLINE Bytes bytes(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
INLINE Bytes masked(Bytes x, int with) { return _mm256_and_si256(x, _mm256_set1_epi8((char) with)); }
INLINE Bytes either(Bytes x, Bytes y) { return _mm256_or_si256(x, y); }
INLINE Bytes less(Bytes x, int by) { return _mm256_sub_epi8(x, _mm256_set1_epi8((char) by)); }
template <int N> INLINE Bytes left(Bytes x) { return _mm256_slli_epi16(x, N); }
template <int N> INLINE Bytes right(Bytes x) { return _mm256_srli_epi16(x, N); }
INLINE Bytes nibbles(const uint8_t * p) {
    const __m128i half = _mm_loadu_si128((const __m128i *) p);
    return masked(_mm256_set_m128i(_mm_srli_epi16(half, 4), half), 0x0f);
}
INLINE Bytes equal(Bytes x, Bytes y) { return _mm256_cmpeq_epi8(x, y); }
INLINE Bytes bits(const uint8_t * p) {
    uint32_t word;
    memcpy(&word, p, 4);
    const __m256i places = _mm256_set_epi64x(
        0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i one = _mm256_set1_epi64x((long long) 0x8040201008040201ull);
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32((int) word), places);
    return equal(_mm256_and_si256(spread, one), one);
}

INLINE Ints no_ints() { return _mm256_setzero_si256(); }
INLINE Ints dot(Bytes x, Bytes y) {
    const __m256i magnitude = _mm256_abs_epi8(x);
    const __m256i turned = _mm256_sign_epi8(y, x);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), magnitude, turned);
#else
    return _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, turned), _mm256_set1_epi16(1));
#endif
}
INLINE Ints dot_scaled(Ints sum, Bytes x, Bytes y, int first, int second) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(y, x));
    const __m256i scales =
        _mm256_set_m128i(_mm_set1_epi16((short) second), _mm_set1_epi16((short) first));
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpwssd_epi32(sum, pairs, scales);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, scales));
#endif
}
INLINE int32_t dot8(const int16_t * x, const int16_t * y) {
    __m128i sum = _mm_madd_epi16(_mm_loadu_si128((const __m128i *) x),
                                 _mm_loadu_si128((const __m128i *) y));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    return _mm_cvtsi128_si32(sum);
}

INLINE Floats no_floats() { return _mm256_setzero_ps(); }
INLINE Floats floats(const float * p) { return _mm256_loadu_ps(p); }
INLINE Floats floats(const uint16_t * p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
}
INLINE float widened(uint16_t half) { return _cvtsh_ss(half); }
INLINE Floats plus(Floats x, Floats y) { return _mm256_add_ps(x, y); }
INLINE Floats times(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
INLINE Floats all(float x) { return _mm256_set1_ps(x); }
INLINE Floats converted(Ints x) { return _mm256_cvtepi32_ps(x); }
INLINE float total(Floats x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

INLINE void put(float * p, Floats x) { _mm256_storeu_ps(p, x); }

#if defined(__AVX512F__)
#define KVGRAFT_WIDE
typedef __m512 Wide;
INLINE Wide no_wide() { return _mm512_setzero_ps(); }
INLINE Wide wide(const float * p) { return _mm512_loadu_ps(p); }
INLINE Wide wide(const uint16_t * p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
}
INLINE Wide mad(Wide sum, Wide x, Wide y) { return _mm512_add_ps(sum, _mm512_mul_ps(x, y)); }
INLINE Floats halved(Wide x) {
    const __m256d high = _mm512_extractf64x4_pd(_mm512_castps_pd(x), 1);
    return plus(_mm512_castps512_ps256(x), _mm256_castpd_ps(high));
}
INLINE void put(float * p, Wide x) { _mm512_storeu_ps(p, x); }
#endif
