#include <fmt/format.h>

#include <charconv>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "data/tokenizer/bpe_train.h"

namespace nmoe::cli {
namespace {

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

}  // namespace

void tokenizer_train_command(const TokenizerTrainArguments& arguments) {
  const TrainedBpe trained = train_bpe({.inputs = arguments.inputs, .vocab_size = arguments.vocab_size});
  const fs::path out = arguments.out;
  if (out.has_parent_path()) make_directories(out.parent_path());
  write_file_atomically(out, trained.tokenizer->json());
  fmt::print("{} ids from {} words ({} distinct) in {:.2f} s, to {}\n", trained.tokenizer->vocab_size(),
             trained.report.words, trained.report.distinct_words,
             trained.report.count_seconds + trained.report.merge_seconds, out.string());
}

void tokenizer_encode_command(const std::string& tokenizer) {
  std::vector<int32_t> ids;
  load_tokenizer(tokenizer)->encode(read_standard_input(), ids);
  for (size_t i = 0; i < ids.size(); ++i) fmt::print("{}{}", i == 0 ? "" : " ", ids[i]);
  fmt::print("\n");
}

void tokenizer_decode_command(const std::string& tokenizer) {
  const auto loaded = load_tokenizer(tokenizer);
  std::vector<int32_t> ids;
  for (std::string word; std::cin >> word;) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0 || id >= loaded->vocab_size()) {
      throw usage_error(fmt::format("\"{}\" (number {} of the input) is no id of this tokenizer", word, ids.size() + 1),
                        fmt::format("ids are whole numbers from 0 to {}", loaded->vocab_size() - 1));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  fmt::print("{}", loaded->decode(ids));
}

void tokenizer_info_command(const std::string& tokenizer) {
  const auto loaded = load_tokenizer(tokenizer);
  fmt::print("kind        {}\nvocabulary  {} ids\nend of doc  {}\nhash        {}\n", loaded->name(),
             loaded->vocab_size(), loaded->eos_id(), loaded->hash());
}

}  // namespace nmoe::cli
