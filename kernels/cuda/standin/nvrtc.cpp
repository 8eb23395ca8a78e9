// A library like NVRTC, for tests of its caller: it compiles nothing, and answers as the macros say
// that stand before this text (nvrtc.rs).
#include <stddef.h>
#include <string.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

static int programs = 0;

static int give(const char* text, char* to) {
    strcpy(to, text);
    return 0;
}

static int measure(const char* text, size_t* n) {
    *n = strlen(text) + 1;
    return 0;
}

EXPORTED int nvrtcVersion(int* major, int* minor) {
    *major = 12;
    *minor = 9;
    return VERSION_ANSWERS;
}

EXPORTED int ARCHS_ARE_CALLED(int* n) {
    *n = 2;
    return COUNT_ANSWERS;
}

EXPORTED int nvrtcGetSupportedArchs(int* all) {
    all[0] = 80;
    all[1] = 90;
    return LIST_ANSWERS;
}

EXPORTED int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                                const char* const*) {
    if (CREATE_ANSWERS == 0) {
        *program = &programs;
        ++programs;
    }
    return CREATE_ANSWERS;
}

EXPORTED int nvrtcDestroyProgram(void** program) {
    *program = nullptr;
    --programs;
    return 0;
}

EXPORTED int COMPILE_IS_CALLED(void*, int, const char* const*) { return COMPILE_ANSWERS; }

EXPORTED int nvrtcGetProgramLogSize(void*, size_t* n) { return measure(LOG, n); }

EXPORTED int nvrtcGetProgramLog(void*, char* to) { return give(LOG, to); }

EXPORTED int nvrtcGetCUBINSize(void*, size_t* n) {
    *n = strlen(CUBIN);
    return CUBIN_ANSWERS;
}

EXPORTED int nvrtcGetCUBIN(void*, char* to) {
    memcpy(to, CUBIN, strlen(CUBIN));
    return CUBIN_ANSWERS;
}

EXPORTED int nvrtcGetPTXSize(void*, size_t* n) { return measure("ptx", n); }

EXPORTED int nvrtcGetPTX(void*, char* to) { return give("ptx", to); }

// Not NVRTC's: programs that were created and not destroyed.
EXPORTED int octavo_standin_programs() { return programs; }
