// Enough of the Metal shading language to run a kernel body on a CPU: the threads of one threadgroup are coroutines.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

typedef unsigned int uint;
struct uint3 { uint x, y, z; };

struct bfloat16_t {
    uint16_t bits;
    bfloat16_t() = default;
    explicit bfloat16_t(float value) {
        uint32_t raw;
        std::memcpy(&raw, &value, 4);
        bits = uint16_t((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16);
    }
    explicit operator float() const {
        uint32_t raw = uint32_t(bits) << 16;
        float value;
        std::memcpy(&value, &raw, 4);
        return value;
    }
    explicit operator uint() const { return uint(float(*this)); }
};
typedef _Float16 half;

struct Lane {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
};
struct Barrier { uint waiting = 0, generation = 0; };

static std::vector<Lane> lanes;
static ucontext_t home;
static uint current, alive;
static uint3 place, size_of_group, group_place;
static Barrier group_barrier, simd_barriers[32];
static double slots[1024];

static void yield_lane() {
    uint from = current;
    do current = (current + 1) % lanes.size();
    while (lanes[current].done && current != from);
    if (current != from) swapcontext(&lanes[from].context, &lanes[current].context);
}

static void wait(Barrier& barrier, uint size) {
    uint generation = barrier.generation;
    if (++barrier.waiting == size) {
        barrier.waiting = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == generation) yield_lane();
}

static uint lanes_of_simd() { return std::min<uint>(32, uint(lanes.size()) - current / 32 * 32); }

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
    return over_simd(value, [](uint from, uint n) { return *std::max_element(slots + from, slots + from + n); });
}
template <class F> F simd_min(F value) {
    return over_simd(value, [](uint from, uint n) { return *std::min_element(slots + from, slots + from + n); });
}
template <class F> F simd_sum(F value) {
    return over_simd(value, [](uint from, uint n) { double sum = 0; for (uint i = 0; i < n; ++i) sum += slots[from + i]; return sum; });
}
template <class F> F simd_prefix_exclusive_sum(F value) {
    return over_simd(value, [](uint from, uint) { double sum = 0; for (uint i = from; i < current; ++i) sum += slots[i]; return sum; });
}

namespace mem_flags { enum { mem_threadgroup }; }
static void threadgroup_barrier(int) { wait(group_barrier, uint(lanes.size())); }

namespace metal {
inline float exp(float x) { return std::exp(x); }
inline float exp2(float x) { return std::exp2(x); }
inline float log(float x) { return std::log(x); }
template <class F> F max(F a, F b) { return a > b ? a : b; }
template <class F> F min(F a, F b) { return a < b ? a : b; }
template <class F> F fabs(F a) { return a < 0 ? -a : a; }
namespace precise { inline float tanh(float x) { return std::tanh(x); } }
}

#define thread_position_in_threadgroup (uint3{current, 0, 0})
#define threadgroup_position_in_grid group_place
#define thread_position_in_grid (uint3{group_place.x * size_of_group.x + current, group_place.y, group_place.z})
#define thread_index_in_simdgroup (current % 32)
#define simdgroup_index_in_threadgroup (current / 32)
#define device
#define threadgroup static

static void (*entry)();
static void lane_main() {
    entry();
    lanes[current].done = true;
    if (--alive == 0) setcontext(&home);
    yield_lane();
}

static void run_grid(void (*body)(), uint groups_x, uint groups_y, uint threads) {
    entry = body;
    size_of_group = {threads, 1, 1};
    lanes.resize(threads);
    for (Lane& lane : lanes) lane.stack.resize(32768);
    for (uint y = 0; y < groups_y; ++y)
        for (uint x = 0; x < groups_x; ++x) {
            group_place = {x, y, 0};
            alive = threads;
            for (Lane& lane : lanes) {
                lane.done = false;
                getcontext(&lane.context);
                lane.context.uc_stack.ss_sp = lane.stack.data();
                lane.context.uc_stack.ss_size = lane.stack.size();
                lane.context.uc_link = nullptr;
                makecontext(&lane.context, lane_main, 0);
            }
            current = 0;
            swapcontext(&home, &lanes[0].context);
        }
}
