#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/files.h"
#include "chat/chat_template.h"
#include "cli/commands.h"
#include "cli/named_checkpoint.h"
#include "cli/standard_input.h"
#include "cli/standard_output.h"
#include "data/prep/inputs.h"

namespace nmoe::cli {
namespace {

// The tokens of `wanted`, or all if "all" is among them.
TokenFinder allowed_specials(const Tokenizer& tokenizer, const std::vector<std::string>& wanted) {
  const auto specials = tokenizer.special_tokens();
  if (std::ranges::find(wanted, "all") != wanted.end()) return TokenFinder(specials);
  std::vector<NamedToken> allowed;
  for (const std::string& text : wanted) {
    const auto found = std::ranges::find(specials, text, &NamedToken::text);
    if (found == specials.end()) {
      throw usage_error(fmt::format("--allow-special {}: the tokenizer has no such special token", text),
                        "n tokenizer info lists them; \"all\" allows all");
    }
    allowed.push_back(*found);
  }
  return TokenFinder(allowed);
}

// ChatML's marks unless they are not wanted, then those that are named and are not among them.
std::vector<std::string> reserved_specials(const TokenizerTrainArguments& arguments) {
  const std::vector<std::string>& named = arguments.options.specials;
  if (arguments.no_chatml) return named;
  std::vector<std::string> specials(kChatMlMarks.begin(), kChatMlMarks.end());
  std::ranges::copy_if(named, std::back_inserter(specials), [](const std::string& token) {
    return std::ranges::find(kChatMlMarks, token) == kChatMlMarks.end();
  });
  return specials;
}

}  // namespace

void tokenizer_train_command(const TokenizerTrainArguments& arguments) {
  BpeTrainOptions options = arguments.options;
  options.specials = reserved_specials(arguments);
  const TrainedBpe trained = train_bpe(options);
  const fs::path out = arguments.out;
  if (out.has_parent_path()) make_directories(out.parent_path());
  write_file_atomically(out, trained.tokenizer->json());
  const BpeTrainReport& report = trained.report;
  print("{}", describe_left_out(report.left_out));
  if (report.bad_records > 0) print("left out: {} bad records\n", report.bad_records);
  print("{} ids from {} words ({} distinct) in {:.2f} s, to {}\n", trained.tokenizer->vocab_size(), report.words,
        report.distinct_words, report.count_seconds + report.merge_seconds, out.string());
  std::vector<std::string_view> specials;
  for (const NamedToken& token : trained.tokenizer->special_tokens()) specials.push_back(token.text);
  cli::print("special tokens among them: {}\n", fmt::join(specials, ", "));
}

void tokenizer_encode_command(const std::string& tokenizer, const std::vector<std::string>& allowed) {
  const auto loaded = load_tokenizer(tokenizer_source(tokenizer));
  std::vector<int32_t> ids;
  loaded->encode(read_standard_input(), allowed_specials(*loaded, allowed), ids);
  for (size_t i = 0; i < ids.size(); ++i) fmt::print("{}{}", i == 0 ? "" : " ", ids[i]);
  print("\n");
}

void tokenizer_decode_command(const std::string& tokenizer) {
  const auto loaded = load_tokenizer(tokenizer_source(tokenizer));
  std::vector<int32_t> ids;
  for (std::string word; std::cin >> word;) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0 || id >= loaded->vocab_size()) {
      throw usage_error(
          fmt::format("\"{}\" (number {} of the input) is not an id of this tokenizer", word, ids.size() + 1),
          fmt::format("ids are whole numbers from 0 to {}", loaded->vocab_size() - 1));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  print_text(loaded->decode(ids));
}

void tokenizer_info_command(const std::string& tokenizer) {
  const auto loaded = load_tokenizer(tokenizer_source(tokenizer));
  print("kind        {}\n", loaded->name());
  for (const std::string& pattern : loaded->patterns()) print("pattern     {}\n", pattern);
  print("vocabulary  {} ids\nend of doc  {}\nhash        {}\n", loaded->vocab_size(), loaded->eos_id(), loaded->hash());
  constexpr size_t kShown = 24;
  const auto specials = loaded->special_tokens();
  for (const NamedToken& token : specials.first(std::min(kShown, specials.size()))) {
    print("special     {} {}\n", token.id, token.text);
  }
  if (specials.size() > kShown) print("special     ... {} in all\n", specials.size());
}

}  // namespace nmoe::cli
