// Turns of blocks that add to the same sums, so that the order of additions does not change.
#pragma once

#include <cstdint>

#include "ops/cuda/sm90/tma.cuh"

namespace nmoe::cuda::sm90 {

// When a tile's sum over a piece of its group's rows is added to C: once the piece before was. A warp's rows of the
// tile wait for the same warp's in the block that has the piece before, so that a turn, an I32, has a bit for each
// warp.
struct PieceTurn {
  uint32_t place : 30;   // among all turns; the piece before has the place before
  uint32_t waits : 1;    // or the piece before was added by another launch
  uint32_t is_last : 1;  // of its group

  // By the thread that then starts the warp's additions.
  __device__ void wait(const int32_t* turns, int warp) const {
    if (waits == 0) return;
    int32_t done;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(done) : "l"(turns + place - 1) : "memory");
    } while ((done >> warp & 1) == 0);
    asm volatile("fence.proxy.async;\n" ::: "memory");  // TMA's additions come behind what was read
  }
  // By the thread that started them: waits until they are done.
  __device__ void pass(int32_t* turns, int warp) const {
    tma_wait<0>();
    asm volatile("fence.proxy.async;\n" ::: "memory");  // and what it wrote before what is told
    asm volatile("red.release.gpu.global.or.b32 [%0], %1;\n" ::"l"(turns + place), "r"(1 << warp) : "memory");
  }
};

}  // namespace nmoe::cuda::sm90
