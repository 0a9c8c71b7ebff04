#include "bench/speculation_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "bench/speculation_set.h"
#include "data/prep/records.h"

namespace nmoe {
namespace {

using nlohmann::json;

// What the published sets have in place of texts that each user has to fetch.
constexpr std::string_view kToBeFetched = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE";

SpeculationPrompt parse_prompt(std::string_view text, const std::string& place) {
  const auto fault = [&](const std::string& what) {
    return usage_error(fmt::format("{}: {}", place, what),
                       "each row has question_id, category (a string) and turns (a list of strings, at least one)");
  };
  const json row = try_parse_json<json>(text);
  if (!row.is_object()) throw fault("it is no JSON object");
  for (const char* member : {"question_id", "category", "turns"}) {
    if (!row.contains(member)) throw fault(fmt::format("it has no {}", member));
  }
  const json &id = row["question_id"], &category = row["category"], &turns = row["turns"];
  if (!category.is_string()) throw fault("category is no string");
  if (!id.is_string() && !id.is_number_integer()) throw fault("question_id is neither a string nor a whole number");
  const bool are_texts = turns.is_array() && !turns.empty() && std::ranges::all_of(turns, &json::is_string);
  if (!are_texts) throw fault("turns are not a list of strings");
  SpeculationPrompt prompt{.id = id.is_string() ? id.get<std::string>() : id.dump(),
                           .category = category.get<std::string>(),
                           .turns = turns.get<std::vector<std::string>>()};
  for (const std::string& turn : prompt.turns) {
    if (!turn.starts_with(kToBeFetched)) continue;
    throw usage_error(fmt::format("{}: its text is still to be fetched from its source", place),
                      "prepare the set with the script that is published with it, and give the file that it writes");
  }
  return prompt;
}

// Numbers of one prompt.
class Draws {
 public:
  Draws(std::string_view name, int64_t prompt) : random_(static_cast<uint64_t>(prompt), name) {}
  size_t below(size_t count) { return random_.bits(next_++) % count; }

 private:
  Philox random_;
  uint64_t next_ = 0;
};

std::string record(Draws& draws) {
  constexpr const char* kGoods[] = {"oak board",   "steel wire", "white paint",
                                    "copper pipe", "roof tile",  "window glass"};
  constexpr const char* kDays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday"};
  return fmt::format("Order {:05}: {} pieces of {}, shelf {}{}, to be sent on {}.\n", draws.below(100'000),
                     1 + draws.below(40), kGoods[draws.below(std::size(kGoods))],
                     static_cast<char>('A' + draws.below(8)), 1 + draws.below(9), kDays[draws.below(std::size(kDays))]);
}

std::string loose_words(Draws& draws) {
  constexpr const char* kWords[] = {
      "amber",   "borrow", "canal",    "drift", "ember",   "fable",  "glance",  "harbour", "island",    "jolly",
      "kettle",  "ladder", "meadow",   "night", "orchard", "pebble", "quarry",  "ribbon",  "silver",    "thunder",
      "under",   "velvet", "winter",   "yield", "zigzag",  "answer", "bitter",  "clover",  "distant",   "early",
      "feather", "gravel", "hollow",   "idle",  "journey", "knot",   "lantern", "murmur",  "narrow",    "obey",
      "paper",   "quiet",  "restless", "stone", "tender",  "uphill", "vanish",  "whistle", "yesterday", "zeal"};
  std::string line;
  for (size_t i = 0, count = 6 + draws.below(10); i < count; ++i) {
    line += fmt::format("{}{}", line.empty() ? "" : " ", kWords[draws.below(std::size(kWords))]);
  }
  return line + ".\n";
}

// What the reader is asked for.
std::string task_of(std::string_view tier) {
  if (tier == "low") return "\nCopy all the orders above, in their order, word by word.\n\nOrder ";
  if (tier == "high") return "\nTell a story in which each of these lines has its place, in another order.\n\n";
  return "\nCopy every second line above, and after each of them write what it reminds you of.\n\n";
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

}  // namespace

std::vector<SpeculationPrompt> qualitative_prompts() {
  std::vector<SpeculationPrompt> prompts;
  std::string_view rest = speculation_set();
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    prompts.push_back(parse_prompt(rest.substr(0, end), fmt::format("prompt {}", prompts.size() + 1)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return prompts;
}

std::vector<SpeculationPrompt> read_speculation_prompts(const std::filesystem::path& file) {
  if (!std::filesystem::is_regular_file(file)) {
    throw usage_error(fmt::format("--prompts {}: there is no such file", file.string()),
                      "give qualitative, throughput, or a file of JSON lines or Parquet");
  }
  const RecordOptions options{.whole = true};
  const auto reader = open_records(file, options);
  std::vector<SpeculationPrompt> prompts;
  Record record;
  int64_t bad = 0;
  while (reader->next(record)) {
    if (!record.fault.empty() && ends_work(record, bad, 0)) throw bad_record_error(file, options, record, 0);
    prompts.push_back(parse_prompt(record.text, place_of(file, options, record.number)));
  }
  if (prompts.empty()) throw usage_error(fmt::format("'{}' has no rows", file.string()), "give a file of prompts");
  return prompts;
}

std::vector<SpeculationPrompt> limit_categories(std::vector<SpeculationPrompt> prompts, int64_t limit) {
  std::map<std::string, int64_t> counts;
  if (limit > 0)
    std::erase_if(prompts, [&](const SpeculationPrompt& prompt) { return ++counts[prompt.category] > limit; });
  return prompts;
}

std::vector<SpeculationPrompt> throughput_prompts(const Tokenizer& tokenizer, const std::vector<int32_t>& begin,
                                                  std::string_view tier, int64_t count, int64_t tokens) {
  NMOE_CHECK(std::ranges::count(kEntropyTiers, tier) == 1, "tier {}", tier);
  const auto size = static_cast<size_t>(tokens);
  const std::vector<int32_t> task = encode(tokenizer, task_of(tier));
  std::vector<SpeculationPrompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    Draws draws(tier, i);
    std::vector<int32_t> ids = begin;
    for (bool records = tier != "high"; ids.size() + task.size() < size;
         records = tier == "mixed" ? !records : records) {
      tokenizer.encode(records ? record(draws) : loose_words(draws), ids);
    }
    ids.resize(std::max(size, task.size()) - task.size());
    ids.insert(ids.end(), task.begin(), task.end());
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(size));
    prompts.push_back(
        {.id = fmt::format("{}_{}", tier, i + 1), .category = std::string(tier), .turns = {}, .ids = std::move(ids)});
  }
  return prompts;
}

std::vector<SpeculationPrompt> random_prompts(const Tokenizer& tokenizer, const std::vector<int32_t>& begin,
                                              int64_t count, int64_t tokens) {
  std::vector<int32_t> texts;  // ids that stand for any
  for (int32_t id = 0; id < static_cast<int32_t>(tokenizer.vocab_size()); ++id) {
    if (!tokenizer.token_bytes(id).empty()) texts.push_back(id);
  }
  std::vector<SpeculationPrompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    Draws draws("random tokens", i);
    std::vector<int32_t> ids = begin;
    while (std::ssize(ids) < tokens) ids.push_back(texts[draws.below(texts.size())]);
    ids.resize(static_cast<size_t>(tokens));
    prompts.push_back(
        {.id = fmt::format("random_{}", i + 1), .category = "random", .turns = {}, .ids = std::move(ids)});
  }
  return prompts;
}

}  // namespace nmoe
