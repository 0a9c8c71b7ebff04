#include "data/synthetic/grammar_source.h"

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "data/synthetic/draws.h"
#include "data/synthetic/prefix_parser.h"

namespace nmoe {
namespace {

// Mean of what is added, and its standard error.
class Sample {
 public:
  void add(double x) {
    ++count_;
    sum_ += x;
    square_sum_ += x * x;
  }
  double mean() const { return sum_ / count_; }
  double error() const { return std::sqrt(std::max(0.0, square_sum_ / count_ - mean() * mean()) / count_); }

 private:
  double count_ = 0, sum_ = 0, square_sum_ = 0;
};

GrammarShape read_shape(SettingReader& settings) {
  return {.depth = settings.integer("depth", 4, 1, 7),
          .symbols = settings.integer("symbols", 3, 2, 64),
          .productions = settings.integer("productions", 2, 1, 64),
          .unambiguous = settings.flag("unambiguous", true)};
}

}  // namespace

GrammarSource::GrammarSource(uint64_t seed, SettingReader& settings) : seed_(seed) {
  const GrammarShape shape = read_shape(settings);
  settings_ = settings.resolved();
  grammar_ = random_grammar(shape, seed);
  constexpr double kMostNats = 650.0;  // e^-650 is a normal double
  if (const double most = max_derivation_nats(grammar_); most > kMostNats) {
    throw usage_error(
        fmt::format("texts of the grammar have probabilities down to e^-{:.0f}, beyond double precision", most),
        "lower depth or productions");
  }
  for (int64_t terminal = 0; terminal < grammar_.num_terminals; ++terminal) words_.push_back(std::to_string(terminal));
}

double GrammarSource::generate(uint64_t index, std::vector<int32_t>& tokens) const {
  Draws draws(seed_, "synthetic.documents", index);
  double nats = 0.0;
  std::vector<int32_t> symbols = {0};
  for (const auto& level : grammar_.levels) {
    tokens.clear();
    for (const int32_t symbol : symbols) {
      const std::vector<Production>& productions = level[static_cast<size_t>(symbol)];
      const auto count = static_cast<int64_t>(productions.size());
      const Production& production = productions[static_cast<size_t>(draws.below(count))];
      tokens.insert(tokens.end(), production.begin(), production.end());
      nats += std::log(static_cast<double>(count));
    }
    std::swap(symbols, tokens);
  }
  std::swap(symbols, tokens);
  return nats;
}

void GrammarSource::document(uint64_t index, std::vector<int32_t>& tokens, std::vector<uint8_t>& loss_mask) const {
  generate(index, tokens);
  loss_mask.assign(tokens.size(), 1);
}

EntropyFloor GrammarSource::floor() const {
  constexpr uint64_t kSampled = 400;
  const GrammarMeans means = grammar_means(grammar_);
  Sample excess, end;
  std::vector<int32_t> tokens;
  PrefixParser parser(grammar_);
  for (uint64_t index = 0; index < kSampled; ++index) {
    const double derivation_nats = generate(index, tokens);
    const std::vector<double> nats = parser.token_nats(tokens);
    excess.add(derivation_nats - std::accumulate(nats.begin(), nats.end(), 0.0));
    end.add(nats.back());
  }
  EntropyFloor floor{.document_nats = means.derivation_nats,
                     .end_nats = end.mean(),
                     .end_nats_error = end.error(),
                     .tokens_per_document = means.tokens + 1};
  if (!is_unambiguous(grammar_)) {
    floor.document_nats -= excess.mean();
    floor.document_nats_error = excess.error();
  }
  floor.target_nats = floor.document_nats - floor.end_nats;
  floor.targets_per_document = means.tokens;
  return floor;
}

}  // namespace nmoe
