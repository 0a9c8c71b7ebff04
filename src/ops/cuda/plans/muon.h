// Muon: as many matrices at a time as make kStackElements.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

struct MuonPlan {
  Tensor direction;      // [stack, rows * cols] F32
  Tensor x, next;        // the same in the products' format; one of them in the direction's memory
  Tensor gram, poly;     // [stack, min(rows, cols), min(rows, cols)], as x
  Tensor partials;       // [stack, slices] F32
  Tensor inverse_norms;  // [stack] F32
  Tensor workspace;      // of products
};
constexpr int64_t kMuonSlice = int64_t{1} << 14;  // elements of an elementwise block
constexpr int64_t kMuonWorkspaceBytes = int64_t{16} << 20;
inline int64_t muon_stack(const Shape& w) {
  constexpr int64_t kStackElements = int64_t{1} << 26;  // of the matrices that are worked on together
  constexpr int64_t kStackMatrices = int64_t{1} << 15;  // a grid's second dimension has to hold them
  const int64_t batch = w.rank() == 3 ? w[0] : 1;
  return std::clamp<int64_t>(kStackElements / (w[-2] * w[-1]), 1, std::min(batch, kStackMatrices));
}
inline MuonPlan plan(Planner& to, const MuonStep& args) {
  if (args.w.num_elements() == 0) return {};
  const Shape& w = args.w.shape();
  const int64_t stack = muon_stack(w), size = w[-2] * w[-1], small = std::min(w[-2], w[-1]);
  MuonPlan scratch;
  const bool in_bf16 = args.products == MuonProducts::kBf16;
  const DType format = in_bf16 ? DType::kBF16 : DType::kF32;
  scratch.direction = to.scope.allocate(DType::kF32, {stack, size});
  const Tensor reused(scratch.direction.raw(), format, {stack, size}), other = to.scope.allocate(format, {stack, size});
  scratch.x = in_bf16 ? other : reused;  // which the direction is scaled into: in place, if it keeps its format
  scratch.next = in_bf16 ? reused : other;
  scratch.gram = to.scope.allocate(format, {stack, small, small});
  scratch.poly = to.scope.allocate(format, {stack, small, small});
  scratch.partials = to.scope.allocate(DType::kF32, {stack, blocks_for(size, kMuonSlice)});
  scratch.inverse_norms = to.scope.allocate(DType::kF32, {stack});
  scratch.workspace = to.scope.allocate(DType::kU8, {kMuonWorkspaceBytes});
  return scratch;
}

}  // namespace nmoe::cuda
