#include "data/prep/content.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "base/utf8.h"

namespace nmoe {
namespace {

constexpr std::string_view kDecompress = "decompress it, or compress it as .gz or .zst";
constexpr std::string_view kExtract = "extract the text files in it and name those";
constexpr std::string_view kMakeText = "make plain text, JSON lines or Parquet of it";
constexpr std::string_view kToUtf8 = "convert it to UTF-8: iconv -f UTF-16 -t UTF-8";

// What files begin with. A text begins with none of these.
struct Magic {
  std::string_view bytes;
  std::string_view what;
  std::string_view remedy;
};
using namespace std::string_view_literals;
constexpr Magic kMagics[] = {
    {"\xFD\x37zXZ\0"sv, "an xz file", kDecompress},
    {"BZh", "a bzip2 file", kDecompress},
    {"\x04\x22\x4D\x18"sv, "an lz4 file", kDecompress},
    {"\x1F\x8B"sv, "a gzip file", "give it a name that ends in .gz"},
    {"\x28\xB5\x2F\xFD"sv, "a zstd file", "give it a name that ends in .zst"},
    {"PK\x03\x04"sv, "a zip archive", kExtract},
    {"7z\xBC\xAF\x27\x1C"sv, "a 7z archive", kExtract},
    {"Rar!\x1A"sv, "a RAR archive", kExtract},
    {"PAR1", "a Parquet file", "give it a name that ends in .parquet"},
    {"ARROW1"sv, "an Arrow file", "write it as Parquet"},
    {"%PDF-", "a PDF document", kMakeText},
    {"SQLite format 3\0"sv, "a database of SQLite", kMakeText},
    {"\x7F"
     "ELF"sv,
     "a program", kMakeText},
    {"\x93NUMPY"sv, "an array of numpy", kMakeText},
    {"\xFF\xFE"sv, "text in UTF-16", kToUtf8},
    {"\xFE\xFF"sv, "text in UTF-16", kToUtf8},
};

std::string fault_of(std::string_view text, std::string_view what) {
  size_t place = 0;
  while (place < text.size()) {
    const Utf8Char c = char_at(text, place);
    // U+FFFD itself takes three bytes.
    if (c.code == kInvalidChar && c.length == 1) break;
    place += c.length;
  }
  const auto line = std::ranges::count(text.substr(0, place), '\n') + 1;
  return fmt::format("{} is not valid UTF-8: byte {} (0x{:02X}), in its line {}", what, place + 1,
                     static_cast<unsigned char>(text[place]), line);
}

}  // namespace

std::optional<ContentFault> binary_content(std::string_view head) {
  for (const Magic& magic : kMagics) {
    if (head.starts_with(magic.bytes)) {
      return ContentFault{fmt::format("it is {}, not text", magic.what), std::string(magic.remedy)};
    }
  }
  constexpr size_t kTarMagicAt = 257;
  if (head.size() > kTarMagicAt && head.substr(kTarMagicAt).starts_with("ustar")) {
    return ContentFault{"it is a tar archive, not text", std::string(kExtract)};
  }
  const size_t zero = head.find('\0');
  if (zero == std::string_view::npos) return std::nullopt;
  return ContentFault{fmt::format("its byte {} is 0: it is not text in UTF-8", zero + 1), std::string(kMakeText)};
}

void check_utf8(Record& record) {
  if (!record.fault.empty()) return;
  for (const auto& [text, what] : {std::pair{&record.prompt, "the prompt"}, {&record.text, "the text"}}) {
    if (simdjson::validate_utf8(text->data(), text->size())) continue;
    record.fault = fault_of(*text, what);
    record.remedy = "convert the file to UTF-8, from Latin-1 with iconv -f LATIN1 -t UTF-8";
    return;
  }
}

}  // namespace nmoe
