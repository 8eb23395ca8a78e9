// Memory of devices, and page-locked memory of the host.
#include "standin.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace standin {

constexpr size_t ALIGNMENT = 256;
constexpr int POISON = 0xff;
// Between allocations and the ends of their pages.
constexpr int FENCE = 0xa5;

static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// An allocation ends as near as alignment allows to a page that cannot be touched.
Code allocate(Context& context, std::map<Address, Block>& blocks, size_t n, bool of_device,
              Address& at) {
    const size_t inner = round_up(n, page()), mapped = inner + 2 * page();
    void* map =
        mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return OUT_OF_MEMORY;
    unsigned char* first = static_cast<unsigned char*>(map) + page();
    if (mprotect(first, inner, PROT_READ | PROT_WRITE) != 0)
        fault("mprotect of %zu bytes failed", inner);
    const size_t lead = of_device ? (inner - n) / ALIGNMENT * ALIGNMENT : 0;
    memset(first, FENCE, inner);
    memset(first + lead, POISON, n);
    if (of_device && mprotect(first, inner, PROT_NONE) != 0)
        fault("mprotect of %zu bytes failed", inner);
    at = reinterpret_cast<Address>(first + lead);
    blocks[at] = Block{&context, static_cast<unsigned char*>(map), mapped, first + lead, n};
    return SUCCESS;
}

static void check_fence(const Block& block) {
    const unsigned char* first = block.map + page();
    const unsigned char* last = block.map + block.mapped - page();
    for (const unsigned char* at = first; at < last; ++at) {
        if (at == block.at) at += block.n;
        if (at < last && *at != FENCE)
            fault("memory was written %td bytes from the start of an allocation of %zu",
                  at - block.at, block.n);
    }
}

void check_fences() {
    for (const auto& [at, block] : state().memory) check_fence(block);
}

void release(std::map<Address, Block>& blocks, Address at) {
    const Block block = blocks.at(at);
    open_memory(true);
    check_fence(block);
    open_memory(false);
    if (munmap(block.map, block.mapped) != 0) fault("munmap of %zu bytes failed", block.mapped);
    blocks.erase(at);
}

// The allocation that has all of a range; one that has a part of it is a fault of the caller.
const Block* block_of(const std::map<Address, Block>& blocks, Address at, size_t n) {
    for (const auto& [start, block] : blocks) {
        if (at >= start && at + n <= start + block.n) return &block;
        if (at < start + block.n && at + n > start)
            fault("%zu bytes at %#lx: expected them inside of an allocation, which has %zu at %#lx",
                  n, static_cast<unsigned long>(at), block.n, static_cast<unsigned long>(start));
    }
    return nullptr;
}

size_t used(const Context& context) {
    size_t all = 0;
    for (const auto& [at, block] : state().memory)
        if (block.context->device == context.device) all += block.n;
    return all;
}

// FNV-1a over words.
uint64_t hash_of(const unsigned char* at, size_t n) {
    uint64_t hash = 0xcbf29ce484222325u;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, at + i, sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
    }
    for (; i < n; ++i) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

// Lets work that runs touch the memory of devices, which nobody else may.
void open_memory(bool open) {
    const int access = open ? PROT_READ | PROT_WRITE : PROT_NONE;
    for (const auto& [at, block] : state().memory)
        if (mprotect(block.map + page(), block.mapped - 2 * page(), access) != 0)
            fault("mprotect failed");
}

}  // namespace standin
