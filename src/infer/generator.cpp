#include "infer/generator.h"

#include <algorithm>
#include <numeric>

#include "checkpoint/reader.h"
#include "config/load.h"
#include "infer/utf8_stream.h"
#include "ops/factory.h"

namespace nmoe {

Generator::Generator(const fs::path& checkpoint, int num_threads) {
  const CheckpointReader reader = CheckpointReader::open(checkpoint);
  config_ = parse_config(reader.config_toml(), (reader.path() / "config.toml").string());
  tokenizer_ = load_tokenizer((reader.path() / "tokenizer.json").string());
  const int64_t seq_len = config_.data.seq_len, vocab = config_.model.vocab_size;

  // Measured with counting arenas, then made: as in train/engine.h.
  const auto set_up = [&](Backend& ops, Arena& values, Arena& grads, Arena& state, Arena& activations) {
    auto model = std::make_unique<Model>(config_.model, ops, seq_len);
    model->allocate(values, grads, state);
    tokens_ = state.allocate(DType::kI32, {seq_len});
    positions_ = state.allocate(DType::kI32, {seq_len});
    logits_ = state.allocate(DType::kF32, {1, vocab});
    const Batch batch{
        .num_seqs = 1, .seq_len = seq_len, .tokens = tokens_, .targets = tokens_, .positions = positions_};
    if (ops.counting()) model->last_logits(batch, activations, logits_);
    return model;
  };
  Arena values("parameters"), grads("gradients"), state("state"), activations("activations");
  const auto counter = make_backend({.device = "cpu", .num_threads = num_threads});
  set_up(*counter, values, grads, state, activations);

  ops_ = make_backend({.device = "cpu", .num_threads = num_threads});
  values_.reserve(ops_->memory(), values.high_water());
  state_.reserve(ops_->memory(), state.high_water());
  activations_.reserve(ops_->memory(), activations.high_water());
  ops_->scratch().reserve(ops_->memory(), counter->scratch().high_water());
  model_ = set_up(*ops_, values_, grads_, state_, activations_);  // gradients stay counting: none are made

  std::vector<NamedTensor> weights;
  for (const Parameter& parameter : model_->parameters().all()) weights.push_back({parameter.name, parameter.value});
  reader.load_model(weights);

  std::vector<int32_t> positions(static_cast<size_t>(seq_len));
  std::iota(positions.begin(), positions.end(), 0);
  ops_->upload(positions_, positions.data());
  host_logits_.resize(static_cast<size_t>(vocab));
}

std::span<const float> Generator::next_logits(std::span<const int32_t> context) {
  const int64_t length = static_cast<int64_t>(context.size());
  const Batch batch{.num_seqs = 1,
                    .seq_len = length,
                    .tokens = tokens_.rows(0, length),
                    .targets = tokens_.rows(0, length),
                    .positions = positions_.rows(0, length)};
  ops_->upload(batch.tokens, context.data());
  model_->last_logits(batch, activations_, logits_);
  ops_->download(host_logits_.data(), logits_);
  // A vocabulary padded beyond the tokenizer's has ids that stand for nothing.
  return std::span<const float>(host_logits_).first(static_cast<size_t>(tokenizer_->vocab_size()));
}

GenerateResult Generator::generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit) {
  std::vector<int32_t> ids{tokenizer_->eos_id()};  // a document starts where the last one ended
  tokenizer_->encode(options.prompt, ids);
  GenerateResult result;
  Utf8Stream text;
  while (result.tokens < options.max_tokens) {
    // A model that was trained to see its own document only knows nothing of the end of the last one.
    const size_t unseen = config_.data.mask_documents && ids.size() > 1 ? 1 : 0;
    const size_t context = std::min(ids.size() - unseen, static_cast<size_t>(config_.data.seq_len));
    const int32_t id =
        sample_token(next_logits(std::span(ids).last(context)), options.sampling, static_cast<uint64_t>(result.tokens));
    if (id == tokenizer_->eos_id()) {
      result.ended = true;
      break;
    }
    ids.push_back(id);
    ++result.tokens;
    emit(text.push(tokenizer_->token_bytes(id)));
  }
  emit(text.flush());
  return result;
}

}  // namespace nmoe
