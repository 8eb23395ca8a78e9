// The order of columns in which `wide_gemm` takes tokens' halves: those of a slice of four units by
// products of sixteen, of which each takes four neighbouring columns of every unit.
#ifndef OCTAVO_WIDE
#define OCTAVO_WIDE

#include "activations.cuh"

constexpr u32 WIDE_UNITS = 4;
constexpr u32 WIDE_SLICE = WIDE_UNITS * UNIT;

// The place of column `col` in a row. Columns of unit l of four have places 2 l, 2 l + 1, 2 l + 8
// and 2 l + 9 of a product.
DEVICE constexpr u32 wide_place(u32 col) {
    const u32 unit = col % WIDE_SLICE / UNIT, product = col % UNIT / 4, within = col % 4;
    return col / WIDE_SLICE * WIDE_SLICE + 16 * product + 2 * unit + within / 2 * 8 + within % 2;
}

#endif
