// Runs one launch: blocks one after the other, the threads of a block as fibers that give way where
// they wait.
#include "../compat.cuh"

#include <stdarg.h>
#include <stdio.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace shim {

constexpr size_t STACK = 128 * 1024;
constexpr size_t ARENA = 64 * 1024;
// What a kernel may have without asking for more when it is launched.
constexpr size_t SHARED_LIMIT = 48 * 1024;
// Between shared arrays; never written by a correct kernel.
constexpr size_t FENCE = 64;
constexpr int POISON = 0xff;

enum class State { runnable, at_barrier, in_exchange, ended };

struct Copy {
    void* to;
    const void* from;
    size_t bytes;
};

struct Fiber {
    Index thread;
    State state;
    const char* file;
    int line;
    unsigned exchanges;
    // Groups that have not been waited for, and the one that has not ended.
    std::vector<std::vector<Copy>> copies;
    std::unique_ptr<char[]> stack;
#if defined(__x86_64__) || defined(__aarch64__)
    void* sp;
#else
    ucontext_t context;
#endif
};

struct Warp {
    Gift gifts[2][32];
};

struct Shared {
    const void* key;
    size_t at, bytes;
};

Index block, block_size, grid_size;
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static std::vector<Shared> arrays;
alignas(256) static unsigned char arena[ARENA];
static size_t arena_used;
// What a launch asks for lies between fences too.
static std::vector<unsigned char> launched;
static size_t launched_at, launched_bytes;
static Fiber* current;
static void (*kernel)(const void*);
static const void* params;
static char message[512];
static bool failed;

static unsigned number(const Fiber& f) { return static_cast<unsigned>(&f - fibers.data()); }
const Index& thread() { return current->thread; }
unsigned lane() { return number(*current) % 32; }

// From one stack to another: what the callee must keep goes on the old stack and comes from the new
// one.
#if defined(__x86_64__)
static void* main_sp;
extern "C" void octavo_shim_switch(void** save, void* to);
asm(R"(
.text
.hidden octavo_shim_switch
.globl octavo_shim_switch
octavo_shim_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");
static void prepare(Fiber& f, void (*entry)()) {
    uintptr_t top = (reinterpret_cast<uintptr_t>(f.stack.get()) + STACK) & ~uintptr_t{15};
    void** sp = reinterpret_cast<void**>(top);
    *--sp = nullptr;  // where `entry` would return to; it does not
    *--sp = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    f.sp = sp;
}
static void enter(Fiber& f) { octavo_shim_switch(&main_sp, f.sp); }
static void leave(Fiber& f) { octavo_shim_switch(&f.sp, main_sp); }
#elif defined(__aarch64__)
static void* main_sp;
extern "C" void octavo_shim_switch(void** save, void* to);
asm(R"(
.text
.hidden octavo_shim_switch
.globl octavo_shim_switch
octavo_shim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
static void prepare(Fiber& f, void (*entry)()) {
    uintptr_t top = (reinterpret_cast<uintptr_t>(f.stack.get()) + STACK) & ~uintptr_t{15};
    void** sp = reinterpret_cast<void**>(top - 160);
    memset(sp, 0, 160);
    sp[11] = reinterpret_cast<void*>(entry);
    f.sp = sp;
}
static void enter(Fiber& f) { octavo_shim_switch(&main_sp, f.sp); }
static void leave(Fiber& f) { octavo_shim_switch(&f.sp, main_sp); }
#else
static ucontext_t main_context;
static void prepare(Fiber& f, void (*entry)()) {
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, entry, 0);
}
static void enter(Fiber& f) { swapcontext(&main_context, &f.context); }
static void leave(Fiber& f) { swapcontext(&f.context, &main_context); }
#endif

static void say(const char* format, va_list arguments) {
    const int n = snprintf(message, sizeof message, "block (%u, %u, %u): ", block.x, block.y,
                           block.z);
    vsnprintf(message + n, sizeof message - static_cast<size_t>(n), format, arguments);
    failed = true;
}

// From the scheduler.
static void report(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

// From a kernel. The fiber is never entered again: kernels have nothing to clean up.
void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    for (;;) leave(*current);
}

static void wait(State state, const char* file, int line) {
    Fiber& f = *current;
    f.state = state;
    f.file = file;
    f.line = line;
    leave(f);
}

void barrier(const char* file, int line) { wait(State::at_barrier, file, line); }

const Gift* exchange(const char* file, int line, const void* gift, size_t bytes) {
    Warp& warp = warps[number(*current) / 32];
    const unsigned turn = current->exchanges++ % 2;
    if (bytes > 0) memcpy(warp.gifts[turn][lane()], gift, bytes);
    wait(State::in_exchange, file, line);
    return warp.gifts[turn];
}

void* shared(const void* key, size_t bytes) {
    for (const Shared& a : arrays)
        if (a.key == key) return arena + a.at;
    const size_t at = (arena_used + FENCE + 15) / 16 * 16;
    size_t all = bytes;
    for (const Shared& a : arrays) all += a.bytes;
    if (all > SHARED_LIMIT)
        fail("%zu bytes of shared memory: expected at most %zu", all, SHARED_LIMIT);
    if (at + bytes + FENCE > ARENA) fail("more shared arrays than the shim has room for");
    arrays.push_back({key, at, bytes});
    arena_used = at + bytes;
    return arena + at;
}

void begin_copy(void* to, const void* from, size_t bytes) {
    memset(to, POISON, bytes);
    current->copies.back().push_back({to, from, bytes});
}

void end_group_of_copies() { current->copies.emplace_back(); }

void wait_for_copies(size_t later) {
    std::vector<std::vector<Copy>>& copies = current->copies;
    while (copies.size() > later + 1) {
        for (const Copy& copy : copies.front()) {
            if (copy.from == nullptr) {
                memset(copy.to, 0, copy.bytes);
            } else {
                memcpy(copy.to, copy.from, copy.bytes);
            }
        }
        copies.erase(copies.begin());
    }
}

void* launched_shared(size_t bytes) {
    if (bytes > launched_bytes)
        fail("%zu bytes of launched shared memory: %zu were asked for", bytes, launched_bytes);
    return launched.data() + launched_at;
}

static void entry() {
    kernel(params);
    current->state = State::ended;
    leave(*current);
}

// Lets these fibers go on, if all of them wait for each other at one place.
static bool release(size_t first, size_t last, State state, const char* what) {
    const Fiber* waiting = nullptr;
    const Fiber* ended = nullptr;
    for (size_t i = first; i < last; ++i) {
        const Fiber& f = fibers[i];
        if (f.state == State::ended) {
            ended = &f;
        } else if (f.state != state) {
            return false;
        } else if (waiting == nullptr) {
            waiting = &f;
        } else if (f.line != waiting->line || strcmp(f.file, waiting->file) != 0) {
            report("%s: thread %u waits at %s:%d, thread %u at %s:%d", what, number(*waiting),
                   waiting->file, waiting->line, number(f), f.file, f.line);
            return false;
        }
    }
    if (waiting == nullptr) return false;
    if (ended != nullptr) {
        report("%s: thread %u waits at %s:%d, thread %u has ended", what, number(*waiting),
               waiting->file, waiting->line, number(*ended));
        return false;
    }
    for (size_t i = first; i < last; ++i) fibers[i].state = State::runnable;
    return true;
}

static void report_deadlock() {
    const Fiber* at_barrier = nullptr;
    const Fiber* in_exchange = nullptr;
    for (const Fiber& f : fibers) {
        if (f.state == State::at_barrier) at_barrier = &f;
        if (f.state == State::in_exchange) in_exchange = &f;
    }
    if (at_barrier != nullptr && in_exchange != nullptr) {
        report("deadlock: thread %u waits for its block at %s:%d, thread %u for its warp at %s:%d",
               number(*at_barrier), at_barrier->file, at_barrier->line, number(*in_exchange),
               in_exchange->file, in_exchange->line);
    } else {
        report("deadlock");
    }
}

// Writing past a shared array shows in the fences around it.
static void check_fences() {
    size_t from = 0;
    for (size_t i = 0; i <= arrays.size(); ++i) {
        const size_t to = i < arrays.size() ? arrays[i].at : arena_used + FENCE;
        for (size_t at = from; at < to; ++at) {
            if (arena[at] != POISON) {
                report("shared memory was written outside of its arrays");
                return;
            }
        }
        if (i < arrays.size()) from = arrays[i].at + arrays[i].bytes;
    }
    for (size_t at = 0; at < launched.size(); ++at) {
        if (at == launched_at) at += launched_bytes;
        if (launched[at] != POISON) {
            report("launched shared memory was written outside of its bytes");
            return;
        }
    }
}

// Puts 0, 1, ... in the order of a schedule.
static void arrange(std::vector<size_t>& order, size_t n, unsigned schedule,
                    std::mt19937_64& random) {
    order.resize(n);
    for (size_t i = 0; i < n; ++i) order[i] = schedule == 1 ? n - 1 - i : i;
    if (schedule != 2) return;
    for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
}

// Lets the lanes of a warp run to where they wait. False if none could.
static bool run_lanes(size_t first, unsigned schedule, std::mt19937_64& random) {
    static std::vector<size_t> order;
    arrange(order, 32, schedule, random);
    bool any = false;
    for (size_t l : order) {
        Fiber& f = fibers[first + l];
        if (f.state != State::runnable) continue;
        any = true;
        current = &f;
        enter(f);
        if (failed) return false;
    }
    return any;
}

// A warp goes on alone as far as it can before the next one starts: whatever it needs of the others
// that no barrier brings is not there yet. In random order it may be stopped at any exchange.
static void run_block(unsigned schedule, std::mt19937_64& random) {
    static std::vector<size_t> order;
    memset(arena, POISON, sizeof arena);
    std::fill(launched.begin(), launched.end(), static_cast<unsigned char>(POISON));
    const size_t n = fibers.size();
    for (size_t i = 0; i < n; ++i) {
        Fiber& f = fibers[i];
        const unsigned t = static_cast<unsigned>(i);
        const unsigned plane = block_size.x * block_size.y;
        f.thread = {t % block_size.x, t / block_size.x % block_size.y, t / plane};
        f.state = State::runnable;
        f.exchanges = 0;
        f.copies.assign(1, {});
        prepare(f, entry);
    }
    for (;;) {
        bool progress = false;
        arrange(order, n / 32, schedule, random);
        for (size_t w : order) {
            do {
                progress |= run_lanes(32 * w, schedule, random);
                if (failed) return;
            } while (release(32 * w, 32 * w + 32, State::in_exchange, "warp") &&
                     (schedule != 2 || random() % 2 == 0));
            if (failed) return;
        }
        bool all_ended = true;
        for (const Fiber& f : fibers) all_ended = all_ended && f.state == State::ended;
        if (all_ended) break;
        progress |= release(0, n, State::at_barrier, "barrier");
        if (failed) return;
        if (!progress) {
            report_deadlock();
            return;
        }
    }
    check_fences();
}

}  // namespace shim

// Runs a kernel and returns what was wrong, or null. Schedules: 0 forward, 1 backward, 2 random.
extern "C" const char* octavo_shim_launch(void (*kernel)(const void*), const void* params,
                                          const unsigned* grid, unsigned threads, unsigned shared,
                                          unsigned schedule, unsigned long long seed) {
    using namespace shim;
    if (threads == 0 || threads % 32 != 0 || threads > 1024)
        return "expected whole warps, at most 32 of them";
    shim::kernel = kernel;
    shim::params = params;
    grid_size = {grid[0], grid[1], grid[2]};
    block_size = {threads, 1, 1};
    failed = false;
    arrays.clear();
    arena_used = 0;
    launched_bytes = shared;
    launched.resize(shared == 0 ? 0 : shared + 1024 + FENCE);
    launched_at = -reinterpret_cast<uintptr_t>(launched.data()) % 1024;
    fibers.resize(threads);
    warps.resize(threads / 32);
    for (Fiber& f : fibers)
        if (f.stack == nullptr) f.stack.reset(new char[STACK]);
    std::mt19937_64 random(seed);
    for (unsigned z = 0; z < grid[2]; ++z) {
        for (unsigned y = 0; y < grid[1]; ++y) {
            for (unsigned x = 0; x < grid[0]; ++x) {
                block = {x, y, z};
                run_block(schedule, random);
                if (failed) return message;
            }
        }
    }
    return nullptr;
}
