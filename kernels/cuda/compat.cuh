// What every kernel stands on: integer names, memory access, conversions, and the few instructions
// that C++ has no word for. All PTX of the project is in this file, each with a second body for
// host compilers, so that the same kernels run on a CPU in tests (host/shim.h).
//
// No headers: NVRTC brings none. Floats: `--fmad=false` here and `-ffp-contract=off` there, so that
// a multiplication and an addition are fused only where `fmaf` says so. Results are then the same
// in every instantiation of a template, and the same as the oracle's where its order of operations
// is kept.
#ifndef OCTAVO_COMPAT
#define OCTAVO_COMPAT

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC_RTC__

#define DEVICE __device__ __forceinline__
// A kernel takes one struct by value; its Rust twin is in kernels/src/cuda/params.rs.
#define KERNEL(name, Params, threads) KERNEL_OF(name, Params, threads, 1)
// One that leaves registers for so many blocks of itself beside each other.
#define KERNEL_OF(name, Params, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const Params p)
#define SHARED(type, name, dims) __shared__ __align__(16) type name dims

#else

#include "host/shim.h"

#define DEVICE inline
#define KERNEL(name, Params, threads) KERNEL_(name, Params)
#define KERNEL_OF(name, Params, threads, blocks) KERNEL_(name, Params)
#define KERNEL_(name, Params)                                                                                      \
    static void name##_body(const Params& p);                                                                      \
    extern "C" void name(const void* params) { name##_body(*static_cast<const Params*>(params)); }                 \
    static void name##_body(const Params& p)
#define SHARED(type, name, dims)                                                                                   \
    static char name##_key;                                                                                        \
    typedef type name##_type dims;                                                                                 \
    name##_type& name = *static_cast<name##_type*>(shim::shared(&name##_key, sizeof(name##_type)))

#endif

#define JOIN_(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN_(a, b, c)

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

// Sixteen bytes: the widest access of one thread.
struct alignas(16) Words {
    u32 w[4];
};

#ifdef __CUDACC_RTC__

DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 as_bits(float x) { return __float_as_uint(x); }
DEVICE float minus_infinity() { return __uint_as_float(0xff800000u); }

DEVICE float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

DEVICE u16 float_to_half(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

DEVICE u32 pack_halves(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Weights are read once, by one thread: past L1, which is kept for activations.
DEVICE Words load16_once(const void* at) {
    Words v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
        : "l"(at));
    return v;
}

template <class T>
DEVICE T load_vector(const void* at) {
    return *static_cast<const T*>(at);
}

template <class T>
DEVICE void store_vector(void* at, T v) {
    *static_cast<T*>(at) = v;
}

DEVICE u32 shared_address(const void* at) {
    u32 a;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(at));
    return a;
}

// Four 8x8 matrices of halves out of shared memory; lane l gives the address of row l % 8 of matrix
// l / 8 and gets elements 2 (l % 4), + 1 of row l / 4 of each.
DEVICE void load_matrices(u32 (&m)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, each matrix transposed.
DEVICE void load_matrices_transposed(u32 (&m)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// d += a b: a is 16x16 halves by rows, b 16x8 by columns, d 16x8 floats.
DEVICE void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else

DEVICE float as_float(u32 bits) { return shim::bit_cast<float>(bits); }
DEVICE u32 as_bits(float x) { return shim::bit_cast<u32>(x); }
DEVICE float minus_infinity() { return as_float(0xff800000u); }
DEVICE float half_to_float(u16 h) { return shim::half_to_float(h); }
DEVICE u16 float_to_half(float x) { return shim::float_to_half(x); }
DEVICE u32 pack_halves(float low, float high) {
    return static_cast<u32>(float_to_half(low)) | static_cast<u32>(float_to_half(high)) << 16;
}

template <class T>
DEVICE T load_vector(const void* at) {
    shim::check_aligned(at, sizeof(T));
    return *static_cast<const T*>(at);
}

template <class T>
DEVICE void store_vector(void* at, T v) {
    shim::check_aligned(at, sizeof(T));
    *static_cast<T*>(at) = v;
}

DEVICE Words load16_once(const void* at) { return load_vector<Words>(at); }
DEVICE void load_matrices(u32 (&m)[4], const void* row) { shim::load_matrices(m, row, false); }
DEVICE void load_matrices_transposed(u32 (&m)[4], const void* row) { shim::load_matrices(m, row, true); }
DEVICE void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { shim::mma_f16(d, a, b0, b1); }

#endif

DEVICE Words load16(const void* at) { return load_vector<Words>(at); }
DEVICE void store16(void* at, Words v) { store_vector<Words>(at, v); }

DEVICE float low_half(u32 pair) { return half_to_float(static_cast<u16>(pair)); }
DEVICE float high_half(u32 pair) { return half_to_float(static_cast<u16>(pair >> 16)); }
DEVICE float bf16_to_float(u16 b) { return as_float(static_cast<u32>(b) << 16); }

template <class T>
DEVICE constexpr T least(T a, T b) {
    return b < a ? b : a;
}
template <class T>
DEVICE constexpr T most(T a, T b) {
    return a < b ? b : a;
}

// Sums and maxima over `lanes` neighbouring lanes (a power of two), in every one of them. The tree
// is fixed, so the result depends on the values alone.
template <int lanes>
DEVICE float lanes_sum(float x) {
#pragma unroll
    for (int o = lanes / 2; o > 0; o /= 2) x += __shfl_xor_sync(ALL_LANES, x, o);
    return x;
}
template <int lanes>
DEVICE i32 lanes_sum(i32 x) {
#pragma unroll
    for (int o = lanes / 2; o > 0; o /= 2) x += __shfl_xor_sync(ALL_LANES, x, o);
    return x;
}
template <int lanes>
DEVICE float lanes_max(float x) {
#pragma unroll
    for (int o = lanes / 2; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, o));
    return x;
}

#endif
