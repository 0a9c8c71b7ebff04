// A small checkpoint state that owns its tensors, and a folder to write it to.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {

// Every tensor's bytes depend on its name and on the step.
class SampleState {
 public:
  explicit SampleState(int64_t step, int64_t rows = 64) {
    state.info.step = step;
    state.info.tokens = step * 4096;
    state.info.num_parameters = rows * 100;
    state.info.run_id = "run_1_2";
    state.info.config_fingerprint = "c0ffee";
    state.info.data_fingerprint = "austen-v1";
    state.info.arithmetic_changes = 7;
    state.info.product_identity = "a library on a device";
    state.info.nmoe_version = "0.1.0";
    state.info.nmoe_commit = "abc123";
    state.info.cursor.sequence = step * 16;
    state.info.cursor.stage = 1;
    state.info.cursor.stage_sequence = 3;
    state.info.cursor.credits = {-2, 2};
    state.info.cursor.taken = {step, step * 15};
    state.config_toml = "[model]\ndim = 64\n";
    state.tokenizer_json = "{\"type\": \"byte\"}";
    add(state.model, "embedding", DType::kF32, {rows, 16});
    add(state.model, "layers.0.experts.w1", DType::kF32, {4, rows, 8});
    add(state.model, "layers.0.router.bias", DType::kF32, {4});
    add(state.optimizer, "embedding.moment1", DType::kF32, {rows, 16});
    add(state.optimizer, "embedding.moment2", DType::kBF16, {rows, 16});
    add(state.optimizer, "layers.0.experts.w1.momentum", DType::kF32, {4, rows, 8});
    add(state.optimizer, "unused", DType::kF32, {0, 8});
  }

  CheckpointState state;

 private:
  void add(std::vector<NamedTensor>& list, const std::string& name, DType dtype, Shape shape) {
    Tensor tensor(nullptr, dtype, shape);
    auto& bytes = storage_.emplace_back(static_cast<size_t>(tensor.num_bytes()));
    uint64_t noise = std::hash<std::string>()(name) + static_cast<uint64_t>(state.info.step);
    for (std::byte& byte : bytes) {
      noise = noise * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::byte>(noise >> 56);
    }
    list.push_back({name, Tensor(bytes.data(), dtype, shape)});
  }

  std::deque<std::vector<std::byte>> storage_;
};

inline std::string_view bytes_of(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.num_bytes())};
}

using Names = std::vector<std::string>;

using test::contains;
using test::error_of;

class TemporaryFolderTest : public test::TempDirTest {
 protected:
  // What is in the folder, sorted.
  static Names names_in(const fs::path& folder) {
    Names found;
    for (const auto& entry : fs::directory_iterator(folder)) {
      found.push_back(entry.path().filename().string());
    }
    std::ranges::sort(found);
    return found;
  }
  Names names() const { return names_in(dir_); }
};

// Adds one to the byte at `offset`, counted from the end when negative.
inline void alter_byte(const fs::path& path, int64_t offset) {
  std::string content = read_file(path);
  const auto at = offset < 0 ? content.size() - static_cast<size_t>(-offset) : static_cast<size_t>(offset);
  ++content.at(at);
  write_file_atomically(path, content);
}

}  // namespace nmoe
