#include "bench/recurrent_cases.h"

#include <fmt/format.h>

#include <utility>

#include "bench/mixer_layer.h"

namespace nmoe {
namespace {

using Work = OpCase::Work;
using Scan = OpSizes::Scan;
using Rule = OpSizes::Rule;

constexpr int64_t kChunk = 128;

std::string shape_of(const Scan& s) {
  return fmt::format("{} x {} tokens, {} heads of {}, {} groups, {} states", s.B, s.S, s.H, s.P, s.G, s.N);
}

SsdInputs inputs(Workbench& w, const Scan& s) {
  const int64_t T = s.B * s.S;
  return {.num_seqs = s.B,
          .seq_len = s.S,
          .chunk = kChunk,
          .x = w.act({T, s.H, s.P}),
          .b = w.act({T, s.G, s.N}, 0.1),
          .c = w.act({T, s.G, s.N}, 0.1),
          .dt = w.act({T, s.H}),
          .dt_bias = w.stat({s.H}),
          .a_log = w.stat({s.H}),
          .d = w.stat({s.H})};
}

// FLOPs as if every product were made once and scores once for a group, by the causal half of a chunk's squares; in
// backward states are made again.
void add_scan(const Scan& s, double act, std::vector<OpCase>& cases) {
  const auto tokens = static_cast<double>(s.B * s.S), H = static_cast<double>(s.H), P = static_cast<double>(s.P);
  const auto G = static_cast<double>(s.G), N = static_cast<double>(s.N), Q = static_cast<double>(kChunk);
  cases.push_back({"scan, forward", shape_of(s), tokens * (G * Q * N + H * Q * P + 4 * H * P * N),
                   tokens * act * (2 * H * P + 2 * G * N + H), [s](Workbench& w) -> Work {
                     const SsdInputs in = inputs(w, s);
                     const Tensor y = w.empty(in.x.shape());
                     return [&w, in, y] { w.ops().ssd_forward({.in = in, .y = y}); };
                   }});
  cases.push_back({"scan, backward", shape_of(s), tokens * (3 * G * Q * N + 2 * H * Q * P + 10 * H * P * N),
                   tokens * act * (3 * H * P + 4 * G * N + 2 * H), [s](Workbench& w) -> Work {
                     const SsdInputs in = inputs(w, s);
                     const SsdBackward args{.in = in,
                                            .dy = w.act(in.x.shape()),
                                            .dx = w.empty(in.x.shape()),
                                            .db = w.empty(in.b.shape()),
                                            .dc = w.empty(in.c.shape()),
                                            .ddt = w.empty(in.dt.shape()),
                                            .ddt_bias = w.stat({s.H}),
                                            .da_log = w.stat({s.H}),
                                            .dd = w.stat({s.H})};
                     return [&w, args] { w.ops().ssd_backward(args); };
                   }});
}

// A token each of B sequences, in the middle of a chunk.
void add_generation(const Scan& s, double act, double stat, std::vector<OpCase>& cases) {
  const auto rows = static_cast<double>(s.B), H = static_cast<double>(s.H), P = static_cast<double>(s.P);
  const auto G = static_cast<double>(s.G), N = static_cast<double>(s.N), seen = static_cast<double>(kChunk / 2);
  cases.push_back({"generation, scan", shape_of(s), rows * (2 * G * seen * N + 2 * H * seen * P + 2 * H * P * N),
                   rows * (stat * H * (P * N + seen) + act * seen * (H * P + G * N)), [s](Workbench& w) -> Work {
                     const std::vector<int32_t> positions(static_cast<size_t>(s.B), kChunk + kChunk / 2 - 1);
                     const CachedSsd args{.x = w.act({s.B, s.H, s.P}),
                                          .b = w.act({s.B, s.G, s.N}, 0.1),
                                          .c = w.act({s.B, s.G, s.N}, 0.1),
                                          .dt = w.act({s.B, s.H}),
                                          .dt_bias = w.stat({s.H}),
                                          .a_log = w.stat({s.H}),
                                          .d = w.stat({s.H}),
                                          .slots = w.numbers(s.B),
                                          .positions = w.i32(positions),
                                          .states = w.stat({s.B, s.H, s.P, s.N}),
                                          .open_x = w.act({s.B, kChunk, s.H * s.P}),
                                          .open_b = w.act({s.B, kChunk, s.G * s.N}),
                                          .open_step = w.stat({s.B, kChunk, s.H}, 0.01),
                                          .y = w.empty({s.B, s.H, s.P})};
                     return [&w, args] { w.ops().cached_ssd(args); };
                   }});
}

std::string shape_of(const Rule& s) {
  return fmt::format("{} x {} tokens, {} heads of {}, {} of keys of {}", s.B, s.S, s.H, s.V, s.G, s.K);
}

DeltaRuleInputs inputs(Workbench& w, const Rule& s) {
  const int64_t T = s.B * s.S;
  return {.num_seqs = s.B,
          .seq_len = s.S,
          .q = w.act({T, s.G, s.K}),
          .k = w.act({T, s.G, s.K}),
          .v = w.act({T, s.H, s.V}),
          .b = w.act({T, s.H}),
          .a = w.act({T, s.H}),
          .dt_bias = w.stat({s.H}),
          .a_log = w.stat({s.H})};
}

constexpr int64_t kRuleChunk = 64;

// FLOPs of chunks' products, once each, by the causal half of their squares; in backward states are made again.
void add_rule(const Rule& s, double act, std::vector<OpCase>& cases) {
  const auto tokens = static_cast<double>(s.B * s.S), G = static_cast<double>(s.G), K = static_cast<double>(s.K);
  const auto H = static_cast<double>(s.H), V = static_cast<double>(s.V), Q = static_cast<double>(kRuleChunk);
  cases.push_back({"delta rule, forward", shape_of(s), tokens * (2 * G * Q * K + 2 * H * Q * V + 6 * H * K * V),
                   tokens * act * (2 * H * V + 2 * G * K + 2 * H), [s](Workbench& w) -> Work {
                     const DeltaRuleInputs in = inputs(w, s);
                     const Tensor y = w.empty(in.v.shape());
                     return [&w, in, y] { w.ops().delta_rule_forward({.in = in, .y = y}); };
                   }});
  cases.push_back({"delta rule, backward", shape_of(s),
                   tokens * (2 * G * Q * K + H * Q * (5 * V + 4 * K) + 16 * H * K * V),
                   tokens * act * (3 * H * V + 4 * G * K + 4 * H), [s](Workbench& w) -> Work {
                     const DeltaRuleInputs in = inputs(w, s);
                     const DeltaRuleBackward args{.in = in,
                                                  .dy = w.act(in.v.shape()),
                                                  .dq = w.empty(in.q.shape()),
                                                  .dk = w.empty(in.q.shape()),
                                                  .dv = w.empty(in.v.shape()),
                                                  .db = w.empty(in.b.shape()),
                                                  .da = w.empty(in.b.shape()),
                                                  .ddt_bias = w.stat({s.H}),
                                                  .da_log = w.stat({s.H})};
                     return [&w, args] { w.ops().delta_rule_backward(args); };
                   }});
}

// A token each of B sequences.
void add_generation(const Rule& s, double stat, std::vector<OpCase>& cases) {
  const auto states = static_cast<double>(s.B * s.H * s.K * s.V);
  cases.push_back({"generation, delta rule", shape_of(s), 6 * states, 2 * stat * states, [s](Workbench& w) -> Work {
                     const std::vector<int32_t> positions(static_cast<size_t>(s.B), 1);
                     const CachedDeltaRule args{.q = w.act({s.B, s.G, s.K}),
                                                .k = w.act({s.B, s.G, s.K}),
                                                .v = w.act({s.B, s.H, s.V}),
                                                .b = w.act({s.B, s.H}),
                                                .a = w.act({s.B, s.H}),
                                                .dt_bias = w.stat({s.H}),
                                                .a_log = w.stat({s.H}),
                                                .slots = w.numbers(s.B),
                                                .positions = w.i32(positions),
                                                .states = w.stat({s.B, s.H, s.K, s.V}),
                                                .y = w.empty({s.B, s.H, s.V})};
                     return [&w, args] { w.ops().cached_delta_rule(args); };
                   }});
}

// A whole layer around a scan or a rule: of B sequences of S tokens, with products from the model's width to `in` and
// from `out` back.
struct RecurrentLayer {
  std::string name, shape;
  PartKind kind;
  ModelConfig model;
  int64_t B, S, in, out;
};

// It, and its two products alone. FLOPs are those of the products.
void add_layer(const RecurrentLayer& layer, double act, std::vector<OpCase>& cases) {
  const int64_t T = layer.B * layer.S, dim = layer.model.dim, in = layer.in, out = layer.out;
  const auto tokens = static_cast<double>(T), weights = static_cast<double>(dim * (in + out));
  const double flops = 2 * tokens * weights, bytes = act * (2 * tokens * static_cast<double>(dim) + weights);
  const std::string& shape = layer.shape;
  const auto layer_of = [layer](Workbench& w) {
    return std::make_shared<MixerLayer>(w, layer.model, layer.kind, layer.B, layer.S);
  };
  const auto forward = [layer_of](Workbench& w) -> Work {
    return [&w, layer = layer_of(w)] {
      const ArenaScope scope(w.arena());
      layer->forward();
    };
  };
  cases.push_back({layer.name + " layer, forward", shape, flops, bytes, forward});
  cases.push_back({layer.name + " layer, both ways", shape, 3 * flops, 3 * bytes, [layer_of](Workbench& w) -> Work {
                     return [&w, layer = layer_of(w)] {
                       const ArenaScope scope(w.arena());
                       layer->forward();
                       layer->backward();
                     };
                   }});
  struct Product {
    Tensor x, w, y, dy, dx, dw;
  };
  const auto products_of = [=](Workbench& w) {
    const auto product = [&](int64_t from, int64_t to) {
      return Product{w.act({T, from}), w.act({to, from}),  w.empty({T, to}),
                     w.act({T, to}),   w.empty({T, from}), w.empty_stat({to, from})};
    };
    return std::vector<Product>{product(dim, in), product(out, dim)};
  };
  cases.push_back({layer.name + " projections, forward", shape, flops, bytes, [products_of](Workbench& w) -> Work {
                     return [&w, products = products_of(w)] {
                       for (const Product& p : products) w.ops().linear_forward({p.x, p.w, p.y, Tensor()});
                     };
                   }});
  cases.push_back(
      {layer.name + " projections, both ways", shape, 3 * flops, 3 * bytes, [products_of](Workbench& w) -> Work {
         return [&w, products = products_of(w)] {
           for (const Product& p : products) {
             w.ops().linear_forward({p.x, p.w, p.y, Tensor()});
             w.ops().linear_backward_input({p.dy, p.w, p.dx, /*accumulate=*/false});
             w.ops().linear_backward_weight({p.x, p.dy, p.dw, /*accumulate=*/false});
           }
         };
       }});
}

RecurrentLayer layer_around(const Scan& s, int64_t dim) {
  ModelConfig model;
  model.dim = dim;
  model.mamba2 = {.num_heads = s.H, .head_dim = s.P, .state_dim = s.N, .num_groups = s.G, .chunk = kChunk};
  const int64_t W = model.mamba2.width();
  return {.name = "Mamba-2",
          .shape = fmt::format("{}, width {}", shape_of(s), dim),
          .kind = PartKind::kMamba2,
          .model = model,
          .B = s.B,
          .S = s.S,
          .in = 2 * W + 2 * model.mamba2.group_width() + s.H,
          .out = W};
}
RecurrentLayer layer_around(const Rule& s, int64_t dim) {
  ModelConfig model;
  model.dim = dim;
  model.gated_deltanet = {.num_key_heads = s.G, .num_value_heads = s.H, .key_head_dim = s.K, .value_head_dim = s.V};
  const int64_t W = model.gated_deltanet.value_width();
  return {.name = "delta rule",
          .shape = fmt::format("{}, width {}", shape_of(s), dim),
          .kind = PartKind::kGatedDeltaNet,
          .model = model,
          .B = s.B,
          .S = s.S,
          .in = W + model.gated_deltanet.conv_channels() + 2 * s.H,
          .out = W};
}

}  // namespace

void add_recurrent_cases(const OpSizes& sizes, double act, double stat, std::vector<OpCase>& cases) {
  for (const Scan& size : sizes.scans) add_scan(size, act, cases);
  for (const auto& [size, dim] : sizes.scan_layers) add_layer(layer_around(size, dim), act, cases);
  for (const Scan& size : sizes.scanned) add_generation(size, act, stat, cases);
  for (const Rule& size : sizes.rules) add_rule(size, act, cases);
  for (const auto& [size, dim] : sizes.rule_layers) add_layer(layer_around(size, dim), act, cases);
  for (const Rule& size : sizes.ruled) add_generation(size, stat, cases);
}

}  // namespace nmoe
