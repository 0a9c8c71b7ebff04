#include "base/authentication.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/error.h"

namespace nmoe {
namespace {

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string code(32, '\0');
  unsigned length = 0;
  const unsigned char* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(message),
                                   message.size(), reinterpret_cast<unsigned char*>(code.data()), &length);
  NMOE_CHECK(made != nullptr && length == code.size(), "HMAC of {} bytes, length {}", message.size(), length);
  return code;
}

bool same_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  NMOE_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) == 1,
             "RAND_bytes of {}", count);
  return bytes;
}

}  // namespace nmoe
