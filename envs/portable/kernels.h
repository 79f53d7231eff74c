// Products of matrices and what feeds them, in one order of summation for every processor.
//
// A dot product is summed in lanes: float ones in 16 (element i in lane i mod 16), those of blocks
// in 8, to which a block of 32 adds its four-neighbour integer sums times its scale. The lanes are
// added at the end in a fixed tree: l with l + 8, then l + 4, l + 2, l + 1. Integers are exact in
// any order; no operation is fused. An element of a product is thus the same whether it is computed
// alone or in a tile, by one thread or many, in registers of 4, 8 or 16 lanes.
//
// Included once for each set of instructions, in a namespace of its own (KVGRAFT_SET).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "ggml-cpu-impl.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#define INLINE static inline __attribute__((always_inline))

namespace KVGRAFT_SET {

#if defined(__AVX2__) && defined(__F16C__)
#include "lanes_avx2.h"
#elif defined(__SSE2__)
#include "lanes_sse2.h"
#elif defined(__aarch64__)
#include "lanes_neon.h"
#else
#error "no lanes are written for this processor"
#endif

#ifndef KVGRAFT_WIDE
struct Wide { Floats low, high; };
INLINE Wide no_wide() { return {no_floats(), no_floats()}; }
template <typename X> INLINE Wide wide(const X * p) { return {floats(p), floats(p + 8)}; }
INLINE Wide mad(Wide sum, Wide x, Wide y) {
    return {plus(sum.low, times(x.low, y.low)), plus(sum.high, times(x.high, y.high))};
}
INLINE Floats halved(Wide x) { return plus(x.low, x.high); }
INLINE void put(float * p, Wide x) {
    put(p, x.low);
    put(p + 8, x.high);
}
#endif

#if defined(__AVX512F__)
constexpr int FLOAT_ROWS = 4, FLOAT_COLUMNS = 4, BLOCK_ROWS = 4;  // of a tile: 32 registers
#else
constexpr int FLOAT_ROWS = 2, FLOAT_COLUMNS = 2, BLOCK_ROWS = 2;
#endif
constexpr int BLOCK_COLUMNS = 4, ROWS = 4;

INLINE float widened(float x) { return x; }

// The sum of 16 lanes to which the last elements, fewer than 16, are still to be added.
template <typename X>
INLINE float summed(Wide lanes, const X * x, const float * y, int64_t from, int64_t k) {
    if (from < k) {
        float lane[16];
        put(lane, lanes);
        for (int64_t i = from; i < k; ++i) {
            lane[i - from] += widened(x[i]) * y[i];
        }
        lanes = wide(lane);
    }
    return total(halved(lanes));
}

INLINE float float_dot(int64_t k, const float * x, const float * y) {
    Wide lanes = no_wide();
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
        lanes = mad(lanes, wide(x + i), wide(y + i));
    }
    return summed(lanes, x, y, i, k);
}

// Operands: rows of A and columns of B, `lda` and `ldb` elements (blocks) apart; C[column][row].
template <typename X, int R, int N>
INLINE void float_tile(int64_t k, const X * a, int64_t lda, const float * b, int64_t ldb,
                       float * c, int64_t ldc) {
    Wide lanes[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            lanes[r][n] = no_wide();
        }
    }
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
        Wide y[N];
        for (int n = 0; n < N; ++n) {
            y[n] = wide(b + n * ldb + i);
        }
        for (int r = 0; r < R; ++r) {
            const Wide x = wide(a + r * lda + i);
            for (int n = 0; n < N; ++n) {
                lanes[r][n] = mad(lanes[r][n], x, y[n]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            c[n * ldc + r] = summed(lanes[r][n], a + r * lda, b + n * ldb, i, k);
        }
    }
}

template <typename X>
static void float_product(int64_t m, int64_t n, int64_t k, const X * a, int64_t lda,
                          const float * b, int64_t ldb, float * c, int64_t ldc) {
    constexpr int R = FLOAT_ROWS, N = FLOAT_COLUMNS;
    int64_t row = 0;
    for (; row + ROWS <= m; row += ROWS) {
        int64_t column = 0;
        for (; column + N <= n; column += N) {
            for (int r = 0; r < ROWS; r += R) {
                float_tile<X, R, N>(k, a + (row + r) * lda, lda, b + column * ldb, ldb,
                                    c + column * ldc + row + r, ldc);
            }
        }
        for (; column < n; ++column) {
            float_tile<X, ROWS, 1>(k, a + row * lda, lda, b + column * ldb, ldb,
                                   c + column * ldc + row, ldc);
        }
    }
    for (; row < m; ++row) {
        for (int64_t column = 0; column < n; ++column) {
            float_tile<X, 1, 1>(k, a + row * lda, lda, b + column * ldb, ldb,
                                c + column * ldc + row, ldc);
        }
    }
}

// Blocks of 32 with a scale, and some with an offset.
struct Q8_0 {
    typedef block_q8_0 Block;
    typedef block_q8_0 Column;
    INLINE Bytes values(const Block & x) { return bytes(x.qs); }
};
struct Q4_0 {
    typedef block_q4_0 Block;
    typedef block_q8_0 Column;
    INLINE Bytes values(const Block & x) { return less(nibbles(x.qs), 8); }
};
struct Q5_0 {
    typedef block_q5_0 Block;
    typedef block_q8_0 Column;
    INLINE Bytes values(const Block & x) {
        return less(either(nibbles(x.qs), masked(bits(x.qh), 16)), 16);
    }
};
struct Q4_1 {
    typedef block_q4_1 Block;
    typedef block_q8_1 Column;
    INLINE Bytes values(const Block & x) { return nibbles(x.qs); }
};
struct Q5_1 {
    typedef block_q5_1 Block;
    typedef block_q8_1 Column;
    INLINE Bytes values(const Block & x) {
        return either(nibbles(x.qs), masked(bits(x.qh), 16));
    }
};
INLINE float offset(const block_q4_1 & x) { return widened(x.data.data.m); }
INLINE float offset(const block_q5_1 & x) { return widened(x.data.data.m); }
INLINE float offset(const block_q8_1 & x) { return widened(x.data.data.s); }
INLINE float scale(const block_q4_1 & x) { return widened(x.data.data.d); }
INLINE float scale(const block_q5_1 & x) { return widened(x.data.data.d); }
INLINE float scale(const block_q8_1 & x) { return widened(x.data.data.d); }
template <typename B> INLINE float scale(const B & x) { return widened(x.d); }
template <typename B> INLINE float offset(const B &) { return 0.0f; }

template <typename T, int R, int N>
INLINE void block_tile(int64_t k, const typename T::Block * a, int64_t lda, const float * da,
                       const typename T::Column * b, int64_t ldb, const float * db,
                       float * c, int64_t ldc) {
    Floats lanes[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            lanes[r][n] = no_floats();
        }
    }
    for (int64_t i = 0; i < k; ++i) {
        Bytes y[N];
        for (int n = 0; n < N; ++n) {
            y[n] = bytes(b[n * ldb + i].qs);
        }
        for (int r = 0; r < R; ++r) {
            const Bytes x = T::values(a[r * lda + i]);
            for (int n = 0; n < N; ++n) {
                const Floats by = all(da[r * k + i] * db[n * k + i]);
                lanes[r][n] = plus(lanes[r][n], times(by, converted(dot(x, y[n]))));
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            c[n * ldc + r] = total(lanes[r][n]);
        }
    }
}

// A buffer of a thread, kept between calls. No template of the standard library is used here: the
// linker keeps one copy of each, and it might be the one for processors that this one is not.
template <typename X> struct Buffer {
    X * data = nullptr;
    int64_t size = 0;
    X * room(int64_t wanted) {
        if (size < wanted) {
            free(data);
            data = (X *) malloc(wanted * sizeof(X));
            size = wanted;
            if (data == nullptr) {
                abort();
            }
        }
        return data;
    }
    ~Buffer() { free(data); }
};
struct Buffers {
    Buffer<float> rows, row_offsets, columns, offsets;
    Buffer<int16_t> sums;
};
static Buffers & buffers() {
    static thread_local Buffers mine;
    return mine;
}

template <typename T, bool OFFSETS>
static void block_product(int64_t m, int64_t n, int64_t k, const typename T::Block * a, int64_t lda,
                          const typename T::Column * b, int64_t ldb, float * c, int64_t ldc) {
    constexpr int R = BLOCK_ROWS, N = BLOCK_COLUMNS;
    Buffers & kept = buffers();
    float * da = kept.rows.room(ROWS * k), * ma = kept.row_offsets.room(ROWS * k);
    float * db = kept.columns.room(n * k), * sb = kept.offsets.room(n * k);
    for (int64_t column = 0; column < n; ++column) {
        for (int64_t i = 0; i < k; ++i) {
            db[column * k + i] = scale(b[column * ldb + i]);
            if (OFFSETS) {
                sb[column * k + i] = offset(b[column * ldb + i]);
            }
        }
    }
    for (int64_t row = 0; row < m;) {
        const int rows = row + ROWS <= m ? ROWS : 1;
        for (int r = 0; r < rows; ++r) {
            for (int64_t i = 0; i < k; ++i) {
                da[r * k + i] = scale(a[(row + r) * lda + i]);
                if (OFFSETS) {
                    ma[r * k + i] = offset(a[(row + r) * lda + i]);
                }
            }
        }
        const typename T::Block * top = a + row * lda;
        int64_t column = 0;
        if (rows == ROWS) {
            for (; column + N <= n; column += N) {
                for (int r = 0; r < ROWS; r += R) {
                    block_tile<T, R, N>(k, top + r * lda, lda, da + r * k, b + column * ldb, ldb,
                                        db + column * k, c + column * ldc + row + r, ldc);
                }
            }
            for (; column < n; ++column) {
                block_tile<T, ROWS, 1>(k, top, lda, da, b + column * ldb, ldb, db + column * k,
                                       c + column * ldc + row, ldc);
            }
        } else {
            for (; column < n; ++column) {
                block_tile<T, 1, 1>(k, top, lda, da, b + column * ldb, ldb, db + column * k,
                                    c + column * ldc + row, ldc);
            }
        }
        if (OFFSETS) {
            for (column = 0; column < n; ++column) {
                for (int r = 0; r < rows; ++r) {
                    c[column * ldc + row + r] += float_dot(k, ma + r * k, sb + column * k);
                }
            }
        }
        row += rows;
    }
}

// Blocks of 256: eight or sixteen parts with an integer scale each, some with minima.
struct Scales {
    int16_t scale[16], least[8];
};
INLINE void six_bit_scales(const uint8_t * packed, Scales & s) {
    for (int j = 0; j < 8; ++j) {
        int scale, least;
        if (j < 4) {
            scale = packed[j] & 63;
            least = packed[j + 4] & 63;
        } else {
            scale = (packed[j + 4] & 0x0f) | ((packed[j - 4] >> 6) << 4);
            least = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
        }
        s.scale[2 * j] = s.scale[2 * j + 1] = (int16_t) scale;
        s.least[j] = (int16_t) least;
    }
}
struct Q4_K {
    typedef block_q4_K Block;
    static constexpr bool LEAST = true;
    INLINE void scales(const Block & x, Scales & s) { six_bit_scales(x.scales, s); }
    template <int PART> INLINE Bytes values(const Block & x) {
        const Bytes both = bytes(x.qs + 32 * (PART / 2));
        return PART % 2 ? right<4>(masked(both, 0xf0)) : masked(both, 0x0f);
    }
};
struct Q5_K {
    typedef block_q5_K Block;
    static constexpr bool LEAST = true;
    INLINE void scales(const Block & x, Scales & s) { six_bit_scales(x.scales, s); }
    template <int PART> INLINE Bytes values(const Block & x) {
        const Bytes both = bytes(x.qs + 32 * (PART / 2));
        const Bytes low = PART % 2 ? right<4>(masked(both, 0xf0)) : masked(both, 0x0f);
        const Bytes fifth = masked(bytes(x.qh), 1 << PART);
        return either(low, PART < 4 ? left<(PART < 4 ? 4 - PART : 0)>(fifth)
                                    : right<(PART > 4 ? PART - 4 : 0)>(fifth));
    }
};
struct Q6_K {
    typedef block_q6_K Block;
    static constexpr bool LEAST = false;
    INLINE void scales(const Block & x, Scales & s) {
        for (int j = 0; j < 16; ++j) {
            s.scale[j] = x.scales[j];
        }
    }
    template <int PART> INLINE Bytes values(const Block & x) {
        constexpr int quarter = PART % 4;
        const Bytes both = bytes(x.ql + 64 * (PART / 4) + 32 * (quarter % 2));
        const Bytes low = quarter / 2 ? right<4>(masked(both, 0xf0)) : masked(both, 0x0f);
        const Bytes top = masked(bytes(x.qh + 32 * (PART / 4)), 3 << (2 * quarter));
        return less(either(low, quarter < 2 ? left<(quarter < 2 ? 4 - 2 * quarter : 0)>(top)
                                            : right<(quarter > 2 ? 2 : 0)>(top)), 32);
    }
};
INLINE float scale(const block_q4_K & x) { return widened(x.data.data.d); }
INLINE float scale(const block_q5_K & x) { return widened(x.data.data.d); }
INLINE float least(const block_q4_K & x) { return widened(x.data.data.dmin); }
INLINE float least(const block_q5_K & x) { return widened(x.data.data.dmin); }
INLINE float least(const block_q6_K &) { return 0.0f; }

template <typename T, int PART, int N>
INLINE void part(const typename T::Block & x, const Scales & s, const block_q8_K * const * y,
                 Ints * ints) {
    const Bytes values = T::template values<PART>(x);
    for (int n = 0; n < N; ++n) {
        ints[n] = dot_scaled(ints[n], values, bytes(y[n]->qs + 32 * PART), s.scale[2 * PART],
                             s.scale[2 * PART + 1]);
    }
}

template <typename T, int N>
INLINE void super_tile(int64_t k, const typename T::Block * a, const block_q8_K * b, int64_t ldb,
                       const int16_t * sums, float * c, int64_t ldc) {
    Floats lanes[N];
    float below[N];
    for (int n = 0; n < N; ++n) {
        lanes[n] = no_floats();
        below[n] = 0.0f;
    }
    for (int64_t i = 0; i < k; ++i) {
        const typename T::Block & x = a[i];
        Scales s;
        T::scales(x, s);
        const block_q8_K * y[N];
        Ints ints[N];
        for (int n = 0; n < N; ++n) {
            y[n] = b + n * ldb + i;
            ints[n] = no_ints();
        }
        part<T, 0, N>(x, s, y, ints);
        part<T, 1, N>(x, s, y, ints);
        part<T, 2, N>(x, s, y, ints);
        part<T, 3, N>(x, s, y, ints);
        part<T, 4, N>(x, s, y, ints);
        part<T, 5, N>(x, s, y, ints);
        part<T, 6, N>(x, s, y, ints);
        part<T, 7, N>(x, s, y, ints);
        const float d = scale(x), d_least = least(x);
        for (int n = 0; n < N; ++n) {
            lanes[n] = plus(lanes[n], times(all(d * y[n]->d), converted(ints[n])));
            if (T::LEAST) {
                below[n] += (d_least * y[n]->d) * (float) dot8(s.least, sums + 8 * (n * k + i));
            }
        }
    }
    for (int n = 0; n < N; ++n) {
        c[n * ldc] = T::LEAST ? total(lanes[n]) - below[n] : total(lanes[n]);
    }
}

template <typename T>
static void super_product(int64_t m, int64_t n, int64_t k, const typename T::Block * a, int64_t lda,
                          const block_q8_K * b, int64_t ldb, float * c, int64_t ldc) {
    constexpr int N = BLOCK_COLUMNS;
    int16_t * sums = buffers().sums.room(8 * n * k);
    if (T::LEAST) {
        for (int64_t column = 0; column < n; ++column) {
            for (int64_t i = 0; i < k; ++i) {
                for (int j = 0; j < 8; ++j) {
                    const int16_t * pair = b[column * ldb + i].bsums + 2 * j;
                    sums[8 * (column * k + i) + j] = (int16_t) (pair[0] + pair[1]);
                }
            }
        }
    }
    for (int64_t row = 0; row < m; ++row) {
        int64_t column = 0;
        for (; column + N <= n; column += N) {
            super_tile<T, N>(k, a + row * lda, b + column * ldb, ldb, sums + 8 * column * k,
                             c + column * ldc + row, ldc);
        }
        for (; column < n; ++column) {
            super_tile<T, 1>(k, a + row * lda, b + column * ldb, ldb, sums + 8 * column * k,
                             c + column * ldc + row, ldc);
        }
    }
}

// Halves are widened once for all rows; a float stays where it is.
static const float * widened_columns(int64_t n, int64_t k, const uint16_t * b, int64_t ldb) {
    float * columns = buffers().columns.room(n * k);
    for (int64_t column = 0; column < n; ++column) {
        int64_t i = 0;
        for (; i + 8 <= k; i += 8) {
            put(columns + column * k + i, floats(b + column * ldb + i));
        }
        for (; i < k; ++i) {
            columns[column * k + i] = widened(b[column * ldb + i]);
        }
    }
    return columns;
}

// C = A B for the kinds that are known here; false for others. `k` counts elements or blocks.
static bool product(int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b,
                    int64_t ldb, float * c, int64_t ldc, int a_type, int b_type) {
#define BLOCKS(type, column, offsets)                                                     \
    case GGML_TYPE_##type:                                                                \
        if (b_type != GGML_TYPE_##column) return false;                                   \
        block_product<type, offsets>(m, n, k, (const type::Block *) a, lda,               \
                                     (const type::Column *) b, ldb, c, ldc);              \
        return true;
#define SUPER(type)                                                                       \
    case GGML_TYPE_##type:                                                                \
        if (b_type != GGML_TYPE_Q8_K) return false;                                       \
        super_product<type>(m, n, k, (const type::Block *) a, lda, (const block_q8_K *) b, \
                            ldb, c, ldc);                                                 \
        return true;
    switch (a_type) {
        case GGML_TYPE_F32:
            if (b_type != GGML_TYPE_F32) return false;
            float_product(m, n, k, (const float *) a, lda, (const float *) b, ldb, c, ldc);
            return true;
        case GGML_TYPE_F16:
            if (b_type != GGML_TYPE_F16) return false;
            float_product(m, n, k, (const uint16_t *) a, lda,
                          widened_columns(n, k, (const uint16_t *) b, ldb), k, c, ldc);
            return true;
        BLOCKS(Q8_0, Q8_0, false)
        BLOCKS(Q4_0, Q8_0, false)
        BLOCKS(Q5_0, Q8_0, false)
        BLOCKS(Q4_1, Q8_1, true)
        BLOCKS(Q5_1, Q8_1, true)
        SUPER(Q4_K)
        SUPER(Q5_K)
        SUPER(Q6_K)
        default:
            return false;
    }
#undef BLOCKS
#undef SUPER
}

}  // namespace KVGRAFT_SET
