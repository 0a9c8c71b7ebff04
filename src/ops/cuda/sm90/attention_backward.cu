// Launchers of the kernels of attention_backward.cuh and attention_backward_passes.cuh.
#include <algorithm>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/attention.h"
#include "ops/cuda/sm90/attention_backward.cuh"
#include "ops/cuda/sm90/attention_backward_passes.cuh"
#include "ops/cuda/sm90/gradient_rotation.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90 {
namespace {

// Key/value heads whose blocks are worked on side by side, where several query heads share each.
constexpr int kSharedSection = 8;

GradientRows gradient_rows(const HeadRows& rows) {
  return {.data = static_cast<__nv_bfloat16*>(const_cast<void*>(rows.data)),
          .stride = rows.stride,
          .head_stride = rows.head_stride};
}

// What both forms of arguments are, and how q's gradient is rotated back; the rest as in the contract.
struct Operands {
  const AttentionShape& shape;
  Tensor q;
  KeyValueRows keys;
  Tensor out, lse, dout, dq;
  KeyValueRows gradients;  // of keys; that of their last values for every head
  const Rope* rope;        // or null
  bool rope_keys;
};

template <class L>
void launch(Context& ctx, const Operands& args, const Tensor& first_keys, const Sm90AttentionScratch& scratch) {
  static_assert(L::kRows == sm90_attention_rows(L::kKeySize) && L::kRotated == sm90_attention_rotated(L::kKeySize));
  const AttentionShape& shape = args.shape;
  const auto B = static_cast<int>(shape.num_seqs), S = static_cast<int>(shape.seq_len);
  const auto H = static_cast<int>(args.q.dim(1)), G = static_cast<int>(args.keys.v.heads);
  const typename L::Tiles tiles{S};
  const int padded = tiles.row_tiles() * L::kRows;
  const int64_t row_threads = int64_t{B} * padded * H * (L::kValueSize / 8),
                row_tiles = int64_t{B} * H * tiles.row_tiles();
  NMOE_CHECK(row_threads / 256 < INT32_MAX && row_tiles < INT32_MAX, "attention of {} tiles", row_tiles);
  int32_t* const lows = scratch.lows.data_or_null<int32_t>();
  const PrepareArgs prepare{.out = args.out.data<__nv_bfloat16>(),
                            .dout = args.dout.data<__nv_bfloat16>(),
                            .lse = args.lse.data<float>(),
                            .first_keys = first_keys.data_or_null<int32_t>(),
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
  if (args.rope != nullptr) {
    const Rope& rope = *args.rope;
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
                          .k = head_map(args.keys.k, L::kKeys),
                          .k_last = head_map(args.keys.k_last, L::kKeys),
                          .v = head_map(args.keys.v, L::kKeys),
                          .dout = head_map(head_rows(shape, args.dout), L::kRows),
                          .last_heads = static_cast<int>(args.keys.k_last.heads),
                          .lse = prepare.lse2,
                          .delta = prepare.delta,
                          .lows = lows,
                          .dq_sums = scratch.sums.data<float>(),
                          .turns = prepare.counters,
                          .tickets = prepare.counters + prepare.num_counters - 1,
                          .dk = gradient_rows(args.gradients.k),
                          .dk_last = gradient_rows(args.gradients.k_last),
                          .dv = gradient_rows(args.gradients.v),
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

void launch_for_sizes(Context& ctx, const Operands& args, const Tensor& first_keys,
                      const Sm90AttentionScratch& scratch) {
  for (const Tensor* x : {&args.q, &args.out, &args.dout, &args.dq}) {
    NMOE_CHECK(aligned16(x->rows_raw()), "attention of rows that are not aligned to 16 bytes");
  }
  for (const KeyValueRows* keys : {&args.keys, &args.gradients}) {
    NMOE_CHECK(aligned16(keys->k.data) && aligned16(keys->k_last.data) && aligned16(keys->v.data),
               "attention of keys that are not aligned to 16 bytes");
  }
  const int64_t key_size = args.q.dim(2), value_size = args.keys.v.size;
  if (key_size == 64 && value_size == 64) {
    return launch<BackwardLayout<64, 64, 128, 2, 2, 2, true>>(ctx, args, first_keys, scratch);
  }
  if (key_size == 128 && value_size == 128) {
    return launch<BackwardLayout<128, 128, 64, 1, 2, 2, true>>(ctx, args, first_keys, scratch);
  }
  NMOE_CHECK(key_size == 192 && value_size == 128, "attention with heads of {} and {}", key_size, value_size);
  launch<BackwardLayout<192, 128, 64, 1, 2, 1, true>>(ctx, args, first_keys, scratch);
}

}  // namespace

void attention_backward(Context& ctx, const AttentionBackward& args, const Tensor& first_keys,
                        const Sm90AttentionScratch& scratch) {
  launch_for_sizes(ctx,
                   {.shape = args.shape,
                    .q = args.q,
                    .keys = key_value_rows(args.shape, args.k, args.v),
                    .out = args.out,
                    .lse = args.lse,
                    .dout = args.dout,
                    .dq = args.dq,
                    .gradients = key_value_rows(args.shape, args.dk, args.dv),
                    .rope = sm90_attention_rotates(args.q, args.rope, args.rope_keys) ? &args.rope : nullptr,
                    .rope_keys = args.rope_keys},
                   first_keys, scratch);
}

void mla_attention_backward(Context& ctx, const MlaAttentionBackward& args, const Tensor& dk_rope,
                            const Tensor& first_keys, const Sm90AttentionScratch& scratch) {
  const int64_t value_size = args.out.dim(2);
  KeyValueRows gradients = key_value_rows(args.shape, args.dkv, args.dk_rope, value_size);
  gradients.k_last = head_rows(args.shape, dk_rope);
  launch_for_sizes(ctx,
                   {.shape = args.shape,
                    .q = args.q,
                    .keys = key_value_rows(args.shape, args.kv, args.k_rope, value_size),
                    .out = args.out,
                    .lse = args.lse,
                    .dout = args.dout,
                    .dq = args.dq,
                    .gradients = gradients,
                    .rope = sm90_attention_rotates(args.q, args.rope, /*rope_keys=*/false) ? &args.rope : nullptr,
                    .rope_keys = false},
                   first_keys, scratch);
}

}  // namespace nmoe::cuda::sm90
