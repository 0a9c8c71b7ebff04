#include "checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/sha256.h"

namespace nmoe {
namespace {

// Ordered by key, so that dump() is canonical and can be hashed.
using Json = nlohmann::json;

constexpr int kFormatVersion = 2;
constexpr const char* kOwnHashKey = "manifest_sha256";

// The hash of everything in the manifest but the hash itself.
std::string own_hash(Json json) {
  json.erase(kOwnHashKey);
  return sha256_hex(json.dump());
}

Json tensors_to_json(std::span<const ManifestTensor> tensors) {
  Json list = Json::array();
  for (const ManifestTensor& tensor : tensors) {
    list.push_back({{"name", tensor.name},
                    {"dtype", dtype_name(tensor.dtype)},
                    {"shape", tensor.shape.dims()},
                    {"sha256", tensor.sha256}});
  }
  return list;
}

std::vector<ManifestTensor> tensors_from_json(const Json& list) {
  std::vector<ManifestTensor> tensors;
  for (const Json& item : list) {
    const auto dims = item.at("shape").get<std::vector<int64_t>>();
    const auto dtype = dtype_from_name(item.at("dtype").get<std::string>());
    NMOE_CHECK(dtype.has_value(), "dtype {} in an intact manifest", item.at("dtype").dump());
    tensors.push_back({item.at("name").get<std::string>(), *dtype, Shape{std::span<const int64_t>(dims)},
                       item.at("sha256").get<std::string>()});
  }
  return tensors;
}

}  // namespace

std::string print_manifest(const CheckpointManifest& manifest) {
  const CheckpointInfo& info = manifest.info;
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    Json entry = {{"name", file.name}, {"bytes", file.bytes}};
    if (!file.sha256.empty()) entry["sha256"] = file.sha256;
    files.push_back(std::move(entry));
  }
  Json json = {{"format_version", kFormatVersion},
               {"step", info.step},
               {"tokens", info.tokens},
               {"cursor",
                {{"sequence", info.cursor.sequence},
                 {"stage", info.cursor.stage},
                 {"stage_sequence", info.cursor.stage_sequence},
                 {"credits", info.cursor.credits},
                 {"taken", info.cursor.taken}}},
               {"num_parameters", info.num_parameters},
               {"run_id", info.run_id},
               {"config_fingerprint", info.config_fingerprint},
               {"data_fingerprint", info.data_fingerprint},
               {"nmoe_version", info.nmoe_version},
               {"nmoe_commit", info.nmoe_commit},
               {"created_at", info.created_at},
               {"weights_sha256", manifest.weights_sha256},
               {"files", std::move(files)},
               {"model", tensors_to_json(manifest.model)},
               {"optimizer", tensors_to_json(manifest.optimizer)}};
  json[kOwnHashKey] = own_hash(json);
  return json.dump(1) + "\n";
}

CheckpointManifest parse_manifest(std::string_view text, const fs::path& path) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw runtime_error(fmt::format("'{}' is no JSON object: cut off or altered", path.string()), "");
  }
  // The version comes first: another one may differ in everything else.
  const Json version = json.value("format_version", Json());
  if (version != kFormatVersion) {
    throw runtime_error(
        fmt::format("'{}' has format version {}; this nmoe reads {}", path.string(), version.dump(), kFormatVersion),
        "use the nmoe that wrote it");
  }
  if (json.value(kOwnHashKey, Json()) != own_hash(json)) {
    throw runtime_error(fmt::format("'{}' was altered: its hash differs", path.string()), "");
  }
  CheckpointManifest manifest;
  CheckpointInfo& info = manifest.info;
  json.at("step").get_to(info.step);
  json.at("tokens").get_to(info.tokens);
  const Json& cursor = json.at("cursor");
  cursor.at("sequence").get_to(info.cursor.sequence);
  cursor.at("stage").get_to(info.cursor.stage);
  cursor.at("stage_sequence").get_to(info.cursor.stage_sequence);
  cursor.at("credits").get_to(info.cursor.credits);
  cursor.at("taken").get_to(info.cursor.taken);
  json.at("num_parameters").get_to(info.num_parameters);
  json.at("run_id").get_to(info.run_id);
  json.at("config_fingerprint").get_to(info.config_fingerprint);
  json.at("data_fingerprint").get_to(info.data_fingerprint);
  json.at("nmoe_version").get_to(info.nmoe_version);
  json.at("nmoe_commit").get_to(info.nmoe_commit);
  json.at("created_at").get_to(info.created_at);
  json.at("weights_sha256").get_to(manifest.weights_sha256);
  for (const Json& file : json.at("files")) {
    manifest.files.push_back(
        {file.at("name").get<std::string>(), file.at("bytes").get<uint64_t>(), file.value("sha256", std::string())});
  }
  manifest.model = tensors_from_json(json.at("model"));
  manifest.optimizer = tensors_from_json(json.at("optimizer"));
  return manifest;
}

std::string combined_sha256(std::span<const ManifestTensor> tensors) {
  std::vector<const ManifestTensor*> sorted;
  for (const ManifestTensor& tensor : tensors) sorted.push_back(&tensor);
  std::ranges::sort(sorted, {}, &ManifestTensor::name);
  Sha256 hash;
  for (const ManifestTensor* tensor : sorted) {
    hash.update(fmt::format("{} {} {} {}\n", tensor->name, dtype_name(tensor->dtype), tensor->shape, tensor->sha256));
  }
  return hash.finish();
}

}  // namespace nmoe
