#include "data/shards/shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <ctime>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"

namespace nmoe {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian, as in memory");

constexpr std::string_view kNpyMagic("\x93NUMPY\x01\x00", 8);
constexpr size_t kNpyPreamble = kNpyMagic.size() + sizeof(uint16_t);  // magic, length of the rest

constexpr std::string_view kIndexMagic("NMOEIDX\0", 8);
constexpr uint64_t kIndexVersion = 1;
struct IndexHeader {
  std::array<char, 8> magic{};
  uint64_t version = kIndexVersion;
  uint64_t num_documents = 0;
  uint64_t reserved = 0;
};
static_assert(sizeof(IndexHeader) == 32 && sizeof(DocumentSpan) == 16);

constexpr std::string_view kTemporary = ".tmp";
constexpr std::string_view kTokens = ".npy";
constexpr std::string_view kIndex = ".idx";
constexpr std::string_view kMask = ".mask.npy";
constexpr std::array kSuffixes = {kMask, kTokens, kIndex};

constexpr std::string_view kMaskDescr = "|u1";
std::string_view descr_of(TokenType type) { return type == TokenType::kUint16 ? "<u2" : "<u4"; }

// What stands between `before` and the next `after`, or nothing.
std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const size_t begin = text.find(before);
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin + before.size());
  return text.substr(0, text.find(after));
}

struct NpyHeader {
  std::string_view descr;
  int64_t count = 0;
  size_t data_offset = 0;
};

NpyHeader parse_npy_header(std::span<const std::byte> bytes, const fs::path& path) {
  const std::string_view file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (file.size() < kNpyPreamble || !file.starts_with(kNpyMagic)) {
    throw damaged_file(path, "it does not begin as a .npy file of version 1.0");
  }
  uint16_t length = 0;
  std::memcpy(&length, file.data() + kNpyMagic.size(), sizeof(length));
  const std::string_view dict = file.substr(kNpyPreamble, length);

  NpyHeader header;
  header.data_offset = kNpyPreamble + length;
  header.descr = between(dict, "'descr': '", "'");
  const std::string_view shape = between(dict, "'shape': (", ",)");
  const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), header.count);
  const bool one_dimension = error == std::errc() && end == shape.data() + shape.size();
  if (dict.size() != length || !one_dimension || header.count < 0 || header.data_offset % sizeof(uint32_t) != 0) {
    throw damaged_file(path, fmt::format("its header is damaged: {}", dict.substr(0, 80)));
  }
  return header;
}

// The file must hold what its header announces, no less and no more.
void check_npy_length(const NpyHeader& header, size_t element_bytes, uint64_t file_bytes, const fs::path& path) {
  const uint64_t data_bytes = file_bytes - header.data_offset;
  if (data_bytes / element_bytes != static_cast<uint64_t>(header.count) || data_bytes % element_bytes != 0) {
    throw damaged_file(path, fmt::format("{} bytes of tokens; its header announces {} of {} bytes", data_bytes,
                                         header.count, element_bytes));
  }
}

// numpy.save's format 1.0, one dimension.
std::string npy_header_of(std::string_view descr, int64_t count) {
  const std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}", descr, count);
  constexpr auto kLength = static_cast<uint16_t>(kNpyHeaderBytes - kNpyPreamble);
  std::string header(kNpyMagic);
  header.append(reinterpret_cast<const char*>(&kLength), sizeof(kLength));
  header += dict;
  header.resize(kNpyHeaderBytes - 1, ' ');
  header += '\n';
  return header;
}

// The largest of the ids copied.
template <class T>
uint32_t copy_ids(const std::byte* from, std::span<int32_t> out) {
  const T* ids = reinterpret_cast<const T*>(from);
  T largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    largest = std::max(largest, ids[i]);
    out[i] = static_cast<int32_t>(ids[i]);
  }
  return largest;
}

// Whether `ids`, read from place `offset` of a file, could be of one that was cut while it was mapped: the page through
// which the cut goes has zeros from there to its end. Looking at the file each time would take as long as copying.
bool ends_in_zeros(std::span<const int32_t> ids, size_t offset, size_t bytes) {
  constexpr size_t kPage = 4096;
  if (ids.empty() || ids.back() == 0) return !ids.empty();
  for (size_t end = kPage - offset % kPage; end <= ids.size() * bytes; end += kPage) {
    if (ids[end / bytes - 1] == 0) return true;
  }
  return false;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

fs::path temporary(fs::path path) { return path += kTemporary; }

// "...-shard-000123.npy", ".idx" or ".mask.npy".
bool is_shard_file(std::string_view name) {
  constexpr std::string_view kStem = "-shard-";
  constexpr size_t kDigits = 6;
  const auto suffix = std::ranges::find_if(kSuffixes, [&](std::string_view s) { return name.ends_with(s); });
  if (suffix == kSuffixes.end()) return false;
  name.remove_suffix(suffix->size());
  if (name.size() < kStem.size() + kDigits) return false;
  const std::string_view digits = name.substr(name.size() - kDigits);
  name.remove_suffix(kDigits);
  return name.ends_with(kStem) && digits.find_first_not_of("0123456789") == std::string_view::npos;
}

// Runs `step`, which changes the folder; what the file system reports comes as an Error.
template <class Step>
void change_folder(const fs::path& dir, Step&& step) {
  try {
    step();
  } catch (const fs::filesystem_error& error) {
    throw runtime_error(error.what(), fmt::format("check the permissions of '{}'", dir.string()));
  }
}

// Shards and what goes with them in `dir`: the finished ones, or with `suffix` those an interrupted writer left. Those
// of `but` stay.
void remove_shard_files(const fs::path& dir, std::string_view suffix, const std::set<std::string>& but) {
  change_folder(dir, [&] {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(dir)) {
      std::string name = entry.path().filename().string();
      if (!name.ends_with(suffix)) continue;
      name.resize(name.size() - suffix.size());
      if (is_shard_file(name) && !but.contains(name)) paths.push_back(entry.path());
    }
    for (const fs::path& path : paths) fs::remove(path);
  });
}

}  // namespace

uint64_t index_bytes(int64_t num_documents) {
  return sizeof(IndexHeader) + static_cast<uint64_t>(num_documents) * sizeof(DocumentSpan);
}

std::string npy_header(TokenType type, int64_t num_tokens) { return npy_header_of(descr_of(type), num_tokens); }
std::string npy_mask_header(int64_t num_tokens) { return npy_header_of(kMaskDescr, num_tokens); }

// ---- writing ------------------------------------------------------------------------------------

namespace {

// The names of a shard's files.
std::vector<std::string> files_of(const ShardEntry& entry) {
  std::vector<std::string> names = {entry.path, entry.index_path};
  if (!entry.mask_path.empty()) names.push_back(entry.mask_path);
  return names;
}

}  // namespace

struct SplitWriter::OpenShard {
  static constexpr size_t kBufferBytes = 1 << 20;

  // A new shard, its headers still to come.
  OpenShard(const fs::path& dir, ShardEntry new_entry)
      : entry(std::move(new_entry)),
        tokens(temporary(dir / entry.path)),
        index(temporary(dir / entry.index_path)),
        token_buffer(kBufferBytes) {
    const std::array<char, kNpyHeaderBytes> placeholder{};
    tokens.write(placeholder.data(), placeholder.size());
    index.write(placeholder.data(), sizeof(IndexHeader));
    if (!entry.mask_path.empty()) {
      mask.emplace(temporary(dir / entry.mask_path));
      mask->write(placeholder.data(), placeholder.size());
    }
  }

  // One that was being written.
  OpenShard(const fs::path& dir, ShardEntry old_entry, TokenType type)
      : entry(std::move(old_entry)),
        tokens(temporary(dir / entry.path), kNpyHeaderBytes + entry.num_tokens * bytes_per_token(type)),
        index(temporary(dir / entry.index_path), index_bytes(entry.num_documents)),
        token_buffer(kBufferBytes) {
    if (!entry.mask_path.empty()) {
      mask.emplace(temporary(dir / entry.mask_path), kNpyHeaderBytes + static_cast<uint64_t>(entry.num_tokens));
    }
  }

  ShardEntry entry;
  FileWriter tokens;
  FileWriter index;
  std::optional<FileWriter> mask;
  std::vector<std::byte> token_buffer;
  size_t buffered = 0;
  std::vector<DocumentSpan> index_buffer;
  std::vector<uint8_t> mask_buffer;

  template <class T>
  void append(std::span<const int32_t> ids) {
    while (!ids.empty()) {
      const size_t count = std::min(ids.size(), (token_buffer.size() - buffered) / sizeof(T));
      T* out = reinterpret_cast<T*>(token_buffer.data() + buffered);
      for (size_t i = 0; i < count; ++i) out[i] = static_cast<T>(ids[i]);
      buffered += count * sizeof(T);
      ids = ids.subspan(count);
      if (buffered == token_buffer.size()) flush();
    }
  }

  void flush() {
    tokens.write(token_buffer.data(), buffered);
    buffered = 0;
    index.write(index_buffer.data(), index_buffer.size() * sizeof(DocumentSpan));
    index_buffer.clear();
    if (mask) mask->write(mask_buffer.data(), mask_buffer.size());
    mask_buffer.clear();
  }

  void close() {
    tokens.close();
    index.close();
    if (mask) mask->close();
  }
};

SplitWriter::SplitWriter(fs::path dir, SplitOptions options)
    : dir_(std::move(dir)), options_(std::move(options)), type_(token_type_for(options_.vocab_size)) {
  manifest_.dataset = options_.dataset;
  manifest_.tokenizer = options_.tokenizer;
  manifest_.tokenizer_hash = options_.tokenizer_hash;
  manifest_.vocab_size = options_.vocab_size;
  manifest_.eos_token_id = options_.eos_id;
  manifest_.dtype = token_type_name(type_);
  made_dir_ = !fs::exists(dir_);
  make_directories(dir_);
  remove_shard_files(dir_, kTemporary, {});
}

SplitWriter::SplitWriter(fs::path dir, SplitOptions options, DatasetManifest state)
    : dir_(std::move(dir)),
      options_(std::move(options)),
      type_(token_type_for(options_.vocab_size)),
      manifest_(std::move(state)),
      keep_(true) {
  std::set<std::string> wanted;
  for (const ShardEntry& entry : manifest_.shards) {
    for (const std::string& name : files_of(entry)) {
      // A commit may have been under way.
      if (!fs::exists(temporary(dir_ / name)) && !fs::exists(dir_ / name)) {
        throw runtime_error(fmt::format("'{}' is gone since the work on it was interrupted", (dir_ / name).string()),
                            "begin again from the start");
      }
      wanted.insert(name);
    }
  }
  remove_shard_files(dir_, kTemporary, wanted);  // of shards begun after the checkpoint
  if (!manifest_.shards.empty() && manifest_.shards.back().checksum.empty()) {
    shard_ = std::make_unique<OpenShard>(dir_, manifest_.shards.back(), type_);
    manifest_.shards.pop_back();
  }
}

SplitWriter::~SplitWriter() {
  if (!keep_) {
    discard();
  } else if (shard_) {
    try {
      shard_->close();
    } catch (const Error&) {
      shard_.reset();  // the checkpoint holds what matters, and whoever goes on meets the same fault
    }
  }
}

void SplitWriter::discard() noexcept {
  shard_.reset();
  std::error_code ignored;  // there is nothing to be done about files that cannot be removed
  for (const ShardEntry& entry : manifest_.shards) {
    for (const std::string& name : files_of(entry)) {
      fs::remove(dir_ / name, ignored);
      fs::remove(temporary(dir_ / name), ignored);
    }
  }
  if (made_dir_) fs::remove(dir_, ignored);  // if it is empty
}

void SplitWriter::add_document(std::span<const int32_t> tokens, int64_t source_bytes, const std::string& source,
                               std::span<const uint8_t> mask) {
  const auto length = static_cast<int64_t>(tokens.size()) + 1;
  if (length > options_.tokens_per_shard) {
    throw usage_error(
        fmt::format("a document of {} has {} tokens; a shard holds {}", source, length, options_.tokens_per_shard),
        "raise --tokens-per-shard, or cut the text into documents with --split-on");
  }
  for (const int32_t id : tokens) {
    NMOE_CHECK(id >= 0 && id < options_.vocab_size, "id {} of {}", id, options_.vocab_size);
  }
  NMOE_CHECK(mask.size() == (options_.masks ? tokens.size() : 0), "{} mask entries for {} tokens", mask.size(),
             tokens.size());
  if (shard_ && shard_->entry.num_tokens + length > options_.tokens_per_shard) close_shard();
  if (!shard_) {
    const std::string stem =
        fmt::format("{}-{}-shard-{:06d}", options_.dataset, manifest_.version, manifest_.shards.size());
    ShardEntry entry{.path = stem + std::string(kTokens), .index_path = stem + std::string(kIndex)};
    if (options_.masks) entry.mask_path = stem + std::string(kMask);
    shard_ = std::make_unique<OpenShard>(dir_, std::move(entry));
  }

  const std::array<int32_t, 1> eos = {options_.eos_id};
  for (const std::span<const int32_t> ids : {tokens, std::span<const int32_t>(eos)}) {
    if (type_ == TokenType::kUint16) {
      shard_->append<uint16_t>(ids);
    } else {
      shard_->append<uint32_t>(ids);
    }
  }
  if (options_.masks) {
    shard_->mask_buffer.insert(shard_->mask_buffer.end(), mask.begin(), mask.end());
    shard_->mask_buffer.push_back(1);
  }
  ShardEntry& entry = shard_->entry;
  const auto begin = static_cast<uint64_t>(entry.num_tokens);
  shard_->index_buffer.push_back({begin, begin + static_cast<uint64_t>(length)});
  entry.num_tokens += length;
  entry.num_documents += 1;
  manifest_.total_tokens += length;
  manifest_.total_documents += 1;
  manifest_.total_bytes += source_bytes;
}

DatasetManifest SplitWriter::checkpoint() {
  DatasetManifest state = manifest_;
  if (shard_) {
    shard_->flush();
    shard_->tokens.sync();
    shard_->index.sync();
    if (shard_->mask) shard_->mask->sync();
    state.shards.push_back(shard_->entry);
  }
  sync_directory(dir_);
  state.num_shards = static_cast<int64_t>(state.shards.size());
  return state;
}

void SplitWriter::close_shard() {
  OpenShard& shard = *shard_;
  shard.flush();
  const std::string header = npy_header(type_, shard.entry.num_tokens);
  shard.tokens.write_at(0, header.data(), header.size());
  IndexHeader index_header;
  std::ranges::copy(kIndexMagic, index_header.magic.begin());
  index_header.num_documents = static_cast<uint64_t>(shard.entry.num_documents);
  shard.index.write_at(0, &index_header, sizeof(index_header));
  if (shard.mask) {
    const std::string mask_header = npy_mask_header(shard.entry.num_tokens);
    shard.mask->write_at(0, mask_header.data(), mask_header.size());
  }
  // From here on the files are no longer their writers' to remove, but discard()'s.
  ShardEntry& entry = manifest_.shards.emplace_back(shard.entry);
  shard.close();
  entry.checksum = sha256_of_file(shard.tokens.path());
  if (shard.mask) entry.mask_checksum = sha256_of_file(shard.mask->path());
  shard_.reset();
}

void SplitWriter::close() {
  if (shard_) close_shard();
  manifest_.num_shards = static_cast<int64_t>(manifest_.shards.size());
}

DatasetManifest SplitWriter::commit() {
  NMOE_CHECK(!shard_, "commit before close");
  change_folder(dir_, [&] {
    for (const ShardEntry& entry : manifest_.shards) {
      for (const std::string& name : files_of(entry)) {
        // Without a temporary file, an interrupted commit has been here.
        if (fs::exists(temporary(dir_ / name))) fs::rename(temporary(dir_ / name), dir_ / name);
      }
    }
  });
  sync_directory(dir_);
  manifest_.created_at = utc_now();
  write_manifest(dir_, manifest_);
  keep_ = true;
  return manifest_;
}

void remove_split(const fs::path& dir) {
  if (!fs::is_directory(dir)) return;
  change_folder(dir, [&] { fs::remove(manifest_path(dir)); });
  remove_shard_files(dir, "", {});
}

void remove_unfinished_split(const fs::path& dir) {
  if (fs::is_directory(dir)) remove_shard_files(dir, kTemporary, {});
}

// ---- reading ------------------------------------------------------------------------------------

ShardReader::ShardReader(const fs::path& path) : file_(path) {
  const NpyHeader header = parse_npy_header(file_.bytes(), path);
  if (header.descr == descr_of(TokenType::kUint32)) {
    type_ = TokenType::kUint32;
  } else if (header.descr != descr_of(TokenType::kUint16)) {
    throw damaged_file(path, fmt::format("its data type is '{}'; token ids are <u2 or <u4", header.descr));
  }
  check_npy_length(header, bytes_per_token(type_), file_.bytes().size(), path);
  num_tokens_ = header.count;
  tokens_ = file_.bytes().data() + header.data_offset;
}

void ShardReader::read(int64_t first, std::span<int32_t> out, int64_t vocab_size) const {
  NMOE_CHECK(first >= 0 && first + static_cast<int64_t>(out.size()) <= num_tokens_, "{} tokens at {} of {}", out.size(),
             first, num_tokens_);
  const std::byte* from = tokens_ + static_cast<size_t>(first) * bytes_per_token(type_);
  const uint32_t largest = type_ == TokenType::kUint16 ? copy_ids<uint16_t>(from, out) : copy_ids<uint32_t>(from, out);
  if (!out.empty() && largest >= vocab_size) {
    const auto bad = std::ranges::find_if(out, [&](int32_t id) { return static_cast<uint32_t>(id) >= vocab_size; });
    throw damaged_file(path(), fmt::format("id {} at position {} of a vocabulary of {}", static_cast<uint32_t>(*bad),
                                           first + (bad - out.begin()), vocab_size));
  }
  const auto offset = static_cast<size_t>(from - file_.bytes().data());
  if (ends_in_zeros(out, offset, bytes_per_token(type_))) file_.check();
}

MaskReader::MaskReader(const fs::path& path) : file_(path) {
  const NpyHeader header = parse_npy_header(file_.bytes(), path);
  if (header.descr != kMaskDescr) {
    throw damaged_file(path, fmt::format("its data type is '{}'; a mask's is {}", header.descr, kMaskDescr));
  }
  check_npy_length(header, sizeof(uint8_t), file_.bytes().size(), path);
  num_tokens_ = header.count;
  entries_ = file_.bytes().data() + header.data_offset;
}

void MaskReader::read(int64_t first, std::span<uint8_t> out) const {
  NMOE_CHECK(first >= 0 && first + static_cast<int64_t>(out.size()) <= num_tokens_, "{} entries at {} of {}",
             out.size(), first, num_tokens_);
  if (out.empty()) return;
  std::memcpy(out.data(), entries_ + first, out.size());
  file_.check();
  const auto bad = std::ranges::find_if(out, [](uint8_t entry) { return entry > 1; });
  if (bad != out.end()) {
    throw damaged_file(path(),
                       fmt::format("{} at position {}; a mask is of 0 and 1", *bad, first + (bad - out.begin())));
  }
}

IndexReader::IndexReader(const fs::path& path) : file_(path) {
  const auto bytes = file_.bytes();
  IndexHeader header;
  if (bytes.size() < sizeof(header)) throw damaged_file(path, "it is too short for an index");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (!std::ranges::equal(header.magic, kIndexMagic) || header.version != kIndexVersion) {
    throw damaged_file(path, fmt::format("it is not a document index of version {}", kIndexVersion));
  }
  const size_t body = bytes.size() - sizeof(header);
  if (body / sizeof(DocumentSpan) != header.num_documents || body % sizeof(DocumentSpan) != 0) {
    throw damaged_file(
        path, fmt::format("{} bytes of entries; its header announces {} documents", body, header.num_documents));
  }
  // A map begins at a page, and the header is two entries long.
  documents_ = {reinterpret_cast<const DocumentSpan*>(bytes.data() + sizeof(header)), header.num_documents};
}

}  // namespace nmoe
