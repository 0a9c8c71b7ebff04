#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/rng.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/standard_output.h"
#include "data/shards/dataset.h"
#include "data/stream/alignment.h"
#include "data/tokenizer/tokenizer.h"

namespace nmoe::cli {
namespace {

// The splits that `dir` holds: itself, or train and valid below it.
std::vector<fs::path> splits_of(const fs::path& dir) {
  if (fs::exists(manifest_path(dir))) return {dir};
  std::vector<fs::path> splits;
  for (const char* name : {"train", "valid"}) {
    if (fs::exists(manifest_path(dir / name))) {
      splits.push_back(dir / name);
    } else if (fs::is_directory(dir / name)) {
      throw runtime_error(fmt::format("'{}' has no manifest.json: it is not a whole split", (dir / name).string()),
                          "prepare the data again, or restore the file");
    }
  }
  if (splits.empty()) {
    throw runtime_error(fmt::format("no dataset in '{}': no manifest.json in it, in train or in valid", dir.string()),
                        "check the path, or make the dataset with `n prep`");
  }
  return splits;
}

// tokenizer.json beside the splits. Error (runtime) when it is not the one that made this split.
std::shared_ptr<const Tokenizer> tokenizer_of(const TokenDataset& dataset) {
  const fs::path path = fs::absolute(dataset.dir()).lexically_normal().parent_path() / "tokenizer.json";
  auto tokenizer = load_tokenizer(path.string());
  if (!dataset.is_of(*tokenizer)) {
    throw damaged_file(path, fmt::format("it is not the tokenizer of '{}': its hash is {}, the manifest's {}",
                                         dataset.dir().string(), tokenizer->hash(), dataset.manifest().tokenizer_hash));
  }
  return tokenizer;
}

// fs::path("a/b/") has an empty last name.
fs::path split_path(const std::string& dir) { return (fs::path(dir) / "").parent_path(); }

// How many documents there are of each length in tokens, the end of sequence included.
std::map<uint64_t, int64_t> lengths_of(const TokenDataset& dataset) {
  std::map<uint64_t, int64_t> lengths;
  for (size_t shard = 0; shard < dataset.num_shards(); ++shard) {
    for (const DocumentSpan& document : dataset.documents(shard)) ++lengths[document.end - document.begin];
  }
  return lengths;
}

// The least length that at least this share of the documents does not exceed.
uint64_t quantile(const std::map<uint64_t, int64_t>& lengths, int64_t num_documents, double share) {
  const auto rank = std::max<int64_t>(1, std::llround(std::ceil(share * static_cast<double>(num_documents))));
  int64_t seen = 0;
  for (const auto& [length, count] : lengths) {
    seen += count;
    if (seen >= rank) return length;
  }
  return 0;
}

// Of an epoch whose documents are aligned.
double padding_share(const std::map<uint64_t, int64_t>& lengths, int64_t num_tokens, int64_t alignment) {
  int64_t all = 0;
  for (const auto& [length, count] : lengths) all += count * aligned(static_cast<int64_t>(length), alignment);
  return 1.0 - static_cast<double>(num_tokens) / static_cast<double>(all);
}

// How many windows of seq_len tokens, in file order, have a target that is learned.
int64_t windows_with_loss(const TokenDataset& dataset, int64_t seq_len, int64_t num_windows) {
  std::vector<uint8_t> mask(static_cast<size_t>(seq_len));
  int64_t count = 0;
  for (int64_t window = 0; window < num_windows; ++window) {
    dataset.read_mask(window * seq_len + 1, mask);  // targets are one token further
    count += std::ranges::any_of(mask, [](uint8_t learned) { return learned != 0; }) ? 1 : 0;
  }
  return count;
}

void print_info(const fs::path& dir, int64_t seq_len) {
  const TokenDataset dataset(dir);
  const DatasetManifest& manifest = dataset.manifest();
  const double bytes = static_cast<double>(manifest.total_bytes);
  print("{}\n", dir.string());
  print("  dataset      {} {}, made {}\n", manifest.dataset, manifest.version, manifest.created_at);
  print("  tokenizer    {}, {} ids, end of document {}\n", manifest.tokenizer, manifest.vocab_size,
        manifest.eos_token_id);
  print("  hash         {}\n", manifest.tokenizer_hash);
  print("  stored as    {}{}\n", manifest.dtype, dataset.has_mask() ? ", with a loss mask" : "");
  print("  tokens       {} ({})\n", manifest.total_tokens, human_count(static_cast<double>(manifest.total_tokens)));
  print("  documents    {}\n", manifest.total_documents);
  print("  text         {} bytes, {:.3f} per token\n", manifest.total_bytes,
        bytes / static_cast<double>(std::max<int64_t>(manifest.total_tokens, 1)));
  print("  shards       {}\n", manifest.num_shards);
  if (dataset.has_mask()) {
    const int64_t num_windows = std::max<int64_t>(0, dataset.num_tokens() - 1) / seq_len;
    print("  loss         {} of {} windows of {} tokens have a token to learn\n",
          windows_with_loss(dataset, seq_len, num_windows), num_windows, seq_len);
  }
  const auto lengths = lengths_of(dataset);
  if (lengths.empty()) return;
  print("  lengths      least {}", lengths.begin()->first);
  for (const int percent : {10, 25, 50, 75, 90, 99}) {
    print(", {} % {}", percent, quantile(lengths, manifest.total_documents, percent / 100.0));
  }
  print(", most {} tokens\n", lengths.rbegin()->first);
  print("  padding      ");
  for (const int64_t alignment : {16, 64, 128, 256}) {
    const double share = 100.0 * padding_share(lengths, dataset.num_tokens(), alignment);
    print("{}{:.2f} % {} {}", alignment == 16 ? "" : ", ", share,
          alignment == 16 ? "with data.align_documents =" : "with", alignment);
  }
  print("\n");
}

// Finds documents by their number in the whole split.
class Documents {
 public:
  explicit Documents(const TokenDataset& dataset) : dataset_(dataset) {
    for (const ShardEntry& shard : dataset.manifest().shards) first_.push_back(first_.back() + shard.num_documents);
  }

  // [begin, end) in the split's tokens.
  DocumentSpan span(int64_t document) {
    const auto shard = static_cast<size_t>(std::ranges::upper_bound(first_, document) - first_.begin() - 1);
    load(shard);
    const DocumentSpan& place = spans_[static_cast<size_t>(document - first_[shard])];
    const auto begin = static_cast<uint64_t>(dataset_.shard_begin(shard));
    return {begin + place.begin, begin + place.end};
  }

  // The one that holds a token.
  int64_t at(int64_t token) {
    size_t shard = 0;
    while (shard + 1 < dataset_.num_shards() && dataset_.shard_begin(shard + 1) <= token) ++shard;
    load(shard);
    const auto within = static_cast<uint64_t>(token - dataset_.shard_begin(shard));
    const auto after = std::ranges::upper_bound(spans_, within, {}, &DocumentSpan::begin);
    return first_[shard] + (after - spans_.begin()) - 1;
  }

 private:
  void load(size_t shard) {
    if (loaded_ == shard) return;
    spans_ = dataset_.documents(shard);
    loaded_ = shard;
  }

  const TokenDataset& dataset_;
  std::vector<int64_t> first_ = {0};
  size_t loaded_ = SIZE_MAX;  // the shard that spans_ is of
  std::span<const DocumentSpan> spans_;
};

void check_range(const char* what, int64_t value, int64_t count) {
  if (value >= 0 && value < count) return;
  throw usage_error(fmt::format("there is no {} {}", what, value), fmt::format("choose from 0 to {}", count - 1));
}

// Special tokens by name.
std::string text_of(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) {
    const auto specials = tokenizer.special_tokens();
    const auto special = std::ranges::find(specials, id, &NamedToken::id);
    text += special == specials.end() ? tokenizer.token_bytes(id) : std::string_view(special->text);
  }
  return text;
}

// Where there are parts that are not learned, each part stands behind a line that says what it is.
void print_document(const TokenDataset& dataset, const Tokenizer& tokenizer, int64_t number, DocumentSpan span) {
  std::vector<int32_t> ids(span.end - span.begin);
  std::vector<uint8_t> mask(ids.size());
  dataset.read(static_cast<int64_t>(span.begin), ids);
  dataset.read_mask(static_cast<int64_t>(span.begin), mask);
  print("--- document {}, tokens [{}, {}): {} and the end of document\n", number, span.begin, span.end, ids.size() - 1);
  const std::span<const int32_t> text(ids.data(), ids.size() - 1);
  const bool parts = std::ranges::find(mask, uint8_t{0}) != mask.end();
  for (size_t begin = 0, end = 0; begin < text.size() || begin == 0; begin = end) {
    while (end < text.size() && mask[end] == mask[begin]) ++end;
    if (parts && mask[begin] == 0) print("[prompt, {} tokens]\n", end - begin);
    if (parts && mask[begin] == 1) print("[text]\n");
    print_text(text_of(tokenizer, text.subspan(begin, end - begin)) + '\n');
    if (end == begin) break;  // an empty document
  }
}

}  // namespace

void data_verify_command(const std::string& dir) {
  for (const fs::path& split : splits_of(split_path(dir))) {
    const TokenDataset dataset(split);
    dataset.verify([&](const ShardEntry& shard) {
      print("{}: {} tokens, {} documents, whole\n", (split / shard.path).string(), shard.num_tokens,
            shard.num_documents);
      std::fflush(stdout);
    });
    tokenizer_of(dataset);
    print("{} is whole\n", split.string());
  }
}

void data_info_command(const DataInfoArguments& arguments) {
  for (const fs::path& split : splits_of(split_path(arguments.dir))) print_info(split, arguments.seq_len);
}

void data_sample_command(const DataSampleArguments& arguments) {
  const fs::path dir = split_path(arguments.dir);
  const TokenDataset dataset(fs::exists(manifest_path(dir)) ? dir : dir / arguments.split);
  const auto tokenizer = tokenizer_of(dataset);
  Documents documents(dataset);
  const int64_t count = dataset.num_documents();
  int64_t first = 0;
  if (arguments.document) {
    check_range("document", *arguments.document, count);
    first = *arguments.document;
  } else if (arguments.position) {
    check_range("token", *arguments.position, dataset.num_tokens());
    first = documents.at(*arguments.position);
  }
  std::optional<KeyedPermutation> draw;
  if (arguments.seed) draw.emplace(static_cast<uint64_t>(count), *arguments.seed);
  for (int64_t i = 0; i < std::min(arguments.count, count - first); ++i) {
    int64_t number = first + i;
    if (draw) number = static_cast<int64_t>((*draw)(static_cast<uint64_t>(i)));
    print_document(dataset, *tokenizer, number, documents.span(number));
  }
}

}  // namespace nmoe::cli
