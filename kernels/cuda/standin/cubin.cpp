// What the driver reads in a cubin: for which devices it is, which kernels it has, what they take.
#include "standin.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include <sstream>

namespace standin {

// Attributes of a kernel in its section .nv.info.NAME: a byte for the form, one for the attribute,
// then a value of two bytes or, in form 4, so many bytes.
enum {
    FORM_SIZED = 4,
    ATTRIBUTE_MAX_THREADS = 0x05,
    ATTRIBUTE_PARAMETER = 0x17,
    ATTRIBUTE_PARAMETER_BYTES = 0x19,
    ATTRIBUTE_TOOLKIT = 0x37
};

static uint16_t word16(const unsigned char* at) {
    return static_cast<uint16_t>(at[0] | at[1] << 8);
}
static uint32_t word32(const unsigned char* at) {
    return word16(at) | static_cast<uint32_t>(word16(at + 2)) << 16;
}

static void read_attributes(const unsigned char* at, size_t n, Kernel& kernel) {
    for (size_t i = 0; i + 4 <= n;) {
        const unsigned attribute = at[i + 1];
        const size_t bytes = at[i] == FORM_SIZED ? word16(at + i + 2) : 0;
        if (i + 4 + bytes > n) return;
        if (attribute == ATTRIBUTE_PARAMETER_BYTES) kernel.parameter_bytes = word16(at + i + 2);
        if (attribute == ATTRIBUTE_PARAMETER) ++kernel.n_parameters;
        if (attribute == ATTRIBUTE_MAX_THREADS && bytes >= 12)
            kernel.most_threads = word32(at + i + 4) * word32(at + i + 8) * word32(at + i + 12);
        if (attribute == ATTRIBUTE_TOOLKIT && bytes >= 4)
            kernel.toolkit = static_cast<int>(word32(at + i + 4));
        i += 4 + bytes;
    }
}

// Since CUDA 13 the architecture is in the second byte of the flags, before in the first.
static int architecture(const Elf64_Ehdr& head) {
    const bool is_second = head.e_ident[EI_ABIVERSION] >= 8;
    return static_cast<int>(head.e_flags >> (is_second ? 8 : 0) & 255);
}

// An image's length is not told: as with the real driver, what it says of itself is believed.
bool read_image(const void* bytes, Image& image) {
    const unsigned char* base = static_cast<const unsigned char*>(bytes);
    Elf64_Ehdr head;
    memcpy(&head, base, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_machine != EM_CUDA) return false;
    image.sm = architecture(head);
    std::vector<Elf64_Shdr> sections(head.e_shnum);
    memcpy(sections.data(), base + head.e_shoff, sections.size() * sizeof(Elf64_Shdr));
    const char* names =
        reinterpret_cast<const char*>(base + sections.at(head.e_shstrndx).sh_offset);
    std::map<std::string, Kernel> kernels;
    for (const Elf64_Shdr& section : sections) {
        const std::string name = names + section.sh_name;
        if (name.rfind(".text.", 0) == 0) kernels[name.substr(6)].name = name.substr(6);
        if (name.rfind(".nv.info.", 0) == 0)
            read_attributes(base + section.sh_offset, section.sh_size, kernels[name.substr(9)]);
        if (name.rfind(".nv.shared.", 0) == 0 && name.rfind(".nv.shared.reserved", 0) != 0)
            kernels[name.substr(11)].shared_bytes = section.sh_size;
    }
    for (const auto& [name, kernel] : kernels) {
        if (kernel.name.empty()) continue;
        image.kernels.push_back(kernel);
        image.toolkit = kernel.toolkit;
    }
    return !image.kernels.empty();
}

struct Library {
    void* opened;
    LaunchFunction launch;
};

// The shim's libraries, which OCTAVO_STANDIN_KERNELS lists.
static const std::vector<Library>& libraries() {
    static const std::vector<Library> all = [] {
        std::vector<Library> opened;
        const char* list = getenv("OCTAVO_STANDIN_KERNELS");
        std::stringstream in(list == nullptr ? "" : list);
        for (std::string path; std::getline(in, path, ':');) {
            void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (library == nullptr) fault("OCTAVO_STANDIN_KERNELS: %s", dlerror());
            void* launch = dlsym(library, "octavo_shim_launch");
            if (launch == nullptr) fault("%s: expected octavo_shim_launch in it", path.c_str());
            opened.push_back({library, reinterpret_cast<LaunchFunction>(launch)});
        }
        return opened;
    }();
    return all;
}

bool find_kernel(const std::string& name, Function& function) {
    for (const Library& library : libraries()) {
        void* entry = dlsym(library.opened, name.c_str());
        if (entry == nullptr) continue;
        function.entry = reinterpret_cast<void (*)(const void*)>(entry);
        function.launch = library.launch;
        return true;
    }
    return false;
}

}  // namespace standin
