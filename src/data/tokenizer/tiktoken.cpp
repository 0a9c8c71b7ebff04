#include "data/tokenizer/tiktoken.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe {
namespace {

constexpr int32_t kNone = -1;

struct Special {
  std::string_view text;
  int32_t id;
};

constexpr Special kGpt2Specials[] = {{kEosText, 50256}};
constexpr Special kCl100kSpecials[] = {{kEosText, 100257},
                                       {"<|fim_prefix|>", 100258},
                                       {"<|fim_middle|>", 100259},
                                       {"<|fim_suffix|>", 100260},
                                       {"<|endofprompt|>", 100276}};
constexpr Special kO200kSpecials[] = {{kEosText, 199999}, {"<|endofprompt|>", 200018}};
// The format of gpt-oss (openai/harmony); ids between these and up to kHarmonyVocab are <|reserved_ID|>.
constexpr Special kHarmonySpecials[] = {{"<|startoftext|>", 199998}, {kEosText, 199999},      {"<|return|>", 200002},
                                        {"<|constrain|>", 200003},   {"<|channel|>", 200005}, {"<|start|>", 200006},
                                        {"<|end|>", 200007},         {"<|message|>", 200008}, {"<|call|>", 200012},
                                        {"<|endofprompt|>", 200018}};
constexpr int32_t kHarmonyVocab = 201'088;

struct Encoding {
  std::string_view name;
  std::string_view sha256;  // of the rank file as OpenAI serves it; "" where another encoding is the file's first
  std::string_view pattern;
  std::span<const Special> specials;
  int32_t reserved_vocab;  // ids below it that are neither ranks nor specials are reserved special tokens
};

constexpr std::string_view kGpt2Sha256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930";
constexpr std::string_view kCl100kSha256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7";
constexpr std::string_view kO200kSha256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d";
constexpr Encoding kEncodings[] = {
    {"gpt2", kGpt2Sha256, kGpt2Pattern, kGpt2Specials, 0},
    {"r50k_base", "", kGpt2Pattern, kGpt2Specials, 0},
    {"cl100k_base", kCl100kSha256, kCl100kPattern, kCl100kSpecials, 0},
    {"o200k_base", kO200kSha256, kO200kPattern, kO200kSpecials, 0},
    {"o200k_harmony", "", kO200kPattern, kHarmonySpecials, kHarmonyVocab},
};

// Nothing if `text` is not base64 (RFC 4648, padded).
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes += static_cast<char>(bits >> num_bits);
    }
  }
  return bytes;
}

class TiktokenReader {
 public:
  TiktokenReader(std::string_view path, const Encoding& encoding) : path_(path), encoding_(encoding) {}

  BpeModel read(std::string_view file) {
    for (size_t line = 1; !file.empty(); ++line) {
      const size_t end = std::min(file.find('\n'), file.size());
      std::string_view text = file.substr(0, end);
      file.remove_prefix(std::min(end + 1, file.size()));
      if (text.ends_with('\r')) text.remove_suffix(1);
      if (!text.empty()) read_line(text, line);
    }
    add_specials();
    add_merges();
    model_.splits = {std::string(encoding_.pattern)};
    model_.whole_words = true;
    return std::move(model_);
  }

 private:
  Error unusable(const std::string& what) const {
    return runtime_error(fmt::format("cannot use '{}' as ranks of {}: {}", path_, encoding_.name, what),
                         "use a complete .tiktoken file, and the encoding it is for");
  }

  void read_line(std::string_view text, size_t line) {
    const size_t space = text.find(' ');
    auto bytes = from_base64(text.substr(0, space));
    int32_t rank = kNone;
    const char* const first = space == std::string_view::npos ? nullptr : text.data() + space + 1;
    const char* const last = text.data() + text.size();
    constexpr int32_t kMaxRank = 1 << 24;
    if (!bytes || first == nullptr || std::from_chars(first, last, rank).ptr != last || rank < 0 || rank >= kMaxRank) {
      throw unusable(
          fmt::format("line {} is '{}', not a token in base64, a space and its rank", line, text.substr(0, 80)));
    }
    if (static_cast<size_t>(rank) >= model_.tokens.size()) model_.tokens.resize(static_cast<size_t>(rank) + 1);
    std::string& token = model_.tokens[static_cast<size_t>(rank)];
    if (!token.empty()) throw unusable(fmt::format("line {} is the second one of rank {}", line, rank));
    if (!seen_.emplace(*bytes, rank).second)
      throw unusable(fmt::format("line {} repeats the token of rank {}", line, seen_[*bytes]));
    token = std::move(*bytes);
  }

  void add_special(std::string text, int32_t id) {
    if (static_cast<size_t>(id) >= model_.tokens.size()) model_.tokens.resize(static_cast<size_t>(id) + 1);
    if (!model_.tokens[static_cast<size_t>(id)].empty()) {
      throw unusable(fmt::format("rank {} is the id of {}", id, text));
    }
    model_.added.push_back({.text = std::move(text), .id = id});
  }

  void add_specials() {
    for (const auto& [text, id] : encoding_.specials) {
      add_special(std::string(text), id);
      if (text == kEosText) model_.eos_id = id;
    }
    const size_t num_named = model_.added.size();
    for (int32_t id = encoding_.specials.front().id; id < encoding_.reserved_vocab; ++id) {
      const auto named = std::span(model_.added).first(num_named);
      if (std::ranges::find(named, id, &AddedToken::id) == named.end())
        add_special(fmt::format("<|reserved_{}|>", id), id);
    }
    std::ranges::sort(model_.added, {}, &AddedToken::id);
  }

  void add_merges() {
    std::array<int32_t, 256> byte_ids;
    for (size_t byte = 0; byte < byte_ids.size(); ++byte) {
      const auto found = seen_.find(std::string(1, static_cast<char>(byte)));
      if (found == seen_.end()) throw unusable(fmt::format("byte {} has no token", byte));
      byte_ids[byte] = found->second;
    }
    MergeTable merges(byte_ids, seen_.size());
    MergeTable::Scratch scratch;
    std::vector<int32_t> parts;
    for (size_t rank = 0; rank < model_.tokens.size(); ++rank) {
      if (model_.tokens[rank].size() < 2) continue;
      parts.clear();
      merges.encode(model_.tokens[rank], scratch, parts);
      if (parts.size() != 2) continue;
      model_.merges.push_back({parts[0], parts[1], static_cast<int32_t>(rank)});
      merges.add(model_.merges.back());
    }
  }

  std::string path_;
  const Encoding& encoding_;
  BpeModel model_;
  std::unordered_map<std::string, int32_t> seen_;  // rank by token
};

}  // namespace

std::vector<std::string> tiktoken_encodings() {
  std::vector<std::string> names;
  for (const Encoding& encoding : kEncodings) names.emplace_back(encoding.name);
  return names;
}

std::optional<std::string> tiktoken_encoding_of(std::string_view file) {
  const std::string sha256 = sha256_hex(file);
  const auto* found = std::ranges::find(kEncodings, sha256, &Encoding::sha256);
  if (found == std::end(kEncodings)) return std::nullopt;
  return std::string(found->name);
}

BpeModel bpe_from_tiktoken(std::string_view file, std::string_view path, std::string_view encoding) {
  const auto* found = std::ranges::find(kEncodings, encoding, &Encoding::name);
  NMOE_CHECK(found != std::end(kEncodings), "no encoding {}", encoding);
  return TiktokenReader(path, *found).read(file);
}

}  // namespace nmoe
