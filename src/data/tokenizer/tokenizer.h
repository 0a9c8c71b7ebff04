// Text to token ids and back.
//
// Every tokenizer except that of synthetic corpora (data/tokenizer/word_tokenizer.h) is byte-level: any byte string,
// valid UTF-8 or not, encodes to ids and, unless the tokenizer normalizes, decodes to the same bytes. The text of a
// special token is ordinary text unless a call allows it: "<|endoftext|>" in a document is ordinary, and the
// end-of-sequence id comes only from eos_id().
//
// That id ends documents, and nothing else is known by it: ids that end a turn or a reply are of chat templates and of
// a model's settings (chat/checkpoint_settings.h), and where a document ends in a corpus is for its index to say
// (data/shards/shard.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/token_finder.h"

namespace nmoe {

// The usual name of the special token whose id ends every document.
inline constexpr std::string_view kEosText = "<|endoftext|>";

// Immutable, and safe to use from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // "bytes", "bpe" or "words".
  virtual std::string_view name() const = 0;

  // How text is cut into words: the names of known patterns (data/tokenizer/split_pattern.h), or regular expressions.
  // None for bytes.
  virtual std::vector<std::string> patterns() const = 0;

  // Appends the ids of `text` to `out`. No end-of-sequence id is added, and no special token is recognised in `text`.
  virtual void encode(std::string_view text, std::vector<int32_t>& out) const = 0;

  // The same, but the text of any of `allowed` (some of special_tokens()) becomes its id.
  void encode(std::string_view text, const TokenFinder& allowed, std::vector<int32_t>& out) const;

  // By id.
  virtual std::span<const NamedToken> special_tokens() const = 0;
  std::optional<int32_t> special_id(std::string_view text) const;  // nothing: no special token has this text
  std::string_view special_text(int32_t id) const;                 // "": no special token has this id

  // The bytes that `id` stands for, "" for special tokens and for ids that are not used. `id` is in [0, vocab_size()).
  // Valid as long as the tokenizer.
  virtual std::string_view token_bytes(int32_t id) const = 0;

  // Ids are 0 ... vocab_size() - 1, specials included.
  virtual int64_t vocab_size() const = 0;
  virtual int32_t eos_id() const = 0;  // ends documents

  // SHA-256, in hex, over everything that determines which text becomes which ids; not over eos_id(), which no text
  // becomes. Independent of the layout of the tokenizer's file.
  virtual std::string hash() const = 0;

  // The file that load_tokenizer reads back, whatever this tokenizer was read from.
  virtual std::string json() const = 0;

  // hash() over the id that ends documents, too, if that were `eos_id`: what preparations and runs are known by, and
  // what manifests of older corpora have for hash().
  virtual std::string hash_with_end(int32_t eos_id) const = 0;

  // The bytes of all ids, one after the other. It may end within a UTF-8 sequence.
  std::string decode(std::span<const int32_t> ids) const;
};

// One id per byte, the byte's value, and 256 for the end of sequence.
std::shared_ptr<const Tokenizer> byte_tokenizer();

// Around what a model writes: the ids that a text begins with, and those that end it beside the end of a document.
struct TextIds {
  std::vector<int32_t> begin, stop;
};

// What `source` names:
//   bytes                    byte_tokenizer()
//   PATH.json, or a folder with a tokenizer.json
//                            Hugging Face's format (data/tokenizer/tokenizer_json.h says which parts)
//   PATH.json@TEXT           the same; the special token TEXT ends documents
//   PATH.tiktoken            ranks of gpt2, cl100k_base or o200k_base, known by their SHA-256
//   NAME:PATH.tiktoken       ranks for that encoding (data/tokenizer/tiktoken.h)
// What ends documents is, in this order: TEXT; the token that the file marks (data/tokenizer/tokenizer_json.h), or the
// only special one in it with a usual name for that; the first end of sequence that the model's files beside it name:
// eos_token_id in config.json or generation_config.json, eos_token in tokenizer_config.json.
// Error (runtime), naming the file and what in it is not supported; (usage) if `source` must be more specific.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& source);

}  // namespace nmoe
