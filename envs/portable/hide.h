// Read by the compiler before every file of ggml and llama.cpp (-include).
//
// ggml chooses its arithmetic by the macros of the instruction set: other lanes, other orders of
// summation, fused operations. With the macros gone it takes its plain C path everywhere, and the
// compiler may still use every instruction that gives the same bits. What ggml would have gained
// from them is given back by kernels.h, in one order of summation for all processors.
#pragma once

#ifndef KVGRAFT_KERNELS

#if defined(__x86_64__)
#include <immintrin.h>  // _mm_pause, used without asking for a macro
#endif

#undef __SSE__
#undef __SSE2__
#undef __SSE3__
#undef __SSSE3__
#undef __SSE4_1__
#undef __SSE4_2__
#undef __AVX__
#undef __AVX2__
#undef __AVXVNNI__
#undef __AVX512F__
#undef __F16C__
#undef __FMA__
#undef __BMI2__
#undef __ARM_NEON
#undef __ARM_NEON__
#undef __ARM_FEATURE_FMA
#undef __ARM_FEATURE_DOTPROD
#undef __ARM_FEATURE_MATMUL_INT8
#undef __ARM_FEATURE_SVE
#undef __ARM_FEATURE_SVE2
#undef __ARM_FEATURE_SME
#undef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC

#endif
