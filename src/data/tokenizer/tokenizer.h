// Text to token ids and back.
//
// Every tokenizer but that of synthetic corpora (data/tokenizer/word_tokenizer.h) is byte-level: any byte string, valid
// UTF-8 or not, encodes to ids and decodes to the same bytes. Text never turns into special tokens: "<|endoftext|>" in
// a document is ordinary text, and the end-of-sequence id comes from eos_id() alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nmoe {

// The name of the one special token, whose id ends every document.
inline constexpr std::string_view kEosText = "<|endoftext|>";

// Immutable, and safe to use from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // "bytes", "bpe" or "words".
  virtual std::string_view name() const = 0;

  // Appends the ids of `text` to `out`. No end-of-sequence id is added.
  virtual void encode(std::string_view text, std::vector<int32_t>& out) const = 0;

  // The bytes that `id` stands for, "" for special tokens. `id` is in [0, vocab_size()). Valid as
  // long as the tokenizer.
  virtual std::string_view token_bytes(int32_t id) const = 0;

  // Ids are 0 ... vocab_size() - 1, specials included.
  virtual int64_t vocab_size() const = 0;
  virtual int32_t eos_id() const = 0;

  // SHA-256, in hex, over all that decides which text becomes which ids. Independent of how the
  // tokenizer's file is laid out.
  virtual std::string hash() const = 0;

  // The file that load_tokenizer reads back.
  virtual std::string json() const = 0;

  // The bytes of all ids, one after the other. Cut anywhere in a stream of ids it may end inside a
  // UTF-8 sequence.
  std::string decode(std::span<const int32_t> ids) const;
};

// One id a byte, the byte's value, and 256 for the end of sequence.
std::shared_ptr<const Tokenizer> byte_tokenizer();

// `source` is "bytes" or the path of a file that json() wrote (data/tokenizer/tokenizer_json.h says what of
// Hugging Face's format that covers). Error (runtime) naming the file and the unsupported part.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& source);

}  // namespace nmoe
