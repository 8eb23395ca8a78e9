// All of it in one unit, as tests compile it.
#include "cubin.cpp"
#include "memory.cpp"
#include "objects.cpp"
#include "queue.cpp"
#include "settings.cpp"
// the driver's functions come last: they use the whole namespace
#include "device.cpp"
#include "stream.cpp"
