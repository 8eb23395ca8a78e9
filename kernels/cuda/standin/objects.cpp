// What exists, whose it is, and what is left of it in the end.
#include "standin.h"

#include <stdlib.h>
#include <unistd.h>

namespace standin {

std::recursive_mutex& mutex() {
    static std::recursive_mutex* one = new std::recursive_mutex;
    return *one;
}

// By device, as a context may be gone while threads still have it.
static thread_local int bound = -1;
static thread_local Context* bound_context = nullptr;

void bind(Context* context) {
    bound = context == nullptr ? -1 : context->device;
    bound_context = context;
}

Context* current() {
    const auto found = state().primary.find(bound);
    const bool there = found != state().primary.end() && found->second.get() == bound_context;
    return there ? bound_context : nullptr;
}

Stream* stream_of(Handle handle, const Context& context) {
    if (handle <= 2) fault("a default stream is used, which waits for others");
    return object_of(state().streams, handle, context);
}

bool spoils_capture() {
    bool any = false;
    for (auto& [handle, stream] : state().streams) {
        if (!stream.capturing || stream.capturer != std::this_thread::get_id()) continue;
        stream.invalidated = true;
        any = true;
    }
    return any;
}

int count_call(const char* name) {
    State& st = state();
    ++st.calls;
    if (st.settings.trace) st.names.push_back(name);
    const bool fails = st.calls == st.settings.fail_call || st.settings.fail_name == name;
    return fails ? st.settings.fail_code : 0;
}

// Errors of kernels, after which a context is of no use.
bool is_sticky(int code) { return code == 700 || code == 702 || (code >= 714 && code <= 719); }

template <class T>
static size_t drop(std::map<Handle, T>& all, const Context& context, const char* what, bool tell) {
    size_t n = 0;
    for (auto at = all.begin(); at != all.end();) {
        if (at->second.context != &context) {
            ++at;
            continue;
        }
        ++n;
        at = all.erase(at);
    }
    if (n > 0 && tell) note("left over: %zu of %s", n, what);
    return n;
}

static size_t drop_blocks(std::map<Address, Block>& all, const Context& context, const char* what,
                          bool tell) {
    std::vector<Address> of_context;
    for (const auto& [at, block] : all)
        if (block.context == &context) of_context.push_back(at);
    for (Address at : of_context) release(all, at);
    if (!of_context.empty() && tell) note("left over: %zu of %s", of_context.size(), what);
    return of_context.size();
}

size_t tear_down(Context& context, bool tell) {
    State& st = state();
    size_t n = drop(st.communicators, context, "communicators", tell);
    n += drop(st.graphs, context, "graphs", tell);
    n += drop(st.streams, context, "streams", tell);
    n += drop(st.events, context, "events", tell);
    for (auto at = st.functions.begin(); at != st.functions.end();) {
        const bool of_context = st.modules.at(at->second.module).context == &context;
        at = of_context ? st.functions.erase(at) : std::next(at);
    }
    n += drop(st.modules, context, "modules", tell);
    n += drop_blocks(st.pinned, context, "page-locked memory", tell);
    return n + drop_blocks(st.memory, context, "memory of a device", tell);
}

size_t settle() {
    State& st = state();
    size_t n = st.leaks;
    for (auto& [device, context] : st.primary) n += 1 + tear_down(*context, true);
    if (!st.primary.empty()) note("left over: %zu of contexts", st.primary.size());
    st.primary.clear();
    st.leaks = 0;
    return n;
}

// A process that leaves something over has failed.
__attribute__((destructor)) static void at_exit() {
    std::lock_guard<std::recursive_mutex> lock(mutex());
    if (settle() > 0) _exit(87);
}

}  // namespace standin
