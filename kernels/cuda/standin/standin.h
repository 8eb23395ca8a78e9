// A stand-in for NVIDIA's driver (libcuda.so.1), for tests: the functions that the CUDA backend
// calls, as strict as their documentation allows. Kernels are found in real cubins and run by the
// CPU shim (../host) on the same addresses.
//
// Work is queued for each stream and runs at once, as late as it may, or whenever a seed says so.
// NCCL's functions (libnccl.so) are here too, as far as ranks of one process gather with them: in
// the queues of all ranks, which wait for each other there.
//
// Memory of a device can be touched while work runs and at no other time; it is NaN at first and
// lies between pages that nobody may touch. What a driver would answer with an error code is
// answered so. What a driver would not notice, or what its documentation calls undefined, ends the
// process with a line: a fault of the caller is not to be overlooked.
//
// What this cannot show: time, and whatever the documentation does not say.
#ifndef OCTAVO_STANDIN
#define OCTAVO_STANDIN

#include <stddef.h>
#include <stdint.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace standin {

typedef uint64_t Address;
typedef uint64_t Handle;

// Of cuda.h's CUresult, those that are answered here.
enum Code : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_WRONG_THREAD = 908,
};

enum class Execute { eager, late, at_random };

struct DeviceSettings {
    int major = 9, minor = 0;
    // What there is, and what cuMemGetInfo says is free. A device with memory of its own gives no
    // more than that.
    size_t memory = size_t{4} << 30, free = size_t{4} << 30;
    bool integrated = false;
    // cuDeviceGet fails.
    bool broken = false;
};

struct Settings {
    int driver = 13000;
    std::vector<DeviceSettings> devices{DeviceSettings{}};
    Execute execute = Execute::late;
    uint64_t seed = 1;
    // After so many calls to cuMemGetInfo, another program takes memory of every device.
    uint64_t taken_after = 0;
    size_t taken = 0;
    // Page-locked memory that there is.
    size_t pinned = size_t{1} << 30;
    // Which call from now on fails, counted from 1, and with what.
    uint64_t fail_call = 0;
    int fail_code = 0;
    // Every call of this name fails.
    std::string fail_name;
    // Which launch fails when it runs, counted from 1.
    uint64_t kernel_fails = 0;
    // Which launch does nothing, and says nothing of it.
    uint64_t kernel_idles = 0;
    // Keep the calls' names.
    bool trace = false;
};

struct Context {
    int device;
    unsigned references;
    // An error that every later call repeats.
    int sticky;
};

// What a cubin says of a kernel, and the shim's function of its name.
struct Kernel {
    std::string name;
    uint32_t parameter_bytes = 0, n_parameters = 0;
    uint32_t most_threads = 1024;
    uint64_t shared_bytes = 0;
    int toolkit = 0;
};

struct Image {
    int sm = 0;
    // 129 is CUDA 12.9.
    int toolkit = 0;
    std::vector<Kernel> kernels;
};

typedef const char* (*LaunchFunction)(void (*)(const void*), const void*, const unsigned*, unsigned,
                                      unsigned, unsigned, unsigned long long);

struct Function {
    Handle module;
    Kernel kernel;
    void (*entry)(const void*);
    LaunchFunction launch;
    // Bytes of shared memory that a launch may ask for.
    unsigned most_launched = 48 * 1024;
};

// One broadcast of a gather, as a rank asks for it: what the root sends, where this rank wants it.
struct Sent {
    int root;
    Address from, to;
    size_t n;
};

struct Operation {
    enum Kind { launch, upload, download, copy, event, gather };
    explicit Operation(Kind of_kind) : kind(of_kind) {}
    Kind kind;
    Handle function = 0;
    unsigned grid[3] = {0, 0, 0}, threads = 0, shared = 0;
    // Parameters, or what an upload read when it was called.
    std::vector<unsigned char> bytes;
    // Of copies: `host` is where an upload reads when it runs (0: it did already), or where a
    // download writes.
    Address to = 0, from = 0;
    unsigned char* host = nullptr;
    size_t n = 0;
    // Of what a page-locked source held when it was called.
    uint64_t hash = 0;
    Handle event_handle = 0;
    uint64_t ticket = 0;
    // Of gathers: whose, which of theirs, and what.
    Handle communicator = 0;
    uint64_t number = 0;
    std::vector<Sent> sent;
};

// A rank as NCCL has it.
struct Communicator {
    Context* context;
    uint64_t meeting;
    int rank;
    // Gathers that were queued.
    uint64_t begun = 0;
};

// The ranks that find each other by one id.
struct Meeting {
    std::map<int, Handle> ranks;
    // What all of them are told if it failed.
    int failed = 0;
};

struct Stream {
    Context* context;
    std::deque<Operation> queue;
    bool capturing = false, invalidated = false;
    std::thread::id capturer;
    std::vector<Operation> captured;
};

struct Event {
    Context* context;
    // The record that is waited for, and whether it was reached.
    uint64_t ticket = 0;
    bool reached = true;
    Handle stream = 0;
};

// Of a device, or of the host and page-locked. Around it lie a fence to the ends of its pages, and
// a guard page each.
struct Block {
    Context* context;
    unsigned char* map;
    size_t mapped;
    unsigned char* at;
    size_t n;
};

struct Module {
    Context* context;
    Image image;
};

struct Graph {
    Context* context;
    std::vector<Operation> operations;
    bool executable;
};

struct State {
    Settings settings;
    bool initialized = false;
    std::mt19937_64 random{1};
    uint64_t calls = 0, launches_run = 0, tickets = 0, leaks = 0, free_asked = 0;
    // The last stream created; small numbers are streams that always exist.
    Handle handles = 0x1000;
    std::vector<const char*> names;
    std::map<int, std::unique_ptr<Context>> primary;
    std::map<Handle, Stream> streams;
    std::map<Handle, Event> events;
    std::map<Address, Block> memory, pinned;
    std::map<Handle, Module> modules;
    std::map<Handle, Function> functions;
    // Graphs and what they are instantiated as.
    std::map<Handle, Graph> graphs;
    std::map<Handle, Communicator> communicators;
    std::map<uint64_t, Meeting> meetings;
};

State& state();
std::recursive_mutex& mutex();

// settings.cpp
void configure(const char* text);
[[noreturn]] void fault(const char* format, ...);
void note(const char* format, ...);

// cubin.cpp
bool read_image(const void* bytes, Image& image);
bool find_kernel(const std::string& name, Function& function);

// memory.cpp
Code allocate(Context& context, std::map<Address, Block>& blocks, size_t n, bool of_device,
              Address& at);
void release(std::map<Address, Block>& blocks, Address at);
const Block* block_of(const std::map<Address, Block>& blocks, Address at, size_t n);
size_t used(const Context& context);
uint64_t hash_of(const unsigned char* at, size_t n);
void open_memory(bool open);
void check_fences();

// gather.cpp
// Whether all ranks have queued what this one has.
bool all_gather(const Operation& operation);
// Runs the gather that is next on a stream, for all ranks, when all have come to it.
void run_gather(Stream& stream);
// Somebody who waits for other ranks looks again.
void tell_ranks();
// Waits until somebody has told.
void wait_for_ranks();

// queue.cpp
// Runs what comes up to a ticket, and waits for other ranks where it gathers with them.
void run_until(Stream& stream, uint64_t last);
Code enqueue(Stream& stream, Operation operation);
// Runs what a stream has queued, up to a ticket: all of it if that is 0.
void drain(Stream& stream, uint64_t ticket);
void run_some();
// Memory may be freed while others than its user have work queued, and waits for them.
void settle_before_free(const Context& context, const Block& block);

// objects.cpp
// Of the calling thread.
Context* current();
void bind(Context* context);
Stream* stream_of(Handle handle, const Context& context);
template <class T>
T* object_of(std::map<Handle, T>& all, Handle handle, const Context& context) {
    const auto found = all.find(handle);
    if (found == all.end()) fault("handle %lu: expected one of something that exists", handle);
    return found->second.context == &context ? &found->second : nullptr;
}
// Frees what a context still has, and says so; how much that was.
size_t tear_down(Context& context, bool tell);
// Frees everything; how much there was, and how much contexts had left when they were released.
size_t settle();
// Whether this thread captures; if so, the capture is lost.
bool spoils_capture();

// What a function needs, or does.
enum Needs : unsigned {
    NOTHING = 0,
    CONTEXT = 1,
    // Spoils a capture of this thread.
    NOT_IN_CAPTURE = 2,
    // Frees something, which is gone even if the answer is an error.
    FREES = 4,
    // May be the first.
    EARLY = 8,
};

// Counts a call; what it is to fail with, if it is.
int count_call(const char* name);
bool is_sticky(int code);

// Runs the body of a function under the lock. It is told whether the call fails in any case.
template <class Body>
Code call(const char* name, unsigned needs, Body body) {
    std::lock_guard<std::recursive_mutex> lock(mutex());
    const int injected = count_call(name);
    if (!state().initialized && (needs & EARLY) == 0) return NOT_INITIALIZED;
    Context* context = (needs & CONTEXT) != 0 ? current() : nullptr;
    if ((needs & CONTEXT) != 0 && context == nullptr)
        return injected != 0 ? Code(injected) : INVALID_CONTEXT;
    if ((needs & NOT_IN_CAPTURE) != 0 && spoils_capture()) return CAPTURE_UNSUPPORTED;
    const int sticky = context != nullptr ? context->sticky : 0;
    const bool fails = injected != 0 || sticky != 0;
    Code code = SUCCESS;
    if (!fails || (needs & FREES) != 0) code = body(context, fails);
    if (context != nullptr && injected != 0 && is_sticky(injected)) context->sticky = injected;
    if (injected != 0) return Code(injected);
    if (sticky != 0) return Code(sticky);
    run_some();
    // what failed in the background is told by whichever call comes next
    const bool failed = context != nullptr && (needs & FREES) == 0 && context->sticky != 0;
    return failed ? Code(context->sticky) : code;
}

}  // namespace standin

#endif
