// What a tokenizer's source names.
#include <algorithm>
#include <utility>

#include "base/bounded_file.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/word_tokenizer.h"

namespace nmoe {
namespace {

constexpr std::string_view kRanksExtension = ".tiktoken";

std::shared_ptr<const Tokenizer> load_ranks(const std::string& source) {
  const std::vector<std::string> encodings = tiktoken_encodings();
  for (const std::string& encoding : encodings) {
    if (!source.starts_with(encoding + ":")) continue;
    const std::string path = source.substr(encoding.size() + 1);
    return make_bpe_tokenizer(bpe_from_tiktoken(read_file_up_to(path, kMaxListFile), path, encoding));
  }
  const size_t colon = source.find(':');
  if (!fs::exists(source) && colon != std::string::npos && fs::exists(source.substr(colon + 1))) {
    throw usage_error(fmt::format("tokenizer '{}': there is no encoding '{}'", source, source.substr(0, colon)),
                      fmt::format("use {}", join_or(encodings)));
  }
  const std::string file = read_file_up_to(source, kMaxListFile);
  const auto encoding = tiktoken_encoding_of(file);
  if (!encoding) {
    throw usage_error(fmt::format("'{}' is not a rank file that is known by its SHA-256", source),
                      fmt::format("say which encoding it is for, as NAME:{}; NAME is {}", source, join_or(encodings)));
  }
  return make_bpe_tokenizer(bpe_from_tiktoken(file, source, *encoding));
}

// "PATH@TOKEN" as its two parts, where there is no file of the whole name.
std::pair<std::string, std::string> split_eos(const std::string& source) {
  if (!fs::exists(source)) {
    for (size_t at = source.find('@'); at != std::string::npos; at = source.find('@', at + 1)) {
      if (fs::exists(source.substr(0, at))) return {source.substr(0, at), source.substr(at + 1)};
    }
  }
  return {source, ""};
}

// The first end of sequence that a model's files name.
NamedEnd end_of_model(const fs::path& folder) {
  const auto value_in = [&](const char* file, const char* key) {
    const bool is_there = fs::is_regular_file(folder / file);
    const auto object =
        is_there ? try_parse_json<nlohmann::json>(read_file_up_to(folder / file, kMaxSettingsFile)) : nlohmann::json();
    nlohmann::json value = object.is_object() ? object.value(key, nlohmann::json()) : nlohmann::json();
    if (value.is_array()) value = value.empty() ? nlohmann::json() : nlohmann::json(value.front());
    if (value.is_object()) value = value.value("content", nlohmann::json());
    return value;
  };
  for (const char* file : {"config.json", "generation_config.json"}) {
    const nlohmann::json id = value_in(file, "eos_token_id");
    if (id.is_number_integer()) return {.id = id.get<int64_t>(), .text = ""};
  }
  const nlohmann::json text = value_in("tokenizer_config.json", "eos_token");
  return {.id = std::nullopt, .text = text.is_string() ? text.get<std::string>() : ""};
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& source) {
  if (source == byte_tokenizer()->name()) return byte_tokenizer();
  if (source.ends_with(kRanksExtension)) return load_ranks(source);
  const auto [path, eos] = split_eos(source);
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "tokenizer.json" : fs::path(path);
  const std::string text = read_file_up_to(file, kMaxListFile);
  if (text == byte_tokenizer()->json()) return byte_tokenizer();
  if (auto words = word_tokenizer_from_json(text, file.string())) return words;
  return make_bpe_tokenizer(bpe_from_json(text, file.string(), eos, [&] { return end_of_model(file.parent_path()); }));
}

}  // namespace nmoe
