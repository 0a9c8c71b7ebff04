#include "train/loop/sample_texts.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "data/stream/documents.h"
#include "infer/sampler.h"

namespace nmoe {

SampleTexts::SampleTexts(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                         std::span<const int32_t> begin_ids)
    : config_(config), needs_(live_generation_needs(config)), tokenizer_(std::move(tokenizer)) {
  if (needs_ && std::ssize(begin_ids) > kMostBeginIds) {
    throw usage_error(fmt::format("texts begin with {} ids, and there is room for {}", begin_ids.size(), kMostBeginIds),
                      "leave out train.sample_prompts");
  }
  for (const std::string& text : config.train.sample_prompts) {
    Prompt& prompt = prompts_.emplace_back(Prompt{.text = text, .ids = {begin_ids.begin(), begin_ids.end()}});
    tokenizer_->encode(text, prompt.ids);
    if (std::ssize(prompt.ids) < config.data.seq_len) continue;
    throw usage_error(fmt::format("train.sample_prompts: \"{:.40}\" has {} tokens, data.seq_len is {}", text,
                                  prompt.ids.size(), config.data.seq_len),
                      "shorten it");
  }
}

SamplingOptions SampleTexts::sampling(int64_t step, size_t prompt) const {
  const Philox seeds(static_cast<uint64_t>(config_.run.seed), "samples");
  return {.temperature = kSampleTemperature,
          .top_p = kSampleTopP,
          .seed = seeds.bits(static_cast<uint64_t>(step) * prompts_.size() + prompt)};
}

SampleText SampleTexts::text_of(size_t prompt, std::span<const int32_t> written) const {
  return {prompts_[prompt].text, tokenizer_->decode(written)};
}

std::vector<SampleText> SampleTexts::write(Engine& engine, int64_t step) const {
  std::vector<SampleText> texts;
  if (empty()) return texts;
  if (LiveGeneration::is_possible(engine)) {
    if (engine.rank().is_first()) texts = write_live(engine, step);
    return texts;
  }
  for (size_t first = 0; first < prompts_.size(); first += static_cast<size_t>(config_.train.microbatch_seqs)) {
    write_some(engine, step, first, texts);
  }
  return texts;
}

std::vector<SampleText> SampleTexts::write_live(Engine& engine, int64_t step) const {
  LiveGeneration generation(config_, engine, tokenizer_, needs_);
  std::vector<std::vector<int32_t>> written(prompts_.size());
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const int64_t room = config_.data.seq_len - std::ssize(prompts_[i].ids);
    generation.engine().submit({.prompt = prompts_[i].ids,
                                .max_tokens = std::min(config_.train.sample_tokens, room),
                                .sampling = sampling(step, i)},
                               {.on_token = [&, i](const GeneratedToken& token) { written[i].push_back(token.id); }});
  }
  const auto num_left = [&] { return generation.engine().load().running + generation.engine().load().waiting; };
  for (bool more = true; more;) {
    const int64_t before = num_left();
    try {
      more = generation.engine().step();
    } catch (const Error&) {  // of one without a finite logit, which has ended: the next step's loss will say more
      if (num_left() >= before) throw;
    }
  }
  std::vector<SampleText> texts;
  for (size_t i = 0; i < prompts_.size(); ++i) texts.push_back(text_of(i, written[i]));
  return texts;
}

// Where ranks share experts: as many prompts as a microbatch has sequences. Other ranks make the same passes, for their
// experts.
void SampleTexts::write_some(Engine& engine, int64_t step, size_t first, std::vector<SampleText>& texts) const {
  struct Row {
    std::vector<int32_t> ids;
    size_t prompt_size = 0;
    SamplingOptions options;
    bool ended = false;
  };
  const int64_t num_seqs = config_.train.microbatch_seqs;
  const auto count = std::min(static_cast<size_t>(num_seqs), prompts_.size() - first);
  const auto seq_len = static_cast<size_t>(config_.data.seq_len);
  std::vector<Row> rows;
  for (size_t i = first; i < first + count; ++i) {
    rows.push_back({.ids = prompts_[i].ids, .prompt_size = prompts_[i].ids.size(), .options = sampling(step, i)});
  }
  std::vector<int32_t> inputs(static_cast<size_t>(num_seqs) * seq_len), wanted(count);
  std::vector<float> logits;
  Documents documents;
  if (engine.masks_documents()) find_documents({}, num_seqs, config_.data.seq_len, documents);
  Sampler sampler;
  const auto vocabulary = static_cast<size_t>(tokenizer_->vocab_size());
  for (int64_t position = 0; position < config_.train.sample_tokens; ++position) {
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
    texts.push_back(text_of(first + i, std::span(rows[i].ids).subspan(rows[i].prompt_size)));
  }
}

}  // namespace nmoe
