// A prepared corpus of tiny_text, and the configuration to train on it.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"
#include "config/load.h"
#include "data/prep/prep.h"
#include "support/tiny_run.h"

namespace nmoe::test {

// Writes `out`, as data.path wants it, from one text for each split.
inline void write_corpus(const fs::path& out, const std::string& train, const std::string& valid) {
  const fs::path texts = out.string() + "-text";
  make_directories(texts);
  write_file_atomically(texts / "train.txt", train);
  write_file_atomically(texts / "valid.txt", valid);
  prepare_dataset({.inputs = {(texts / "train.txt").string()},
                   .valid_inputs = {(texts / "valid.txt").string()},
                   .out = out,
                   .threads = 1});
}

inline void write_tiny_corpus(const fs::path& out, uint64_t seed = 1) {
  write_corpus(out, tiny_text(6000, seed), tiny_text(700, seed + 1));
}

// kTinyToml with its paths below `dir`: data in dir/data, runs in dir/runs.
inline Config tiny_config(const fs::path& dir, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"run.dir=" + (dir / "runs").string(), "data.path=" + (dir / "data").string()});
  return parse_config(kTinyToml, "tiny.toml", overrides);
}

}  // namespace nmoe::test
