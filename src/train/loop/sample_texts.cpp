#include "train/loop/sample_texts.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "data/stream/documents.h"
#include "infer/sampler.h"

namespace nmoe {

SampleTexts::SampleTexts(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                         std::span<const int32_t> begin_ids)
    : seq_len_(config.data.seq_len),
      num_seqs_(config.train.microbatch_seqs),
      max_new_(config.train.sample_tokens),
      seed_(static_cast<uint64_t>(config.run.seed)),
      tokenizer_(std::move(tokenizer)) {
  for (const std::string& text : config.train.sample_prompts) {
    Prompt& prompt = prompts_.emplace_back(Prompt{.text = text, .ids = {begin_ids.begin(), begin_ids.end()}});
    tokenizer_->encode(text, prompt.ids);
    if (std::ssize(prompt.ids) < seq_len_) continue;
    throw usage_error(fmt::format("train.sample_prompts: \"{:.40}\" has {} tokens, data.seq_len is {}", text,
                                  prompt.ids.size(), seq_len_),
                      "shorten it");
  }
}

std::vector<SampleText> SampleTexts::write(Engine& engine, int64_t step) const {
  std::vector<SampleText> texts;
  for (size_t first = 0; first < prompts_.size(); first += static_cast<size_t>(num_seqs_)) {
    write_some(engine, step, first, texts);
  }
  return texts;
}

// As many prompts as a microbatch has sequences. Other ranks make the same passes, for their experts.
void SampleTexts::write_some(Engine& engine, int64_t step, size_t first, std::vector<SampleText>& texts) const {
  struct Row {
    std::vector<int32_t> ids;
    size_t prompt_size = 0;
    SamplingOptions options;
    bool ended = false;
  };
  const auto count = std::min(static_cast<size_t>(num_seqs_), prompts_.size() - first);
  const auto seq_len = static_cast<size_t>(seq_len_);
  const Philox seeds(seed_, "samples");
  std::vector<Row> rows;
  for (size_t i = first; i < first + count; ++i) {
    const uint64_t draw = static_cast<uint64_t>(step) * prompts_.size() + i;
    rows.push_back({.ids = prompts_[i].ids,
                    .prompt_size = prompts_[i].ids.size(),
                    .options = {.temperature = kSampleTemperature, .top_p = kSampleTopP, .seed = seeds.bits(draw)}});
  }
  std::vector<int32_t> inputs(static_cast<size_t>(num_seqs_) * seq_len), wanted(count);
  std::vector<float> logits;
  Documents documents;
  if (engine.masks_documents()) find_documents({}, num_seqs_, seq_len_, documents);
  Sampler sampler;
  const auto vocabulary = static_cast<size_t>(tokenizer_->vocab_size());
  for (int64_t position = 0; position < max_new_; ++position) {
    for (size_t i = 0; i < count; ++i) {
      std::ranges::copy(rows[i].ids, inputs.begin() + static_cast<std::ptrdiff_t>(i * seq_len));
      wanted[i] = static_cast<int32_t>(i * seq_len + rows[i].ids.size() - 1);
    }
    engine.next_logits(inputs, wanted, logits, documents);
    if (!engine.rank().is_first()) continue;
    const size_t width = logits.size() / count;  // a vocabulary padded beyond has ids that stand for nothing
    for (size_t i = 0; i < count; ++i) {
      Row& row = rows[i];
      if (row.ended || row.ids.size() == seq_len) continue;
      const std::span of_row = std::span(logits).subspan(i * width, std::min(width, vocabulary));
      try {
        const int32_t id = sampler.sample(of_row, row.options, static_cast<uint64_t>(position));
        row.ended = id == tokenizer_->eos_id();
        if (!row.ended) row.ids.push_back(id);
      } catch (const Error&) {  // no logit is finite: the next step's loss will say more
        row.ended = true;
      }
    }
  }
  if (!engine.rank().is_first()) return;
  for (size_t i = 0; i < count; ++i) {
    texts.push_back(
        {prompts_[first + i].text, tokenizer_->decode(std::span(rows[i].ids).subspan(rows[i].prompt_size))});
  }
}

}  // namespace nmoe
