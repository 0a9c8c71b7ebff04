#include "base/authentication.h"

#include <gtest/gtest.h>

namespace nmoe {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// RFC 4231, test cases 1, 2 and 6 (a key longer than a block).
TEST(Authentication, CodesAreThoseOfTheStandard) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Authentication, BytesAreComparedWhole) {
  EXPECT_TRUE(same_bytes("", ""));
  EXPECT_TRUE(same_bytes("secret", "secret"));
  EXPECT_FALSE(same_bytes("secret", "Secret"));
  EXPECT_FALSE(same_bytes("secret", "secret2"));
}

TEST(Authentication, RandomBytesDiffer) {
  EXPECT_EQ(random_bytes(32).size(), 32u);
  EXPECT_NE(random_bytes(32), random_bytes(32));
}

}  // namespace
}  // namespace nmoe
