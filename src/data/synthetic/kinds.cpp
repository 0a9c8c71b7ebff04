#include "data/synthetic/kinds.h"

#include "base/error.h"
#include "base/text.h"
#include "data/synthetic/arithmetic.h"
#include "data/synthetic/grammar_source.h"
#include "data/synthetic/khop.h"
#include "data/synthetic/settings.h"

namespace nmoe {
namespace {

template <class Source>
std::unique_ptr<SyntheticSource> make(uint64_t seed, SettingReader& settings) {
  return std::make_unique<Source>(seed, settings);
}

struct Kind {
  const char* name;
  std::unique_ptr<SyntheticSource> (*make)(uint64_t seed, SettingReader& settings);
};
constexpr Kind kKinds[] = {
    {"cfg", make<GrammarSource>}, {"khop", make<KHopSource>}, {"arithmetic", make<ArithmeticSource>}};

}  // namespace

std::vector<std::string> synthetic_kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::unique_ptr<SyntheticSource> make_synthetic_source(std::string_view kind, uint64_t seed,
                                                       std::span<const std::string> settings) {
  for (const Kind& candidate : kKinds) {
    if (candidate.name != kind) continue;
    SettingReader reader(kind, settings);
    std::unique_ptr<SyntheticSource> source = candidate.make(seed, reader);
    return source;
  }
  throw usage_error(fmt::format("there is no synthetic source \"{}\"", kind),
                    fmt::format("choose {}", join_or(synthetic_kinds())));
}

}  // namespace nmoe
