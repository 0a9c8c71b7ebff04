// Letters as in ops/ops.h.
#include "bench/op_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "bench/moe_layer.h"
#include "bench/op_sizes.h"
#include "bench/optimizer_cases.h"
#include "bench/recurrent_cases.h"

namespace nmoe {
namespace {

using Work = OpCase::Work;

using Sizes = OpSizes;

class Cases {
 public:
  // format: as Workbench's.
  Cases(const Ops& ops, Sizes sizes, OperandFormat format)
      : sizes_(std::move(sizes)),
        format_(format),
        act_(static_cast<double>(dtype_bytes(ops.compute_dtype()))),
        stat_(static_cast<double>(dtype_bytes(ops.stat_dtype()))),
        stat_dtype_(ops.stat_dtype()),
        has_masters_(ops.compute_dtype() != ops.stat_dtype()),
        has_codes_(ops.weight_rounding(OperandFormat::kFp8) == WeightRounding::kCodes) {}

  OpCase copy() const {
    const int64_t n = sizes_.copy_elements;
    return {"copy", fmt::format("{} elements", n), 0.0, 2 * act_ * count(n), [n](Workbench& w) -> Work {
              const Tensor x = w.act({n}), y = w.empty({n});
              return [&w, x, y] { w.ops().copy({x, y}); };
            }};
  }
  // In the device's own precision: what products are held against.
  OpCase gemm() const { return linear_forward({sizes_.gemm, sizes_.gemm, sizes_.gemm}, /*rounds=*/false); }

  std::vector<OpCase> all() const {
    std::vector<OpCase> cases = {copy()};
    for (const auto& size : sizes_.linears) add_linears(cases, size);
    for (const auto& size : sizes_.attentions) add_attention(cases, size);
    for (const auto& size : sizes_.caches) add_cached_attention(cases, size);
    for (const auto& size : sizes_.layers) {
      add_norm(cases, size.T, size.D), add_bias(cases, size.T, size.D);
      add_layer(cases, size);
      add_grouped(cases, size);
      add_routing(cases, size);
      add_activation(cases, size);
      if (has_codes_) add_codes(cases, size.T * size.K, size);
    }
    for (const auto& size : sizes_.latent_layers) {
      const Sizes::Layer experts = size.of_experts();
      add_layer(cases, size);
      add_grouped(cases, experts);
      add_routing(cases, experts);
      add_activation(cases, experts);
    }
    for (const auto& size : sizes_.heads) add_head(cases, size);
    add_recurrent_cases(sizes_, act_, stat_, cases);
    add_weights(cases);
    for (const int64_t tokens : sizes_.generated) {
      for (const auto& [in, out] : sizes_.generating) add_generation(cases, {tokens, in, out});
      add_generation_experts(cases, tokens, sizes_.layers.front());
    }
    return cases;
  }

 private:
  template <class... Factors>
  static double count(Factors... factors) {
    return (1.0 * ... * static_cast<double>(factors));
  }

  OpCase linear_forward(const Sizes::Linear& size, bool rounds = true) const {
    const int64_t T = size.T, in = size.in, out = size.out;
    return {"linear, forward", shape_of(size), 2 * count(T, in, out),
            act_ * (count(T, in) + count(out, in) + count(T, out)), [=](Workbench& w) -> Work {
              const Tensor x = w.act({T, in}), weight = w.act({out, in}, 0.02), y = w.empty({T, out});
              const OperandRounding rounding = rounds ? w.rounding(weight) : OperandRounding{};
              return [&w, x, weight, y, rounding] { w.ops().linear_forward({x, weight, y, Tensor(), rounding}); };
            }};
  }
  static std::string shape_of(const Sizes::Linear& size) {
    return fmt::format("{} x {} to {}", size.T, size.in, size.out);
  }

  void add_linears(std::vector<OpCase>& cases, const Sizes::Linear& size) const {
    const int64_t T = size.T, in = size.in, out = size.out;
    cases.push_back(linear_forward(size));
    cases.push_back({"linear, input gradient", shape_of(size), 2 * count(T, in, out),
                     act_ * (count(T, in) + count(out, in) + count(T, out)), [=](Workbench& w) -> Work {
                       const Tensor dy = w.act({T, out}), weight = w.act({out, in}, 0.02), dx = w.empty({T, in});
                       const OperandRounding rounding = w.rounding(weight);
                       return [&w, dy, weight, dx, rounding] {
                         w.ops().linear_backward_input({dy, weight, dx, /*accumulate=*/false, rounding});
                       };
                     }});
    cases.push_back({"linear, weight gradient", shape_of(size), 2 * count(T, in, out),
                     act_ * (count(T, in) + count(T, out)) + 2 * stat_ * count(out, in), [=](Workbench& w) -> Work {
                       const Tensor x = w.act({T, in}), dy = w.act({T, out}), dw = w.stat({out, in});
                       return [&w, x, dy, dw] { w.ops().linear_backward_weight({x, dy, dw, /*accumulate=*/true}); };
                     }});
  }

  // Batch-invariant products. Each call takes other weights, so that the cache has none of them.
  void add_generation(std::vector<OpCase>& cases, const Sizes::Linear& size) const {
    const int64_t T = size.T, in = size.in, out = size.out;
    cases.push_back({"generation, linear", shape_of(size), 2 * count(T, in, out),
                     act_ * (count(T, in) + count(out, in) + count(T, out)), [=, act = act_](Workbench& w) -> Work {
                       constexpr double kBytes = 0x1p28;
                       const auto num = static_cast<int64_t>(std::ceil(kBytes / (act * count(in, out))));
                       const Tensor x = w.act({T, in}), weights = w.act({num, out * in}, 0.02), y = w.empty({T, out});
                       Ops& ops = w.ops().device().ops(Arithmetic::kBatchInvariant);
                       return [=, &ops, call = int64_t{0}]() mutable {
                         const int64_t which = call++ % num;
                         const Tensor weight = weights.rows(which, which + 1).reshape({out, in});
                         ops.linear_forward({.x = x, .w = weight, .y = y, .addend = {}});
                       };
                     }});
  }
  // Both layers of experts, each call those of other experts while not all have rows.
  void add_generation_experts(std::vector<OpCase>& cases, int64_t T, const Sizes::Layer& size) const {
    const int64_t D = size.D, F = size.F, E = size.E, R = T * size.K;
    const std::string shape = fmt::format("{} rows of {} experts, {} x {}", R, E, D, F);
    cases.push_back(
        {"generation, experts", shape, 6 * count(R, D, F), 3 * act_ * count(std::min(R, E), D, F),
         [=](Workbench& w) -> Work {
           const Tensor x = w.act({R, D}), first = w.act({E, 2 * F, D}, 0.02), second = w.act({E, D, F}, 0.02);
           const Tensor pre = w.empty({R, 2 * F}), h = w.empty({R, F}), y = w.empty({R, D});
           constexpr int64_t kCalls = 16;
           std::vector<Tensor> offsets;
           for (int64_t call = 0; call < kCalls; ++call) {
             std::vector<int32_t> ends(static_cast<size_t>(E + 1));
             for (int64_t row = 0; row < R; ++row) ++ends[static_cast<size_t>((row * 37 + call * 11) % E + 1)];
             std::partial_sum(ends.begin(), ends.end(), ends.begin());
             offsets.push_back(w.i32(ends));
           }
           Ops& ops = w.ops().device().ops(Arithmetic::kBatchInvariant);
           return [=, &ops, call = size_t{0}]() mutable {
             const Tensor own = offsets[call++ % offsets.size()];
             ops.grouped_activation_forward({.kind = Activation::kSwiGlu,
                                             .x = x,
                                             .w = first,
                                             .offsets = own,
                                             .row_weight = {},
                                             .pre = pre,
                                             .h = h});
             ops.grouped_linear_forward({.x = h, .w = second, .offsets = own, .y = y});
           };
         }});
  }

  // What products of FP8 operands have in them beside the product.
  void add_codes(std::vector<OpCase>& cases, int64_t rows, const Sizes::Layer& size) const {
    const int64_t D = size.D, F = size.F, E = size.E, W = 2 * F;
    cases.push_back({"FP8 codes of rows", fmt::format("{} x {}", rows, D), 0.0, (act_ + 1) * count(rows, D),
                     [=](Workbench& w) -> Work {
                       const Tensor x = w.act({1, rows, D}), values = w.arena().allocate(DType::kU8, {1, rows, D});
                       const Tensor scales = w.arena().allocate(DType::kU8, {1, rows, (D + 127) / 128});
                       return
                           [&w, x, values, scales] { w.ops().quantize({.x = x, .values = values, .scales = scales}); };
                     }});
    cases.push_back({"FP8 codes of weights", fmt::format("{} x {} x {}", E, W, D), 0.0, (act_ + 2) * count(E, W, D),
                     [=](Workbench& w) -> Work {
                       const auto weight = w.weight_of(w.act({E, W, D}), OperandFormat::kFp8);
                       return [&w, weight] {
                         weight->copies.restart();
                         weight->rounding(w.ops());
                       };
                     }});
  }

  // Products of queries with keys and of probabilities with values, over the pairs a causal mask leaves; backward has
  // five such products to forward's two, the repeated one of queries with keys among them, as is usual.
  void add_attention(std::vector<OpCase>& cases, const Sizes::Heads& size) const {
    const int64_t B = size.B, S = size.S, H = size.H, G = size.G, Dk = size.Dk, Dv = size.Dv;
    const bool has_documents = size.document_tokens > 0;
    const int64_t T = B * S, length = has_documents ? size.document_tokens : S;
    const std::string shape = fmt::format("{} x {} tokens{}, {} heads{} of {}/{}", B, S,
                                          has_documents ? fmt::format(" in documents of {}", length) : std::string(), H,
                                          G < H ? fmt::format(" over {}", G) : std::string(), Dk, Dv);
    const double pairs = count(T, H) * static_cast<double>(length + 1) / 2;
    const double q_bytes = act_ * count(T, H, Dk), k_bytes = act_ * count(T, G, Dk), v_bytes = act_ * count(T, G, Dv);
    const double out_bytes = act_ * count(T, H, Dv), lse_bytes = stat_ * count(T, H);
    struct Tensors {
      AttentionShape shape;
      Tensor q, k, v, out, lse;
    };
    const auto make = [=](Workbench& w) -> Tensors {
      const double scale = 1.0 / std::sqrt(static_cast<double>(Dk));
      AttentionShape sequences{.num_seqs = B, .seq_len = S, .scale = scale, .window = 0, .cu_seqlens = {}};
      if (has_documents) {
        std::vector<int32_t> bounds;
        for (int64_t at = 0; at <= T; at += length) bounds.push_back(static_cast<int32_t>(at));
        sequences.cu_seqlens = w.i32(bounds);
      }
      return {sequences,         w.act({T, H, Dk}),   w.act({T, G, Dk}),
              w.act({T, G, Dv}), w.empty({T, H, Dv}), w.empty_stat({B, H, S})};
    };
    cases.push_back({"attention, forward", shape, 2 * pairs * static_cast<double>(Dk + Dv),
                     q_bytes + k_bytes + v_bytes + out_bytes + lse_bytes, [=](Workbench& w) -> Work {
                       const Tensors t = make(w);
                       return [&w, t] { w.ops().attention_forward({t.shape, t.q, t.k, t.v, t.out, t.lse}); };
                     }});
    cases.push_back({"attention, backward", shape, 2 * pairs * static_cast<double>(3 * Dk + 2 * Dv),
                     2 * (q_bytes + k_bytes + v_bytes + out_bytes) + lse_bytes, [=](Workbench& w) -> Work {
                       const Tensors t = make(w);
                       w.ops().attention_forward({t.shape, t.q, t.k, t.v, t.out, t.lse});
                       const Tensor dout = w.act({T, H, Dv});
                       const Tensor dq = w.empty({T, H, Dk}), dk = w.empty({T, G, Dk}), dv = w.empty({T, G, Dv});
                       return [&w, t, dout, dq, dk, dv] {
                         w.ops().attention_backward({t.shape, t.q, t.k, t.v, t.out, t.lse, dout, dq, dk, dv});
                       };
                     }});
    // All of a head, as in grouped-query attention.
    cases.push_back({"rope", shape, 0.0, 2 * q_bytes, [=](Workbench& w) -> Work {
                       std::vector<int32_t> positions(static_cast<size_t>(T));
                       for (size_t i = 0; i < positions.size(); ++i) {
                         positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % S);
                       }
                       // One angle for all: rotations in place keep their size however many there are.
                       const Tensor cos = w.empty_stat({S, Dk / 2}), sin = w.empty_stat({S, Dk / 2});
                       w.ops().fill({cos, std::numbers::sqrt2 / 2});
                       w.ops().fill({sin, std::numbers::sqrt2 / 2});
                       const Rope args = {.x = w.act({T, H, Dk}),
                                          .positions = w.i32(positions),
                                          .cos = cos,
                                          .sin = sin,
                                          .rope_offset = 0,
                                          .layout = RopeLayout::kHalfSplit};
                       return [&w, args] { w.ops().rope_forward(args); };
                     }});
  }

  // Of the last position of each sequence.
  void add_cached_attention(std::vector<OpCase>& cases, const Sizes::Heads& size) const {
    const int64_t B = size.B, S = size.S, H = size.H, G = size.G, Dk = size.Dk, Dv = size.Dv;
    cases.push_back({"attention to a cache",
                     fmt::format("{} x {} positions, {} heads over {} of {}/{}", B, S, H, G, Dk, Dv),
                     2 * count(B, S, H) * static_cast<double>(Dk + Dv),
                     act_ * (count(B, S, G) + count(B, H)) * static_cast<double>(Dk + Dv), [=](Workbench& w) -> Work {
                       const std::vector<int32_t> positions(static_cast<size_t>(B), static_cast<int32_t>(S - 1));
                       const int64_t blocks = (S + kPagePositions - 1) / kPagePositions;
                       const CachedAttention args = {.scale = 1.0 / std::sqrt(static_cast<double>(Dk)),
                                                     .q = w.act({B, H, Dk}),
                                                     .slots = w.numbers(B),
                                                     .positions = w.i32(positions),
                                                     .pages = w.numbers(B * blocks).reshape({B, blocks}),
                                                     .keys = w.act({B * blocks, kPagePositions, G * Dk}),
                                                     .values = w.act({B * blocks, kPagePositions, G * Dv}),
                                                     .num_kv_heads = G,
                                                     .out = w.empty({B, H, Dv})};
                       return [&w, args] { w.ops().cached_attention(args); };
                     }});
  }

  void add_norm(std::vector<OpCase>& cases, int64_t T, int64_t D) const {
    const std::string shape = fmt::format("{} x {}", T, D);
    cases.push_back(
        {"RMS norm, forward", shape, 0.0, 2 * act_ * count(T, D), [=](Workbench& w) -> Work {
           const Tensor x = w.act({T, D}), y = w.empty({T, D}), gain = w.stat({D}), rstd = w.empty_stat({T});
           return [&w, x, y, gain, rstd] { w.ops().rms_norm_forward({x, gain, 1e-6, y, rstd}); };
         }});
    cases.push_back(
        {"RMS norm, backward", shape, 0.0, 4 * act_ * count(T, D), [=](Workbench& w) -> Work {
           const Tensor x = w.act({T, D}), y = w.empty({T, D}), gain = w.stat({D}), rstd = w.empty_stat({T});
           const Tensor dy = w.act({T, D}), dx = w.act({T, D}), dgain = w.stat({D});
           w.ops().rms_norm_forward({x, gain, 1e-6, y, rstd});
           return [&w, x, gain, rstd, dy, dx, dgain] {
             w.ops().rms_norm_backward({x, gain, rstd, dy, dx, dgain, /*accumulate_dx=*/true});
           };
         }});
  }

  void add_bias(std::vector<OpCase>& cases, int64_t T, int64_t N) const {
    cases.push_back({"bias, both ways", fmt::format("{} x {}", T, N), 0.0, 2 * act_ * count(T, N), [=](Workbench& w) {
                       const Tensor y = w.empty({T, N}), dy = w.act({T, N}), bias = w.stat({N}), dbias = w.stat({N});
                       return Work([&w, bias, y, dy, dbias] {
                         w.ops().bias_forward({.x = {}, .bias = bias, .y = y});
                         w.ops().bias_backward({.dy = dy, .dbias = dbias});
                       });
                     }});
  }

  void add_layer(std::vector<OpCase>& cases, const Sizes::Layer& size) const {
    const int64_t T = size.T, D = size.D, F = size.F, E = size.E, K = size.K, L = size.latent;
    const std::string shape = shape_of(size), name = L > 0 ? "LatentMoE layer" : "MoE layer";
    // Of the experts alone: router and projections are in the time.
    const int64_t expert_weights = size.matrices() * size.travelling() * F;
    const double forward = 2 * count(T, K, expert_weights), weights = count(E, expert_weights) + count(2, L, D);
    // The call and its part that does not count have one layer, most of which are weights.
    const auto layer_of = [=](OperandFormat format) {
      return [=, shared = std::make_shared<std::weak_ptr<MoeLayer>>()](Workbench& w) {
        std::shared_ptr<MoeLayer> layer = shared->lock();
        if (!layer) *shared = layer = std::make_shared<MoeLayer>(w, size, format);
        return layer;
      };
    };
    const OperandFormat own = OperandFormat::kAct, fp8 = OperandFormat::kFp8;
    const auto forward_work = [=](const auto& made) {
      return [=](Workbench& w) -> Work {
        return [&w, layer = made(w)] {
          const ArenaScope scope(w.arena());
          layer->forward(own);
        };
      };
    };
    const auto step_work = [=](const auto& made, OperandFormat grad_format) {
      return [=](Workbench& w) -> Work {
        return [&w, layer = made(w), grad_format] {
          const ArenaScope scope(w.arena());
          layer->forward(grad_format);
          layer->backward();
        };
      };
    };
    // What flows between the kernels is not in the definition.
    const double forward_bytes = act_ * (3 * count(T, D) + weights);
    const double backward_bytes = act_ * (3 * count(T, D) + weights) + stat_ * weights;
    const auto of_format = layer_of(format_), of_fp8 = layer_of(fp8);
    cases.push_back({name + ", forward", shape, forward, forward_bytes, forward_work(of_format)});
    cases.push_back(
        {name + ", backward", shape, 2 * forward, backward_bytes, step_work(of_format, own), forward_work(of_format)});
    if (has_codes_) {
      cases.push_back({name + ", backward, FP8 weight gradients", shape, 2 * forward, backward_bytes,
                       step_work(of_fp8, fp8), forward_work(of_fp8)});
    }
  }
  static std::string shape_of(const Sizes::Layer& size) {
    const std::string latent = size.latent > 0 ? fmt::format("{} to ", size.D) : "";
    return fmt::format("{} tokens, {}{} x {}, {} experts top-{}", size.T, latent, size.travelling(), size.F, size.E,
                       size.K);
  }

  // Rows sorted to experts as a router with random weights does it.
  static MoePlan make_plan(Workbench& w, const Sizes::Layer& size) {
    const int64_t T = size.T, E = size.E, K = size.K;
    const MoePlan plan = {
        .offsets = w.empty_i32({E + 1}), .row_of = w.empty_i32({T, K}), .token_of = w.empty_i32({T * K})};
    const RouterForward router = router_args(w, size);
    w.ops().router_forward(router);
    w.ops().build_moe_plan({router.top_idx, plan, Tensor()});
    return plan;
  }
  static RouterForward router_args(Workbench& w, const Sizes::Layer& size) {
    const int64_t T = size.T, E = size.E, K = size.K;
    return {.rule = {.top_k = K},
            .loss = {},
            .logits = w.stat({T, E}),
            .bias = w.stat({E}, 0.01),
            .scores = w.empty_stat({T, E}),
            .top_idx = w.empty_i32({T, K}),
            .weights = w.empty_stat({T, K}),
            .aux_loss = w.f64({0.0, 0.0}),
            .entropy = w.f64({0.0})};
  }

  void add_grouped(std::vector<OpCase>& cases, const Sizes::Layer& size) const {
    for (const bool second : {false, true}) {
      const int64_t T = size.T, D = size.D, F = size.F, E = size.E, K = size.K;
      const int64_t R = T * K, in = second ? F : D, out = second ? D : activation_parts(size.activation) * F;
      const std::string shape = fmt::format("{} rows, {} to {}, {} experts", R, in, out, E);
      const double flops = 2 * count(R, in, out), row_bytes = act_ * (count(R, in) + count(R, out));
      cases.push_back(
          {"grouped linear, forward", shape, flops, row_bytes + act_ * count(E, in, out), [=](Workbench& w) -> Work {
             const Tensor x = w.act({R, in}), weight = w.act({E, out, in}, 0.02);
             const Tensor y = w.empty({R, out});
             const MoePlan plan = make_plan(w, size);
             const OperandRounding rounding = w.rounding(weight);
             return [&w, x, weight, y, plan, rounding] {
               w.ops().grouped_linear_forward({x, weight, plan.offsets, y, rounding});
             };
           }});
      cases.push_back({"grouped linear, input gradient", shape, flops, row_bytes + act_ * count(E, in, out),
                       [=](Workbench& w) -> Work {
                         const Tensor dy = w.act({R, out}), weight = w.act({E, out, in}, 0.02);
                         const Tensor dx = w.empty({R, in});
                         const MoePlan plan = make_plan(w, size);
                         const OperandRounding rounding = w.rounding(weight);
                         return [&w, dy, weight, dx, plan, rounding] {
                           w.ops().grouped_linear_backward_input({dy, weight, plan.offsets, dx, rounding});
                         };
                       }});
      cases.push_back({"grouped linear, weight gradient", shape, flops, row_bytes + 2 * stat_ * count(E, in, out),
                       [=](Workbench& w) -> Work {
                         const Tensor x = w.act({R, in}), dy = w.act({R, out}), dw = w.stat({E, out, in});
                         const MoePlan plan = make_plan(w, size);
                         return [&w, x, dy, dw, plan] {
                           w.ops().grouped_linear_backward_weight({x, dy, plan.offsets, dw, /*accumulate=*/true});
                         };
                       }});
      // One expert has half of the rows.
      cases.push_back({"grouped linear, weight gradient, skewed", shape, flops,
                       row_bytes + 2 * stat_ * count(E, in, out), [=](Workbench& w) -> Work {
                         const Tensor x = w.act({R, in}), dy = w.act({R, out}), dw = w.stat({E, out, in});
                         std::vector<int32_t> ends = {0};
                         for (int64_t e = 0; e < E; ++e)
                           ends.push_back(static_cast<int32_t>(R / 2 + R / 2 * e / (E - 1)));
                         const Tensor offsets = w.i32(ends);
                         return [&w, x, dy, dw, offsets] {
                           w.ops().grouped_linear_backward_weight({x, dy, offsets, dw, /*accumulate=*/true});
                         };
                       }});
      add_gradient_sum(cases, size, in, out);
      if (has_codes_) {
        cases.push_back({"grouped linear, weight gradient, FP8", shape, flops,
                         row_bytes + 2 * stat_ * count(E, in, out), [=](Workbench& w) -> Work {
                           const Tensor x = w.act({R, in}), dy = w.act({R, out}), dw = w.stat({E, out, in});
                           const MoePlan plan = make_plan(w, size);
                           return [&w, x, dy, dw, plan] {
                             w.ops().grouped_linear_backward_weight(
                                 {x, dy, plan.offsets, dw, /*accumulate=*/true, {.format = OperandFormat::kFp8}});
                           };
                         }});
      }
      // The tokens' side is picked: what goes into the first layer, and the gradient of what comes out of the second.
      cases.push_back(
          {"grouped linear, weight gradient, tokens picked", shape, flops,
           act_ * (count(R, second ? in : out) + count(T, D)) + 2 * stat_ * count(E, in, out),
           [=](Workbench& w) -> Work {
             const Tensor x = w.act({second ? R : T, in}), dy = w.act({second ? T : R, out});
             const Tensor dw = w.stat({E, out, in});
             const MoePlan plan = make_plan(w, size);
             const OperandRows inputs = second ? x : OperandRows(x, plan.token_of);
             const OperandRows gradients = second ? OperandRows(dy, plan.token_of) : dy;
             return [&w, inputs, gradients, dw, plan] {
               w.ops().grouped_linear_backward_weight({inputs, gradients, plan.offsets, dw, /*accumulate=*/true});
             };
           }});
    }
  }

  // What follows a product, where experts' gradients are kept in BF16.
  void add_gradient_sum(std::vector<OpCase>& cases, const Sizes::Layer& size, int64_t in, int64_t out) const {
    const int64_t E = size.E;
    cases.push_back({"gradient in bf16, addition", fmt::format("{} experts, {} to {}", E, in, out), 0.0,
                     (stat_ + 2.0 * static_cast<double>(dtype_bytes(DType::kBF16))) * count(E, in, out),
                     [=](Workbench& w) -> Work {
                       AddGradient args = {.product = w.stat({E, out, in}, 0.01),
                                           .offsets = w.numbers(E + 1),
                                           .sum = w.arena().allocate(DType::kBF16, {E, out, in}),
                                           .accumulate = true};
                       args.random.key = w.arena().allocate(DType::kI64, {1});
                       w.ops().fill({args.sum, 0.0});
                       return [&w, args] { w.ops().add_gradient(args); };
                     }});
  }

  // Where tokens go, and their way to the experts and back.
  void add_routing(std::vector<OpCase>& cases, const Sizes::Layer& size) const {
    const int64_t T = size.T, D = size.D, E = size.E, K = size.K, R = T * K;
    const std::string shape = shape_of(size);
    const double index_bytes = 4 * count(T, K);
    cases.push_back({"router, forward", shape, 0.0, 2 * stat_ * count(T, E) + stat_ * count(T, K) + index_bytes,
                     [=](Workbench& w) -> Work {
                       const RouterForward args = router_args(w, size);
                       return [&w, args] { w.ops().router_forward(args); };
                     }});
    cases.push_back({"MoE plan", shape, 0.0, 3 * index_bytes, [=](Workbench& w) -> Work {
                       const RouterForward router = router_args(w, size);
                       w.ops().router_forward(router);
                       const MoePlan plan = make_plan(w, size);
                       return [&w, router, plan] { w.ops().build_moe_plan({router.top_idx, plan, Tensor()}); };
                     }});
    cases.push_back(
        {"dispatch", shape, 0.0, act_ * (count(T, D) + count(R, D)) + index_bytes, [=](Workbench& w) -> Work {
           const Tensor x = w.act({T, D}), rows = w.empty({R, D});
           const MoePlan plan = make_plan(w, size);
           return [&w, x, rows, plan] { w.ops().moe_dispatch({x, plan, rows}); };
         }});
    cases.push_back(
        {"combine", shape, 0.0, act_ * (2 * count(T, D) + count(R, D)) + index_bytes, [=](Workbench& w) -> Work {
           const Tensor rows = w.act({R, D}), y = w.act({T, D});
           const MoePlan plan = make_plan(w, size);
           return [&w, rows, y, plan] { w.ops().moe_combine({rows, plan, y, /*accumulate=*/true}); };
         }});
  }

  void add_activation(std::vector<OpCase>& cases, const Sizes::Layer& size) const {
    const int64_t T = size.T, D = size.D, F = size.F, E = size.E, R = T * size.K;
    const int64_t parts = activation_parts(size.activation), pre = parts * F;
    const Activation kind = size.activation;
    const std::string shape = shape_of(size), name = kind == Activation::kSwiGlu ? "SwiGLU" : "squared ReLU";
    cases.push_back({name + ", forward", shape, 0.0, act_ * count(R, parts + 1, F), [=](Workbench& w) -> Work {
                       const Tensor x = w.act({R, pre}), weight = w.stat({R}), h = w.empty({R, F});
                       return [&w, kind, x, weight, h] { w.ops().activation_forward({kind, x, weight, h}); };
                     }});
    for (const bool picked : {false, true}) {
      const std::string rows_name = picked ? ", tokens picked" : "";
      const double token_bytes = act_ * count(picked ? T : R, D);
      const auto tokens = [=](Workbench& w, const MoePlan& plan) -> OperandRows {
        const Tensor rows = w.act({picked ? T : R, D});
        return {rows, picked ? plan.token_of : Tensor()};
      };
      cases.push_back(
          {name + ", forward, with product" + rows_name, shape, 2 * count(R, D, pre),
           token_bytes + act_ * (count(R, parts + 1, F) + count(E, D, pre)), [=](Workbench& w) -> Work {
             const MoePlan plan = make_plan(w, size);
             const OperandRows x = tokens(w, plan);
             const Tensor weight = w.act({E, pre, D}, 0.02), row_weight = w.stat({R});
             const Tensor y = w.empty({R, pre}), h = w.empty({R, F});
             const OperandRounding rounding = w.rounding(weight);
             return [&w, kind, x, weight, row_weight, y, h, plan, rounding] {
               w.ops().grouped_activation_forward({kind, x, weight, plan.offsets, row_weight, y, h, rounding});
             };
           }});
      cases.push_back({name + ", backward, with input gradient" + rows_name, shape, 2 * count(R, D, F),
                       token_bytes + act_ * (count(R, 2, pre) + count(E, D, F)), [=](Workbench& w) -> Work {
                         const MoePlan plan = make_plan(w, size);
                         const OperandRows dy = tokens(w, plan);
                         const Tensor weight = w.act({E, D, F}, 0.02), x = w.act({R, pre});
                         const Tensor row_weight = w.stat({R}), dx = w.empty({R, pre}), dweight = w.empty_stat({R});
                         const OperandRounding rounding = w.rounding(weight);
                         return [&w, kind, dy, weight, x, row_weight, dx, dweight, plan, rounding] {
                           w.ops().grouped_activation_backward(
                               {kind, dy, weight, plan.offsets, x, row_weight, dx, dweight, rounding});
                         };
                       }});
    }
    cases.push_back({name + ", backward", shape, 0.0, act_ * count(R, 2 * parts + 1, F), [=](Workbench& w) -> Work {
                       const Tensor x = w.act({R, pre}), weight = w.stat({R}), dh = w.act({R, F});
                       const Tensor dx = w.empty({R, pre}), dweight = w.empty_stat({R});
                       return [&w, kind, x, weight, dh, dx, dweight] {
                         w.ops().activation_backward({kind, x, weight, dh, dx, dweight});
                       };
                     }});
  }

  void add_head(std::vector<OpCase>& cases, const Sizes::Head& size) const {
    const int64_t T = size.T, D = size.D, V = size.V;
    const std::string shape = fmt::format("{} tokens of {}, vocabulary {}", T, D, V);
    // Logits, the gradient of the input, that of the weight.
    cases.push_back({"head and loss, with gradients", shape, 6 * count(T, D, V),
                     act_ * (2 * count(T, D) + count(V, D)) + 2 * stat_ * count(V, D), [=](Workbench& w) -> Work {
                       const HeadLoss args = {.x = w.act({T, D}),
                                              .w = w.act({V, D}, 0.02),
                                              .targets = w.random_ids(T, V),
                                              .grad_scale = w.f64({1.0 / static_cast<double>(T)}),
                                              .losses = w.empty_stat({T}),
                                              .dx = w.empty({T, D}),
                                              .dw = w.stat({V, D})};
                       return [&w, args] { w.ops().head_loss(args); };
                     }});
    cases.push_back({"embedding, forward", shape, 0.0, 2 * act_ * count(T, D), [=](Workbench& w) -> Work {
                       const Tensor ids = w.random_ids(T, V), table = w.act({V, D});
                       const Tensor y = w.empty({T, D});
                       return [&w, ids, table, y] { w.ops().embedding_forward({ids, table, y}); };
                     }});
    cases.push_back({"embedding, backward", shape, 0.0, (act_ + 2 * stat_) * count(T, D), [=](Workbench& w) -> Work {
                       const Tensor ids = w.random_ids(T, V), dy = w.act({T, D});
                       const Tensor dtable = w.stat({V, D});
                       return [&w, ids, dy, dtable] { w.ops().embedding_backward({ids, dy, dtable}); };
                     }});
  }

  void add_weights(std::vector<OpCase>& cases) const {
    const int64_t n = sizes_.weights;
    const std::string shape = fmt::format("{} weights", n);
    cases.push_back({"zero", shape, 0.0, stat_ * count(n), [n](Workbench& w) -> Work {
                       const Tensor x = w.empty_stat({n});
                       return [&w, x] { w.ops().fill({x, 0.0}); };
                     }});
    cases.push_back({"sum of squares", shape, 0.0, stat_ * count(n), [n](Workbench& w) -> Work {
                       const Tensor x = w.stat({n}), out = w.f64({0.0});
                       return [&w, x, out] { w.ops().sums_of_squares({.all = {{x, out}}}); };
                     }});
    add_optimizer_cases(sizes_, stat_dtype_, has_masters_, cases);
  }

  Sizes sizes_;
  OperandFormat format_;
  double act_, stat_;  // bytes of an element
  DType stat_dtype_;
  bool has_masters_, has_codes_;
};

}  // namespace

OpCases op_cases(const Ops& ops, bool full_size, OperandFormat format) {
  const Cases cases(ops, full_size ? full_op_sizes() : small_op_sizes(), format);
  return {.copy = cases.copy(), .gemm = cases.gemm(), .all = cases.all()};
}

}  // namespace nmoe
