// The driver's functions: devices, contexts, modules, memory.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

using namespace standin;

#define EXPORTED extern "C" __attribute__((visibility("default")))

enum Attribute {
    MULTIPROCESSOR_COUNT = 16,
    INTEGRATED = 18,
    CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76,
    MEMORY_POOLS_SUPPORTED = 115,
};

static const DeviceSettings* device_of(int device) {
    const std::vector<DeviceSettings>& all = state().settings.devices;
    if (device < 0 || static_cast<size_t>(device) >= all.size()) return nullptr;
    return &all[static_cast<size_t>(device)];
}

EXPORTED Code cuInit(unsigned flags) {
    return call("cuInit", EARLY, [&](Context*, bool) {
        if (flags != 0) return INVALID_VALUE;
        if (state().settings.devices.empty()) return NO_DEVICE;
        state().initialized = true;
        return SUCCESS;
    });
}

// NVRTC asks the driver for a table of functions that no documentation names. This one has none:
// its first word is its size.
EXPORTED Code cuGetExportTable(const void** table, const void*) {
    static const size_t empty[1] = {sizeof empty};
    *table = empty;
    return SUCCESS;
}

EXPORTED Code cuDriverGetVersion(int* version) {
    return call("cuDriverGetVersion", EARLY, [&](Context*, bool) {
        *version = state().settings.driver;
        return SUCCESS;
    });
}

EXPORTED Code cuDeviceGetCount(int* count) {
    return call("cuDeviceGetCount", NOTHING, [&](Context*, bool) {
        *count = static_cast<int>(state().settings.devices.size());
        return SUCCESS;
    });
}

EXPORTED Code cuDeviceGet(int* device, int ordinal) {
    return call("cuDeviceGet", NOTHING, [&](Context*, bool) {
        const DeviceSettings* found = device_of(ordinal);
        if (found == nullptr || found->broken) return INVALID_DEVICE;
        *device = ordinal;
        return SUCCESS;
    });
}

EXPORTED Code cuDeviceGetName(char* name, int room, int device) {
    return call("cuDeviceGetName", NOTHING, [&](Context*, bool) {
        if (device_of(device) == nullptr || room < 16) return INVALID_DEVICE;
        strcpy(name, "a stand-in");
        return SUCCESS;
    });
}

EXPORTED Code cuDeviceTotalMem_v2(size_t* bytes, int device) {
    return call("cuDeviceTotalMem", NOTHING, [&](Context*, bool) {
        if (device_of(device) == nullptr) return INVALID_DEVICE;
        *bytes = device_of(device)->memory;
        return SUCCESS;
    });
}

EXPORTED Code cuDeviceGetAttribute(int* value, int attribute, int device) {
    return call("cuDeviceGetAttribute", NOTHING, [&](Context*, bool) {
        const DeviceSettings* found = device_of(device);
        if (found == nullptr) return INVALID_DEVICE;
        switch (attribute) {
            case MULTIPROCESSOR_COUNT: *value = 2; return SUCCESS;
            case INTEGRATED: *value = found->integrated; return SUCCESS;
            case CAPABILITY_MAJOR: *value = found->major; return SUCCESS;
            case CAPABILITY_MINOR: *value = found->minor; return SUCCESS;
            case MEMORY_POOLS_SUPPORTED: *value = 1; return SUCCESS;
            default: return INVALID_VALUE;
        }
    });
}

EXPORTED Code cuDevicePrimaryCtxRetain(Context** context, int device) {
    return call("cuDevicePrimaryCtxRetain", NOTHING, [&](Context*, bool) {
        if (device_of(device) == nullptr) return INVALID_DEVICE;
        std::unique_ptr<Context>& own = state().primary[device];
        if (own == nullptr) own.reset(new Context{device, 0, 0});
        ++own->references;
        *context = own.get();
        return SUCCESS;
    });
}

EXPORTED Code cuDevicePrimaryCtxRelease_v2(int device) {
    return call("cuDevicePrimaryCtxRelease", FREES, [&](Context*, bool) {
        const auto found = state().primary.find(device);
        if (found == state().primary.end()) return INVALID_CONTEXT;
        if (--found->second->references > 0) return SUCCESS;
        // nothing can be freed any more once a device has failed: the context takes it along
        const bool failed = found->second->sticky != 0;
        const size_t left = tear_down(*found->second, !failed);
        if (!failed) state().leaks += left;
        state().primary.erase(found);
        return SUCCESS;
    });
}

EXPORTED Code cuCtxGetCurrent(Context** context) {
    return call("cuCtxGetCurrent", NOTHING, [&](Context*, bool) {
        *context = current();
        return SUCCESS;
    });
}

EXPORTED Code cuCtxSetCurrent(Context* context) {
    return call("cuCtxSetCurrent", NOTHING, [&](Context*, bool) {
        bind(context);
        return context == nullptr || current() != nullptr ? SUCCESS : INVALID_CONTEXT;
    });
}

enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };

// Code for a device runs on those of the same generation that are not older.
EXPORTED Code cuModuleLoadData(Handle* module, const void* bytes) {
    return call("cuModuleLoadData", CONTEXT | NOT_IN_CAPTURE, [&](Context* context, bool) {
        Image image;
        if (!read_image(bytes, image)) return INVALID_IMAGE;
        const DeviceSettings& device = *device_of(context->device);
        const bool fits = image.sm / 10 == device.major && image.sm % 10 <= device.minor;
        if (!fits || image.toolkit / 10 > state().settings.driver / 1000) return NO_BINARY_FOR_GPU;
        *module = ++state().handles;
        state().modules[*module] = Module{context, std::move(image)};
        return SUCCESS;
    });
}

EXPORTED Code cuModuleGetFunction(Handle* function, Handle module, const char* name) {
    return call("cuModuleGetFunction", CONTEXT | NOT_IN_CAPTURE, [&](Context* context, bool) {
        const Module* of = object_of(state().modules, module, *context);
        if (of == nullptr) return INVALID_HANDLE;
        for (const Kernel& kernel : of->image.kernels) {
            if (kernel.name != name) continue;
            Function found{module, kernel, nullptr, nullptr};
            if (!find_kernel(name, found)) fault("the shim has no kernel %s", name);
            if (kernel.shared_bytes > 48 * 1024 || kernel.n_parameters != 1)
                fault("kernel %s: %lu bytes of shared memory, %u parameters: expected at most "
                      "49152, and 1",
                      name, static_cast<unsigned long>(kernel.shared_bytes), kernel.n_parameters);
            *function = ++state().handles;
            state().functions[*function] = found;
            return SUCCESS;
        }
        return NOT_FOUND;
    });
}

// Bytes of shared memory that launches may ask for beyond the usual limit: the only attribute here.
EXPORTED Code cuFuncSetAttribute(Handle handle, int attribute, int value) {
    return call("cuFuncSetAttribute", CONTEXT | NOT_IN_CAPTURE, [&](Context* context, bool) {
        const auto found = state().functions.find(handle);
        if (found == state().functions.end()) return INVALID_HANDLE;
        if (state().modules.at(found->second.module).context != context) return INVALID_HANDLE;
        // what a block may have in all: KiB of capability 9 to 11, of 8.0 and 8.7, of the others
        const DeviceSettings& device = *device_of(context->device);
        const bool large = device.major == 8 && (device.minor == 0 || device.minor == 7);
        const unsigned most = device.major >= 9 && device.major < 12 ? 227 : large ? 163 : 99;
        const uint64_t all = static_cast<uint64_t>(value) + found->second.kernel.shared_bytes;
        const bool fits = value >= 0 && all <= most * 1024u;
        if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || !fits) return INVALID_VALUE;
        found->second.most_launched = static_cast<unsigned>(value);
        return SUCCESS;
    });
}

static bool launches(const Operation& operation, Handle module) {
    const auto function = state().functions.find(operation.function);
    return operation.kind == Operation::launch && function != state().functions.end() &&
           function->second.module == module;
}

EXPORTED Code cuModuleUnload(Handle module) {
    return call("cuModuleUnload", CONTEXT | NOT_IN_CAPTURE | FREES, [&](Context* context, bool) {
        State& st = state();
        if (object_of(st.modules, module, *context) == nullptr) return INVALID_HANDLE;
        for (const auto& [handle, stream] : st.streams)
            for (const Operation& operation : stream.queue)
                if (launches(operation, module) && context->sticky == 0)
                    fault("a module is unloaded while a launch of its kernels is queued");
        for (const auto& [handle, graph] : st.graphs)
            for (const Operation& operation : graph.operations)
                if (launches(operation, module))
                    fault("a module is unloaded before a graph with its kernels is destroyed");
        for (auto at = st.functions.begin(); at != st.functions.end();)
            at = at->second.module == module ? st.functions.erase(at) : std::next(at);
        st.modules.erase(module);
        return SUCCESS;
    });
}

// What other programs have left of a device's memory by now.
static size_t left_of(const DeviceSettings& device) {
    const Settings& s = state().settings;
    const bool is_taken = s.taken != 0 && state().free_asked >= s.taken_after;
    const size_t taken = is_taken ? s.taken : 0;
    return device.free > taken ? device.free - taken : 0;
}

EXPORTED Code cuMemGetInfo_v2(size_t* free, size_t* total) {
    return call("cuMemGetInfo", CONTEXT, [&](Context* context, bool) {
        const DeviceSettings& device = *device_of(context->device);
        const size_t all = used(*context), most = left_of(device);
        *free = most > all ? most - all : 0;
        *total = device.memory;
        ++state().free_asked;
        return SUCCESS;
    });
}

EXPORTED Code cuMemAlloc_v2(Address* at, size_t bytes) {
    return call("cuMemAlloc", CONTEXT | NOT_IN_CAPTURE, [&](Context* context, bool) {
        if (bytes == 0) return INVALID_VALUE;
        const DeviceSettings& device = *device_of(context->device);
        const size_t most = device.integrated ? device.memory : left_of(device);
        if (used(*context) + bytes > most) return OUT_OF_MEMORY;
        return allocate(*context, state().memory, bytes, true, *at);
    });
}

EXPORTED Code cuMemFree_v2(Address at) {
    return call("cuMemFree", CONTEXT | NOT_IN_CAPTURE | FREES, [&](Context* context, bool) {
        const auto found = state().memory.find(at);
        if (found == state().memory.end()) fault("cuMemFree of %#lx, which is not allocated", at);
        if (found->second.context != context) return INVALID_VALUE;
        settle_before_free(*context, found->second);
        release(state().memory, at);
        return SUCCESS;
    });
}

EXPORTED Code cuMemHostAlloc(void** at, size_t bytes, unsigned) {
    return call("cuMemHostAlloc", CONTEXT | NOT_IN_CAPTURE, [&](Context* context, bool) {
        size_t all = bytes;
        for (const auto& [start, block] : state().pinned) all += block.n;
        if (bytes == 0) return INVALID_VALUE;
        if (all > state().settings.pinned) return OUT_OF_MEMORY;
        Address address = 0;
        const Code code = allocate(*context, state().pinned, bytes, false, address);
        if (code == SUCCESS) *at = reinterpret_cast<void*>(address);
        return code;
    });
}

EXPORTED Code cuMemFreeHost(void* at) {
    return call("cuMemFreeHost", CONTEXT | NOT_IN_CAPTURE | FREES, [&](Context* context, bool) {
        const auto found = state().pinned.find(reinterpret_cast<Address>(at));
        if (found == state().pinned.end()) fault("cuMemFreeHost of %p, which is not allocated", at);
        const Block& block = found->second;
        for (const auto& [handle, stream] : state().streams)
            for (const Operation& operation : stream.queue)
                if (operation.host >= block.at && operation.host < block.at + block.n &&
                    context->sticky == 0)
                    fault("page-locked memory is freed while a copy from or to it is queued");
        release(state().pinned, found->first);
        return SUCCESS;
    });
}

EXPORTED Code cuGetErrorString(int code, const char** text) {
    static const std::map<int, const char*> texts = {
        {INVALID_VALUE, "invalid argument"},
        {OUT_OF_MEMORY, "out of memory"},
        {NOT_INITIALIZED, "initialization error"},
        {34, "CUDA driver is a stub library"},
        {NO_DEVICE, "no CUDA-capable device is detected"},
        {INVALID_DEVICE, "invalid device ordinal"},
        {INVALID_IMAGE, "device kernel image is invalid"},
        {INVALID_CONTEXT, "invalid device context"},
        {NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
        {INVALID_HANDLE, "invalid resource handle"},
        {NOT_FOUND, "named symbol not found"},
        {ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
        {LAUNCH_FAILED, "unspecified launch failure"},
        {CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
        {CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"},
        {CAPTURE_WRONG_THREAD,
         "attempt to terminate a thread-local capture sequence from another thread"},
    };
    const auto found = texts.find(code);
    if (found == texts.end()) return INVALID_VALUE;
    *text = found->second;
    return SUCCESS;
}

// Not the driver's: for tests in the same process.

EXPORTED void octavo_standin_configure(const char* settings) {
    std::lock_guard<std::recursive_mutex> lock(mutex());
    configure(settings);
}

EXPORTED unsigned long long octavo_standin_calls() {
    std::lock_guard<std::recursive_mutex> lock(mutex());
    return state().calls;
}

// The name of a call since the settings that asked for names, or null.
EXPORTED const char* octavo_standin_name(unsigned long long call) {
    std::lock_guard<std::recursive_mutex> lock(mutex());
    const std::vector<const char*>& names = state().names;
    return call >= 1 && call <= names.size() ? names[call - 1] : nullptr;
}

EXPORTED unsigned long long octavo_standin_settle() {
    std::lock_guard<std::recursive_mutex> lock(mutex());
    return settle();
}

__attribute__((constructor)) static void at_start() {
    const char* settings = getenv("OCTAVO_STANDIN");
    if (settings != nullptr) configure(settings);
}
