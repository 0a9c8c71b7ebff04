// manifest.json: the contents of a folder of shards. Written last, so a folder with a manifest is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"

namespace nmoe {

inline constexpr int64_t kManifestSchemaVersion = 1;

struct ShardEntry {
  std::string path;        // the .npy, relative to the manifest
  std::string index_path;  // the .idx, relative to the manifest
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  std::string checksum;  // SHA-256 of the .npy, hex
  // For the .mask.npy, in datasets in which not all tokens have a loss: both or neither, in all shards or none.
  std::string mask_path = {};
  std::string mask_checksum = {};
};

struct DatasetManifest {
  int64_t schema_version = kManifestSchemaVersion;
  std::string dataset;
  std::string version = "v1";
  std::string tokenizer;       // Tokenizer::name()
  std::string tokenizer_hash;  // Tokenizer::hash(), or hash_with_end(eos_token_id) where older nmoe wrote it
  int64_t vocab_size = 0;
  int32_t eos_token_id = 0;  // ends every document, and may stand within one, too
  std::string dtype;         // "uint16" or "uint32"
  std::string created_at;    // UTC, ISO 8601
  int64_t total_tokens = 0;
  int64_t total_documents = 0;
  int64_t total_bytes = 0;  // of the documents' text
  int64_t num_shards = 0;
  std::vector<ShardEntry> shards;
};

// The Error (runtime) for a damaged file of a dataset.
Error damaged_file(const std::filesystem::path& file, const std::string& what);

std::filesystem::path manifest_path(const std::filesystem::path& split_dir);

// Error (runtime) if it is missing, is not JSON, lacks a field, or contradicts itself.
DatasetManifest read_manifest(const std::filesystem::path& split_dir);
// The same from its text; `path` is named in errors.
DatasetManifest parse_dataset_manifest(const std::string& text, const std::filesystem::path& path);
std::string manifest_text(const DatasetManifest& manifest);
void write_manifest(const std::filesystem::path& split_dir, const DatasetManifest& manifest);

}  // namespace nmoe
