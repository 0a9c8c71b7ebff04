// CRC-32C (Castagnoli, as in iSCSI, RFC 3720 appendix B.4): finds bytes that were cut off or never written.
#pragma once

#include <cstdint>
#include <string_view>

namespace nmoe {

uint32_t crc32c(std::string_view bytes);

}  // namespace nmoe
