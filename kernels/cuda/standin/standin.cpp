// All of it in one unit, as tests compile it.
#include "cubin.cpp"
#include "gather.cpp"
#include "memory.cpp"
#include "objects.cpp"
#include "queue.cpp"
#include "settings.cpp"
// the driver's functions come last: they use the whole namespace
#include "device.cpp"
#include "stream.cpp"
// and NCCL's behind them, which stand in the same queues
#include "nccl.cpp"
