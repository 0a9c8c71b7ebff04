// What two who share a secret need to know each other by. Computed by OpenSSL's libcrypto.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nmoe {

// HMAC with SHA-256 (RFC 2104): 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view message);

// Of texts of one size, takes the same time wherever they differ, so that who guesses learns nothing from it.
bool same_bytes(std::string_view a, std::string_view b);

// From OpenSSL's generator, which the operating system's seeds: nobody can foresee them.
std::string random_bytes(size_t count);

}  // namespace nmoe
