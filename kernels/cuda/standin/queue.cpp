// Streams: what is queued, and when it runs.
#include "standin.h"

#include <string.h>

namespace standin {

static void run_launch(Stream& stream, const Operation& operation) {
    State& st = state();
    const auto found = st.functions.find(operation.function);
    if (found == st.functions.end()) fault("a launch runs whose module was unloaded");
    const Function& function = found->second;
    if (++st.launches_run == st.settings.kernel_fails) {
        stream.context->sticky = LAUNCH_FAILED;
        return;
    }
    if (st.launches_run == st.settings.kernel_idles) return;
    const void* parameters = operation.bytes.data();
    const char* wrong = function.launch(function.entry, parameters, operation.grid,
                                        operation.threads, operation.shared, 0, 0);
    if (wrong != nullptr) fault("kernel %s: %s", function.kernel.name.c_str(), wrong);
}

static void run_upload(const Operation& operation) {
    if (operation.host == nullptr) {
        memcpy(reinterpret_cast<void*>(operation.to), operation.bytes.data(), operation.n);
        return;
    }
    const Address from = reinterpret_cast<Address>(operation.host);
    if (block_of(state().pinned, from, operation.n) == nullptr)
        fault("an upload runs whose source was freed");
    if (hash_of(operation.host, operation.n) != operation.hash)
        fault("%zu bytes of page-locked memory were written while a copy from there was queued",
              operation.n);
    memcpy(reinterpret_cast<void*>(operation.to), operation.host, operation.n);
}

static void run(Stream& stream, const Operation& operation) {
    // a device that failed does nothing any more
    if (stream.context->sticky != 0 && operation.kind != Operation::event) return;
    switch (operation.kind) {
        case Operation::launch: run_launch(stream, operation); break;
        case Operation::upload: run_upload(operation); break;
        case Operation::download:
            memcpy(operation.host, reinterpret_cast<const void*>(operation.from), operation.n);
            break;
        case Operation::copy:
            memcpy(reinterpret_cast<void*>(operation.to),
                   reinterpret_cast<const void*>(operation.from), operation.n);
            break;
        case Operation::event: {
            const auto event = state().events.find(operation.event_handle);
            if (event != state().events.end() && event->second.ticket == operation.ticket)
                event->second.reached = true;
            break;
        }
        case Operation::gather: fault("a gather runs for one rank alone");
    }
}

void run_until(Stream& stream, uint64_t last) {
    if (stream.queue.empty() || stream.queue.front().ticket > last) return;
    open_memory(true);
    while (!stream.queue.empty() && stream.queue.front().ticket <= last) {
        if (stream.queue.front().kind == Operation::gather) {
            run_gather(stream);
            continue;
        }
        const Operation operation = std::move(stream.queue.front());
        stream.queue.pop_front();
        run(stream, operation);
    }
    check_fences();
    open_memory(false);
}

void drain(Stream& stream, uint64_t ticket) {
    if (stream.queue.empty()) return;
    run_until(stream, ticket != 0 ? ticket : stream.queue.back().ticket);
}

// Between calls, in no order that anybody could rely on; nobody waits for other ranks then.
void run_some() {
    State& st = state();
    if (st.settings.execute != Execute::at_random) return;
    for (auto& [handle, stream] : st.streams) {
        const size_t most = stream.queue.size();
        if (st.random() % 4 != 0) continue;
        uint64_t last = 0;
        for (size_t i = 0, n = st.random() % (most + 1); i < n; ++i) {
            const Operation& operation = stream.queue[i];
            if (operation.kind == Operation::gather && !all_gather(operation)) break;
            last = operation.ticket;
        }
        run_until(stream, last);
    }
}

Code enqueue(Stream& stream, Operation operation) {
    operation.ticket = ++state().tickets;
    const bool gathers = operation.kind == Operation::gather;
    if (gathers) operation.number = ++state().communicators.at(operation.communicator).begun;
    stream.queue.push_back(std::move(operation));
    if (gathers) tell_ranks();
    if (state().settings.execute == Execute::eager) drain(stream, 0);
    return SUCCESS;
}

// What a launch uses is not known: where a context has one stream, its launches are taken to use
// everything.
void settle_before_free(const Context& context, const Block& block) {
    size_t streams = 0;
    for (const auto& [handle, stream] : state().streams) streams += stream.context == &context;
    const Address first = reinterpret_cast<Address>(block.at), last = first + block.n;
    const auto within = [&](Address at) { return at >= first && at < last; };
    for (auto& [handle, stream] : state().streams) {
        if (stream.context != &context || context.sticky != 0) continue;
        for (const Operation& operation : stream.queue) {
            const bool anywhere =
                operation.kind == Operation::launch || operation.kind == Operation::gather;
            const bool launched = anywhere && streams == 1;
            if (launched || within(operation.to) || within(operation.from))
                fault("memory is freed while work with it is queued");
        }
        drain(stream, 0);
    }
}

}  // namespace standin
