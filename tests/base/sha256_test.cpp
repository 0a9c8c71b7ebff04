#include "base/sha256.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/error.h"
#include "base/files.h"

namespace nmoe {
namespace {

// Examples of FIPS 180-4 and NIST's "Descriptions of SHA-256, SHA-384 and SHA-512".
constexpr const char* kEmpty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr const char* kTwoBlocks = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
constexpr const char* kMillionA = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

TEST(Sha256Test, NistVectors) {
  EXPECT_EQ(sha256_hex(""), kEmpty);
  EXPECT_EQ(sha256_hex("abc"), kAbc);
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"), kTwoBlocks);
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')), kMillionA);
}

TEST(Sha256Test, PiecesOfAnySizeGiveTheSameHash) {
  const std::string text(1'000'000, 'a');
  for (const size_t piece : {1'000ul, 63ul, 65ul, 999'999ul}) {
    Sha256 hash;
    for (size_t i = 0; i < text.size(); i += piece) {
      hash.update(std::string_view(text).substr(i, piece));
    }
    EXPECT_EQ(hash.finish(), kMillionA) << "pieces of " << piece;
  }
}

TEST(Sha256Test, ASpentHashRefusesMore) {
  Sha256 hash;
  hash.finish();
  EXPECT_THROW(hash.update("x"), CheckFailure);
  EXPECT_THROW(hash.finish(), CheckFailure);
}

TEST(Sha256Test, Files) {
  const fs::path path = fs::temp_directory_path() / fmt::format("nmoe-sha256-{}", ::getpid());
  // More than one of the reader's blocks, and no whole number of them.
  write_file_atomically(path, std::string(3'000'001, 'b'));
  EXPECT_EQ(sha256_of_file(path), sha256_hex(std::string(3'000'001, 'b')));
  write_file_atomically(path, "");
  EXPECT_EQ(sha256_of_file(path), kEmpty);
  fs::remove(path);
  EXPECT_THROW(sha256_of_file(path), Error);
}

}  // namespace
}  // namespace nmoe
