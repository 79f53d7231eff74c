// What kernels.cpp knows of kernels_avx512.cpp.
#pragma once

#include <cstdint>

bool kvgraft_product_avx512(int64_t m, int64_t n, int64_t k, const void * a, int64_t lda,
                            const void * b, int64_t ldb, float * c, int64_t ldc, int a_type,
                            int b_type);
