#include "data/prep/byte_stream.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/failure.h"
#include "base/files.h"

namespace nmoe {
namespace {

constexpr std::string_view kGzip = ".gz";
constexpr std::string_view kZstd = ".zst";

// A mapped file that is read once, from end to end.
class Input {
 public:
  explicit Input(const fs::path& path) : file_(path) {}

  std::span<const std::byte> left() const { return file_.bytes().subspan(position_); }
  size_t position() const { return position_; }
  const fs::path& path() const { return file_.path(); }
  void advance(size_t bytes) {
    constexpr size_t kDropBytes = 4 << 20;
    file_.check();
    position_ += bytes;
    if (position_ - dropped_ < kDropBytes) return;
    file_.drop(dropped_, position_);
    dropped_ = position_;
  }

 private:
  MappedFile file_;
  size_t position_ = 0;
  size_t dropped_ = 0;
};

Error no_memory_for(const Input& input) {
  return out_of_memory(fmt::format("memory for decompressing '{}'", input.path().string()));
}

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(const fs::path& path) : input_(path) {}

  size_t read(std::span<char> out) override {
    const size_t count = std::min(out.size(), input_.left().size());
    if (count > 0) std::memcpy(out.data(), input_.left().data(), count);
    input_.advance(count);
    return count;
  }
  int64_t file_bytes_read() const override { return static_cast<int64_t>(input_.position()); }

 private:
  Input input_;
};

class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(const fs::path& path) : input_(path) {
    constexpr int kGzipOnly = 16;  // see inflateInit2
    const int status = inflateInit2(&inflate_, MAX_WBITS + kGzipOnly);
    if (status == Z_MEM_ERROR) throw no_memory_for(input_);
    NMOE_CHECK(status == Z_OK, "inflateInit2: {}", status);
  }
  ~GzipStream() override { inflateEnd(&inflate_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  size_t read(std::span<char> out) override {
    constexpr size_t kMost = std::numeric_limits<uInt>::max();
    inflate_.next_out = reinterpret_cast<Bytef*>(out.data());
    inflate_.avail_out = static_cast<uInt>(std::min(out.size(), kMost));
    const uInt wanted = inflate_.avail_out;
    while (inflate_.avail_out == wanted) {
      const auto left = input_.left();
      if (left.empty()) {
        if (inside_member_) throw DamagedStream("the gzip file ends too early");
        break;
      }
      if (!inside_member_ && any_member_ && left.front() == std::byte{0}) {
        skip_padding();
        continue;
      }
      if (!inside_member_) inflateReset(&inflate_);
      inside_member_ = true;
      inflate_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(left.data()));
      inflate_.avail_in = static_cast<uInt>(std::min(left.size(), kMost));
      const int status = inflate(&inflate_, Z_NO_FLUSH);
      input_.advance(static_cast<size_t>(reinterpret_cast<const std::byte*>(inflate_.next_in) - left.data()));
      if (status == Z_STREAM_END) {
        inside_member_ = false;
        any_member_ = true;
      } else if (status == Z_MEM_ERROR) {
        throw no_memory_for(input_);
      } else if (status != Z_OK) {
        throw DamagedStream(
            fmt::format("the gzip file is damaged: {}", inflate_.msg != nullptr ? inflate_.msg : "no valid data"));
      }
    }
    return wanted - inflate_.avail_out;
  }
  int64_t file_bytes_read() const override { return static_cast<int64_t>(input_.position()); }

 private:
  // Zeros behind the last member, with which tapes and block devices fill up, are no content; gzip reads past them,
  // too.
  void skip_padding() {
    constexpr size_t kBlock = 1 << 20;
    while (!input_.left().empty()) {
      const auto block = input_.left().first(std::min(kBlock, input_.left().size()));
      if (std::ranges::any_of(block, [](std::byte byte) { return byte != std::byte{0}; })) {
        throw DamagedStream("the gzip file has more than zeros behind its last member");
      }
      input_.advance(block.size());
    }
  }

  Input input_;
  z_stream inflate_{};
  bool inside_member_ = false;
  bool any_member_ = false;  // is complete
};

class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(const fs::path& path) : input_(path), context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (context_ == nullptr) throw no_memory_for(input_);
    // As `zstd --long=31` writes them; unasked, the library takes windows of up to 128 MiB.
    const int most = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound;
    NMOE_CHECK(ZSTD_isError(ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, most)) == 0, "window 2^{}",
               most);
  }

  size_t read(std::span<char> out) override {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos == 0 && to.size > 0) {
      const auto left = input_.left();
      if (left.empty() && !inside_frame_) break;
      ZSTD_inBuffer from{left.data(), left.size(), 0};
      const size_t status = ZSTD_decompressStream(context_.get(), &to, &from);
      if (ZSTD_isError(status) != 0 && ZSTD_getErrorCode(status) == ZSTD_error_memory_allocation) {
        throw runtime_error(fmt::format("there is no memory for the window of '{}'", input_.path().string()),
                            "free memory, or compress the file again with a window of 128 MiB (zstd --long=27)");
      }
      if (ZSTD_isError(status) != 0) {
        throw DamagedStream(fmt::format("the zstd file is damaged: {}", ZSTD_getErrorName(status)));
      }
      inside_frame_ = status != 0;
      input_.advance(from.pos);
      if (left.empty() && to.pos == 0) throw DamagedStream("the zstd file ends too early");
    }
    return to.pos;
  }
  int64_t file_bytes_read() const override { return static_cast<int64_t>(input_.position()); }

 private:
  Input input_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
  bool inside_frame_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> open_bytes(const fs::path& path) {
  if (path.extension() == kGzip) return std::make_unique<GzipStream>(path);
  if (path.extension() == kZstd) return std::make_unique<ZstdStream>(path);
  return std::make_unique<PlainStream>(path);
}

bool is_compressed(const fs::path& path) { return path.extension() == kGzip || path.extension() == kZstd; }

}  // namespace nmoe
