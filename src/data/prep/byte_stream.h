// A file's content from beginning to end, decompressed while reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>

namespace nmoe {

// The rest of a compressed file cannot be read: it ends too early, or is damaged. What precedes it was delivered.
class DamagedStream : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Fills `out` from its beginning and returns the number of bytes; 0 only at the end. Throws DamagedStream, and Error
  // (runtime) when the file was cut, or its disk failed, while it was read, or there is no memory for it.
  virtual size_t read(std::span<char> out) = 0;

  // Bytes of the file read so far.
  virtual int64_t file_bytes_read() const = 0;
};

// By the name's end: .gz (of any number of members, and zeros behind them), .zst (of any number of frames), anything
// else as it is. Needs little memory whatever the file's size, but for the window of a .zst file, of up to 2 GiB. Error
// (runtime) if the file cannot be opened.
std::unique_ptr<ByteStream> open_bytes(const std::filesystem::path& path);

// Whether the name ends in .gz or .zst.
bool is_compressed(const std::filesystem::path& path);

}  // namespace nmoe
