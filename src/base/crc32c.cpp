#include "base/crc32c.h"

#include <array>
#include <cstring>

namespace nmoe {
namespace {

// kTables[k][b]: what byte b does to the remainder when k more bytes follow it, so that eight bytes take eight
// independent look-ups.
constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82f63b78u : 0u);
    tables[0][byte] = remainder;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr auto kTables = make_tables();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t remainder = ~0u;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    word ^= remainder;
    remainder = 0;
    for (size_t k = 0; k < 8; ++k) remainder ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; i < bytes.size(); ++i) {
    remainder = (remainder >> 8) ^ kTables[0][(remainder ^ static_cast<unsigned char>(bytes[i])) & 0xff];
  }
  return ~remainder;
}

}  // namespace nmoe
