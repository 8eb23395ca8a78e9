// A number that comes near a cap and never goes beyond it.
#ifndef OCTAVO_SOFTCAP
#define OCTAVO_SOFTCAP

#include "compat.cuh"

// cap * tanh(x / cap)
DEVICE float soft_capped(float x, float cap) { return cap * tanhf(x / cap); }

#endif
