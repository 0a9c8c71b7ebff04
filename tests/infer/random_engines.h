// Engines over models with random weights, on NMOE_TEST_DEVICE, and requests to them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/load.h"
#include "infer/engine.h"
#include "infer/load_model.h"
#include "infer/transcript.h"
#include "support/tiny_run.h"

namespace nmoe::test {

// A vocabulary of bytes; weights large enough for texts that are anything but flat.
inline Config random_config(const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all = {"model.vocab_size=257", "model.init.std=0.3", "model.init.embedding_std=1",
                                  "run.seed=3", "model.num_layers=3"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return parse_config(kTinyToml, "tiny.toml", all);
}

inline LoadOptions load_options(int64_t slots, int64_t context, int num_threads, int64_t cache_positions,
                                const DraftOptions& draft) {
  return {.device = NMOE_TEST_DEVICE,
          .num_threads = num_threads,
          .cached = {.num_slots = slots,
                     .capacity = context,
                     .cache_positions = cache_positions,
                     .max_drafts = most_drafts(draft)},
          .predicts = draft.kind == DraftKind::kMtp};
}

// With DraftKind::kModel the model drafts for itself, or one of `drafting` does.
inline std::unique_ptr<InferenceEngine> make_engine(const Config& config, int64_t slots, int64_t context = 64,
                                                    int num_threads = 2, int64_t cache_positions = 0,
                                                    const DraftOptions& draft = {},
                                                    const std::optional<Config>& drafting = {}) {
  const LoadOptions options = load_options(slots, context, num_threads, cache_positions, draft);
  LoadedModel loaded = random_model(config, byte_tokenizer(), options);
  DraftModels models{.predictions = std::move(loaded.predictions)};
  if (draft.kind == DraftKind::kModel) {
    models.model = random_cached_model(drafting.value_or(config), byte_tokenizer(), options);
  }
  return std::make_unique<InferenceEngine>(std::move(loaded.model), draft, std::move(models));
}

inline GenerationRequest request_of(const std::string& prompt, int64_t max_tokens, const SamplingOptions& sampling) {
  GenerationRequest request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_tokens = max_tokens;
  request.sampling = sampling;
  request.ignore_eos = true;
  request.logprobs = true;
  return request;
}

// Greedy and sampled, of many lengths, one with a prompt longer than a step reads.
inline std::vector<GenerationRequest> mixed_requests() {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    const std::string prompt = tiny_text(3 + 17 * (i % 4), i).substr(0, 1 + 11 * (i % 4));
    const double temperature = i % 3 == 0 ? 0.0 : 0.7 + 0.1 * static_cast<double>(i);
    requests.push_back(request_of(prompt, static_cast<int64_t>(5 + 7 * (i % 5)),
                                  {.repetition_penalty = i % 2 == 0 ? 1.2 : 1.0,
                                   .temperature = temperature,
                                   .top_k = i == 4 ? 20 : 0,
                                   .top_p = i == 5 ? 0.8 : 1.0,
                                   .seed = 10 + i}));
  }
  requests.push_back(request_of(tiny_text(400, 77), 10, {.temperature = 0.9, .seed = 3}));
  return requests;
}

inline void expect_same(const Transcript& actual, const Transcript& expected) {
  EXPECT_EQ(actual.ids, expected.ids);
  EXPECT_EQ(actual.text, expected.text);
  ASSERT_EQ(actual.tokens.size(), expected.tokens.size());
  for (size_t i = 0; i < actual.tokens.size(); ++i) {
    EXPECT_EQ(actual.tokens[i].logprob, expected.tokens[i].logprob) << "token " << i;  // the bits
  }
}

struct Attention {
  std::string name;
  std::vector<std::string> overrides;
};
inline const std::vector<Attention> kAttentions = {
    {"mla", {}},
    {"mla_query_latent_windows", {"model.mla.q_lora_rank=6", "model.window=5", "model.attn_global_every=2"}},
    {"gqa",
     {"model.attention=gqa", "model.num_heads=4", "model.gqa.num_kv_heads=2", "model.gqa.head_dim=8",
      "model.gqa.qk_norm=true", "model.rope.layout=half_split"}},
};

// On a GPU in both precisions.
inline std::vector<Attention> attentions() {
  if (std::string_view(NMOE_TEST_DEVICE) == "cpu") return kAttentions;
  std::vector<Attention> all;
  for (const Attention& attention : kAttentions) {
    for (const std::string precision : {"fp32", "bf16"}) {
      all.push_back({attention.name + "_" + precision, attention.overrides});
      all.back().overrides.insert(all.back().overrides.end(), {"run.device=cuda", "run.precision=" + precision});
    }
  }
  return all;
}

// A suite of tests for each of attentions().
class AttentionTest : public testing::TestWithParam<Attention> {
 protected:
  // kTinyToml has a section of MLA, which may not stand beside GQA.
  static Config config(const std::vector<std::string>& more = {}) {
    std::string toml(kTinyToml);
    if (GetParam().name.starts_with("gqa")) {
      const size_t begin = toml.find("[model.mla]"), end = toml.find("[model.moe]");
      toml.erase(begin, end - begin);
    }
    std::vector<std::string> overrides = {"model.vocab_size=257", "model.init.std=0.3", "model.init.embedding_std=1"};
    overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
    overrides.insert(overrides.end(), more.begin(), more.end());
    return parse_config(toml, "tiny.toml", overrides);
  }
};

// Prompts of which some begin alike, for a page or two or less, and outputs over several pages.
inline std::vector<GenerationRequest> paged_requests() {
  const std::string common = tiny_text(300, 5);
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 8; ++i) {
    const size_t shared = 270 - 64 * (i % 4);
    const std::string prompt = common.substr(0, shared) + tiny_text(10 + 20 * i, 20 + i).substr(0, 5 + 15 * i);
    requests.push_back(request_of(prompt, static_cast<int64_t>(20 + 40 * (i % 4)),
                                  {.repetition_penalty = i == 3 ? 1.1 : 1.0, .temperature = 0.8, .seed = 50 + i}));
    requests.back().prompt_logprobs = i == 5;
  }
  return requests;
}

}  // namespace nmoe::test
