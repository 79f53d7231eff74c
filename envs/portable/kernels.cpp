// What ggml calls: products of matrices, and rows turned into blocks for them.
#define KVGRAFT_SET kvgraft_plain
#include "kernels.h"

#include <algorithm>
#include <cmath>

#include "llamafile/sgemm.h"

typedef bool (*Product)(int64_t, int64_t, int64_t, const void *, int64_t, const void *, int64_t,
                        float *, int64_t, int, int);

#if defined(KVGRAFT_AVX512)
#include "kernels_avx512.h"
#endif

// The same product in the widest registers of this processor.
static Product chosen() {
#if defined(KVGRAFT_AVX512)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
        return kvgraft_product_avx512;
    }
#endif
    return kvgraft_plain::product;
}
static const Product PRODUCT = chosen();

extern "C" {

// In the place of llamafile's products, which ggml asks first. A thread takes its share of rows.
bool llamafile_sgemm(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k,
                     const void * a, int64_t lda, const void * b, int64_t ldb, void * c,
                     int64_t ldc, int a_type, int b_type, int c_type) {
    if (c_type != GGML_TYPE_F32) {
        return false;
    }
    const int64_t share = (m + params->nth - 1) / params->nth;
    const int64_t even = (share + 3) / 4 * 4;
    const int64_t from = std::min(even * params->ith, m), to = std::min(from + even, m);
    const size_t row = ggml_type_size((ggml_type) a_type) * lda;
    return PRODUCT(to - from, n, k, (const char *) a + from * row, lda, b, ldb,
                   (float *) c + from, ldc, a_type, b_type);
}

#define DOT(name, x_type, y_type)                                                          \
    void name(int, float *, size_t, const void *, size_t, const void *, size_t, int);      \
    void name(int n, float * s, size_t, const void * x, size_t, const void * y, size_t, int) { \
        const int64_t k = n / ggml_blck_size(GGML_TYPE_##x_type);                          \
        PRODUCT(1, 1, k, x, k, y, k, s, 1, GGML_TYPE_##x_type, GGML_TYPE_##y_type);        \
    }
DOT(ggml_vec_dot_f32, F32, F32)
DOT(ggml_vec_dot_f16, F16, F16)
DOT(ggml_vec_dot_q8_0_q8_0, Q8_0, Q8_0)
DOT(ggml_vec_dot_q4_0_q8_0, Q4_0, Q8_0)
DOT(ggml_vec_dot_q5_0_q8_0, Q5_0, Q8_0)
DOT(ggml_vec_dot_q4_1_q8_1, Q4_1, Q8_1)
DOT(ggml_vec_dot_q5_1_q8_1, Q5_1, Q8_1)
DOT(ggml_vec_dot_q4_K_q8_K, Q4_K, Q8_K)
DOT(ggml_vec_dot_q5_K_q8_K, Q5_K, Q8_K)
DOT(ggml_vec_dot_q6_K_q8_K, Q6_K, Q8_K)
#undef DOT

}  // extern "C"

// 32 floats as bytes of -127 to 127, halves to even; returns the scale, adds up the bytes.
static float quantised(const float * x, int8_t * q, int & sum) {
    float most[8] = {0};
    for (int i = 0; i < 32; i += 8) {
        for (int l = 0; l < 8; ++l) {
            const float size = std::fabs(x[i + l]);
            most[l] = most[l] < size ? size : most[l];
        }
    }
    float largest = 0.0f;
    for (int l = 0; l < 8; ++l) {
        largest = largest < most[l] ? most[l] : largest;
    }
    const float d = largest / 127.0f;
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    int total = 0;
    for (int i = 0; i < 32; ++i) {
        // 1.5 * 2^23 leaves no bits for a fraction: the processor rounds to even.
        const int value = (int) ((x[i] * inverse + 12582912.0f) - 12582912.0f);
        q[i] = (int8_t) value;
        total += value;
    }
    sum = total;
    return d;
}

extern "C" {

void quantize_row_q8_0(const float * x, void * to, int64_t k);
void quantize_row_q8_1(const float * x, void * to, int64_t k);

void quantize_row_q8_0(const float * x, void * to, int64_t k) {
    block_q8_0 * y = (block_q8_0 *) to;
    for (int64_t i = 0; i < k / QK8_0; ++i) {
        int sum;
        y[i].d = GGML_FP32_TO_FP16(quantised(x + i * QK8_0, y[i].qs, sum));
    }
}

void quantize_row_q8_1(const float * x, void * to, int64_t k) {
    block_q8_1 * y = (block_q8_1 *) to;
    for (int64_t i = 0; i < k / QK8_1; ++i) {
        int sum;
        const float d = quantised(x + i * QK8_1, y[i].qs, sum);
        y[i].data.data.d = GGML_FP32_TO_FP16(d);
        y[i].data.data.s = GGML_FP32_TO_FP16((float) sum * d);
    }
}

}  // extern "C"
