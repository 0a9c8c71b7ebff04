#include "eval/generation_parity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "checkpoint/saved_config.h"
#include "data/stream/alignment.h"
#include "infer/cached_model.h"
#include "infer/load_model.h"
#include "infer/logprobs.h"
#include "infer/sampler.h"
#include "model/placed_weights.h"
#include "model/runner.h"
#include "ops/contracts/attention.h"

namespace nmoe {
namespace {

constexpr int64_t kMostSequences = 256;
constexpr int64_t kChunks[] = {1, 3, 16, 64, 200, 5};  // how many tokens of a prompt are read at once

// A text: a prompt and, behind it, what is sampled.
struct Text {
  std::vector<int32_t> tokens;
  int64_t prompt = 0;
  int64_t shared = 0;           // tokens of the beginning that the text before it has too
  std::vector<float> logprobs;  // of what is sampled
  int64_t first_row = 0;        // of all texts' rows, one for each token
};

// Where a value is made.
struct Site {
  int64_t layer;
  Intermediate what;
  auto operator<=>(const Site&) const = default;
};

// Never 0. FNV-1a over words, each step of which is invertible: values that differ in one word have other hashes.
uint64_t hash_of(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t begin = 0; begin < bytes.size(); begin += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + begin, std::min(sizeof(word), bytes.size() - begin));
    hash = (hash ^ word) * 0x100000001b3;
    hash ^= hash >> 32;
  }
  return hash == 0 ? 1 : hash;
}

// The values that passes make of every row, as hashes, and the choices of routers themselves.
class Observations {
 public:
  explicit Observations(int64_t num_rows) : num_rows_(static_cast<size_t>(num_rows)) {}

  // From now on, row i of a pass is rows[i] of all; -1: none.
  void begin_pass(std::vector<int64_t> rows) { rows_ = std::move(rows); }
  void add(Device& device, Intermediate what, int64_t layer, const Tensor& value) {
    if (what == Intermediate::kExpertHidden) return;  // rows are experts', not tokens'
    // Rows that lie apart are fetched with what lies between them.
    const int64_t bytes = static_cast<int64_t>(dtype_bytes(value.dtype())), num_rows = value.dim(0);
    const int64_t width = value.shape().row_elements();
    const int64_t span = num_rows == 0 ? 0 : (num_rows - 1) * value.stride() + width;
    bytes_.resize(static_cast<size_t>(span * bytes));
    device.download(bytes_.data(), Tensor(value.rows_raw(), value.dtype(), {span}));
    const Site site{layer, what};
    const auto [hashes, is_new] = hashes_.try_emplace(site, num_rows_);
    if (is_new) order_.push_back(site);
    for (size_t i = 0; i < std::min(rows_.size(), static_cast<size_t>(num_rows)); ++i) {
      if (rows_[i] < 0) continue;
      const auto row = static_cast<size_t>(rows_[i]);
      const std::span<const std::byte> of_row = std::span<const std::byte>(bytes_).subspan(
          i * static_cast<size_t>(value.stride() * bytes), static_cast<size_t>(width * bytes));
      hashes->second[row] = hash_of(of_row);
      if (what != Intermediate::kExpertChoices) continue;
      std::vector<int32_t>& choices = choices_[layer].try_emplace(rows_[i]).first->second;
      choices.resize(static_cast<size_t>(width));
      std::memcpy(choices.data(), of_row.data(), of_row.size());
      std::ranges::sort(choices);
    }
  }
  Inspector inspector(Device& device) {
    return [this, &device](Intermediate what, int64_t layer, Tensor value, Tensor) { add(device, what, layer, value); };
  }

  // Of rows that `other` has too, in the order in which this was observed.
  std::optional<std::pair<Site, std::vector<int64_t>>> first_difference(const Observations& other) const {
    for (const Site& site : order_) {
      const auto theirs = other.hashes_.find(site);
      if (theirs == other.hashes_.end()) continue;
      const std::vector<uint64_t>& mine = hashes_.at(site);
      std::vector<int64_t> rows;
      for (size_t row = 0; row < num_rows_; ++row) {
        if (theirs->second[row] != 0 && mine[row] != 0 && theirs->second[row] != mine[row]) {
          rows.push_back(static_cast<int64_t>(row));
        }
      }
      if (!rows.empty()) return std::pair(site, std::move(rows));
    }
    return std::nullopt;
  }
  // How many choices `other` has, and how many of them are none of this.
  std::pair<int64_t, int64_t> compare_choices(const Observations& other) const {
    int64_t all = 0, others = 0;
    for (const auto& [layer, rows] : other.choices_) {
      for (const auto& [row, theirs] : rows) {
        const std::vector<int32_t>& mine = choices_.at(layer).at(row);
        std::vector<int32_t> missing;
        std::ranges::set_difference(theirs, mine, std::back_inserter(missing));
        all += std::ssize(theirs), others += std::ssize(missing);
      }
    }
    return {all, others};
  }

 private:
  size_t num_rows_;
  std::vector<int64_t> rows_;
  std::vector<std::byte> bytes_;
  std::vector<Site> order_;                                             // of execution
  std::map<Site, std::vector<uint64_t>> hashes_;                        // of every row; 0: none
  std::map<int64_t, std::map<int64_t, std::vector<int32_t>>> choices_;  // by layer and row, in order of experts
};

// How many rows and of what lengths.
struct Extents {
  int64_t capacity;  // positions of a text
  int64_t sampled;   // of each text
  int64_t num_texts;
  int64_t num_seqs, seq_len;  // of a pass of training
  int64_t alignment;          // of documents there

  int64_t longest_prompt() const { return capacity - sampled; }
};

Extents extents_of(const Config& config, const GenerationParityOptions& options) {
  if (options.tokens < 1 || options.longest < 2 || options.batches.empty()) {
    throw usage_error(fmt::format("{} tokens of texts of up to {} in {} sizes of batches", options.tokens,
                                  options.longest, options.batches.size()),
                      "give at least 1 token, texts of 2 and one size");
  }
  if (options.align_documents < 0) {
    throw usage_error(fmt::format("documents that begin at multiples of {}", options.align_documents),
                      "give at least 1, or 0 for what the device needs");
  }
  for (const int64_t batch : options.batches) slots_of(batch);
  const int64_t capacity = std::min(context_of(config, 0), options.longest);
  if (capacity < 2) {
    throw usage_error("the model's context is one token, behind which nothing can be sampled",
                      "compare a model whose model.max_positions or data.seq_len is larger");
  }
  const int64_t sampled = std::min((options.tokens + kMostSequences - 1) / kMostSequences, capacity / 2);
  const int64_t of_device = options.device == "cpu" ? 1 : kDocumentAlignment;
  const int64_t alignment = options.align_documents == 0 ? of_device : options.align_documents;
  return {.capacity = capacity,
          .sampled = sampled,
          .num_texts = (options.tokens + sampled - 1) / sampled,
          .num_seqs = config.train.microbatch_seqs,
          .seq_len = aligned(std::max(config.data.seq_len, capacity), alignment),
          .alignment = alignment};
}

// Both ways of running the same weights.
struct Sides {
  Sides(const Config& config, std::shared_ptr<const Tokenizer> tokenizer, const Extents& extents, int64_t slots,
        WeightSet& weights, Storage& storage)
      : generating(config.model, weights, storage.device(), RunnerRoom::of(storage),
                   generation_runner(extents.capacity, config.generation.arithmetic)),
        cached(config, std::move(tokenizer), generating.model(), RunnerRoom::of(storage),
               {.num_slots = slots, .capacity = extents.capacity, .records = false}),
        training(config.model, weights, storage.device(), RunnerRoom::of(storage),
                 {.max_positions = extents.seq_len, .passes = {.wire = config.precision.wire}}),
        batch(training.make_batch(
            {.num_seqs = extents.num_seqs, .seq_len = extents.seq_len, .has_targets = true, .has_documents = true})),
        losses(storage[ArenaKind::kStepState].allocate(DType::kF32, {batch.num_tokens()})) {
    if (training.ops().counting()) training.model().forward(batch, training.activations(), losses);
  }

  ModelRunner generating;
  CachedModel cached;
  ModelRunner training;
  Batch batch;
  Tensor losses;
};

std::vector<Text> make_texts(const Tokenizer& tokenizer, const Extents& extents,
                             const GenerationParityOptions& options) {
  const Philox lengths(options.seed, "parity lengths"), ids(options.seed, "parity ids");
  std::vector<int32_t> source;
  if (options.prompt_text) {
    tokenizer.encode(*options.prompt_text, source);
    if (source.empty()) throw usage_error("the text of prompts has no tokens", "give a text, or none for random ids");
  }
  const auto vocab = static_cast<uint64_t>(tokenizer.vocab_size());
  std::vector<Text> texts(static_cast<size_t>(extents.num_texts));
  for (size_t i = 0; i < texts.size(); ++i) {
    Text& text = texts[i];
    text.prompt = 1 + static_cast<int64_t>(lengths.bits(i) % static_cast<uint64_t>(extents.longest_prompt()));
    const uint64_t begin = ids.bits(i) % (source.empty() ? vocab : source.size());
    for (int64_t j = 0; j < text.prompt; ++j) {
      const auto place = static_cast<uint64_t>(j);
      text.tokens.push_back(source.empty() ? static_cast<int32_t>(ids.bits((i << 32) + place) % vocab)
                                           : source[(begin + place) % source.size()]);
    }
    if (i % 2 == 0) continue;
    const Text& before = texts[i - 1];
    text.shared = std::min(before.prompt, text.prompt - 1) / 2;
    std::copy_n(before.tokens.begin(), text.shared, text.tokens.begin());
  }
  return texts;
}

// Samples behind all texts, `batch` of them at a time.
class Generation {
 public:
  Generation(CachedModel& model, std::vector<Text>& texts, const Extents& extents,
             const GenerationParityOptions& options, int64_t batch, Observations& seen)
      : model_(model), texts_(texts), extents_(extents), options_(options), batch_(batch), seen_(seen) {}

  void run() {
    const auto count = std::ssize(texts_);
    for (int64_t first = 0; first < count; first += batch_) run_some(first, std::min(batch_, count - first));
  }

 private:
  // A slot with the text that is being written there.
  struct Writer {
    int64_t text;
    int64_t num_computed = 0;
    bool waits = false;  // for the slot before it, for the beginning that it copies
  };

  Text& text_of(const Writer& writer) const { return texts_[static_cast<size_t>(writer.text)]; }
  // Of two pairs of texts, one reads again what another holds already.
  bool reuses(int64_t text) const {
    return model_.goes_back() && texts_[static_cast<size_t>(text)].shared > 0 && text / 2 % 2 == 0;
  }

  void run_some(int64_t first, int64_t count) {
    std::vector<Writer> writers;
    for (int64_t slot = 0; slot < count; ++slot) writers.push_back({.text = first + slot});
    // The text before the first is where it was written: in the last slot.
    if (first > 0 && reuses(first)) {
      if (batch_ > 1) model_.copy_slot(batch_ - 1, 0);
      writers[0].num_computed = text_of(writers[0]).shared;
    }
    for (int64_t slot = 1; slot < count; ++slot) writers[static_cast<size_t>(slot)].waits = reuses(first + slot);
    while (step(writers)) {
    }
  }

  // Where the text before has been run so far.
  void copy_beginnings(std::vector<Writer>& writers) {
    for (size_t slot = 1; slot < writers.size(); ++slot) {
      Writer& writer = writers[slot];
      const int64_t shared = text_of(writer).shared;
      if (!writer.waits || writers[slot - 1].num_computed < shared) continue;
      model_.copy_slot(static_cast<int64_t>(slot) - 1, static_cast<int64_t>(slot));
      writer.waits = false;
      writer.num_computed = shared;
    }
  }
  bool step(std::vector<Writer>& writers) {
    std::vector<CacheRow> rows;
    std::vector<int32_t> wanted;
    std::vector<size_t> samplers;
    std::vector<int64_t> row_numbers;
    copy_beginnings(writers);
    for (size_t slot = 0; slot < writers.size(); ++slot) {
      Writer& writer = writers[slot];
      const Text& text = text_of(writer);
      if (writer.waits || std::ssize(text.logprobs) == extents_.sampled) continue;
      const int64_t chunk = kChunks[static_cast<size_t>(writer.text + batch_) % std::size(kChunks)];
      const int64_t pending = std::ssize(text.tokens) - writer.num_computed;
      const int64_t size = std::min({pending, chunk, model_.max_rows() - std::ssize(rows)});
      for (int64_t position = writer.num_computed; position < writer.num_computed + size; ++position) {
        rows.push_back({.token = text.tokens[static_cast<size_t>(position)],
                        .slot = static_cast<int32_t>(slot),
                        .position = static_cast<int32_t>(position)});
        row_numbers.push_back(text.first_row + position);
      }
      writer.num_computed += size;
      if (size == 0 || size < pending) continue;
      wanted.push_back(static_cast<int32_t>(rows.size()) - 1);
      samplers.push_back(slot);
    }
    if (rows.empty()) return false;
    seen_.begin_pass(std::move(row_numbers));
    const LogitRows logits = model_.run(rows, wanted, /*with_sums=*/true);
    for (size_t i = 0; i < samplers.size(); ++i) {
      const Writer& writer = writers[samplers[i]];
      sample(text_of(writer), writer.text, logits.from(i));
    }
    return true;
  }

  // From the first of the rows.
  void sample(Text& text, int64_t index, const LogitRows& rows) {
    const SamplingOptions sampling{.seed = options_.seed + static_cast<uint64_t>(index)};
    const std::span<const float> of_ids = rows.logits.first(static_cast<size_t>(model_.tokenizer().vocab_size()));
    const int32_t id = sampler_.sample(of_ids, sampling, text.logprobs.size());
    text.logprobs.push_back(rows.sums.front().logprob(rows.logits[static_cast<size_t>(id)]));
    text.tokens.push_back(id);
  }

  CachedModel& model_;
  std::vector<Text>& texts_;
  const Extents& extents_;
  const GenerationParityOptions& options_;
  int64_t batch_;
  Observations& seen_;
  Sampler sampler_;
};

// The forward passes of training over texts as documents.
class Training {
 public:
  Training(Sides& sides, Observations& seen, int64_t alignment) : sides_(sides), seen_(seen), alignment_(alignment) {}

  // The losses of every token's successor, by rows of all texts.
  std::vector<float> run(std::span<const Text> texts, int64_t num_rows) {
    losses_.assign(static_cast<size_t>(num_rows), 0.0F);
    clear();
    for (const Text& text : texts) {
      const int64_t size = std::ssize(text.tokens), seq_len = sides_.batch.seq_len;
      if (used() % seq_len + size > seq_len) pad_to(seq_len);
      if (used() == sides_.batch.num_tokens()) run_pass();
      for (int64_t i = 0; i < size; ++i) {
        const bool last = i + 1 == size;
        add(text.tokens[static_cast<size_t>(i)], last ? -1 : text.tokens[static_cast<size_t>(i + 1)], i,
            text.first_row + i);
      }
      bounds_.push_back(static_cast<int32_t>(used()));
      pad_to(alignment_);
    }
    run_pass();
    return std::move(losses_);
  }

 private:
  int64_t used() const { return std::ssize(tokens_); }
  void clear() {
    tokens_.clear(), targets_.clear(), positions_.clear(), rows_.clear();
    bounds_ = {0};
  }
  void add(int32_t token, int32_t target, int64_t position, int64_t row) {
    tokens_.push_back(token), targets_.push_back(target);
    positions_.push_back(static_cast<int32_t>(position)), rows_.push_back(row);
  }
  // What is left up to a multiple of so many tokens is a document of its own.
  void pad_to(int64_t multiple) {
    if (used() % multiple == 0) return;
    for (int64_t position = 0; used() % multiple != 0; ++position) add(0, -1, position, -1);
    bounds_.push_back(static_cast<int32_t>(used()));
  }
  void run_pass() {
    const int64_t T = sides_.batch.num_tokens();
    while (used() < T) {
      if (used() % sides_.batch.seq_len == 0) add(0, -1, 0, -1);
      pad_to(sides_.batch.seq_len);
    }
    bounds_.resize(static_cast<size_t>(T) + 1, static_cast<int32_t>(T));
    Device& device = sides_.training.device();
    device.upload(sides_.batch.tokens, tokens_.data());
    device.upload(sides_.batch.rows[BatchRow::kTargets], targets_.data());
    device.upload(sides_.batch.positions, positions_.data());
    device.upload(sides_.batch.cu_seqlens, bounds_.data());
    seen_.begin_pass(rows_);
    sides_.training.model().forward(sides_.batch, sides_.training.activations(), sides_.losses);
    std::vector<float> losses(static_cast<size_t>(T));
    device.download(losses.data(), sides_.losses);
    for (size_t i = 0; i < losses.size(); ++i) {
      if (rows_[i] >= 0) losses_[static_cast<size_t>(rows_[i])] = losses[i];
    }
    clear();
  }

  Sides& sides_;
  Observations& seen_;
  int64_t alignment_;
  std::vector<int32_t> tokens_, targets_, positions_, bounds_;
  std::vector<int64_t> rows_;
  std::vector<float> losses_;
};

void compare_logprobs(std::span<const Text> texts, std::span<const float> losses, BatchParity& parity) {
  for (const Text& text : texts) {
    for (size_t i = 0; i < text.logprobs.size(); ++i) {
      const float generated = text.logprobs[i];
      const float trained = -losses[static_cast<size_t>(text.first_row + text.prompt - 1) + i];
      ++parity.tokens;
      if (generated == trained) continue;
      ++parity.differing;
      const double difference = std::abs(static_cast<double>(generated) - static_cast<double>(trained));
      parity.largest =
          std::max(parity.largest, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
    }
  }
}

BatchParity compare_batch(Sides& sides, const std::vector<Text>& prompts, const Extents& extents,
                          const GenerationParityOptions& options, int64_t batch, std::vector<Text>& texts) {
  texts = prompts;
  int64_t num_rows = 0;
  for (Text& text : texts) {
    text.first_row = num_rows;
    num_rows += text.prompt + extents.sampled;
  }
  Observations generated(num_rows), trained(num_rows);
  Device& device = sides.training.device();
  sides.generating.model().watch(generated.inspector(device));
  sides.training.model().watch(trained.inspector(device));
  Generation(sides.cached, texts, extents, options, batch, generated).run();
  const std::vector<float> losses = Training(sides, trained, extents.alignment).run(texts, num_rows);

  BatchParity parity{.batch = batch};
  compare_logprobs(texts, losses, parity);
  std::tie(parity.choices, parity.other_choices) = trained.compare_choices(generated);
  if (const auto first = trained.first_difference(generated)) {
    const auto& [site, rows] = *first;
    const auto after = std::ranges::upper_bound(texts, rows.front(), {}, &Text::first_row);
    parity.first = {.what = site.what,
                    .layer = site.layer,
                    .sequence = after - texts.begin() - 1,
                    .position = rows.front() - (after - 1)->first_row,
                    .rows = std::ssize(rows)};
  }
  return parity;
}

int64_t count_other_tokens(std::span<const Text> texts, std::span<const Text> first) {
  int64_t others = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < texts[i].tokens.size(); ++j) others += texts[i].tokens[j] != first[i].tokens[j] ? 1 : 0;
  }
  return others;
}

std::vector<BatchParity> compare(Config config, const std::shared_ptr<const Tokenizer>& tokenizer,
                                 const CheckpointReader* reader, const GenerationParityOptions& options) {
  if (is_low(config.run.precision)) {
    throw usage_error("products of this run round their operands to a low precision, those of generation do not",
                      "compare a checkpoint of a run whose run.precision is fp32 or the device's");
  }
  config = with_arithmetic(std::move(config), options.arithmetic);
  const Extents extents = extents_of(config, options);
  const int64_t slots = std::ranges::max(options.batches);
  const DType dtype = generation_dtype(config, options.device);
  WeightsPlace place;
  place.device.kind = options.device;
  place.device.num_threads = options.num_threads;
  place.device.compute_dtype = dtype;
  place.work = "the comparison";
  place.remedy = [](const StoragePlan& plan) {
    return fmt::format(
        "lower the largest of --batches, or --longest: the weights take {}, states of sequences {}, "
        "passes {}",
        human_bytes(plan[ArenaKind::kParameters]), human_bytes(plan[ArenaKind::kCache]),
        human_bytes(plan[ArenaKind::kActivations]));
  };
  PlacedWeights weights(config.model, place, [&](WeightSet& all, Storage& storage) {
    Sides(config, tokenizer, extents, slots, all, storage);
  });
  Sides sides(config, tokenizer, extents, slots, weights.weights(), weights.storage());
  if (reader != nullptr) {
    load_weights(*reader, weights);
  } else {
    weights.initialise(static_cast<uint64_t>(config.run.seed), config.model.init.truncation);
  }
  const std::vector<Text> prompts = make_texts(*tokenizer, extents, options);
  std::vector<BatchParity> parities;
  std::vector<Text> first;
  for (const int64_t batch : options.batches) {
    std::vector<Text> texts;
    parities.push_back(compare_batch(sides, prompts, extents, options, batch, texts));
    if (parities.size() == 1) first = texts;
    parities.back().other_tokens = count_other_tokens(texts, first);
  }
  return parities;
}

}  // namespace

std::vector<BatchParity> compare_generation(const std::filesystem::path& checkpoint,
                                            const GenerationParityOptions& options) {
  const CheckpointReader reader = CheckpointReader::open(checkpoint);
  return compare(saved_config(reader), reader.tokenizer(), &reader, options);
}

std::vector<BatchParity> compare_generation(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                                            const GenerationParityOptions& options) {
  return compare(config, tokenizer, nullptr, options);
}

}  // namespace nmoe
