// Enough of the Metal shading language to run a kernel body on a CPU: the threads of one threadgroup are coroutines.
// C headers only: those of C++ would be most of the time that a body takes to compile.
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

typedef unsigned int uint;
typedef unsigned short ushort;
struct uint3 { uint x, y, z; };

struct bfloat16_t {
    uint16_t bits;
    bfloat16_t() = default;
    explicit bfloat16_t(float value) {
        uint32_t raw;
        memcpy(&raw, &value, 4);
        bits = uint16_t((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16);
    }
    explicit operator float() const {
        uint32_t raw = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &raw, 4);
        return value;
    }
    explicit operator uint() const { return uint(float(*this)); }
};
typedef _Float16 half;

template <class To, class From>
To as_type(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    memcpy(&result, &value, sizeof(To));
    return result;
}

struct Lane {
    ucontext_t context;
    char stack[32768];
    bool done;
};
struct Barrier { uint waiting = 0, generation = 0; };

static Lane lanes[1024];
static ucontext_t home;
static uint size, current, alive, idle;
static bool stuck;
static uint3 place, size_of_group, group_place;
static Barrier group_barrier, simd_barriers[32];
static double slots[1024];

static void yield_lane() {
    uint from = current;
    do current = (current + 1) % size;
    while (lanes[current].done && current != from);
    if (current != from) swapcontext(&lanes[from].context, &lanes[current].context);
}

static void wait(Barrier& barrier, uint lanes_of_barrier) {
    uint generation = barrier.generation;
    if (++barrier.waiting == lanes_of_barrier) {
        barrier.waiting = 0;
        ++barrier.generation;
        idle = 0;
        return;
    }
    while (barrier.generation == generation) {
        // Nobody got past a barrier in a whole round: the lanes have diverged.
        if (++idle > 2 * size) {
            stuck = true;
            setcontext(&home);
        }
        yield_lane();
    }
}

static uint lanes_of_simd() { return size - current / 32 * 32 < 32 ? size % 32 : 32; }

template <class F, class Fold>
static F over_simd(F value, Fold fold) {
    slots[current] = double(value);
    Barrier& barrier = simd_barriers[current / 32];
    wait(barrier, lanes_of_simd());
    F result = F(fold(current / 32 * 32, lanes_of_simd()));
    wait(barrier, lanes_of_simd());
    return result;
}

template <class F> F simd_max(F value) {
    return over_simd(value, [](uint from, uint n) {
        double top = slots[from];
        for (uint i = from; i < from + n; ++i) top = slots[i] > top ? slots[i] : top;
        return top;
    });
}
template <class F> F simd_min(F value) {
    return over_simd(value, [](uint from, uint n) {
        double least = slots[from];
        for (uint i = from; i < from + n; ++i) least = slots[i] < least ? slots[i] : least;
        return least;
    });
}
template <class F> F simd_sum(F value) {
    return over_simd(value, [](uint from, uint n) {
        double sum = 0;
        for (uint i = from; i < from + n; ++i) sum += slots[i];
        return sum;
    });
}
template <class F> F simd_prefix_exclusive_sum(F value) {
    return over_simd(value, [](uint from, uint) {
        double sum = 0;
        for (uint i = from; i < current; ++i) sum += slots[i];
        return sum;
    });
}

// Each lane holds two elements of a matrix; a product is one step that all lanes of a simdgroup take together.
template <class F, int Columns, int Rows>
struct simdgroup_matrix {
    static_assert(Columns == 8 && Rows == 8);
    F elements[2];
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

static uint element_of_lane(uint which) { return current % 32 * 2 + which; }

template <class F, int Columns, int Rows>
simdgroup_matrix<F, Columns, Rows> make_filled_simdgroup_matrix(F value) { return {{value, value}}; }

template <class F>
void simdgroup_load(simdgroup_matrix<F, 8, 8>& into, const F* from, size_t stride, int = 0, bool transposed = false) {
    for (uint which = 0; which < 2; ++which) {
        uint row = element_of_lane(which) / 8, column = element_of_lane(which) % 8;
        into.elements[which] = transposed ? from[column * stride + row] : from[row * stride + column];
    }
}

template <class F>
void simdgroup_store(simdgroup_matrix<F, 8, 8> matrix, F* into, size_t stride) {
    for (uint which = 0; which < 2; ++which)
        into[element_of_lane(which) / 8 * stride + element_of_lane(which) % 8] = matrix.elements[which];
}

static float factors_of_simd[32][2][2][64];
static uint turns[1024];

template <class F>
void simdgroup_multiply_accumulate(
    simdgroup_matrix<F, 8, 8>& out, simdgroup_matrix<F, 8, 8> a, simdgroup_matrix<F, 8, 8> b, simdgroup_matrix<F, 8, 8> c
) {
    // Two sets of factors take turns, so that no lane overwrites what another still reads.
    auto& factors = factors_of_simd[current / 32][turns[current]++ % 2];
    for (uint which = 0; which < 2; ++which) {
        factors[0][element_of_lane(which)] = a.elements[which];
        factors[1][element_of_lane(which)] = b.elements[which];
    }
    wait(simd_barriers[current / 32], lanes_of_simd());
    for (uint which = 0; which < 2; ++which) {
        uint row = element_of_lane(which) / 8, column = element_of_lane(which) % 8;
        float sum = c.elements[which];
        for (uint k = 0; k < 8; ++k) sum += factors[0][row * 8 + k] * factors[1][k * 8 + column];
        out.elements[which] = sum;
    }
}

namespace mem_flags { enum { mem_threadgroup }; }
static void threadgroup_barrier(int) { wait(group_barrier, size); }

namespace metal {
inline float exp(float x) { return expf(x); }
inline float exp2(float x) { return exp2f(x); }
inline float log(float x) { return logf(x); }
template <class F> F max(F a, F b) { return a > b ? a : b; }
template <class F> F min(F a, F b) { return a < b ? a : b; }
template <class F> F fabs(F a) { return a < 0 ? -a : a; }
namespace precise {
inline float tanh(float x) { return tanhf(x); }
inline float rsqrt(float x) { return 1 / sqrtf(x); }
}
}

#define thread_position_in_threadgroup (uint3{current, 0, 0})
#define threadgroup_position_in_grid group_place
#define thread_position_in_grid (uint3{group_place.x * size_of_group.x + current, group_place.y, group_place.z})
#define thread_index_in_simdgroup (current % 32)
#define simdgroup_index_in_threadgroup (current / 32)
// No `device`: MLX hands small arrays over as `constant`, so a body that names the address space of an input is wrong.
#define threadgroup static

static void (*entry)();
static void lane_main() {
    entry();
    lanes[current].done = true;
    if (--alive == 0) setcontext(&home);
    yield_lane();
}

// False if lanes waited for ever.
static bool run_grid(void (*body)(), uint groups_x, uint groups_y, uint threads) {
    entry = body;
    stuck = false;
    size_of_group = {threads, 1, 1};
    size = threads;
    for (uint y = 0; y < groups_y; ++y)
        for (uint x = 0; x < groups_x; ++x) {
            group_place = {x, y, 0};
            alive = threads;
            for (Lane* each = lanes; each < lanes + threads; ++each) {
                Lane& lane = *each;
                lane.done = false;
                getcontext(&lane.context);
                lane.context.uc_stack.ss_sp = lane.stack;
                lane.context.uc_stack.ss_size = sizeof lane.stack;
                lane.context.uc_link = nullptr;
                makecontext(&lane.context, lane_main, 0);
            }
            for (Barrier& barrier : simd_barriers) barrier = {};
            group_barrier = {};
            for (uint& turn : turns) turn = 0;
            current = idle = 0;
            swapcontext(&home, &lanes[0].context);
            if (stuck) return false;
        }
    return true;
}
