// The driver's functions: streams, events, copies, launches, captures.
#include "standin.h"

#include <string.h>

using namespace standin;

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Into the queue, or into what is captured.
static Code add(Stream& stream, Operation operation) {
    if (!stream.capturing) return enqueue(stream, std::move(operation));
    if (stream.invalidated) return CAPTURE_INVALIDATED;
    stream.captured.push_back(std::move(operation));
    return SUCCESS;
}

// What a capture cannot have spoils it.
static bool spoils(Stream& stream) {
    stream.invalidated = stream.invalidated || stream.capturing;
    return stream.capturing;
}

EXPORTED Code cuStreamCreate(Handle* stream, unsigned flags) {
    return call("cuStreamCreate", CONTEXT, [&](Context* context, bool) {
        if (flags > 1) return INVALID_VALUE;
        *stream = ++state().handles;
        state().streams[*stream].context = context;
        return SUCCESS;
    });
}

EXPORTED Code cuStreamDestroy_v2(Handle handle) {
    return call("cuStreamDestroy", CONTEXT | FREES, [&](Context* context, bool) {
        Stream* stream = stream_of(handle, *context);
        if (stream == nullptr) return INVALID_HANDLE;
        if (stream->capturing) fault("a stream is destroyed while it captures");
        drain(*stream, 0);
        state().streams.erase(handle);
        return SUCCESS;
    });
}

EXPORTED Code cuStreamSynchronize(Handle handle) {
    return call("cuStreamSynchronize", CONTEXT, [&](Context* context, bool) {
        Stream* stream = stream_of(handle, *context);
        if (stream == nullptr) return INVALID_HANDLE;
        if (spoils(*stream)) return CAPTURE_UNSUPPORTED;
        drain(*stream, 0);
        return SUCCESS;
    });
}

EXPORTED Code cuEventCreate(Handle* event, unsigned) {
    return call("cuEventCreate", CONTEXT, [&](Context* context, bool) {
        *event = ++state().handles;
        state().events[*event].context = context;
        return SUCCESS;
    });
}

EXPORTED Code cuEventDestroy_v2(Handle handle) {
    return call("cuEventDestroy", CONTEXT | FREES, [&](Context* context, bool) {
        if (object_of(state().events, handle, *context) == nullptr) return INVALID_HANDLE;
        state().events.erase(handle);
        return SUCCESS;
    });
}

EXPORTED Code cuEventRecord(Handle handle, Handle on) {
    return call("cuEventRecord", CONTEXT, [&](Context* context, bool) {
        Event* event = object_of(state().events, handle, *context);
        Stream* stream = stream_of(on, *context);
        if (event == nullptr || stream == nullptr) return INVALID_HANDLE;
        if (spoils(*stream)) return CAPTURE_UNSUPPORTED;
        Operation operation{Operation::event};
        operation.event_handle = handle;
        event->reached = false;
        event->stream = on;
        event->ticket = state().tickets + 1;
        return enqueue(*stream, std::move(operation));
    });
}

EXPORTED Code cuEventSynchronize(Handle handle) {
    return call("cuEventSynchronize", CONTEXT | NOT_IN_CAPTURE, [&](Context* context, bool) {
        const Event* event = object_of(state().events, handle, *context);
        if (event == nullptr) return INVALID_HANDLE;
        if (!event->reached) drain(state().streams.at(event->stream), event->ticket);
        return SUCCESS;
    });
}

// Of an upload or a download: whether the host's side is page-locked.
static bool is_pinned(const void* host, size_t n) {
    return block_of(state().pinned, reinterpret_cast<Address>(host), n) != nullptr;
}

static bool is_own(const Context& context, Address at, size_t n) {
    const Block* block = block_of(state().memory, at, n);
    return block != nullptr && block->context == &context;
}

// Page-locked memory is read when the copy runs, any other when it is called.
EXPORTED Code cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t n, Handle on) {
    return call("cuMemcpyHtoDAsync", CONTEXT, [&](Context* context, bool) {
        Stream* stream = stream_of(on, *context);
        if (stream == nullptr) return INVALID_HANDLE;
        if (!is_own(*context, to, n)) return INVALID_VALUE;
        unsigned char* host = static_cast<unsigned char*>(const_cast<void*>(from));
        Operation operation{Operation::upload};
        operation.to = to;
        operation.n = n;
        if (is_pinned(from, n)) {
            operation.host = host;
            operation.hash = hash_of(host, n);
        } else if (spoils(*stream)) {
            return CAPTURE_UNSUPPORTED;
        } else {
            operation.bytes.assign(host, host + n);
        }
        return add(*stream, std::move(operation));
    });
}

// What is read before it was waited for is not what was there.
EXPORTED Code cuMemcpyDtoHAsync_v2(void* to, Address from, size_t n, Handle on) {
    return call("cuMemcpyDtoHAsync", CONTEXT, [&](Context* context, bool) {
        Stream* stream = stream_of(on, *context);
        if (stream == nullptr) return INVALID_HANDLE;
        if (!is_own(*context, from, n)) return INVALID_VALUE;
        if (!is_pinned(to, n) && spoils(*stream)) return CAPTURE_UNSUPPORTED;
        Operation operation{Operation::download};
        operation.from = from;
        operation.host = static_cast<unsigned char*>(to);
        operation.n = n;
        if (!stream->capturing) memset(to, 0xff, n);
        return add(*stream, std::move(operation));
    });
}

EXPORTED Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, Handle on) {
    return call("cuMemcpyDtoDAsync", CONTEXT, [&](Context* context, bool) {
        Stream* stream = stream_of(on, *context);
        if (stream == nullptr) return INVALID_HANDLE;
        if (!is_own(*context, to, n) || !is_own(*context, from, n)) return INVALID_VALUE;
        if (to < from + n && from < to + n) fault("a copy between ranges that overlap");
        Operation operation{Operation::copy};
        operation.to = to;
        operation.from = from;
        operation.n = n;
        return add(*stream, std::move(operation));
    });
}

// Parameters are read now, in queues and in captures.
EXPORTED Code cuLaunchKernel(Handle handle, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                             unsigned threads_y, unsigned threads_z, unsigned shared, Handle on,
                             void** parameters, void** extra) {
    return call("cuLaunchKernel", CONTEXT, [&](Context* context, bool) {
        const auto found = state().functions.find(handle);
        if (found == state().functions.end())
            fault("a launch of a kernel whose module was unloaded");
        Stream* stream = stream_of(on, *context);
        const Function& function = found->second;
        if (stream == nullptr || state().modules.at(function.module).context != context)
            return INVALID_HANDLE;
        const Kernel& kernel = function.kernel;
        const uint64_t threads = uint64_t{threads_x} * threads_y * threads_z;
        const bool grid = x > 0 && y > 0 && z > 0 && x <= 0x7fffffffu && y <= 65535 && z <= 65535;
        if (!grid || threads == 0 || threads > kernel.most_threads) return INVALID_VALUE;
        if (shared > function.most_launched) return INVALID_VALUE;
        if (threads_y != 1 || threads_z != 1 || extra != nullptr || parameters == nullptr)
            fault("kernel %s: expected threads along x, and parameters alone", kernel.name.c_str());
        const unsigned char* first = static_cast<const unsigned char*>(parameters[0]);
        Operation operation{Operation::launch};
        operation.function = handle;
        operation.grid[0] = x;
        operation.grid[1] = y;
        operation.grid[2] = z;
        operation.threads = threads_x;
        operation.shared = shared;
        operation.bytes.assign(first, first + kernel.parameter_bytes);
        return add(*stream, std::move(operation));
    });
}

EXPORTED Code cuStreamBeginCapture_v2(Handle handle, int mode) {
    return call("cuStreamBeginCapture", CONTEXT, [&](Context* context, bool) {
        Stream* stream = stream_of(handle, *context);
        if (stream == nullptr) return INVALID_HANDLE;
        if (stream->capturing || mode != 1) return INVALID_VALUE;
        stream->capturing = true;
        stream->invalidated = false;
        stream->capturer = std::this_thread::get_id();
        stream->captured.clear();
        return SUCCESS;
    });
}

// Whatever it answers, the stream captures no more; unless another thread asks.
EXPORTED Code cuStreamEndCapture(Handle handle, Handle* graph) {
    return call("cuStreamEndCapture", CONTEXT | FREES, [&](Context* context, bool fails) {
        Stream* stream = stream_of(handle, *context);
        if (stream == nullptr || !stream->capturing) return INVALID_VALUE;
        if (stream->capturer != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
        stream->capturing = false;
        std::vector<Operation> captured = std::move(stream->captured);
        *graph = 0;
        if (stream->invalidated) return CAPTURE_INVALIDATED;
        if (fails) return INVALID_VALUE;
        *graph = ++state().handles;
        state().graphs[*graph] = Graph{context, std::move(captured), false};
        return SUCCESS;
    });
}

EXPORTED Code cuGraphInstantiateWithFlags(Handle* executable, Handle graph,
                                          unsigned long long flags) {
    return call("cuGraphInstantiate", CONTEXT | NOT_IN_CAPTURE, [&](Context* context, bool) {
        const Graph* of = object_of(state().graphs, graph, *context);
        if (of == nullptr || of->executable || flags != 0) return INVALID_VALUE;
        *executable = ++state().handles;
        state().graphs[*executable] = Graph{context, of->operations, true};
        return SUCCESS;
    });
}

EXPORTED Code cuGraphUpload(Handle executable, Handle on) {
    return call("cuGraphUpload", CONTEXT | NOT_IN_CAPTURE, [&](Context* context, bool) {
        const Graph* of = object_of(state().graphs, executable, *context);
        const bool there = of != nullptr && of->executable && stream_of(on, *context) != nullptr;
        return there ? SUCCESS : INVALID_VALUE;
    });
}

EXPORTED Code cuGraphLaunch(Handle executable, Handle on) {
    return call("cuGraphLaunch", CONTEXT, [&](Context* context, bool) {
        const Graph* of = object_of(state().graphs, executable, *context);
        Stream* stream = stream_of(on, *context);
        if (of == nullptr || !of->executable || stream == nullptr) return INVALID_VALUE;
        if (spoils(*stream)) return CAPTURE_UNSUPPORTED;
        for (const Operation& operation : of->operations) enqueue(*stream, operation);
        return SUCCESS;
    });
}

static Code destroy(const char* name, Handle handle, bool executable) {
    return call(name, CONTEXT | FREES, [&](Context* context, bool) {
        const Graph* of = object_of(state().graphs, handle, *context);
        if (of == nullptr || of->executable != executable) return INVALID_VALUE;
        state().graphs.erase(handle);
        return SUCCESS;
    });
}

EXPORTED Code cuGraphExecDestroy(Handle executable) {
    return destroy("cuGraphExecDestroy", executable, true);
}
EXPORTED Code cuGraphDestroy(Handle graph) { return destroy("cuGraphDestroy", graph, false); }
