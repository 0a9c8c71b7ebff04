// One wgmma after the other in E4M3, without anything around them: what the bit model is held against.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nmoe::test {

constexpr int kFp8TileRows = 64, kFp8TileCols = 64, kFp8TileDepth = 128;

// c [tiles, 64, 64] = a b^T, tile by tile, k in steps of 32 from 0 to `depth` (of at most 128, in steps of 32). a and b
// [tiles, 64, 128] of E4M3 codes, on the device. Enqueued.
void fp8_wgmma_tiles(const uint8_t* a, const uint8_t* b, float* c, int num_tiles, int depth, cudaStream_t stream);

}  // namespace nmoe::test
