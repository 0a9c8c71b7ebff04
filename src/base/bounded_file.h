// Reading files that others may have put where they are: nothing hangs, and nothing takes more memory than it should.
#pragma once

#include <cstdint>
#include <string>

#include "base/files.h"

namespace nmoe {

// What such files may have at most. Published ones have a hundredth.
inline constexpr uint64_t kMaxSettingsFile = 16 << 20;  // a config.json, a configuration, a chat template, a suite
inline constexpr uint64_t kMaxListFile = 512 << 20;     // a tokenizer, the index of a model's tensors
inline constexpr uint64_t kMaxSideFile = 512 << 20;     // what is carried along beside a model's weights
inline constexpr uint64_t kMaxWholeFile = 4ULL << 30;   // anything else that is read into memory whole

// The whole file. Error (runtime) when it is missing, cannot be read or has more than `max_bytes`, and, unless it is in
// /dev, when it is a pipe, a socket or a device.
std::string read_file_up_to(const fs::path& path, uint64_t max_bytes);

// The same errors, as far as opening the file tells them.
void check_file_up_to(const fs::path& path, uint64_t max_bytes);

// The Error (runtime) for a pipe, a socket or a device in place of a file.
Error not_a_file(const fs::path& path);

}  // namespace nmoe
