// Launchers of the kernels of attention_backward.cuh and attention_backward_passes.cuh.
#include <algorithm>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/scratch.h"
#include "ops/cuda/sm90/attention.h"
#include "ops/cuda/sm90/attention_backward.cuh"
#include "ops/cuda/sm90/attention_backward_passes.cuh"
#include "ops/cuda/sm90/gradient_rotation.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90 {
namespace {

// Key/value heads whose blocks are worked on side by side, where several query heads share each.
constexpr int kSharedSection = 8;

HeadRows head_rows(const AttentionShape& shape, const Tensor& x) {
  return {.data = x.rows_raw(),
          .num_seqs = shape.num_seqs,
          .seq_len = shape.seq_len,
          .heads = x.dim(1),
          .size = x.dim(2),
          .stride = x.stride()};
}

template <class L>
void launch(Context& ctx, const AttentionBackward& args, const Tensor& first_keys,
            const Sm90AttentionScratch& scratch) {
  static_assert(L::kRows == sm90_attention_rows(L::kKeySize) && L::kRotated == sm90_attention_rotated(L::kKeySize));
  const AttentionShape& shape = args.shape;
  const auto B = static_cast<int>(shape.num_seqs), S = static_cast<int>(shape.seq_len);
  const auto H = static_cast<int>(args.q.dim(1)), G = static_cast<int>(args.k.dim(1));
  const typename L::Tiles tiles{S};
  const int padded = tiles.row_tiles() * L::kRows;
  const int64_t row_threads = int64_t{B} * padded * H * (L::kValueSize / 8),
                row_tiles = int64_t{B} * H * tiles.row_tiles();
  NMOE_CHECK(row_threads / 256 < INT32_MAX && row_tiles < INT32_MAX, "attention of {} tiles", row_tiles);
  int32_t* const lows = scratch.lows.defined() ? scratch.lows.data<int32_t>() : nullptr;
  const PrepareArgs prepare{.out = args.out.data<__nv_bfloat16>(),
                            .dout = args.dout.data<__nv_bfloat16>(),
                            .lse = args.lse.data<float>(),
                            .first_keys = first_keys.defined() ? first_keys.data<int32_t>() : nullptr,
                            .lse2 = scratch.lse.data<float>(),
                            .delta = scratch.delta.data<float>(),
                            .lows = lows,
                            .counters = scratch.counters.data<int32_t>(),
                            .num_counters = scratch.counters.num_elements(),
                            .num_seqs = B,
                            .seq_len = S,
                            .padded = padded,
                            .heads = H,
                            .window = shape.window < S ? static_cast<int>(shape.window) : 0};
  attention_prepare_kernel<L::kValueSize>
      <<<static_cast<unsigned>(ceil_div<int64_t>(row_threads, 256)), 256, 0, ctx.stream>>>(prepare);
  NMOE_CUDA_CHECK(cudaGetLastError());

  GradientRotation rotation{};
  if (sm90_attention_rotates(args)) {
    const Rope& rope = args.rope;
    NMOE_CHECK(rope.positions.dim(0) == int64_t{B} * S && rope.sin.shape() == rope.cos.shape() &&
                   aligned16(rope.cos.raw()) && aligned16(rope.sin.raw()),
               "attention's rope: positions {}, tables {} and {}", rope.positions.shape(), rope.cos.shape(),
               rope.sin.shape());
    rotation = {.positions = rope.positions.data<int32_t>(),
                .cos = rope.cos.data<float>(),
                .sin = rope.sin.data<float>(),
                .num_positions = rope.cos.dim(0),
                .halves = rope.layout == RopeLayout::kHalfSplit};
  }

  const BackwardArgs main{.q = head_map(head_rows(shape, args.q), L::kRows),
                          .k = head_map(head_rows(shape, args.k), L::kKeys),
                          .v = head_map(head_rows(shape, args.v), L::kKeys),
                          .dout = head_map(head_rows(shape, args.dout), L::kRows),
                          .lse = prepare.lse2,
                          .delta = prepare.delta,
                          .lows = lows,
                          .dq_sums = scratch.sums.data<float>(),
                          .turns = prepare.counters,
                          .tickets = prepare.counters + prepare.num_counters - 1,
                          .dk = static_cast<__nv_bfloat16*>(args.dk.rows_raw()),
                          .dv = static_cast<__nv_bfloat16*>(args.dv.rows_raw()),
                          .dk_stride = args.dk.stride(),
                          .dv_stride = args.dv.stride(),
                          .num_seqs = B,
                          .seq_len = S,
                          .kv_heads = G,
                          .group = H / G,
                          .order = H == G ? BackwardOrder::kLastKeysFirst : BackwardOrder::kFirstKeysFirst,
                          .section = H == G ? 1 : kSharedSection,
                          .scale = static_cast<float>(shape.scale),
                          .rotation = args.rope_keys ? rotation : GradientRotation{}};
  const int64_t tickets = int64_t{B} * G * tiles.key_blocks();
  allow_dynamic_shared(attention_backward_kernel<L>, L::kSharedBytes);
  attention_backward_kernel<L><<<static_cast<unsigned>(std::min<int64_t>(tickets, ctx.num_sms)), L::Registers::kThreads,
                                 L::kSharedBytes, ctx.stream>>>(main);
  NMOE_CUDA_CHECK(cudaGetLastError());

  const FinishArgs finish{.dq_sums = main.dq_sums,
                          .dq = static_cast<__nv_bfloat16*>(args.dq.rows_raw()),
                          .dq_stride = args.dq.stride(),
                          .scale = main.scale,
                          .num_seqs = B,
                          .seq_len = S,
                          .heads = H,
                          .row_tiles = tiles.row_tiles(),
                          .rotation = rotation};
  attention_finish_kernel<L><<<static_cast<unsigned>(row_tiles), kFinishThreads<L>, 0, ctx.stream>>>(finish);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void attention_backward(Context& ctx, const AttentionBackward& args, const Tensor& first_keys) {
  ArenaScope scope(ctx.scratch);
  const Sm90AttentionScratch scratch = claim_sm90(scope, args);
  if (ctx.counting()) return;
  for (const Tensor* x : {&args.q, &args.k, &args.v, &args.out, &args.dout, &args.dq, &args.dk, &args.dv}) {
    NMOE_CHECK(aligned16(x->rows_raw()), "attention of rows that are not aligned to 16 bytes");
  }
  const int64_t key_size = args.q.dim(2), value_size = args.v.dim(2);
  if (key_size == 64 && value_size == 64) {
    return launch<BackwardLayout<64, 64, 128, 2, 2, 2, true>>(ctx, args, first_keys, scratch);
  }
  if (key_size == 128 && value_size == 128) {
    return launch<BackwardLayout<128, 128, 64, 1, 2, 2, true>>(ctx, args, first_keys, scratch);
  }
  NMOE_CHECK(key_size == 192 && value_size == 128, "attention with heads of {} and {}", key_size, value_size);
  launch<BackwardLayout<192, 128, 64, 1, 2, 1, true>>(ctx, args, first_keys, scratch);
}

}  // namespace nmoe::cuda::sm90
