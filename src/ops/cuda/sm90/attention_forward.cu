// Attention, forward, of the sequences of a step: what launches attention_forward.cuh.
#include <algorithm>
#include <limits>
#include <vector>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/attention.h"
#include "ops/cuda/sm90/attention_forward.cuh"

namespace nmoe::cuda::sm90 {
namespace {

using namespace forward;

// How many heads make a section, of keys and values of some 4 to 24 MiB: the number, among some, for which the block
// with the most work has the least, without documents. The order repeats itself, so that some are bad: with 256 tiles
// of a section for 132 blocks, the same blocks would take the longest tiles in turn after turn.
template <class L>
int balanced_section(const Attention& a, int num_blocks) {
  constexpr int64_t kLeastBytes = int64_t{4} << 20, kMostBytes = int64_t{24} << 20;
  constexpr int kCandidates = 8;
  const int64_t group_bytes = static_cast<int64_t>(a.seq_len) * (L::kKeySize + L::kValueSize) * 2;
  const int groups = a.num_seqs * a.heads / a.group;
  const int least = static_cast<int>(std::clamp<int64_t>(kLeastBytes / group_bytes, 1, groups));
  const int most = static_cast<int>(std::clamp<int64_t>(kMostBytes / group_bytes, 1, groups));
  std::vector<int64_t> work(static_cast<size_t>(a.tiles));  // blocks of keys of a tile, and one for what a tile costs
  for (int row = 0; row < a.tiles; ++row) {
    const int first = row * kTileRows - a.missing, last = std::min(first + kTileRows, a.seq_len) - 1;
    const int low = a.window > 0 ? std::max(first - a.window + 1, 0) : 0;
    work[static_cast<size_t>(row)] = last / L::kKeys - low / L::kKeys + 2;
  }
  int best = 0;
  int64_t least_work = std::numeric_limits<int64_t>::max();
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const int section = (least + (most - least) * candidate / (kCandidates - 1)) * a.group;
    std::vector<int64_t> loads(static_cast<size_t>(num_blocks));
    int turn = 0, block = 0;
    for (int first = 0; first < a.num_seqs * a.heads; first += section) {
      const int heads = std::min(section, a.num_seqs * a.heads - first);
      for (int row = a.tiles - 1; row >= 0; --row) {
        for (int head = 0; head < heads; ++head) {
          loads[static_cast<size_t>(turn % 2 == 0 ? block : num_blocks - 1 - block)] += work[static_cast<size_t>(row)];
          if (++block == num_blocks) {
            block = 0;
            ++turn;
          }
        }
      }
    }
    const int64_t most_work = *std::max_element(loads.begin(), loads.end());
    if (most_work < least_work) {
      least_work = most_work;
      best = section;
    }
  }
  return best;
}

// What both forms of arguments are: q and out as in the contract.
struct Operands {
  const AttentionShape& shape;
  Tensor q;
  KeyValueRows keys;
  Tensor out, lse;
};

template <class L>
void launch(Context& ctx, const Operands& args, const Tensor& first_keys) {
  const AttentionShape& shape = args.shape;
  const KeyValueRows& keys = args.keys;
  const int64_t S = shape.seq_len, heads = shape.num_seqs * args.q.dim(1), group = args.q.dim(1) / keys.v.heads;
  const int64_t whole_rows = ceil_div<int64_t>(S, kRows) * kRows, tiles = ceil_div<int64_t>(whole_rows, kTileRows);
  NMOE_CHECK(heads * tiles <= INT32_MAX / 2, "attention of {} tiles", heads * tiles);
  Attention attention{.q = head_map(head_rows(shape, args.q), kRows),
                      .k = head_map(keys.k, L::kKeys),
                      .k_last = head_map(keys.k_last, L::kKeys),
                      .v = head_map(keys.v, L::kKeys),
                      .last_heads = static_cast<int>(keys.k_last.heads),
                      .out = args.out.data<__nv_bfloat16>(),
                      .lse = args.lse.data<float>(),
                      .first_keys = first_keys.defined() ? first_keys.data<int32_t>() : nullptr,
                      .num_seqs = static_cast<int>(shape.num_seqs),
                      .seq_len = static_cast<int>(S),
                      .heads = static_cast<int>(args.q.dim(1)),
                      .group = static_cast<int>(group),
                      .window = shape.window < S ? static_cast<int>(shape.window) : 0,
                      .scale = static_cast<float>(shape.scale),
                      .tiles = static_cast<int>(tiles),
                      .missing = static_cast<int>(tiles * kTileRows - whole_rows),
                      .section = 0,
                      .slot_rows = nullptr,
                      .num_slot_rows = nullptr};
  const int blocks = static_cast<int>(std::min<int64_t>(heads * tiles, ctx.num_sms));
  attention.section = balanced_section<L>(attention, blocks);
  allow_dynamic_shared(attention_kernel<L>, L::kSharedBytes);
  attention_kernel<L>
      <<<static_cast<unsigned>(blocks), L::Registers::kThreads, L::kSharedBytes, ctx.stream>>>(attention);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void launch_for_sizes(Context& ctx, const Operands& args, const Tensor& first_keys) {
  const KeyValueRows& keys = args.keys;
  NMOE_CHECK(aligned16(args.q.rows_raw()) && aligned16(keys.k.data) && aligned16(keys.k_last.data) &&
                 aligned16(keys.v.data) && aligned16(args.out.raw()),
             "attention of rows that are not aligned to 16 bytes");
  const int64_t key_size = args.q.dim(2), value_size = keys.v.size;
  if (key_size == 64 && value_size == 64)
    return launch<Layout<64, 64, 128, 4, QueryRows::kSequences>>(ctx, args, first_keys);
  if (key_size == 128 && value_size == 128)
    return launch<Layout<128, 128, 64, 4, QueryRows::kSequences>>(ctx, args, first_keys);
  NMOE_CHECK(key_size == 192 && value_size == 128, "attention with heads of {} and {}", key_size, value_size);
  launch<Layout<192, 128, 64, 3, QueryRows::kSequences>>(ctx, args, first_keys);
}

}  // namespace

void attention_forward(Context& ctx, const AttentionForward& args, const Tensor& first_keys) {
  launch_for_sizes(ctx,
                   {.shape = args.shape,
                    .q = args.q,
                    .keys = key_value_rows(args.shape, args.k, args.v),
                    .out = args.out,
                    .lse = args.lse},
                   first_keys);
}

void mla_attention_forward(Context& ctx, const MlaAttentionForward& args, const Tensor& first_keys) {
  launch_for_sizes(ctx,
                   {.shape = args.shape,
                    .q = args.q,
                    .keys = key_value_rows(args.shape, args.kv, args.k_rope, args.out.dim(2)),
                    .out = args.out,
                    .lse = args.lse},
                   first_keys);
}

}  // namespace nmoe::cuda::sm90
