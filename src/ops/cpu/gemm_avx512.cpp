// Compiled for x86-64-v4 (ops/CMakeLists.txt), and called only on processors that have it.
#include "ops/cpu/avx512_vectors.h"
#include "ops/cpu/gemm_tiles.h"

namespace nmoe::cpu {

GemmKernel avx512_gemm() { return gemm_of<Floats>; }

}  // namespace nmoe::cpu
