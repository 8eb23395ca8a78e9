// SwiGLU of two numbers.
#ifndef OCTAVO_GATE
#define OCTAVO_GATE

#include "compat.cuh"

DEVICE float gated(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

#endif
