// The machine's floating-point peak, measured: what a share of peak is a share of.
#pragma once

#include "base/thread_pool.h"
#include "tensor/dtype.h"

namespace nmoe::cpu {

// FLOP/s of independent fused multiply-adds on all of the pool's threads at once, with the widest vectors the
// processor has (AVX-512 or AVX2). A second-best of several short runs, since other work can only lower it and a
// clock's boost can raise one. About 0.1 s.
double measure_peak_flops(ThreadPool& pool, DType dtype);

// "AVX-512" or "AVX2": what measure_peak_flops and the BLAS use here.
const char* widest_vectors();

}  // namespace nmoe::cpu
