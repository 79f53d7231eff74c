// The products of kernels.h once more, for processors with AVX-512 and its integer products.
#define KVGRAFT_SET kvgraft_avx512
#include "kernels.h"

#include "kernels_avx512.h"

bool kvgraft_product_avx512(int64_t m, int64_t n, int64_t k, const void * a, int64_t lda,
                            const void * b, int64_t ldb, float * c, int64_t ldc, int a_type,
                            int b_type) {
    return kvgraft_avx512::product(m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type);
}
