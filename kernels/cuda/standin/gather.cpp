// Gathers of several ranks, as they stand in the queues of their streams.
#include "standin.h"

#include <string.h>

#include <chrono>
#include <condition_variable>

namespace standin {

// No rank of a test waits for another so long.
constexpr std::chrono::seconds LONGEST_WAIT{60};

static std::condition_variable_any& changed() {
    static std::condition_variable_any* one = new std::condition_variable_any;
    return *one;
}

void tell_ranks() { changed().notify_all(); }

void wait_for_ranks() {
    if (changed().wait_for(mutex(), LONGEST_WAIT) == std::cv_status::timeout)
        fault("a rank has waited too long for the others");
}

// Where a gather is queued.
struct Queued {
    Stream* stream;
    const Operation* operation;
};

static bool is_same(const Operation& operation, Handle communicator, uint64_t number) {
    return operation.kind == Operation::gather && operation.communicator == communicator &&
           operation.number == number;
}

// By rank; fewer than there are ranks if not all have queued it.
static std::vector<Queued> queued(Handle communicator, uint64_t number) {
    State& st = state();
    std::vector<Queued> all;
    const Meeting& meeting = st.meetings.at(st.communicators.at(communicator).meeting);
    for (const auto& [rank, handle] : meeting.ranks)
        for (auto& [at, stream] : st.streams)
            for (const Operation& operation : stream.queue)
                if (is_same(operation, handle, number)) all.push_back({&stream, &operation});
    return all.size() == meeting.ranks.size() ? all : std::vector<Queued>();
}

bool all_gather(const Operation& operation) {
    return !queued(operation.communicator, operation.number).empty();
}

// All ranks' copies at once.
static void copy_all(const std::vector<Queued>& all) {
    for (const Queued& to : all) {
        const std::vector<Sent>& sent = to.operation->sent;
        for (size_t i = 0; i < sent.size(); ++i) {
            const size_t root = static_cast<size_t>(sent[i].root);
            const std::vector<Sent>& source = all[root].operation->sent;
            if (source.size() != sent.size() || source[i].n != sent[i].n ||
                source[i].root != sent[i].root)
                fault("ranks gather different parts: %zu bytes of rank %zu", sent[i].n, root);
            memmove(reinterpret_cast<void*>(sent[i].to),
                    reinterpret_cast<const void*>(source[i].from), sent[i].n);
        }
    }
}

void run_gather(Stream& stream) {
    const Handle communicator = stream.queue.front().communicator;
    const uint64_t number = stream.queue.front().number;
    // while this one waits another may do it for all
    while (!stream.queue.empty() && is_same(stream.queue.front(), communicator, number)) {
        const std::vector<Queued> all = queued(communicator, number);
        if (all.empty()) {
            open_memory(false);
            wait_for_ranks();
            open_memory(true);
            continue;
        }
        bool failed = false;
        for (const Queued& one : all) {
            run_until(*one.stream, one.operation->ticket - 1);
            failed = failed || one.stream->context->sticky != 0;
        }
        open_memory(true);
        if (!failed) copy_all(all);
        for (const Queued& one : all) one.stream->queue.pop_front();
        tell_ranks();
    }
}

}  // namespace standin
