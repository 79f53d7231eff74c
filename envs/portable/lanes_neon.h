// Lanes in the NEON that every aarch64 processor has.
#pragma once

#include <arm_neon.h>

struct Bytes { uint8x16_t a, b; };
struct Ints { int32x4_t a, b; };
struct Floats { float32x4_t a, b; };

INLINE Bytes bytes(const void * p) {
    return {vld1q_u8((const uint8_t *) p), vld1q_u8((const uint8_t *) p + 16)};
}
INLINE Bytes masked(Bytes x, int with) {
    const uint8x16_t mask = vdupq_n_u8((uint8_t) with);
    return {vandq_u8(x.a, mask), vandq_u8(x.b, mask)};
}
INLINE Bytes either(Bytes x, Bytes y) { return {vorrq_u8(x.a, y.a), vorrq_u8(x.b, y.b)}; }
INLINE Bytes less(Bytes x, int by) {
    const uint8x16_t all = vdupq_n_u8((uint8_t) by);
    return {vsubq_u8(x.a, all), vsubq_u8(x.b, all)};
}
template <int N> INLINE Bytes left(Bytes x) { return {vshlq_n_u8(x.a, N), vshlq_n_u8(x.b, N)}; }
template <int N> INLINE Bytes right(Bytes x) { return {vshrq_n_u8(x.a, N), vshrq_n_u8(x.b, N)}; }
INLINE Bytes nibbles(const uint8_t * p) {
    const uint8x16_t both = vld1q_u8(p);
    return {vandq_u8(both, vdupq_n_u8(0x0f)), vshrq_n_u8(both, 4)};
}
INLINE Bytes equal(Bytes x, Bytes y) { return {vceqq_u8(x.a, y.a), vceqq_u8(x.b, y.b)}; }
INLINE Bytes bits(const uint8_t * p) {
    const uint8x16_t one = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
    return {vtstq_u8(vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1])), one),
            vtstq_u8(vcombine_u8(vdup_n_u8(p[2]), vdup_n_u8(p[3])), one)};
}

INLINE Ints no_ints() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
INLINE int32x4_t half_dot(uint8x16_t x, uint8x16_t y) {
    const int8x16_t s = vreinterpretq_s8_u8(x), t = vreinterpretq_s8_u8(y);
    return vpaddq_s32(vpaddlq_s16(vmull_s8(vget_low_s8(s), vget_low_s8(t))),
                      vpaddlq_s16(vmull_high_s8(s, t)));
}
INLINE Ints dot(Bytes x, Bytes y) { return {half_dot(x.a, y.a), half_dot(x.b, y.b)}; }
INLINE Ints dot_scaled(Ints sum, Bytes x, Bytes y, int first, int second) {
    return {vmlaq_n_s32(sum.a, half_dot(x.a, y.a), first),
            vmlaq_n_s32(sum.b, half_dot(x.b, y.b), second)};
}
INLINE int32_t dot8(const int16_t * x, const int16_t * y) {
    const int16x8_t s = vld1q_s16(x), t = vld1q_s16(y);
    return vaddvq_s32(vmlal_high_s16(vmull_s16(vget_low_s16(s), vget_low_s16(t)), s, t));
}

INLINE Floats no_floats() { return {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}; }
INLINE Floats floats(const float * p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
INLINE Floats floats(const uint16_t * p) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))),
            vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4)))};
}
INLINE float widened(uint16_t half) {
    __fp16 x;
    memcpy(&x, &half, 2);
    return (float) x;
}
INLINE Floats plus(Floats x, Floats y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
INLINE Floats times(Floats x, Floats y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
INLINE Floats all(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
INLINE Floats converted(Ints x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
INLINE float total(Floats x) {
    const float32x4_t four = vaddq_f32(x.a, x.b);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
INLINE void put(float * p, Floats x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
}
