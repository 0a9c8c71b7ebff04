#include "base/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/files.h"

namespace nmoe {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  Context() = default;
  ~Context() { EVP_MD_CTX_free(evp); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  NMOE_CHECK(context_->evp != nullptr, "EVP_MD_CTX_new");
  NMOE_CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1, "EVP_DigestInit_ex");
}

Sha256::~Sha256() = default;

void Sha256::update(const void* data, size_t bytes) {
  NMOE_CHECK(context_ != nullptr, "update after finish");
  NMOE_CHECK(EVP_DigestUpdate(context_->evp, data, bytes) == 1, "EVP_DigestUpdate of {}", bytes);
}

std::string Sha256::finish() {
  NMOE_CHECK(context_ != nullptr, "finish after finish");
  std::array<unsigned char, 32> digest{};
  unsigned length = 0;
  NMOE_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), &length) == 1 && length == 32,
             "EVP_DigestFinal_ex, length {}", length);
  context_.reset();
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * digest.size());
  for (const unsigned char byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  constexpr size_t kBlock = 1 << 20;
  const MappedFile file(path);
  Sha256 hash;
  for (size_t begin = 0; begin < file.bytes().size(); begin += kBlock) {
    const auto block = file.bytes().subspan(begin, std::min(kBlock, file.bytes().size() - begin));
    hash.update(block.data(), block.size());
    file.drop(begin, begin + block.size());
  }
  file.check();
  return hash.finish();
}

}  // namespace nmoe
