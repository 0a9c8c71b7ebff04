#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/word_splitter.h"

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

// An added token's key in bpe_to_json's files: it ends documents, though the names alone would not tell. Hugging Face's
// library ignores it.
constexpr const char* kEosMark = "nmoe_end_of_text";

constexpr std::string_view kUsualEosTexts[] = {kEosText, "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<eos>", "</s>"};

// The ids of special tokens with a usual name of the end of text.
std::vector<int32_t> usual_eos_ids(const std::vector<AddedToken>& added) {
  std::vector<int32_t> ids;
  for (const AddedToken& token : added) {
    if (token.special && std::ranges::find(kUsualEosTexts, token.text) != std::end(kUsualEosTexts)) {
      ids.push_back(token.id);
    }
  }
  return ids;
}

constexpr size_t kMaxAdded = 200'000;

class TokenizerJsonReader {
 public:
  TokenizerJsonReader(std::string_view path, std::string_view eos, const std::function<NamedEnd()>& other)
      : path_(path), eos_(eos), other_(other) {}

  BpeModel read(std::string_view text) {
    const json file = try_parse_json<json>(text);
    if (!file.is_object()) throw unsupported("it is not a JSON object");
    for (const char* key : {"truncation", "padding"}) expect_absent(file, key, "");
    read_normalizer(value_of(file, "normalizer"));
    read_pre_tokenizer(value_of(file, "pre_tokenizer"));
    check_patterns();
    if (type_of(value_of(file, "decoder")) != "ByteLevel") throw unsupported_value(file, "decoder", "");
    if (file.contains("post_processor") && !file["post_processor"].is_null()) {
      model_.post_processor = file["post_processor"].dump();
    }
    const json& model = value_of(file, "model");
    check_model(model);
    read_tokens(value_of(model, "vocab"), value_of(file, "added_tokens"));
    read_merges(value_of(model, "merges"));
    model_.eos_id = find_eos();
    return std::move(model_);
  }

 private:
  Error unsupported(const std::string& what) const {
    return runtime_error(fmt::format("cannot use tokenizer '{}': {}", path_, what),
                         "use a byte-level BPE tokenizer (as of GPT-2, Llama 3, Qwen or DeepSeek-V3), one that "
                         "`n tokenizer train` wrote, a .tiktoken file or \"bytes\"");
  }
  Error unsupported_value(const json& object, const std::string& key, const std::string& place) const {
    return unsupported(object.contains(key) ? fmt::format("{}/{} is {}", place, key, shortened(object[key].dump()))
                                            : fmt::format("{}/{} is missing", place, key));
  }
  static std::string shortened(const std::string& text) {
    constexpr size_t kShown = 80;
    return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
  }

  static const json& value_of(const json& object, const char* key) {
    static const json null;
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found == object.end() ? null : *found;
  }
  static std::string type_of(const json& object) {
    const json& type = value_of(object, "type");
    return type.is_string() ? type.get<std::string>() : "";
  }
  // A flag of the format's, with the value it has where it is missing.
  bool flag(const json& object, const char* key, bool otherwise, const std::string& place) const {
    const json& value = value_of(object, key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) throw unsupported_value(object, key, place);
    return value.get<bool>();
  }
  // Null, false, "" and 0 mean that a feature is not used.
  void expect_absent(const json& object, const char* key, const std::string& place) const {
    const json& value = value_of(object, key);
    if (!value.is_null() && value != json(false) && value != json("") && value != json(0)) {
      throw unsupported_value(object, key, place);
    }
  }

  void read_normalizer(const json& normalizer) {
    if (normalizer.is_null()) return;
    const std::string type = type_of(normalizer);
    if (type == "Sequence" && value_of(normalizer, "normalizers").is_array()) {
      for (const json& part : normalizer["normalizers"]) read_normalizer(part);
    } else if (type == "NFC") {
      model_.nfc = true;
    } else {
      throw unsupported(fmt::format("/normalizer has {}", shortened(normalizer.dump())));
    }
  }

  void read_pre_tokenizer(const json& pre_tokenizer) {
    std::vector<std::pair<json, std::string>> steps;  // and their places
    flatten(pre_tokenizer, "/pre_tokenizer", steps);
    if (steps.empty() || type_of(steps.back().first) != "ByteLevel") {
      throw unsupported("/pre_tokenizer does not end with ByteLevel");
    }
    for (const auto& [step, place] : steps) {
      const std::string type = type_of(step);
      if (type == "Split") {
        add_split(step, place);
      } else if (type == "Digits") {
        model_.splits.emplace_back(
            std::string(flag(step, "individual_digits", false, place) ? kDigitPattern : kNumberPattern));
      } else if (type == "ByteLevel" && &step == &steps.back().first) {
        if (flag(step, "add_prefix_space", true, place)) throw unsupported_value(step, "add_prefix_space", place);
        if (flag(step, "use_regex", true, place)) model_.splits.emplace_back(std::string(kGpt2Pattern));
      } else {
        throw unsupported(fmt::format("{} is {}", place, shortened(step.dump())));
      }
    }
  }

  void flatten(const json& step, const std::string& place, std::vector<std::pair<json, std::string>>& steps) const {
    const json& parts = value_of(step, "pretokenizers");
    if (type_of(step) == "Sequence" && parts.is_array()) {
      for (size_t i = 0; i < parts.size(); ++i) flatten(parts[i], fmt::format("{}/pretokenizers/{}", place, i), steps);
    } else {
      steps.emplace_back(step, place);
    }
  }

  void add_split(const json& split, const std::string& place) {
    const json& pattern = value_of(split, "pattern");
    const json& regex = value_of(pattern, "Regex");
    const json& literal = value_of(pattern, "String");
    if (!pattern.is_object() || pattern.size() != 1 || (!regex.is_string() && !literal.is_string())) {
      throw unsupported_value(split, "pattern", place);
    }
    const std::string text = regex.is_string() ? regex.get<std::string>() : escaped(literal.get<std::string>());
    const json& name = value_of(split, "behavior");
    const auto behavior = name.is_string() ? behavior_of_name(name.get<std::string>()) : std::nullopt;
    if (!behavior) throw unsupported_value(split, "behavior", place);
    const bool invert = flag(split, "invert", false, place);
    // What removes nothing is said in one way, so that equal tokenizers have equal hashes.
    const bool keeps_all = *behavior == SplitBehavior::kRemoved && invert && covers_all_text(text);
    if (keeps_all || *behavior == SplitBehavior::kIsolated) {
      model_.splits.emplace_back(text);
    } else {
      model_.splits.emplace_back(text, *behavior, invert);
    }
  }

  // A pattern that matches this text.
  static std::string escaped(std::string_view text) {
    constexpr std::string_view kMeaning = R"(\.+*?()|[]{}^$#&-~)";
    std::string pattern;
    for (const char c : text) {
      if (kMeaning.find(c) != std::string_view::npos) pattern += '\\';
      pattern += c;
    }
    return pattern;
  }

  void check_patterns() const {
    try {
      const WordSplitter splitter(model_.splits);
    } catch (const Error& error) {
      throw unsupported(error.what());
    }
  }

  // Whether no text is left between the pattern's matches.
  static bool covers_all_text(const std::string& pattern) {
    return pattern == kSplitPattern || pattern == kGpt2Pattern || pattern == kCl100kPattern || pattern == kO200kPattern;
  }

  void check_model(const json& model) {
    if (!model.is_object()) throw unsupported("/model is missing");
    const json& type = value_of(model, "type");  // older files have none
    if (!type.is_null() && type != json("BPE")) throw unsupported_value(model, "type", "/model");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
      expect_absent(model, key, "/model");
    }
    model_.whole_words = flag(model, "ignore_merges", false, "/model");
  }

  void read_tokens(const json& vocab, const json& added) {
    if (!vocab.is_object()) throw unsupported("/model/vocab is not an object");
    if (!added.is_null() && !added.is_array()) throw unsupported("/added_tokens is not an array");
    if (added.size() > kMaxAdded) {
      throw unsupported(fmt::format("/added_tokens has {} of them; at most {} are read", added.size(), kMaxAdded));
    }
    for (size_t i = 0; i < added.size(); ++i) add_added(added[i], vocab, fmt::format("/added_tokens/{}", i));
    std::ranges::sort(model_.added, {}, &AddedToken::id);
    std::unordered_set<std::string_view> not_bytes;  // in the vocabulary, but never made by merges
    for (const AddedToken& token : model_.added) {
      resize_for(token.id);
      names_.emplace(token.id, token.text);
      if (token.special || !to_bytes(token.text)) not_bytes.insert(token.text);
    }
    for (const auto& [key, value] : vocab.items()) {
      if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxIds) {
        throw unsupported(fmt::format("/model/vocab gives '{}' the id {}", key, shortened(value.dump())));
      }
      const auto id = value.get<int32_t>();
      const auto [named, is_new] = names_.emplace(id, key);
      if (!is_new && named->second != key) {
        throw unsupported(fmt::format("'{}' and '{}' have the same id, {}", named->second, key, id));
      }
      if (not_bytes.contains(key)) continue;
      auto bytes = to_bytes(key);
      if (!bytes || bytes->empty()) {
        throw unsupported(fmt::format("/model/vocab has '{}', which is not a byte-level token", key));
      }
      resize_for(id);
      model_.tokens[static_cast<size_t>(id)] = *bytes;
      ids_.emplace(std::move(*bytes), id);
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (!ids_.contains(std::string(1, static_cast<char>(byte)))) {
        throw unsupported(fmt::format("/model/vocab has no token for byte {}", byte));
      }
    }
  }

  void resize_for(int32_t id) {
    if (static_cast<size_t>(id) >= model_.tokens.size()) model_.tokens.resize(static_cast<size_t>(id) + 1);
  }

  void add_added(const json& token, const json& vocab, const std::string& place) {
    const json& content = value_of(token, "content");
    const json& id = value_of(token, "id");
    if (!content.is_string() || content.get<std::string>().empty() || !id.is_number_unsigned() ||
        id.get<uint64_t>() >= kMaxIds) {
      throw unsupported(fmt::format("{} is {}", place, shortened(token.dump())));
    }
    for (const char* key : {"single_word", "lstrip", "rstrip"}) expect_absent(token, key, place);
    const auto text = content.get<std::string>();
    const auto in_vocab = vocab.find(text);
    if (in_vocab != vocab.end() && *in_vocab != id) {
      throw unsupported(
          fmt::format("{}/id is {}, but /model/vocab has {} for '{}'", place, id.dump(), in_vocab->dump(), text));
    }
    const bool new_text = added_texts_.insert(text).second, new_id = added_ids_.insert(id.get<int32_t>()).second;
    if (!new_text || !new_id) throw unsupported(fmt::format("{} is there twice: {}", place, shortened(token.dump())));
    model_.added.push_back({.text = text,
                            .id = id.get<int32_t>(),
                            .special = flag(token, "special", false, place),
                            .normalized = flag(token, "normalized", true, place),
                            .in_vocab = in_vocab != vocab.end()});
    if (flag(token, kEosMark, false, place)) marked_eos_ = text;
  }

  void read_merges(const json& merges) {
    if (!merges.is_array()) throw unsupported("/model/merges is not an array");
    std::unordered_set<uint64_t> pairs;
    for (const json& merge : merges) {
      const auto [left, right] = split_merge(merge);
      const auto left_bytes = to_bytes(left);
      const auto right_bytes = to_bytes(right);
      const auto id_of = [&](const std::string& bytes) {
        const auto found = ids_.find(bytes);
        return found == ids_.end() ? -1 : found->second;
      };
      const bool is_bytes = left_bytes && right_bytes;
      const BpeMerge ids = is_bytes
                               ? BpeMerge{id_of(*left_bytes), id_of(*right_bytes), id_of(*left_bytes + *right_bytes)}
                               : BpeMerge{-1, -1, -1};
      if (ids.left < 0 || ids.right < 0 || ids.result < 0) {
        throw unsupported(fmt::format("/model/merges has {}, which /model/vocab cannot tell", merge.dump()));
      }
      if (!pairs.insert(static_cast<uint64_t>(ids.left) << 32 | static_cast<uint32_t>(ids.right)).second) {
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
    throw unsupported(fmt::format("/model/merges has {}, which is not a pair", merge.dump()));
  }

  int32_t find_eos() const {
    const std::string& wanted = eos_.empty() ? marked_eos_ : eos_;
    if (!wanted.empty()) {
      for (const AddedToken& token : model_.added) {
        if (token.special && token.text == wanted) return token.id;
      }
      throw usage_error(fmt::format("tokenizer '{}' has no special token '{}' to end documents", path_, wanted),
                        fmt::format("name one of its special tokens: {}", special_texts()));
    }
    const std::vector<int32_t> usual = usual_eos_ids(model_.added);
    if (usual.size() == 1) return usual.front();
    const NamedEnd named = other_ ? other_() : NamedEnd{};
    for (const AddedToken& token : model_.added) {
      if (token.special && (token.id == named.id || token.text == named.text)) return token.id;
    }
    throw usage_error(
        fmt::format("tokenizer '{}' does not tell which special token ends documents: {} have a usual name", path_,
                    usual.empty() ? "none" : "several"),
        fmt::format("name it: {}@TOKEN, one of {}", path_, special_texts()));
  }

  std::string special_texts() const {
    std::vector<std::string> texts;
    for (const AddedToken& token : model_.added) {
      if (token.special) texts.push_back(fmt::format("{}", token.text));
    }
    constexpr size_t kShown = 12;
    if (texts.empty()) return "those it does not have";
    if (texts.size() > kShown) texts.resize(kShown);
    return join_or(texts);
  }

  static constexpr uint64_t kMaxIds = 1 << 24;

  std::string path_;
  std::string eos_;
  const std::function<NamedEnd()>& other_;
  std::string marked_eos_;
  BpeModel model_;
  std::unordered_map<std::string, int32_t> ids_;  // of tokens, by bytes
  std::unordered_set<std::string> added_texts_;
  std::unordered_set<int32_t> added_ids_;
  std::unordered_map<int32_t, std::string> names_;  // by id, as the file spells them
};

ordered_json split_json(const Split& split) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", split.pattern}}},
          {"behavior", behavior_name(split.behavior)},
          {"invert", split.invert}};
}

ordered_json pre_tokenizer_json(const BpeModel& model) {
  auto steps = ordered_json::array();
  for (const Split& split : model.splits) steps.push_back(split_json(split));
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

ordered_json added_tokens_json(const BpeModel& model) {
  const bool tells_eos = usual_eos_ids(model.added) == std::vector{model.eos_id};
  auto list = ordered_json::array();
  for (const AddedToken& token : model.added) {
    list.push_back({{"id", token.id},
                    {"content", token.text},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", token.normalized},
                    {"special", token.special}});
    if (!tells_eos && token.special && token.id == model.eos_id) list.back()[kEosMark] = true;
  }
  return list;
}

ordered_json model_json(const BpeModel& model) {
  std::vector<std::string> names;
  for (const std::string& token : model.tokens) names.push_back(to_characters(token));
  for (const AddedToken& token : model.added) {
    if (token.in_vocab) names[static_cast<size_t>(token.id)] = token.text;
  }
  ordered_json::object_t vocab;
  for (size_t id = 0; id < names.size(); ++id) {
    if (!names[id].empty()) vocab.emplace_back(names[id], id);  // not emplace(), which looks for the name first
  }
  auto merges = ordered_json::array();
  for (const BpeMerge& merge : model.merges) {
    merges.push_back(names[static_cast<size_t>(merge.left)] + ' ' + names[static_cast<size_t>(merge.right)]);
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", model.whole_words},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

}  // namespace

std::string bpe_to_json(const BpeModel& model) {
  const ordered_json decoder = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  const ordered_json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens_json(model)},
      {"normalizer", model.nfc ? ordered_json{{"type", "NFC"}} : ordered_json()},
      {"pre_tokenizer", pre_tokenizer_json(model)},
      {"post_processor",
       model.post_processor.empty() ? ordered_json() : parse_json<ordered_json>(model.post_processor)},
      {"decoder", decoder},
      {"model", model_json(model)}};
  return file.dump(2) + '\n';
}

BpeModel bpe_from_json(std::string_view json, std::string_view path, std::string_view eos,
                       const std::function<NamedEnd()>& other) {
  return TokenizerJsonReader(path, eos, other).read(json);
}

}  // namespace nmoe
