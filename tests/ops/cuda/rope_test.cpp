#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

// Two products and a difference that may cancel, down to a thousandth of the largest.
constexpr double kTolerance = 5e-4;

struct Case {
  int64_t tokens, heads, head_size, offset, pairs;
};
constexpr Case kCases[] = {{0, 2, 8, 0, 4},       {1, 1, 2, 0, 1},    {5, 3, 7, 1, 3},   {33, 4, 64, 0, 32},
                           {9, 16, 192, 128, 32}, {20, 1, 64, 0, 32}, {6, 2, 40, 8, 12}, {7, 2, 24, 4, 8}};

using CudaRope = CudaTest;

TEST_F(CudaRope, BothDirectionsAreThoseOfTheCpu) {
  constexpr int64_t kPositions = 50;
  for (const DType dtype : kActDTypes) {
    for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kHalfSplit}) {
      for (const auto& [tokens, heads, head_size, offset, pairs] : kCases) {
        for (const bool inverse : {false, true}) {
          Rope args;
          args.x = normal({tokens, heads, head_size}, dtype);
          args.positions = pool_.random_ints({tokens}, kPositions);
          args.cos = pool_.normal({kPositions, pairs});
          args.sin = pool_.normal({kPositions, pairs});
          args.rope_offset = offset;
          args.layout = layout;
          Rope device = args;
          device.x = up(args.x, dtype);
          device.positions = up(args.positions);
          device.cos = up(args.cos);
          device.sin = up(args.sin);
          if (inverse) {
            cpu().rope_backward(args);
            gpu().rope_backward(device);
          } else {
            cpu().rope_forward(args);
            gpu().rope_forward(device);
          }
          EXPECT_TRUE(near(down(device.x), args.x, tolerance(dtype, kTolerance)))
              << tokens << " tokens, " << heads << " heads of " << head_size << ", " << pairs << " pairs at " << offset;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
