#include "ops/cuda/fp8_wgmma.h"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::test {
namespace {

using namespace cuda::sm90;

constexpr int kRowBytes = kFp8TileDepth, kTileBytes = kFp8TileRows * kRowBytes, kVectors = kRowBytes / 16;
static_assert(kRowBytes == 128 && kTileBytes % kPanelAlignment == 0, "rows of 128 bytes, swizzled as in wgmma.cuh");

__device__ void load_tile(const uint8_t* source, std::byte* tile) {
  for (int i = static_cast<int>(threadIdx.x); i < kTileBytes / 16; i += kWarpgroup) {
    const int row = i / kVectors, vector = i % kVectors;
    reinterpret_cast<uint4*>(tile)[row * kVectors + (vector ^ row % 8)] = reinterpret_cast<const uint4*>(source)[i];
  }
}

#define NMOE_EIGHT(d, i)                                                                                            \
  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), \
      "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])

__device__ void multiply(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1;\n"
      "}\n"
      : NMOE_EIGHT(d, 0), NMOE_EIGHT(d, 8), NMOE_EIGHT(d, 16), NMOE_EIGHT(d, 24)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

#undef NMOE_EIGHT

__global__ void __launch_bounds__(kWarpgroup) tiles_kernel(const uint8_t* a, const uint8_t* b, float* c, int depth) {
  __shared__ __align__(kPanelAlignment) std::byte tile_a[kTileBytes];
  __shared__ __align__(kPanelAlignment) std::byte tile_b[kTileBytes];
  load_tile(a + static_cast<int64_t>(blockIdx.x) * kTileBytes, tile_a);
  load_tile(b + static_cast<int64_t>(blockIdx.x) * kTileBytes, tile_b);
  fence_proxy_async();
  __syncthreads();
  float sums[32];
  for (int k = 0; k < depth; k += 32) {
    wgmma_fence();
    multiply(sums, wgmma_descriptor(tile_a) + k / 16, wgmma_descriptor(tile_b) + k / 16, k > 0);
    wgmma_commit_group();
    wgmma_wait_group<0>();
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float* const target = c + static_cast<int64_t>(blockIdx.x) * kFp8TileRows * kFp8TileCols;
  for (int i = 0; i < 32; ++i) {
    const int row = 16 * warp + i % 4 / 2 * 8 + lane / 4, col = i / 4 * 8 + lane % 4 * 2 + i % 2;
    target[row * kFp8TileCols + col] = sums[i];
  }
}

}  // namespace

void fp8_wgmma_tiles(const uint8_t* a, const uint8_t* b, float* c, int num_tiles, int depth, cudaStream_t stream) {
  tiles_kernel<<<static_cast<unsigned>(num_tiles), kWarpgroup, 0, stream>>>(a, b, c, depth);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::test
