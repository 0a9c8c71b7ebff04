// The smallest run worth training: its text and its configuration.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/rng.h"

namespace nmoe::test {

// Sentences of few words, some `bytes` bytes of them.
inline std::string tiny_text(size_t bytes, uint64_t seed) {
  constexpr std::string_view kWords[] = {"the", "a",    "cat",   "dog", "river", "house", "sat",  "ran", "saw",
                                         "by",  "near", "under", "old", "wild",  "and",   "then", "it",  "rained"};
  const Philox rng(seed, "tiny text");
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    text += kWords[rng.bits(i) % std::size(kWords)];
    text += i % 9 == 8 ? ".\n" : " ";
  }
  return text;
}

// A mixture of experts with every kind of optimizer state and a learning rate that depends on the
// step. Paths are relative to the folder of the test.
inline constexpr std::string_view kTinyToml = R"([run]
name = "tiny"
threads = 1

[model]
dim = 16
num_layers = 2
num_heads = 2
num_dense_layers = 1
dense_dim = 32

[model.mla]
kv_lora_rank = 8
qk_nope_head_dim = 4
qk_rope_head_dim = 4
v_head_dim = 8

[model.moe]
num_experts = 6
top_k = 2
expert_dim = 16

[data]
path = "data"
seq_len = 16

[optim]
matrices = { optimizer = "muon", lr = 1e-2 }
experts = { optimizer = "muon", lr = 1e-2 }
router = { lr = 1e-2 }
rest = { lr = 1e-2 }

[optim.schedule]
warmup = 5
hold = 10
decay = 40

[train]
steps = 20
batch_seqs = 8
microbatch_seqs = 4
log_every = 1
)";

}  // namespace nmoe::test
