// NCCL's functions: ranks of one process, each with another device, that gather floats.
#include "standin.h"

#include <string.h>

using namespace standin;

// Of nccl.h, those that are answered here or looked at.
constexpr int NCCL_CUDA_ERROR = 1, NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5;
constexpr int NCCL_LAST_ERROR = 8, NCCL_FLOAT = 7;

struct UniqueId {
    unsigned char bytes[128];
};

// What a driver's function answers, as NCCL says it.
template <class Body>
static int nccl(const char* name, unsigned needs, Body body) {
    int own = 0;
    const Code code = call(name, needs, [&](Context* context, bool fails) {
        own = body(context, fails);
        return SUCCESS;
    });
    if (code != SUCCESS) return code <= NCCL_LAST_ERROR ? code : NCCL_CUDA_ERROR;
    return own;
}

// Of the calling thread: how many groups it has begun, and what they have so far.
static thread_local int groups = 0;
static thread_local Operation grouped{Operation::gather};
static thread_local Handle grouped_on = 0;

static UniqueId id_of(uint64_t meeting) {
    UniqueId id;
    for (size_t i = 0; i < sizeof id.bytes; ++i)
        id.bytes[i] = static_cast<unsigned char>(meeting * 31 + i * 7);
    memcpy(id.bytes, &meeting, sizeof meeting);
    return id;
}

EXPORTED int ncclGetUniqueId(UniqueId* id) {
    return nccl("ncclGetUniqueId", NOTHING, [&](Context*, bool) {
        const uint64_t meeting = ++state().handles;
        state().meetings[meeting] = Meeting();
        *id = id_of(meeting);
        return 0;
    });
}

EXPORTED const char* ncclGetErrorString(int code) {
    switch (code) {
        case 0: return "no error";
        case NCCL_CUDA_ERROR: return "unhandled cuda error";
        case NCCL_INVALID_ARGUMENT: return "invalid argument";
        case NCCL_INVALID_USAGE: return "invalid usage";
        default: return "another error";
    }
}

static bool is_taken(const Meeting& meeting, const Context& context) {
    for (const auto& [rank, handle] : meeting.ranks)
        if (state().communicators.at(handle).context == &context) return true;
    return false;
}

// Waits for all ranks.
EXPORTED int ncclCommInitRank(Handle* communicator, int ranks, UniqueId id, int rank) {
    return nccl("ncclCommInitRank", CONTEXT | NOT_IN_CAPTURE, [&](Context* context, bool) {
        State& st = state();
        uint64_t at = 0;
        memcpy(&at, id.bytes, sizeof at);
        const UniqueId expected = id_of(at);
        if (st.meetings.count(at) == 0 || memcmp(&id, &expected, sizeof id) != 0)
            fault("ranks are to meet by an id that nobody made");
        if (rank < 0 || rank >= ranks) return NCCL_INVALID_ARGUMENT;
        Meeting& meeting = st.meetings[at];
        if (meeting.ranks.count(rank) != 0) fault("rank %d joins twice", rank);
        if (is_taken(meeting, *context)) meeting.failed = NCCL_INVALID_USAGE;
        const Handle handle = ++st.handles;
        st.communicators[handle] = Communicator{context, at, rank};
        meeting.ranks[rank] = handle;
        tell_ranks();
        while (meeting.failed == 0 && meeting.ranks.size() < static_cast<size_t>(ranks))
            wait_for_ranks();
        if (meeting.failed != 0) {
            st.communicators.erase(handle);
            meeting.ranks.erase(rank);
            return meeting.failed;
        }
        *communicator = handle;
        return 0;
    });
}

// It would wait for a graph that can still gather.
static int end(const char* name, Handle communicator) {
    return nccl(name, CONTEXT | FREES, [&](Context* context, bool) {
        State& st = state();
        if (object_of(st.communicators, communicator, *context) == nullptr)
            return NCCL_INVALID_ARGUMENT;
        for (const auto& [handle, graph] : st.graphs)
            for (const Operation& operation : graph.operations)
                if (operation.communicator == communicator)
                    fault("a communicator ends before a graph that gathers with it");
        for (const auto& [handle, stream] : st.streams)
            for (const Operation& operation : stream.queue)
                if (operation.communicator == communicator)
                    fault("a communicator ends while a gather is queued");
        st.communicators.erase(communicator);
        return 0;
    });
}

EXPORTED int ncclCommDestroy(Handle communicator) { return end("ncclCommDestroy", communicator); }
EXPORTED int ncclCommAbort(Handle communicator) { return end("ncclCommAbort", communicator); }

// Begins what was grouped.
static int finish(Context& context) {
    Operation operation = std::move(grouped);
    grouped = Operation(Operation::gather);
    if (operation.sent.empty()) return 0;
    Stream* stream = stream_of(grouped_on, context);
    return stream == nullptr ? NCCL_INVALID_ARGUMENT : add(*stream, std::move(operation));
}

EXPORTED int ncclGroupStart() {
    return nccl("ncclGroupStart", NOTHING, [&](Context*, bool) {
        ++groups;
        return 0;
    });
}

EXPORTED int ncclGroupEnd() {
    return nccl("ncclGroupEnd", CONTEXT | FREES, [&](Context* context, bool fails) {
        if (groups == 0) return NCCL_INVALID_USAGE;
        if (--groups > 0) return 0;
        if (fails) grouped = Operation(Operation::gather);
        return finish(*context);
    });
}

static bool is_inside(const Context& context, Address at, size_t n) {
    const Block* block = block_of(state().memory, at, n);
    return block != nullptr && block->context == &context;
}

// One rank's part of a broadcast. What is sent is looked at by the root alone.
static int send(Context& context, Handle communicator, int root, Address from, Address to, size_t n,
                int type, Handle on) {
    const Communicator* own = object_of(state().communicators, communicator, context);
    if (own == nullptr || type != NCCL_FLOAT) return NCCL_INVALID_ARGUMENT;
    const bool sends = own->rank == root;
    const size_t bytes = 4 * n;
    if (!is_inside(context, to, bytes) || (sends && !is_inside(context, from, bytes)))
        return NCCL_INVALID_ARGUMENT;
    if (sends && from != to && to < from + bytes && from < to + bytes)
        fault("a part is gathered into a range that has some of it");
    if (!grouped.sent.empty() && (grouped.communicator != communicator || grouped_on != on))
        fault("a group of several communicators or streams");
    grouped.communicator = communicator;
    grouped_on = on;
    grouped.sent.push_back(Sent{root, from, to, bytes});
    return 0;
}

EXPORTED int ncclBroadcast(Address from, Address to, size_t n, int type, int root,
                           Handle communicator, Handle on) {
    return nccl("ncclBroadcast", CONTEXT, [&](Context* context, bool) {
        const int code = send(*context, communicator, root, from, to, n, type, on);
        return code != 0 || groups > 0 ? code : finish(*context);
    });
}

EXPORTED int ncclAllGather(Address from, Address to, size_t n, int type, Handle communicator,
                           Handle on) {
    return nccl("ncclAllGather", CONTEXT, [&](Context* context, bool) {
        const Communicator* own = object_of(state().communicators, communicator, *context);
        if (own == nullptr) return NCCL_INVALID_ARGUMENT;
        const Meeting& meeting = state().meetings.at(own->meeting);
        const int ranks = static_cast<int>(meeting.ranks.size());
        for (int root = 0; root < ranks; ++root) {
            const Address part = to + 4 * n * static_cast<size_t>(root);
            const int code = send(*context, communicator, root, from, part, n, type, on);
            if (code != 0) return code;
        }
        return groups > 0 ? 0 : finish(*context);
    });
}
