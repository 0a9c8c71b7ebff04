#include "data/shards/manifest.h"

#include <type_traits>

#include "base/bounded_file.h"
#include "base/files.h"
#include "base/json.h"
#include "data/shards/token_type.h"

namespace nmoe {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Reads the fields of one JSON object.
class Fields {
 public:
  Fields(const json& object, const fs::path& path, std::string place)
      : object_(object), path_(path), place_(std::move(place)) {
    if (!object.is_object()) throw damaged_file(path_, place_ + "not a JSON object");
  }

  // Numbers are counts or ids: none is negative.
  template <class T>
  void get(const char* key, T& value) const {
    const auto found = object_.find(key);
    if (found == object_.end()) throw damaged_file(path_, fmt::format("{}{} is missing", place_, key));
    const auto refuse = [&](const char* wanted) {
      return damaged_file(path_, fmt::format("{}{} is {}, not a {}", place_, key, found->dump(), wanted));
    };
    if constexpr (std::is_same_v<T, std::string>) {
      if (!found->is_string()) throw refuse("string");
      value = found->template get<std::string>();
    } else {
      try {
        value = integer_of<T>(*found);
      } catch (const JsonError&) {
        throw refuse("count");
      }
      if (value < 0) throw refuse("count");
    }
  }

  const json& list(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end() || !found->is_array()) {
      throw damaged_file(path_, fmt::format("{}{} is not a list", place_, key));
    }
    return *found;
  }

 private:
  const json& object_;
  const fs::path& path_;
  std::string place_;
};

void check_consistent(const DatasetManifest& manifest, const fs::path& path) {
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw damaged_file(path, what);
  };
  require(manifest.vocab_size > 0 && manifest.eos_token_id < manifest.vocab_size,
          fmt::format("eos_token_id {} is not below vocab_size {}", manifest.eos_token_id, manifest.vocab_size));
  const std::string dtype = token_type_name(token_type_for(manifest.vocab_size));
  require(manifest.dtype == dtype,
          fmt::format("dtype is {}; {} ids are stored as {}", manifest.dtype, manifest.vocab_size, dtype));
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  for (const ShardEntry& shard : manifest.shards) {
    for (const std::string* name : {&shard.path, &shard.index_path, &shard.mask_path}) {
      const bool none = name == &shard.mask_path && name->empty();
      require(none || is_name_below(*name), fmt::format("'{}' is not a path below its folder", *name));
    }
    require(shard.mask_path.empty() == manifest.shards.front().mask_path.empty(),
            fmt::format("only one of {} and {} has a mask_path", manifest.shards.front().path, shard.path));
    require(!__builtin_add_overflow(num_tokens, shard.num_tokens, &num_tokens) &&
                !__builtin_add_overflow(num_documents, shard.num_documents, &num_documents),
            "the shards' counts have no sum");
  }
  require(static_cast<int64_t>(manifest.shards.size()) == manifest.num_shards,
          fmt::format("num_shards is {}, but {} are listed", manifest.num_shards, manifest.shards.size()));
  require(num_tokens == manifest.total_tokens,
          fmt::format("total_tokens is {}, but the shards have {}", manifest.total_tokens, num_tokens));
  require(num_documents == manifest.total_documents,
          fmt::format("total_documents is {}, but the shards have {}", manifest.total_documents, num_documents));
}

}  // namespace

Error damaged_file(const fs::path& file, const std::string& what) {
  return runtime_error(fmt::format("'{}': {}", file.string(), what), "prepare the dataset again with `n prep`");
}

fs::path manifest_path(const fs::path& split_dir) { return split_dir / "manifest.json"; }

DatasetManifest read_manifest(const fs::path& split_dir) {
  const fs::path path = manifest_path(split_dir);
  if (!fs::exists(path)) {
    throw runtime_error(fmt::format("no dataset in '{}': it has no manifest.json", split_dir.string()),
                        "check the path, or make the dataset with `n prep`");
  }
  return parse_dataset_manifest(read_file_up_to(path, kMaxListFile), path);
}

DatasetManifest parse_dataset_manifest(const std::string& text, const fs::path& path) {
  const json root = try_parse_json<json>(text);
  const Fields fields(root, path, "");
  DatasetManifest manifest;
  fields.get("schema_version", manifest.schema_version);
  if (manifest.schema_version != kManifestSchemaVersion) {
    throw damaged_file(path, fmt::format("schema_version is {}; this program reads {}", manifest.schema_version,
                                         kManifestSchemaVersion));
  }
  fields.get("dataset", manifest.dataset);
  fields.get("version", manifest.version);
  fields.get("tokenizer", manifest.tokenizer);
  fields.get("tokenizer_hash", manifest.tokenizer_hash);
  fields.get("vocab_size", manifest.vocab_size);
  fields.get("eos_token_id", manifest.eos_token_id);
  fields.get("dtype", manifest.dtype);
  fields.get("created_at", manifest.created_at);
  fields.get("total_tokens", manifest.total_tokens);
  fields.get("total_documents", manifest.total_documents);
  fields.get("total_bytes", manifest.total_bytes);
  fields.get("num_shards", manifest.num_shards);
  for (const json& item : fields.list("shards")) {
    const Fields shard_fields(item, path, fmt::format("shards[{}].", manifest.shards.size()));
    ShardEntry& shard = manifest.shards.emplace_back();
    shard_fields.get("path", shard.path);
    shard_fields.get("index_path", shard.index_path);
    shard_fields.get("num_tokens", shard.num_tokens);
    shard_fields.get("num_documents", shard.num_documents);
    shard_fields.get("checksum", shard.checksum);
    if (item.contains("mask_path")) {
      shard_fields.get("mask_path", shard.mask_path);
      shard_fields.get("mask_checksum", shard.mask_checksum);
    }
  }
  check_consistent(manifest, path);
  return manifest;
}

std::string manifest_text(const DatasetManifest& manifest) {
  auto shards = ordered_json::array();
  for (const ShardEntry& shard : manifest.shards) {
    ordered_json& item = shards.emplace_back(ordered_json{{"path", shard.path},
                                                          {"index_path", shard.index_path},
                                                          {"num_tokens", shard.num_tokens},
                                                          {"num_documents", shard.num_documents},
                                                          {"checksum", shard.checksum}});
    if (!shard.mask_path.empty()) {
      item["mask_path"] = shard.mask_path;
      item["mask_checksum"] = shard.mask_checksum;
    }
  }
  const ordered_json root = {{"schema_version", manifest.schema_version},
                             {"dataset", manifest.dataset},
                             {"version", manifest.version},
                             {"tokenizer", manifest.tokenizer},
                             {"tokenizer_hash", manifest.tokenizer_hash},
                             {"vocab_size", manifest.vocab_size},
                             {"eos_token_id", manifest.eos_token_id},
                             {"dtype", manifest.dtype},
                             {"created_at", manifest.created_at},
                             {"total_tokens", manifest.total_tokens},
                             {"total_documents", manifest.total_documents},
                             {"total_bytes", manifest.total_bytes},
                             {"num_shards", manifest.num_shards},
                             {"shards", std::move(shards)}};
  return json_text(root, 2) + '\n';
}

void write_manifest(const fs::path& split_dir, const DatasetManifest& manifest) {
  write_file_atomically(manifest_path(split_dir), manifest_text(manifest));
}

}  // namespace nmoe
