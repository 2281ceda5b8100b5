// A GPU of one processor: blocks run one after another. Threads of a block run one after another too, each until it
// waits for the others (a fiber each, where the text has barriers or shuffles), in an order that can be turned round.
#include <ucontext.h>
#define __global__
#define __device__ static
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __ldg(place) (*(place))
#define __ldcs(place) (*(place))
#define __stcs(place, value) (*(place) = (value))
#define C10_CUDA_KERNEL_LAUNCH_CHECK()
#define FULL 0xffffffffu

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

// Few headers: they would take longer to read than the rest.
typedef long int64_t;
typedef unsigned long uint64_t;
typedef int int32_t;
typedef unsigned int uint32_t;
extern "C" {
float fmaxf(float, float), fminf(float, float), powf(float, float), fmodf(float, float), copysignf(float, float);
float fabsf(float), sqrtf(float), expf(float), exp2f(float), expm1f(float), logf(float), log2f(float), log1pf(float);
float tanhf(float), sinf(float), cosf(float), erff(float), floorf(float), ceilf(float), rintf(float), cbrtf(float);
float fmaf(float, float, float);
double fmax(double, double), fmin(double, double), fabs(double), sqrt(double), exp(double), log(double), tanh(double);
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
int snprintf(char*, size_t, const char*, ...);
}
#define isnan(x) ((x) != (x))

struct dim3 {
    unsigned int x, y, z;
    dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};
static dim3 blockIdx, threadIdx, blockDim, gridDim;
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(4) ushort2 { unsigned short x, y; };
struct __align__(8) ushort4 { unsigned short x, y, z, w; };
struct __align__(8) int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
static long long min(long long a, long long b) { return a < b ? a : b; }
static long long max(long long a, long long b) { return a > b ? a : b; }
static float min(float a, float b) { return fminf(a, b); }
static float max(float a, float b) { return fmaxf(a, b); }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static float __int_as_float(int x) { float f; memcpy(&f, &x, 4); return f; }
static int __float_as_int(float f) { int x; memcpy(&x, &f, 4); return x; }
static float __uint_as_float(unsigned int x) { return __int_as_float((int)x); }
static unsigned int __float_as_uint(float f) { return (unsigned int)__float_as_int(f); }
template <class T> T atomicAdd(T* place, T value) { T old = *place; *place += value; return old; }
template <class T> T atomicMax(T* place, T value) { T old = *place; if (value > old) *place = value; return old; }

static char failure[200];
static bool dry, backwards;
alignas(16) static char dynamic_shared[232448];

// --- threads that wait for each other -------------------------------------------------------------------------

enum State { READY, AT_BLOCK, AT_WARP, DONE };
static const int STACK = 65536;
static char stacks[1024][STACK];
static ucontext_t beginnings[1024];
static void *home[5], *fibers[1024][5];  // jumps are many times cheaper than changes of context
static bool begun[1024];
static State states[1024];
static long long exchanged[1024];
static int current, threads;
static void (*work)(void*);
static void* work_data;

static void place_thread(int number) {
    current = number;
    threadIdx.x = number % blockDim.x;
    threadIdx.y = number / blockDim.x % blockDim.y;
    threadIdx.z = number / blockDim.x / blockDim.y;
}
__attribute__((noinline)) static void leave() { __builtin_longjmp(home, 1); }
static void enter() {
    work(work_data);
    states[current] = DONE;
    leave();
}
__attribute__((noinline)) static void wait(State state) {
    states[current] = state;
    if (!__builtin_setjmp(fibers[current])) leave();
}
__attribute__((noinline)) static void jump(int number) {
    if (begun[number]) __builtin_longjmp(fibers[number], 1);
    begun[number] = true;
    setcontext(&beginnings[number]);
}
__attribute__((noinline)) static void resume(int number) {
    place_thread(number);
    if (!__builtin_setjmp(home)) jump(number);
}
static void __syncthreads() { wait(AT_BLOCK); }
static void __syncwarp(unsigned int mask = FULL) { wait(AT_WARP); }

static bool release() {  // lets go on who waits for nobody any more
    bool whole = true, any = false;
    for (int i = 0; i < threads; ++i) whole &= states[i] == AT_BLOCK || states[i] == DONE;
    for (int first = 0; first < threads; first += 32) {
        bool warp = first + 32 <= threads;
        for (int i = first; i < threads && i < first + 32; ++i) warp &= states[i] == AT_WARP;
        for (int i = first; i < threads && i < first + 32; ++i)
            if (warp || (whole && states[i] == AT_BLOCK)) states[i] = READY, any = true;
    }
    return any;
}
static void run_together() {
    for (int i = 0; i < threads; ++i) {
        states[i] = READY, begun[i] = false;
        getcontext(&beginnings[i]);
        beginnings[i].uc_stack.ss_sp = stacks[i];
        beginnings[i].uc_stack.ss_size = STACK;
        makecontext(&beginnings[i], enter, 0);
    }
    for (;;) {
        int left = 0;
        for (int step = 0; step < threads; ++step) {
            const int i = backwards ? threads - 1 - step : step;
            if (states[i] == READY) resume(i);
            left += states[i] != DONE;
        }
        if (left == 0) return;
        if (!release()) {
            snprintf(failure, sizeof failure, "threads of block (%u, %u, %u) wait for others that never come",
                     blockIdx.x, blockIdx.y, blockIdx.z);
            return;
        }
    }
}
template <class T> T from_lane(T value, int lane, bool inside) {
    static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
    const int me = current;
    memcpy(&exchanged[me], &value, sizeof(T));
    __syncwarp();
    T got = value;
    if (inside) memcpy(&got, &exchanged[me / 32 * 32 + lane], sizeof(T));
    __syncwarp();
    return got;
}
template <class T> T __shfl_sync(unsigned int, T value, int lane, int width = 32) {
    return from_lane(value, current % 32 / width * width + lane % width, true);
}
template <class T> T __shfl_xor_sync(unsigned int, T value, int step, int width = 32) {
    const int other = current % 32 ^ step;
    return from_lane(value, other, other / width <= current % 32 / width);
}
template <class T> T __shfl_up_sync(unsigned int, T value, unsigned int step, int width = 32) {
    const int other = current % 32 - (int)step;
    return from_lane(value, other, other >= current % 32 / width * width);
}
template <class T> T __shfl_down_sync(unsigned int, T value, unsigned int step, int width = 32) {
    const int other = current % 32 + (int)step;
    return from_lane(value, other, other < (current % 32 / width + 1) * width);
}
static unsigned int __ballot_sync(unsigned int, int vote) {
    unsigned int all = 0;
    for (int lane = 0; lane < 32; ++lane) all |= (__shfl_sync(FULL, vote, lane) ? 1u : 0u) << lane;
    return all;
}

// --- tensor cores -----------------------------------------------------------------------------------------------

static unsigned int fragments[1024][6];
static float from_half(unsigned int bits, bool brain) {
    if (brain) return __uint_as_float(bits << 16);
    unsigned short h = (unsigned short)bits;
    _Float16 v;
    memcpy(&v, &h, 2);
    return (float)v;
}
// As PTX's manual lays out mma.m16n8k16: lane 4 * (row % 8) + term % 8 / 2 holds left[row][term] in register
// row / 8 + 2 * (term / 8), lane 4 * col + term % 8 / 2 right[term][col] in register term / 8; the lower half has the
// even term. A lane's sums are rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next.
static void multiply_fragments(float* sums, const unsigned int* left, const unsigned int* right, bool brain) {
    const int me = current, first = me / 32 * 32, lane = me % 32;
    memcpy(fragments[me], left, 16);
    memcpy(fragments[me] + 4, right, 8);
    __syncwarp();
    for (int place = 0; place < 4; ++place) {
        const int row = lane / 4 + place / 2 * 8, col = lane % 4 * 2 + place % 2;
        for (int term = 0; term < 16; ++term) {
            const unsigned int a = fragments[first + row % 8 * 4 + term % 8 / 2][row / 8 + term / 8 * 2];
            const unsigned int b = fragments[first + col * 4 + term % 8 / 2][4 + term / 8];
            const int shift = term % 2 * 16;
            sums[place] += from_half(a >> shift & 0xffff, brain) * from_half(b >> shift & 0xffff, brain);
        }
    }
    __syncwarp();
}

// --- launches -------------------------------------------------------------------------------------------------

template <class F> void run_thread(void* data) { (*(F*)data)(); }
template <class F> void launch_checked(dim3 grid, dim3 block, size_t shared, F body) {
    const unsigned long long all = (unsigned long long)block.x * block.y * block.z;
    if (!(grid.x && grid.y && grid.z && grid.x < 1u << 31 && grid.y < 65536 && grid.z < 65536 && all > 0 &&
          all <= 1024 && block.z <= 64 && shared <= 48 * 1024)) {
        snprintf(failure, sizeof failure,
                 "no GPU launches a grid of (%u, %u, %u), blocks of (%u, %u, %u), %zu bytes of shared memory",
                 grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
        return;
    }
    if (dry) return;
    gridDim = grid, blockDim = block, threads = (int)all;
    work = run_thread<F>, work_data = &body;
    for (unsigned int z = 0; z < grid.z; ++z)
        for (unsigned int y = 0; y < grid.y; ++y)
            for (unsigned int x = 0; x < grid.x && !failure[0]; ++x) {
                blockIdx = dim3(x, y, z);
#ifdef TOGETHER
                memset(dynamic_shared, 0xff, shared);
                run_together();
#else
                for (int i = 0; i < threads; ++i) place_thread(backwards ? threads - 1 - i : i), body();
#endif
            }
}
struct Stream {};
template <class F> void launch(dim3 grid, dim3 block, F body) { launch_checked(grid, block, 0, body); }
template <class F> void launch(dim3 grid, dim3 block, size_t shared, F body) {
    launch_checked(grid, block, shared, body);
}
template <class F> void launch(dim3 grid, dim3 block, size_t shared, Stream, F body) {
    launch_checked(grid, block, shared, body);
}

// --- calls from Python ------------------------------------------------------------------------------------------

namespace c10 { namespace cuda { static Stream getCurrentCUDAStream() { return Stream(); } } }
namespace at { namespace cuda { using c10::cuda::getCurrentCUDAStream; } }
namespace torch {
struct Tensor {
    void* pointer;
    long long sizes[8];
    long long dims;
    template <class T = void> T* data_ptr() const { return (T*)pointer; }
    template <class T = void> T* mutable_data_ptr() const { return (T*)pointer; }
    template <class T = void> const T* const_data_ptr() const { return (T*)pointer; }
    long long size(int axis) const { return sizes[axis < 0 ? axis + dims : axis]; }
    long long dim() const { return dims; }
    long long numel() const {
        long long all = 1;
        for (int axis = 0; axis < dims; ++axis) all *= sizes[axis];
        return all;
    }
};
}  // namespace torch

template <class T> struct Plain { typedef T type; };
template <class T> struct Plain<T&> { typedef T type; };
template <class T> struct Plain<const T> { typedef T type; };
template <class T> struct Plain<const T&> { typedef T type; };
template <class T> T taken(void** values, int& place) { return *(T*)values[place++]; }
template <class... P> void run_kernel(void (*kernel)(P...), int given, void** values, const int* sizes) {
    // As cuLaunchKernel does it: bytes are read as the kernel's parameters say, whatever was passed.
    if (given != (int)sizeof...(P)) {
        snprintf(failure, sizeof failure, "the kernel takes %d arguments, got %d", (int)sizeof...(P), given);
        return;
    }
    launch_checked(dim3(sizes[0], sizes[1], sizes[2]), dim3(sizes[3], sizes[4], sizes[5]), sizes[6], [&] {
        int place = 0;
        struct { void (*kernel)(P...); } held = {kernel};
        struct Call {
            void (*kernel)(P...);
            Call(void (*kernel)(P...), P... values) { kernel(values...); }
        } call{held.kernel, taken<P>(values, place)...};
    });
}
template <class... P> void run_host(void (*function)(P...), int given, void** values) {
    // As pybind11 does it: Python passes integers as 64 bits, and conversion goes by the function's parameters.
    if (given != (int)sizeof...(P)) {
        snprintf(failure, sizeof failure, "the function takes %d arguments, got %d", (int)sizeof...(P), given);
        return;
    }
    struct Reader {
        static torch::Tensor read(void* value, torch::Tensor*) { return *(torch::Tensor*)value; }
        static float read(void* value, float*) { return (float)*(double*)value; }
        static double read(void* value, double*) { return *(double*)value; }
        static int read(void* value, int*) { return (int)*(long long*)value; }
        static bool read(void* value, bool*) { return *(long long*)value != 0; }
        static long read(void* value, long*) { return (long)*(long long*)value; }
        static long long read(void* value, long long*) { return *(long long*)value; }
    };
    int place = 0;
    struct Call {
        Call(void (*function)(P...), typename Plain<P>::type... values) { function(values...); }
    } call{function, Reader::read(values[place++], (typename Plain<P>::type*)0)...};
}
extern "C" {
void set_mode(int is_dry, int turned) { dry = is_dry, backwards = turned, failure[0] = 0; }
const char* get_failure() { return failure; }
}
