// The sizes that operations are timed at. Letters as in ops/ops.h.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "bench/moe_layer.h"

namespace nmoe {

struct OpSizes {
  struct Linear {
    int64_t T, in, out;
  };
  struct Heads {
    int64_t B, S, H, G, Dk, Dv;
    int64_t document_tokens = 0;  // 0: every sequence is one document
  };
  using Layer = MoeLayer::Sizes;
  struct Head {
    int64_t T, D, V;
  };
  struct Scan {
    int64_t B, S, H, P, G, N;
  };
  struct Rule {
    int64_t B, S, G, K, H, V;
  };
  int64_t copy_elements, gemm, weights;
  std::vector<Linear> linears;
  std::vector<Heads> attentions;
  std::vector<Heads> caches;  // B sequences of S positions, a token each
  std::vector<Layer> layers;
  std::vector<Layer> latent_layers;
  std::vector<Head> heads;
  std::vector<Scan> scans, scanned;                   // of generation: B sequences, a token each
  std::vector<std::pair<Scan, int64_t>> scan_layers;  // in a model of that width
  std::vector<Rule> rules, ruled;                     // likewise
  std::vector<std::pair<Rule, int64_t>> rule_layers;
  // Steps of generation: of so many tokens, products from and to these widths, and the experts of the first layer
  // above.
  std::vector<int64_t> generated;
  std::vector<std::pair<int64_t, int64_t>> generating;
};

// Of `super` and `moonlet`, a slice of DeepSeek-V3's experts, layers of LatentMoE and Mamba-2 with Nemotron 3 Super's
// widths, of Gated DeltaNet with Qwen3-Next's; the last scan is Nano's.
OpSizes full_op_sizes();
// Those that a CPU is done with in seconds.
OpSizes small_op_sizes();

}  // namespace nmoe
