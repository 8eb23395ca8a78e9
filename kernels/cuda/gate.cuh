// A gate and what it gates, two numbers at a time, and functions of one.
#ifndef OCTAVO_GATE
#define OCTAVO_GATE

#include "compat.cuh"

// kernels/src/cuda/launch.rs has the same numbers.
enum GateKind : u32 { GATE_SILU = 1, GATE_GELU = 2, GATE_SWIGLU_OAI = 3 };

// x / 2 * (1 + tanh(z)) is x / (1 + e^-2z), with z = sqrt(2 / pi) (x + 0.044715 x^3).
DEVICE float gelu(float x) {
    const float z = x * fmaf(x * x, 0.044715f, 1.0f);
    return x / (1.0f + expf(-1.5957691f * z));
}

DEVICE float gated(u32 kind, float gate, float up) {
    if (kind == GATE_GELU) return gelu(gate) * up;
    if (kind == GATE_SWIGLU_OAI) {
        gate = fminf(gate, 7.0f);
        up = fmaxf(fminf(up, 7.0f), -7.0f);
        return gate / (1.0f + expf(-1.702f * gate)) * (up + 1.0f);
    }
    return gate / (1.0f + expf(-gate)) * up;
}

#endif
