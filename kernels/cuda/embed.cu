// Compiled once for each FORMAT.
#include "embed.cuh"

KERNEL(JOIN(embed, FORMAT, rows), EmbedParams, EMBED_THREADS) { embed<FORMAT>(p); }
