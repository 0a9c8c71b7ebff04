// What CUDA operations take of scratch, by their arguments alone. The operations claim theirs through these functions,
// and so does a device that only counts (ops/planned): a plan for a GPU is the same on a machine without one. No CUDA
// here.
//
// What NVIDIA's libraries ask for is known only where they are. For those there is room of a size that was seen to be
// enough; where a library asks for more, it gets that, and the plan made elsewhere was too small by the difference
// (tests/train/cuda/planned_test.cpp).
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/contracts/pieces.h"
#include "ops/cuda/block_scratch.h"
#include "ops/cuda/kernel_set.h"
#include "ops/operations.h"
#include "tensor/arena.h"

namespace nmoe::cuda {

constexpr int64_t blocks_for(int64_t size, int64_t block) { return (size + block - 1) / block; }

// Memory that an allocation takes: the driver maps pages of 2 MiB, which small blocks share.
constexpr int64_t device_allocation_bytes(int64_t bytes) {
  constexpr int64_t kPage = int64_t{2} << 20;
  return bytes <= kPage / 2 ? bytes : blocks_for(bytes, kPage) * kPage;
}

// --- reductions to one number (Sum, SumsOfSquares, CountNonFinite): a partial sum for each block.
constexpr int64_t kReduceElements = int64_t{1} << 14;
inline Tensor claim_partials(ArenaScope& scope, const Tensor& x, DType partial) {
  return scope.allocate(partial, {blocks_for(x.num_elements(), kReduceElements)});
}
// Blocks that read the tensor: none where the sums of its parts are there.
inline int64_t num_square_blocks(const SumOfSquares& args) {
  return args.parts.defined() ? 0 : blocks_for(args.x.num_elements(), kReduceElements);
}
struct SquaresScratch {
  Tensor partials;  // [blocks of all tensors] F64
  Tensor totals;    // [tensors] F64
};
inline SquaresScratch claim(ArenaScope& scope, const SumsOfSquares& args) {
  int64_t blocks = 0;
  for (const SumOfSquares& one : args.all) blocks += num_square_blocks(one);
  SquaresScratch scratch;
  scratch.partials = scope.allocate(DType::kF64, {blocks});
  scratch.totals = scope.allocate(DType::kF64, {static_cast<int64_t>(args.all.size())});
  return scratch;
}

// --- what rounding loses: the largest magnitudes of matrices, or of experts' rows, where these have a scale.
inline Tensor claim(ArenaScope& scope, const MeasureRounding& args) {
  if (args.format != OperandFormat::kNvFp4) return {};
  return scope.allocate(DType::kF32, {args.offsets.defined() ? args.offsets.dim(0) - 1 : args.x.dim(0)});
}

struct ProductMagnitudes {
  Tensor x, w;  // [E] F32
};
inline ProductMagnitudes claim(ArenaScope& scope, const MeasureProduct& args) {
  if (args.format != OperandFormat::kNvFp4) return {};
  const Tensor x = scope.allocate(DType::kF32, {args.w.dim(0)});
  return {x, scope.allocate(DType::kF32, {args.w.dim(0)})};
}

// --- dense products: cuBLASLt's workspace, of the size that NVIDIA recommends for Hopper.
constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;
inline Tensor claim_product_workspace(ArenaScope& scope) {
  return scope.allocate(DType::kU8, {kProductWorkspaceBytes});
}

// --- products whose operands are rounded.
constexpr WeightRounding weight_rounding(const KernelSet& kernels, DType compute, OperandFormat format) {
  if (compute != DType::kBF16) return WeightRounding::kNone;
  if (kernels.has_sm100()) {
    return format == OperandFormat::kMxFp8 || format == OperandFormat::kNvFp4 ? WeightRounding::kInside
                                                                              : WeightRounding::kNone;
  }
  if (!kernels.has_sm90()) return WeightRounding::kNone;
  if (format == OperandFormat::kFp8) return WeightRounding::kCodes;
  return format == OperandFormat::kAct ? WeightRounding::kNone : WeightRounding::kInside;
}

// Where it is emulated: the same product, with room for operands as they are after rounding
// (kernels/emulated_operands.h). Blackwell multiplies blocks (block_scratch.h).
inline bool has_short_blocks(const OperandRounding& rounding) {
  return rounding.format == OperandFormat::kMxFp8 || rounding.format == OperandFormat::kNvFp4;
}
inline bool is_emulated(const KernelSet& kernels, const OperandRounding& rounding) {
  return !kernels.has_sm100() && has_short_blocks(rounding);
}
inline bool multiplies_blocks(const KernelSet& kernels, const OperandRounding& rounding) {
  return kernels.has_sm100() && has_short_blocks(rounding);
}
template <class Arguments>
Tensor offsets_of(const Arguments& args) {
  if constexpr (requires { args.offsets; }) {
    return args.offsets;
  } else {
    return {};
  }
}
template <class Arguments>
struct Widened {
  Arguments args;
  Tensor amax, other_amax;  // NVFP4: [G] F32 of rows and weights, or of x and dy; of dense products [1]
};
inline Tensor claim_like(ArenaScope& scope, const Tensor& x) { return scope.allocate(x.dtype(), x.shape()); }
// Rows where they lie, each rounded once however often it is picked; or in order: a row's random bits are those of its
// place there, and a tensor's largest magnitude is that of rows that are there.
inline Tensor claim_rows(ArenaScope& scope, OperandFormat, const Tensor& x) { return claim_like(scope, x); }
inline OperandRows claim_rows(ArenaScope& scope, OperandFormat format, const OperandRows& x) {
  if (format == OperandFormat::kMxFp8) return {claim_like(scope, x.source), x.index};
  return scope.allocate(x.source.dtype(), {x.num_rows(), x.width()});
}
// Rows in order, with room for whole blocks of each of `groups` in NVFP4.
inline Tensor claim_columns(ArenaScope& scope, OperandFormat format, const OperandRows& x, int64_t groups) {
  const int64_t n = format == OperandFormat::kNvFp4 ? block_size(format) : 1, rows = x.num_rows();
  const int64_t room = groups == 1 ? blocks_for(rows, n) * n : rows + groups * (n - 1);
  return scope.allocate(x.source.dtype(), {room, x.width()});
}
template <class Arguments>
Widened<Arguments> claim_widened(ArenaScope& scope, const Arguments& args) {
  constexpr bool is_grouped = requires { args.offsets; }
  , is_of_weight = requires { args.dw; };
  const OperandFormat format = args.rounding.format;
  const int64_t groups = is_grouped ? offsets_of(args).dim(0) - 1 : 1;
  Widened<Arguments> to{.args = args, .amax = {}, .other_amax = {}};
  if constexpr (is_of_weight) {
    to.args.x = claim_columns(scope, format, args.x, groups);
    to.args.dy = claim_columns(scope, format, args.dy, groups);
  } else {
    if constexpr (requires { args.x; }) {
      to.args.x = claim_rows(scope, format, args.x);
    } else {
      to.args.dy = claim_rows(scope, format, args.dy);
    }
    to.args.w = claim_like(scope, args.w);
  }
  to.args.rounding = {};
  if (format != OperandFormat::kNvFp4) return to;
  to.amax = scope.allocate(DType::kF32, {groups});
  to.other_amax = scope.allocate(DType::kF32, {groups});
  to.args.rounding.product_scale = scope.allocate(DType::kF32, {is_grouped ? groups : 2});
  if constexpr (is_grouped && is_of_weight) to.args.offsets = claim_like(scope, args.offsets);
  return to;
}

// Of a product of blocks.
template <class Arguments>
BlockProductScratch claim_block_product(ArenaScope& scope, const Arguments& args) {
  BlockProductScratch scratch = claim_blocks(scope, args);
  if constexpr (!requires { args.offsets; }) {
    scratch.workspace = claim_product_workspace(scope);
    scratch.product_scale = scope.allocate(DType::kF32, {2});
  }
  return scratch;
}

// Of FP8 operands: codes of the rows that came without, or are picked.
inline RowCodes claim_row_codes(ArenaScope& scope, const OperandRounding& rounding, const OperandRows& rows) {
  if (rounding.format != OperandFormat::kFp8 || (rounding.rows.defined() && !rows.index.defined())) return {};
  RowCodes codes;
  codes.values = scope.allocate(DType::kU8, {rows.num_rows(), rows.width()});
  codes.scales =
      scope.allocate(DType::kU8, {rows.num_rows(), blocks_for(rows.width(), block_size(OperandFormat::kFp8))});
  return codes;
}
// Of a dense product.
struct LinearScratch {
  Tensor workspace;  // of cuBLASLt, or undefined
  RowCodes codes;
};
inline LinearScratch claim_linear(ArenaScope& scope, const OperandRounding& rounding, const Tensor& rows) {
  if (rounding.format != OperandFormat::kAct) return {.workspace = {}, .codes = claim_row_codes(scope, rounding, rows)};
  return {.workspace = claim_product_workspace(scope), .codes = {}};
}

// --- head. Rows whose logits exist at one time: a part of all rows, so that they take kBytes at most; for the gradient
// of the weight, [V, D] in F32, is read and written once a part.
inline int64_t head_chunk_rows(int64_t num_tokens, int64_t row_bytes) {
  constexpr int64_t kBytes = int64_t{5} << 28, kLeast = 128, kMost = 16384;
  const int64_t most = std::clamp(kBytes / std::max<int64_t>(1, row_bytes) / kLeast * kLeast, kLeast, kMost);
  const int64_t num_parts = std::max<int64_t>(1, blocks_for(num_tokens, most));
  return std::min(num_tokens, blocks_for(blocks_for(num_tokens, num_parts), kLeast) * kLeast);
}
// Logits of a chunk [rows, V], whose place gradients take: act then, F32 where none are wanted.
inline Tensor claim(ArenaScope& scope, const HeadLoss& args) {
  const DType dtype = args.dx.defined() ? args.x.dtype() : DType::kF32;
  const int64_t vocab = args.w.dim(0), row_bytes = vocab * static_cast<int64_t>(dtype_bytes(dtype));
  return scope.allocate(dtype, {head_chunk_rows(args.x.dim(0), row_bytes), vocab});
}

// --- embedding's gradient: tokens sorted by their ids.
struct EmbeddingBackwardScratch {
  Tensor tokens, sorted_ids, sorted_tokens;  // [T] I32
  Tensor sort;                               // bytes for the radix sort
  Tensor partials;                           // [2 pieces, D] F32: sums of runs that leave their piece
};
constexpr int64_t kEmbeddingPieceTokens = 64;
// A second copy of keys and values, and what its blocks tell each other.
inline int64_t sort_bytes(int64_t num_tokens) { return 16 * num_tokens + (int64_t{1} << 20); }
inline EmbeddingBackwardScratch claim(ArenaScope& scope, const EmbeddingBackward& args, int64_t least_sort_bytes = 0) {
  const int64_t T = args.ids.dim(0);
  EmbeddingBackwardScratch scratch;
  scratch.tokens = scope.allocate(DType::kI32, {T});
  scratch.sorted_ids = scope.allocate(DType::kI32, {T});
  scratch.sorted_tokens = scope.allocate(DType::kI32, {T});
  scratch.sort = scope.allocate(DType::kU8, {std::max(sort_bytes(T), least_sort_bytes)});
  scratch.partials = scope.allocate(DType::kF32, {2 * blocks_for(T, kEmbeddingPieceTokens), args.dtable.dim(1)});
  return scratch;
}

// --- norms: a partial gradient of the gain for each chunk of rows.
// Rows that are wide are worked on by whole blocks, of which more find room at once.
inline int64_t gain_chunk_rows(int64_t num_rows, int64_t width) {
  constexpr int64_t kMinRows = 32;
  const int64_t max_chunks = width > 1024 ? 512 : 256;
  return std::max(kMinRows, blocks_for(num_rows, max_chunks));
}
inline Tensor claim(ArenaScope& scope, const RmsNormBackward& args) {
  const int64_t rows = norm_vectors(args.x), width = args.x.dim(-1);
  return scope.allocate(DType::kF32, {blocks_for(rows, gain_chunk_rows(rows, width)), width});
}

// --- routers.
inline int64_t num_sequences(const RouterLoss& loss, int64_t num_tokens) {
  NMOE_CHECK(loss.seq_len > 0 && num_tokens % loss.seq_len == 0, "{} tokens in sequences of {}", num_tokens,
             loss.seq_len);
  const int64_t num_seqs = num_tokens / loss.seq_len;
  NMOE_CHECK(num_seqs <= 65535, "{} sequences; on CUDA at most 65535 a microbatch", num_seqs);
  return num_seqs;
}
inline Tensor claim_sequence_loads(ArenaScope& scope, const RouterLoss& loss, const Tensor& logits) {
  const int64_t num_seqs = loss.balance != 0 ? num_sequences(loss, logits.dim(0)) : 0;
  return scope.allocate(DType::kI32, {num_seqs, logits.dim(1)});
}
struct RouterForwardScratch {
  Tensor z, entropy, balance;  // [T] F64 each, or empty: terms of the tokens
  Tensor loads;                // [B, E] I32, or empty
};
inline RouterForwardScratch claim(ArenaScope& scope, const RouterForward& args) {
  const int64_t T = args.logits.dim(0);
  RouterForwardScratch scratch;
  scratch.z = scope.allocate(DType::kF64, {args.loss.z != 0 ? T : 0});
  scratch.entropy = scope.allocate(DType::kF64, {args.entropy.defined() ? T : 0});
  scratch.balance = scope.allocate(DType::kF64, {args.loss.balance != 0 ? T : 0});
  scratch.loads = claim_sequence_loads(scope, args.loss, args.logits);
  return scratch;
}

// --- plans of mixtures of experts: how many copies of each chunk go to each expert.
inline int64_t plan_chunk_copies(int64_t num_copies) {
  constexpr int64_t kMinCopies = 512, kMaxChunks = 128;  // a block each: about one a multiprocessor
  return std::max(kMinCopies, blocks_for(num_copies, kMaxChunks));
}
inline Tensor claim(ArenaScope& scope, const BuildMoePlan& args) {
  const int64_t copies = args.top_idx.num_elements();
  return scope.allocate(DType::kI32, {blocks_for(copies, plan_chunk_copies(copies)), args.plan.offsets.dim(0) - 1});
}

// --- exchange plan: tokens of each chunk that go to a rank.
constexpr int64_t kExchangeChunkTokens = 1024;
inline int64_t exchange_chunks(const BuildExchangePlan& args) {
  return std::max<int64_t>(1, blocks_for(args.top_idx.dim(0), kExchangeChunkTokens));
}
inline Tensor claim(ArenaScope& scope, const BuildExchangePlan& args) {
  return scope.allocate(DType::kI32, {exchange_chunks(args), args.plan.num_sent.dim(0)});
}

// --- grouped products on Hopper, and on Blackwell.
// Whether the shapes are those of wgmma's products, and of tcgen05's; what else they need is that addresses are
// multiples of 16.
inline bool sm90_shapes(const Tensor& rows, const Tensor& other_rows) {
  return rows.dtype() == DType::kBF16 && rows.dim(1) % 8 == 0 && other_rows.dim(1) % 8 == 0;
}

// --- rows of grouped products that are picked: Hopper's kernels read them where they lie, others want them in order.
inline Tensor claim_ordered(ArenaScope& scope, const OperandRows& rows) {
  if (!rows.index.defined()) return {};
  return scope.allocate(rows.source.dtype(), {rows.num_rows(), rows.width()});
}
// Whether the kernels are Hopper's; what else they need is that addresses are multiples of 16.
inline bool fuses_activation(const KernelSet& kernels, const GroupedActivationForward& args) {
  return kernels.has_sm90() && args.rounding.format == OperandFormat::kAct && args.kind == Activation::kSwiGlu &&
         args.row_weight.defined() && sm90_shapes(args.x.source, args.pre) && args.h.dim(1) % 8 == 0;
}
// The same of FP8 operands, where a block of hidden units is in one tile, as wide as a block.
inline bool fuses_fp8_activation(const GroupedActivationForward& args) {
  return args.rounding.format == OperandFormat::kFp8 && args.kind == Activation::kSwiGlu && args.row_weight.defined() &&
         args.pre.dim(1) / 2 % block_size(OperandFormat::kFp8) == 0;
}
struct GroupedActivationForwardScratch {
  Tensor x;        // [R, in] act: rows that were picked, or undefined
  RowCodes codes;  // [R, in], or undefined
  Tensor h;        // [R, F] act: what columns' codes are made of, or undefined
};
inline GroupedActivationForwardScratch claim(ArenaScope& scope, const GroupedActivationForward& args, bool fused) {
  GroupedActivationForwardScratch scratch;
  scratch.codes = claim_row_codes(scope, args.rounding, args.x);
  if (!fused && args.rounding.format == OperandFormat::kAct) scratch.x = claim_ordered(scope, args.x);
  if (args.h_columns.defined() && !fuses_fp8_activation(args)) {
    scratch.h = scope.allocate(args.pre.dtype(), {args.pre.dim(0), args.h_columns.values.dim(1)});
  }
  return scratch;
}

// --- gradients of experts' weights on Hopper: the tiles of an expert's dw [rows, cols].
struct GradientTile {
  int64_t rows, cols;

  constexpr int64_t count(int64_t dw_rows, int64_t dw_cols) const {
    return blocks_for(dw_rows, rows) * blocks_for(dw_cols, cols);
  }
  constexpr bool operator==(const GradientTile&) const = default;
};
constexpr GradientTile kFp8GradientTile{.rows = 256, .cols = 128};
constexpr GradientTile kWideGradientTile{.rows = 128, .cols = 256}, kTallGradientTile{.rows = 256, .cols = 128};
// From BF16: that of the two with which the tiles of a dw load less in all. They multiply the same, with the same bits.
constexpr GradientTile gradient_tile(int64_t rows, int64_t cols) {
  constexpr int64_t kPanel = 64;  // rows of dw, or columns, whose operands are loaded or left out together
  const auto num_panels = [=](const GradientTile& tile) {
    return blocks_for(rows, kPanel) * blocks_for(cols, tile.cols) +
           blocks_for(cols, kPanel) * blocks_for(rows, tile.rows);
  };
  return num_panels(kTallGradientTile) < num_panels(kWideGradientTile) ? kTallGradientTile : kWideGradientTile;
}
inline TileOrder claim_gradient_order(ArenaScope& scope, const GroupedLinearBackwardWeight& args) {
  const int64_t rows = args.dw.dim(1), cols = args.dw.dim(2);
  const bool fp8 = args.rounding.format == OperandFormat::kFp8;
  const int64_t tiles = (fp8 ? kFp8GradientTile : gradient_tile(rows, cols)).count(rows, cols);
  return claim_tile_order(scope, args.dw.dim(0), num_piece_counters(max_later_pieces(args.dy.num_rows()), tiles));
}

// --- gradients of experts' weights from FP8 operands: codes of their columns, and the order in which experts are
// taken.
struct Fp8WeightScratch {
  ColumnCodes x, dy;  // undefined where they came along
  TileOrder order;
};
inline ColumnCodes claim_column_codes(ArenaScope& scope, const OperandRows& rows, int64_t num_groups) {
  constexpr int64_t n = block_size(OperandFormat::kFp8);
  const int64_t blocks = rows.num_rows() / n + num_groups;
  ColumnCodes codes;
  codes.values = scope.allocate(DType::kU8, {blocks, rows.width(), n});
  codes.scales = scope.allocate(DType::kU8, {blocks, rows.width()});
  return codes;
}
inline Fp8WeightScratch claim_fp8(ArenaScope& scope, const GroupedLinearBackwardWeight& args) {
  const int64_t num_groups = args.dw.dim(0);
  Fp8WeightScratch scratch;
  if (!args.x_columns.defined()) scratch.x = claim_column_codes(scope, args.x, num_groups);
  if (!args.dy_columns.defined()) scratch.dy = claim_column_codes(scope, args.dy, num_groups);
  scratch.order = claim_gradient_order(scope, args);
  return scratch;
}

// --- gradients of experts' weights: on Hopper and on Blackwell the order in which experts are taken.
struct GroupedWeightScratch {
  TileOrder order;
  Tensor x, dy;  // but on Hopper: rows that were picked, in order
};
inline bool is_sm90(const KernelSet& kernels, const GroupedLinearBackwardWeight& args) {
  return kernels.has_sm90() && args.x.num_rows() > 0 && sm90_shapes(args.x.source, args.dy.source);
}
inline bool is_sm100(const KernelSet& kernels, const GroupedLinearBackwardWeight& args) {
  return kernels.has_sm100() && args.x.num_rows() > 0 && sm90_shapes(args.x.source, args.dy.source);
}
inline GroupedWeightScratch claim(ArenaScope& scope, const GroupedLinearBackwardWeight& args, bool sm90, bool sm100) {
  GroupedWeightScratch scratch;
  if (sm90) scratch.order = claim_gradient_order(scope, args);
  if (sm100) scratch.order = claim_tile_order(scope, args.dw.dim(0));
  if (!sm90) {
    scratch.x = claim_ordered(scope, args.x);
    scratch.dy = claim_ordered(scope, args.dy);
  }
  return scratch;
}

// --- experts' second layer backwards, with the activation in front of it. On Hopper SwiGLU's is one kernel's work with
// the product, which adds up the gradients of row weights by tiles of columns; elsewhere dh lies in memory.
constexpr int64_t kLeastActivationTileCols = 192;  // of the narrowest tiles
// Whether the kernel is Hopper's; what else it needs is that addresses are multiples of 16.
inline bool fuses_activation_backward(const KernelSet& kernels, const GroupedActivationBackward& args) {
  return kernels.has_sm90() && args.rounding.format == OperandFormat::kAct && args.kind == Activation::kSwiGlu &&
         args.row_weight.defined() && sm90_shapes(args.dy.source, args.pre) && args.w.dim(2) % 8 == 0;
}
// The same of FP8 operands, where a block of gates' gradients is in one tile. Its tiles are as wide as a block.
inline bool fuses_fp8_activation_backward(const GroupedActivationBackward& args) {
  return args.rounding.format == OperandFormat::kFp8 && args.kind == Activation::kSwiGlu && args.row_weight.defined() &&
         args.w.dim(2) % block_size(OperandFormat::kFp8) == 0;
}
struct GroupedActivationBackwardScratch {
  RowCodes codes;   // [R, out], or undefined
  Tensor dy;        // [R, out] act: rows that were picked, or undefined
  Tensor dh;        // [R, F] act, or undefined
  Tensor row_sums;  // [at least tiles of F, R] F32: parts of drow_weight, or undefined
};
inline GroupedActivationBackwardScratch claim(ArenaScope& scope, const GroupedActivationBackward& args, bool fused) {
  const int64_t rows = args.dy.num_rows(), width = args.w.dim(2);
  GroupedActivationBackwardScratch scratch;
  scratch.codes = claim_row_codes(scope, args.rounding, args.dy);
  if (fused) {
    scratch.row_sums = scope.allocate(DType::kF32, {blocks_for(width, kLeastActivationTileCols), rows});
  } else if (fuses_fp8_activation_backward(args)) {
    scratch.row_sums = scope.allocate(DType::kF32, {blocks_for(width, block_size(OperandFormat::kFp8)), rows});
  } else {
    if (args.rounding.format == OperandFormat::kAct) scratch.dy = claim_ordered(scope, args.dy);
    scratch.dh = scope.allocate(args.dy.source.dtype(), {rows, width});
  }
  return scratch;
}

// --- Muon: as many matrices at a time as make kStackElements.
struct MuonScratch {
  Tensor x, next;        // [stack, rows * cols] F32
  Tensor gram, poly;     // [stack, min(rows, cols), min(rows, cols)] F32
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
inline MuonScratch claim(ArenaScope& scope, const MuonStep& args) {
  const Shape& w = args.w.shape();
  const int64_t stack = muon_stack(w), size = w[-2] * w[-1], small = std::min(w[-2], w[-1]);
  MuonScratch scratch;
  scratch.x = scope.allocate(DType::kF32, {stack, size});
  scratch.next = scope.allocate(DType::kF32, {stack, size});
  scratch.gram = scope.allocate(DType::kF32, {stack, small, small});
  scratch.poly = scope.allocate(DType::kF32, {stack, small, small});
  scratch.partials = scope.allocate(DType::kF32, {stack, blocks_for(size, kMuonSlice)});
  scratch.inverse_norms = scope.allocate(DType::kF32, {stack});
  scratch.workspace = scope.allocate(DType::kU8, {kMuonWorkspaceBytes});
  return scratch;
}

// --- attention. Head sizes that cuDNN takes are multiples of 8, as is what lies between rows: on Hopper up to 256, on
// Blackwell up to 128, or 192 for keys and 128 for values.
inline bool cudnn_takes(const KernelSet& kernels, const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t key_size = q.dim(2), value_size = v.dim(2);
  if (q.dtype() != DType::kBF16 || key_size % 8 != 0 || value_size % 8 != 0) return false;
  if (q.stride() % 8 != 0 || k.stride() % 8 != 0 || v.stride() % 8 != 0) return false;
  if (!kernels.has_sm90() && key_size == 192) return value_size == 128;
  const int64_t largest = kernels.has_sm90() ? 256 : 128;
  return key_size <= largest && value_size <= largest;
}
// Which kernels attend. The choice depends on the arguments alone, so that a run that goes on has the one it had.
enum class AttentionEngine {
  kSm90,   // our own for Hopper (sm90/attention.h)
  kCudnn,  // cuDNN's (vendor/cudnn_attention.h)
  kPlain,  // for F32 and any other heads (kernels/attention_plain.h)
};
// Our own take head sizes that are common, and are faster with these.
inline bool sm90_attention_takes(const KernelSet& kernels, const AttentionShape& shape, const Tensor& q,
                                 const Tensor& k, const Tensor& v) {
  const int64_t key_size = q.dim(2), value_size = v.dim(2);
  const bool known =
      (key_size == 64 && value_size == 64) || (value_size == 128 && (key_size == 128 || key_size == 192));
  return kernels.has_sm90() && known && shape.scale > 0 && cudnn_takes(kernels, q, k, v);
}
inline AttentionEngine attention_engine(const KernelSet& kernels, const AttentionForward& args) {
  if (sm90_attention_takes(kernels, args.shape, args.q, args.k, args.v)) return AttentionEngine::kSm90;
  return cudnn_takes(kernels, args.q, args.k, args.v) ? AttentionEngine::kCudnn : AttentionEngine::kPlain;
}
inline AttentionEngine attention_engine(const KernelSet& kernels, const AttentionBackward& args) {
  if (sm90_attention_takes(kernels, args.shape, args.q, args.k, args.v) &&
      cudnn_takes(kernels, args.dq, args.dk, args.dv)) {
    return AttentionEngine::kSm90;
  }
  return cudnn_takes(kernels, args.q, args.k, args.v) && cudnn_takes(kernels, args.dq, args.dk, args.dv)
             ? AttentionEngine::kCudnn
             : AttentionEngine::kPlain;
}
// What our own rotate back themselves: all of a head, or the last 64 of 192 values, where keys come out as they are.
constexpr int64_t sm90_attention_rotated(int64_t key_size) { return key_size == 192 ? 64 : key_size; }
inline bool sm90_attention_rotates(const Tensor& q, const Rope& rope, bool rope_keys) {
  const int64_t key_size = q.dim(2), rotated = sm90_attention_rotated(key_size);
  return rope.positions.defined() && rope.cos.dim(0) > 0 && 2 * rope.cos.dim(1) == rotated &&
         rope.rope_offset == key_size - rotated && (!rope_keys || key_size == rotated);
}
// Our own take MLA's parts as they lie if what heads share is the last 64 values of keys.
inline bool sm90_attention_takes(const KernelSet& kernels, const MlaAttentionForward& args) {
  return args.k_rope.dim(1) == 64 && args.kv.stride() % 8 == 0 &&
         sm90_attention_takes(kernels, args.shape, args.q, /*k=*/args.k_rope, /*v=*/args.out);
}
inline bool sm90_attention_takes(const KernelSet& kernels, const MlaAttentionBackward& args) {
  return args.k_rope.dim(1) == 64 && args.kv.stride() % 8 == 0 && args.dq.stride() % 8 == 0 &&
         sm90_attention_takes(kernels, args.shape, args.q, /*k=*/args.k_rope, /*v=*/args.out);
}
// The gradients of what heads share, of each of them.
inline Tensor claim_shared_key_gradients(ArenaScope& scope, const MlaAttentionBackward& args) {
  return scope.allocate(args.kv.dtype(), {args.kv.dim(0), args.kv.dim(1), args.k_rope.dim(1)});
}
// Where each token's document begins, [T] I32; undefined without documents.
inline Tensor claim_first_keys(ArenaScope& scope, const AttentionShape& shape) {
  return shape.cu_seqlens.defined() ? scope.allocate(DType::kI32, {shape.num_seqs * shape.seq_len}) : Tensor();
}

// What a token sees, where cuDNN does not take the heads: two I32 a token.
inline Tensor claim_spans(ArenaScope& scope, int64_t num_tokens) {
  return scope.allocate(DType::kI32, {num_tokens, 2});
}

// Of Hopper's backward, in tiles of queries, of so many rows.
constexpr int64_t sm90_attention_rows(int64_t key_size) { return key_size == 64 ? 128 : 64; }
struct Sm90AttentionScratch {
  Tensor sums;        // [B H, padded S, Dk] F32, in an order of its own: gradients of queries
  Tensor lse, delta;  // [B H, padded S] F32
  Tensor lows;        // [B, padded S] I32: the first key that a row sees; undefined where it is always 0
  Tensor counters;    // [B H, tiles, 2] and 1 I32: who is next to add to a half of a tile, and to take a block
};
inline Sm90AttentionScratch claim_sm90(ArenaScope& scope, const AttentionShape& shape, const Tensor& q) {
  const int64_t rows = sm90_attention_rows(q.dim(2)), tiles = blocks_for(shape.seq_len, rows);
  const int64_t padded = tiles * rows;
  const int64_t B = shape.num_seqs, heads = B * q.dim(1);
  const bool is_bounded = shape.cu_seqlens.defined() || (shape.window > 0 && shape.window < shape.seq_len);
  Sm90AttentionScratch scratch;
  scratch.sums = scope.allocate(DType::kF32, {heads, padded, q.dim(2)});
  scratch.lse = scope.allocate(DType::kF32, {heads, padded});
  scratch.delta = scope.allocate(DType::kF32, {heads, padded});
  if (is_bounded) scratch.lows = scope.allocate(DType::kI32, {B, padded});
  scratch.counters = scope.allocate(DType::kI32, {heads * tiles * 2 + 1});
  return scratch;
}

// The sizes by which cuDNN's backward is divided into parts.
struct AttentionSizes {
  int64_t num_seqs, seq_len, kv_heads, group;  // group: query heads that share a key/value head
  int64_t key_size, value_size;
};
inline AttentionSizes attention_sizes(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v) {
  return {.num_seqs = shape.num_seqs,
          .seq_len = shape.seq_len,
          .kv_heads = k.dim(1),
          .group = q.dim(1) / k.dim(1),
          .key_size = q.dim(2),
          .value_size = v.dim(2)};
}
// Of one key/value head of one sequence: the gradients of scores, of whole tiles; where heads are shared, also those of
// keys and values before their sum.
inline int64_t attention_head_bytes(const AttentionSizes& sizes) {
  constexpr int64_t kTile = 128;
  const int64_t rows = blocks_for(sizes.seq_len, kTile) * kTile;
  const int64_t shared_bytes = sizes.group > 1 ? rows * (sizes.key_size + sizes.value_size) * 2 : 0;
  return sizes.group * (rows * rows * 2 + shared_bytes);
}
// Bytes that backward's workspace may take: 2 for every pair of positions and head, which keep the gradients of
// scores so that results are the same bits every time. Backward takes as many sequences at a time, or heads of one,
// as keep within it. Small parts are slower: 8 sequences of 16 heads lose 3 % at 2 GiB, 9 % at 1 GiB.
constexpr int64_t kAttentionWorkspaceLimit = int64_t{4} << 30;
// How many sequences, and how many of their key/value heads, backward takes at a time.
struct AttentionPart {
  int64_t num_seqs, kv_heads;
};
inline AttentionPart attention_part(const AttentionSizes& sizes, int64_t workspace_limit = kAttentionWorkspaceLimit) {
  // Statistics of a part have to begin at multiples of 16 bytes, as cuDNN's graphs are told.
  if (sizes.seq_len % 4 != 0) return {sizes.num_seqs, sizes.kv_heads};
  const int64_t heads = std::max<int64_t>(workspace_limit / attention_head_bytes(sizes), 1);
  if (heads < sizes.kv_heads) return {1, heads};
  return {std::min(heads / sizes.kv_heads, sizes.num_seqs), sizes.kv_heads};
}
// Room for cuDNN's workspace. `asked`: what cuDNN says, where it can be asked.
constexpr int64_t kCudnnSlackBytes = int64_t{1} << 20;
inline Tensor claim_attention_forward(ArenaScope& scope, int64_t asked = 0) {
  return scope.allocate(DType::kU8, {std::max(kCudnnSlackBytes, asked)});
}
struct AttentionBackwardScratch {
  Tensor workspace;  // bytes
  Tensor delta;      // [sequences, query heads, S] F32
};
inline AttentionBackwardScratch claim_attention_backward(ArenaScope& scope, const AttentionSizes& sizes,
                                                         const AttentionPart& part, int64_t asked = 0) {
  const int64_t room = part.num_seqs * part.kv_heads * attention_head_bytes(sizes) + kCudnnSlackBytes;
  AttentionBackwardScratch scratch;
  scratch.workspace = scope.allocate(DType::kU8, {std::max(room, asked)});
  scratch.delta = scope.allocate(DType::kF32, {part.num_seqs, part.kv_heads * sizes.group, sizes.seq_len});
  return scratch;
}

}  // namespace nmoe::cuda
