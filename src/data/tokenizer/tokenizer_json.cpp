#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "data/tokenizer/word_splitter.h"
#include "data/tokenizer/word_tokenizer.h"

namespace nmoe {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// JSON holds characters, not bytes: GPT-2's byte-to-unicode table gives each byte a printable one.
// The bytes that are printable in Latin-1 stand for themselves, the others for U+0100 and on, in
// order.
constexpr uint32_t kFirstSubstitute = 0x100;
constexpr size_t kMaxCodePoint = 0x180;

constexpr std::array<uint32_t, 256> kByteToCodePoint = [] {
  std::array<uint32_t, 256> map{};
  uint32_t substitute = kFirstSubstitute;
  for (uint32_t byte = 0; byte < map.size(); ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    map[byte] = printable ? byte : substitute++;
  }
  return map;
}();

std::string to_characters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const uint32_t code_point = kByteToCodePoint[static_cast<unsigned char>(byte)];
    if (code_point < 0x80) {
      text += static_cast<char>(code_point);
    } else {
      text += static_cast<char>(0xC0 | code_point >> 6);
      text += static_cast<char>(0x80 | (code_point & 0x3F));
    }
  }
  return text;
}

// `text` is valid UTF-8, as the JSON parser saw to that. Nothing if a character stands for no byte.
std::optional<std::string> to_bytes(std::string_view text) {
  static const std::array<int, kMaxCodePoint> code_point_to_byte = [] {
    std::array<int, kMaxCodePoint> map{};
    map.fill(-1);
    for (int byte = 0; byte < 256; ++byte) map[kByteToCodePoint[static_cast<size_t>(byte)]] = byte;
    return map;
  }();
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t code_point = static_cast<unsigned char>(text[i]);
    if (code_point >= 0xE0) return std::nullopt;  // three bytes or more
    if (code_point >= 0x80) {
      code_point = (code_point & 0x1F) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F);
    }
    if (code_point >= kMaxCodePoint || code_point_to_byte[code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(code_point_to_byte[code_point]);
  }
  return bytes;
}

// The whole file, but for what differs between tokenizers: vocabulary, merges, id of <|endoftext|>.
ordered_json file_without_vocabulary() {
  const ordered_json split = {
      {"type", "Split"}, {"pattern", {{"Regex", kSplitPattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const ordered_json to_byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const ordered_json from_byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  const ordered_json end_of_text = {{"id", nullptr},   {"content", kEosText}, {"single_word", false}, {"lstrip", false},
                                    {"rstrip", false}, {"normalized", false}, {"special", true}};
  const ordered_json model = {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", nullptr},
                              {"merges", nullptr}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", ordered_json::array({end_of_text})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, to_byte_level})}}},
          {"post_processor", nullptr},
          {"decoder", from_byte_level},
          {"model", model}};
}

class Reader {
 public:
  explicit Reader(std::string_view path) : path_(path) {}

  BpeModel read(std::string_view text) {
    json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!file.is_object()) throw unsupported("it is no JSON object");
    const json eos_id = take(file, "/added_tokens/0/id");
    const json vocab = take(file, "/model/vocab");
    const json merges = take(file, "/model/merges");
    const json difference = json::diff(json(file_without_vocabulary()), file);
    if (!difference.empty()) {
      const json& first = difference.front();
      const std::string place = first["path"].get<std::string>();
      throw unsupported(first["op"] == "remove" ? fmt::format("{} is missing", place)
                                                : fmt::format("{} is {}", place, shortened(first["value"].dump())));
    }
    read_vocab(vocab, eos_id);
    read_merges(merges);
    return std::move(model_);
  }

 private:
  Error unsupported(const std::string& what) const {
    return runtime_error(fmt::format("cannot use tokenizer '{}': {}", path_, what),
                         "use a tokenizer that `n tokenizer train` wrote, or \"bytes\"");
  }
  static std::string shortened(const std::string& text) {
    constexpr size_t kShown = 80;
    return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
  }

  // Replaces the value by null, as it is in file_without_vocabulary().
  json take(json& file, const char* pointer) const {
    const json::json_pointer place(pointer);
    if (!file.contains(place)) throw unsupported(fmt::format("{} is missing", pointer));
    return std::exchange(file[place], nullptr);
  }

  void read_vocab(const json& vocab, const json& eos_id) {
    if (!vocab.is_object()) throw unsupported("/model/vocab is no object");
    if (!vocab.contains(kEosText) || vocab[kEosText] != eos_id) {
      throw unsupported(fmt::format("/added_tokens/0/id is {}, but /model/vocab has {} for {}", eos_id.dump(),
                                    vocab.value(kEosText, json()).dump(), kEosText));
    }
    std::vector<bool> seen(vocab.size());
    model_.tokens.resize(vocab.size());
    for (const auto& [key, value] : vocab.items()) {
      if (!value.is_number_unsigned() || value.get<uint64_t>() >= vocab.size() || seen[value.get<size_t>()]) {
        throw unsupported(fmt::format("/model/vocab gives '{}' the id {}: not one of 0 to {}, each once", key,
                                      value.dump(), vocab.size() - 1));
      }
      const auto id = value.get<int32_t>();
      seen[static_cast<size_t>(id)] = true;
      if (key == kEosText) {
        model_.eos_id = id;
        continue;
      }
      auto bytes = to_bytes(key);
      if (!bytes || bytes->empty()) {
        throw unsupported(fmt::format("/model/vocab has '{}', which is no byte-level token", key));
      }
      model_.tokens[static_cast<size_t>(id)] = *bytes;
      ids_.emplace(std::move(*bytes), id);
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (!ids_.contains(std::string(1, static_cast<char>(byte)))) {
        throw unsupported(fmt::format("/model/vocab has no token for byte {}", byte));
      }
    }
  }

  void read_merges(const json& merges) {
    if (!merges.is_array()) throw unsupported("/model/merges is no array");
    std::unordered_map<uint64_t, size_t> ranks;
    for (const json& merge : merges) {
      const auto [left, right] = split_merge(merge);
      const auto left_bytes = to_bytes(left);
      const auto right_bytes = to_bytes(right);
      const bool known = left_bytes && right_bytes && ids_.contains(*left_bytes) && ids_.contains(*right_bytes) &&
                         ids_.contains(*left_bytes + *right_bytes);
      if (!known) {
        throw unsupported(fmt::format("/model/merges has {}, which /model/vocab cannot tell", merge.dump()));
      }
      const BpeMerge ids{ids_.at(*left_bytes), ids_.at(*right_bytes), ids_.at(*left_bytes + *right_bytes)};
      const uint64_t pair = static_cast<uint64_t>(ids.left) << 32 | static_cast<uint32_t>(ids.right);
      if (!ranks.emplace(pair, ranks.size()).second) {
        throw unsupported(fmt::format("/model/merges has {} twice", merge.dump()));
      }
      model_.merges.push_back(ids);
    }
  }

  // "left right", or ["left", "right"] as newer versions of Hugging Face's library write it.
  std::pair<std::string, std::string> split_merge(const json& merge) const {
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      if (const size_t space = text.find(' '); space != std::string::npos) {
        return {text.substr(0, space), text.substr(space + 1)};
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    }
    throw unsupported(fmt::format("/model/merges has {}, which is no pair", merge.dump()));
  }

  std::string path_;
  BpeModel model_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace

std::string bpe_to_json(const BpeModel& model) {
  std::vector<std::string> names;
  for (const std::string& token : model.tokens) names.push_back(to_characters(token));
  names[static_cast<size_t>(model.eos_id)] = kEosText;

  ordered_json::object_t vocab;
  for (size_t id = 0; id < names.size(); ++id) {
    vocab.emplace_back(names[id], id);  // not emplace(), which looks for the name first
  }
  auto merges = ordered_json::array();
  for (const BpeMerge& merge : model.merges) {
    merges.push_back(names[static_cast<size_t>(merge.left)] + ' ' + names[static_cast<size_t>(merge.right)]);
  }
  ordered_json file = file_without_vocabulary();
  file["added_tokens"][0]["id"] = model.eos_id;
  file["model"]["vocab"] = std::move(vocab);
  file["model"]["merges"] = std::move(merges);
  return file.dump(2) + '\n';
}

BpeModel bpe_from_json(std::string_view json, std::string_view path) { return Reader(path).read(json); }

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& source) {
  if (source == byte_tokenizer()->name()) return byte_tokenizer();
  const std::string text = read_file(source);
  if (text == byte_tokenizer()->json()) return byte_tokenizer();
  if (auto words = word_tokenizer_from_json(text, source)) return words;
  return make_bpe_tokenizer(bpe_from_json(text, source));
}

}  // namespace nmoe
