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

// Which of the kernels of a source that takes long to compile: all of them with 0, as for tests.
#ifndef PART
#define PART 0
#endif
#define TAKES(part) (PART == 0 || PART == part)

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
// So many bytes at a multiple of 1024, which a launch must ask for.
#define LAUNCHED_SHARED(name, bytes) extern __shared__ __align__(1024) u8 name[]
// A table in the device's memory.
#define CONSTANT static __device__ const

#else

#include "host/shim.h"

#define DEVICE inline
#define KERNEL(name, Params, threads) KERNEL_(name, Params)
#define KERNEL_OF(name, Params, threads, blocks) KERNEL_(name, Params)
#define KERNEL_(name, Params)                                                                      \
    static void name##_body(const Params& p);                                                      \
    extern "C" void name(const void* params) { name##_body(*static_cast<const Params*>(params)); } \
    static void name##_body(const Params& p)
#define SHARED(type, name, dims)   \
    static char name##_key;        \
    typedef type name##_type dims; \
    name##_type& name = *static_cast<name##_type*>(shim::shared(&name##_key, sizeof(name##_type)))
#define LAUNCHED_SHARED(name, bytes) u8* name = static_cast<u8*>(shim::launched_shared(bytes))
#define CONSTANT static const

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

// The same number, of which the compiler forgets what it is: what depends on it is computed where
// it is used, and not kept in registers from one round of a loop to the next.
DEVICE u32 forgotten(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
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
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d = a b + c: a is 16x32 signed bytes by rows, b 32x8 by columns, c and d 16x8 integers.
DEVICE void mma_s8(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const i32 (&c)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
          "r"(c[2]), "r"(c[3]));
}

// The same of 16 columns of a.
DEVICE void mma_s8_half(i32 (&d)[4], u32 a0, u32 a1, u32 b, const i32 (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// Sixteen bytes to shared memory, which are there after `copied`; zeros where there is nothing to
// copy.
DEVICE void copy_early(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
// The same of 4, 8 or 16 bytes.
template <u32 BYTES>
DEVICE void copy_small_early(void* to, const void* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(there ? BYTES : 0)
                 : "memory");
}
// Ends a group of them.
DEVICE void copies_begun() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// Waits for all of a thread's groups but the last `LATER`.
template <int LATER>
DEVICE void copied() {
    asm volatile("cp.async.wait_group %0;" : : "n"(LATER) : "memory");
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Products of four warps together, which go on while they do something else. What threads have
// written to shared memory is seen by these products after `written_for_products` and a barrier;
// their registers, after `registers_written_for_products`.
DEVICE void written_for_products() {
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
DEVICE void registers_written_for_products() {
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
DEVICE void products_committed() {
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
DEVICE void products_done() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
}

// d += a b: of four warps each has 16 of a's 64 rows of 16 halves; b's 128 columns are rows of 64
// halves in shared memory, of which those from 16 k on are taken, and whose eighths are where
// `swizzled` says. Lanes have elements of a and d as in `mma_f16`, d in 16 tiles one behind the
// other.
DEVICE void multiply_wide(float (&d)[64], const u32 (&a)[4], const void* b, u32 k) {
    // rows of 128 bytes, swizzled so; eight of them are 1024 bytes
    const u64 at = (shared_address(b) + 32 * k) >> 4 & 0x3fff;
    const u64 factor = u64{1} << 62 | u64{1024 >> 4} << 32 | u64{1} << 16 | at;
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
          "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(factor));
}
#endif

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

DEVICE u32 forgotten(u32 x) { return x; }
DEVICE Words load16_once(const void* at) { return load_vector<Words>(at); }
DEVICE void load_matrices(u32 (&m)[4], const void* row) { shim::load_matrices(m, row, false); }
DEVICE void load_matrices_transposed(u32 (&m)[4], const void* row) {
    shim::load_matrices(m, row, true);
}
DEVICE void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    shim::mma_f16(d, a, b0, b1);
}
DEVICE void mma_s8(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const i32 (&c)[4]) {
    shim::mma_s8<2>(d, a, {b0, b1}, c);
}
DEVICE void mma_s8_half(i32 (&d)[4], u32 a0, u32 a1, u32 b, const i32 (&c)[4]) {
    shim::mma_s8<1>(d, {a0, a1}, {b}, c);
}
template <u32 BYTES>
DEVICE void copy_small_early(void* to, const void* from, bool there) {
    shim::check_aligned(to, BYTES);
    shim::check_aligned(from, BYTES);
    shim::begin_copy(to, there ? from : nullptr, BYTES);
}
DEVICE void copy_early(void* to, const void* from, bool there) {
    copy_small_early<16>(to, from, there);
}
DEVICE void copies_begun() { shim::end_group_of_copies(); }
template <int LATER>
DEVICE void copied() { shim::wait_for_copies(LATER); }
DEVICE void written_for_products() {}
DEVICE void registers_written_for_products() {}
DEVICE void products_committed() {}
DEVICE void products_done() {}
DEVICE void multiply_wide(float (&d)[64], const u32 (&a)[4], const void* b, u32 k) {
    shim::multiply_wide(d, a, b, k);
}

#endif

DEVICE Words load16(const void* at) { return load_vector<Words>(at); }
DEVICE void store16(void* at, Words v) { store_vector<Words>(at, v); }

DEVICE float low_half(u32 pair) { return half_to_float(static_cast<u16>(pair)); }
DEVICE float high_half(u32 pair) { return half_to_float(static_cast<u16>(pair >> 16)); }
DEVICE float bf16_to_float(u16 b) { return as_float(static_cast<u32>(b) << 16); }

// Where eighth `eighth` of row `row` is among rows of 128 bytes: the rows of one column of eighths
// then lie in different banks.
DEVICE constexpr u32 swizzled(u32 row, u32 eighth) { return 128 * row + 16 * (eighth ^ row % 8); }

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
// The sums of `n` values (a power of two) over all lanes: a lane gets that of value
// lane / (32 / n). The trees are those of `lanes_sum`, and half of the values that are left
// change places at each step.
template <u32 n>
DEVICE float lanes_sums(float (&v)[n]) {
    u32 left = n;
#pragma unroll
    for (u32 o = WARP / 2; o > 0; o /= 2) {
        if (left == 1) {
            v[0] += __shfl_xor_sync(ALL_LANES, v[0], o);
            continue;
        }
        left /= 2;
        const bool upper = threadIdx.x & o;
#pragma unroll
        for (u32 i = 0; i < n / 2; ++i) {
            if (i >= left) continue;
            const float kept = upper ? v[i + left] : v[i], sent = upper ? v[i] : v[i + left];
            v[i] = kept + __shfl_xor_sync(ALL_LANES, sent, o);
        }
    }
    return v[0];
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
