#include "checkpoint/manifest.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"

namespace nmoe {
namespace {

// Ordered by key, so that dump() is canonical and can be hashed.
using Json = nlohmann::json;

constexpr int kFormatVersion = 3;
constexpr int kWholeTensorsVersion = 2;
constexpr const char* kOwnHashKey = "manifest_sha256";

// The hash of everything in the manifest but the hash itself.
std::string own_hash(Json json) {
  json.erase(kOwnHashKey);
  return sha256_hex(json_text(json));
}

// Whether slices and chunks are all of the tensor, once.
void check_whole(const ManifestTensor& tensor) {
  int64_t end = 0;
  for (const auto& [range, file, first] : tensor.slices) {
    NMOE_CHECK(range.offset == end, "tensor '{}' {}: the slice in {} begins at element {}, the one before ends at {}",
               tensor.name, tensor.shape, file, range.offset, end);
    NMOE_CHECK(range.extent > 0 || tensor.slices.size() == 1, "tensor '{}' {}: the slice in {} is empty", tensor.name,
               tensor.shape, file);
    slice_shape(tensor.name, tensor.dtype, tensor.shape, range);
    end = range.end();
  }
  NMOE_CHECK(!tensor.slices.empty() && end == tensor.shape.num_elements(),
             "tensor '{}' {}: its {} slices have {} elements", tensor.name, tensor.shape, tensor.slices.size(), end);
  NMOE_CHECK(static_cast<int64_t>(tensor.chunk_sha256.size()) == tensor.chunks.count(),
             "tensor '{}' {}: {} hashes of {} chunks", tensor.name, tensor.shape, tensor.chunk_sha256.size(),
             tensor.chunks.count());
}

Json tensors_to_json(std::span<const ManifestTensor> tensors) {
  Json list = Json::array();
  for (const ManifestTensor& tensor : tensors) {
    Json slices = Json::array();
    for (const TensorSlice& slice : tensor.slices) {
      Json entry = {{"offset", slice.range.offset}, {"extent", slice.range.extent}, {"file", slice.file}};
      if (slice.first > 0) entry["first"] = slice.first;
      slices.push_back(std::move(entry));
    }
    list.push_back({{"name", tensor.name},
                    {"dtype", dtype_name(tensor.dtype)},
                    {"shape", tensor.shape.dims()},
                    {"slices", std::move(slices)},
                    {"chunks", tensor.chunk_sha256},
                    {"sha256", tensor.sha256}});
  }
  return list;
}

// What every version says of a tensor.
ManifestTensor tensor_from_json(const Json& item) {
  const auto dims = integers_of<int64_t>(item.at("shape"));
  const auto dtype = dtype_from_name(item.at("dtype").get<std::string>());
  NMOE_CHECK(dtype.has_value(), "dtype {} is unknown", item.at("dtype").dump());
  int64_t bytes = static_cast<int64_t>(dtype_bytes(*dtype));
  const bool has_bytes =
      std::ranges::all_of(dims, [&](int64_t dim) { return dim >= 0 && !__builtin_mul_overflow(bytes, dim, &bytes); });
  NMOE_CHECK(has_bytes && dims.size() <= Shape::kMaxRank, "the shape {} is none", item.at("shape").dump());
  ManifestTensor tensor;
  tensor.name = item.at("name").get<std::string>();
  tensor.dtype = *dtype;
  tensor.shape = Shape{std::span<const int64_t>(dims)};
  tensor.sha256 = item.at("sha256").get<std::string>();
  return tensor;
}

// With slices, which may be a part of the tensor.
ManifestTensor sliced_tensor_from_json(const Json& item) {
  ManifestTensor tensor = tensor_from_json(item);
  const int64_t most = tensor.shape.num_elements();
  for (const Json& slice : item.at("slices")) {
    const ElementRange range{integer_of<int64_t>(slice.at("offset")), integer_of<int64_t>(slice.at("extent"))};
    NMOE_CHECK(range.offset >= 0 && range.extent >= 0 && range.offset <= most && range.extent <= most - range.offset,
               "tensor '{}' {} has no slice of {} elements at {}", tensor.name, tensor.shape, range.extent,
               range.offset);
    const int64_t first = slice.contains("first") ? integer_of<int64_t>(slice.at("first")) : 0;
    tensor.slices.push_back({range, slice.at("file").get<std::string>(), first});
  }
  item.at("chunks").get_to(tensor.chunk_sha256);
  return tensor;
}

std::vector<ManifestTensor> tensors_from_json(const Json& list) {
  std::vector<ManifestTensor> tensors;
  for (const Json& item : list) {
    ManifestTensor& tensor = tensors.emplace_back(sliced_tensor_from_json(item));
    tensor.chunks = TensorChunks(tensor.dtype, tensor.shape);
    check_whole(tensor);
    NMOE_CHECK(tensor.sha256 == tensor_sha256(tensor.chunk_sha256), "hash of tensor '{}' in an intact manifest",
               tensor.name);
  }
  return tensors;
}

std::vector<ManifestTensor> whole_tensors_from_json(const Json& list, const std::string& file) {
  std::vector<ManifestTensor> tensors;
  for (const Json& item : list) {
    ManifestTensor& tensor = tensors.emplace_back(tensor_from_json(item));
    tensor.slices = {{{0, tensor.shape.num_elements()}, file}};
    tensor.chunks = TensorChunks::undivided(tensor.shape);
    if (tensor.chunks.count() > 0) tensor.chunk_sha256 = {tensor.sha256};
  }
  return tensors;
}

Json files_to_json(std::span<const ManifestFile> files) {
  Json list = Json::array();
  for (const ManifestFile& file : files) {
    Json entry = {{"name", file.name}, {"bytes", file.bytes}};
    if (!file.sha256.empty()) entry["sha256"] = file.sha256;
    list.push_back(std::move(entry));
  }
  return list;
}

std::vector<ManifestFile> files_from_json(const Json& list) {
  std::vector<ManifestFile> files;
  for (const Json& file : list) {
    files.push_back({file.at("name").get<std::string>(), integer_of<uint64_t>(file.at("bytes")),
                     file.value("sha256", std::string())});
    // Paths are made of these: a checkpoint has one folder below its own, and nothing above it.
    const std::string& name = files.back().name;
    const size_t slash = name.find('/');
    const bool plain = is_name_below(name) &&
                       (slash == std::string::npos ||
                        (name.substr(0, slash) == kCarriedFolder && name.find('/', slash + 1) == std::string::npos));
    NMOE_CHECK(plain, "'{}' is not a name of a file of a checkpoint", name);
  }
  return files;
}

ExpertState experts_from_json(const Json& json) {
  ExpertState experts;
  for (const Json& layer : json.at("places")) experts.places.push_back(integers_of<int32_t>(layer));
  for (const Json& layer : json.at("rows")) experts.rows.push_back(integers_of<int64_t>(layer));
  for (const std::vector<int32_t>& layer : experts.places) {
    std::vector<int32_t> places = layer;
    std::ranges::sort(places);
    NMOE_CHECK(places == places_in_order(static_cast<int64_t>(layer.size())), "{} experts are not one in each place",
               layer.size());
  }
  NMOE_CHECK(experts.rows.empty() || experts.rows.size() == experts.places.size(),
             "rows of experts in {} layers, their places in {}", experts.rows.size(), experts.places.size());
  for (size_t i = 0; i < experts.rows.size(); ++i) {
    const bool are_rows = experts.rows[i].size() == experts.places[i].size() &&
                          std::ranges::all_of(experts.rows[i], [](int64_t rows) { return rows >= 0; });
    NMOE_CHECK(are_rows, "rows of {} experts in {} places", experts.rows[i].size(), experts.places[i].size());
    int64_t sum = 0;
    const bool has_sum =
        std::ranges::none_of(experts.rows[i], [&](int64_t rows) { return __builtin_add_overflow(sum, rows, &sum); });
    NMOE_CHECK(has_sum && sum <= INT64_MAX / 2, "rows of experts that have no sum");  // with room for those to come
  }
  return experts;
}

std::vector<PrecisionRole> precision_from_json(const Json& json) {
  std::vector<PrecisionRole> roles;
  for (const Json& role : json) {
    roles.push_back({.layer = integer_of<int64_t>(role.at("layer")),
                     .part = role.at("part").get<std::string>(),
                     .in_act = role.at("in_act").get<bool>(),
                     .votes = integers_of<int32_t>(role.at("votes"))});
    const bool are_votes = std::ranges::all_of(roles.back().votes, [](int32_t vote) { return vote == 0 || vote == 1; });
    NMOE_CHECK(are_votes, "votes on the {} of layer {}", roles.back().part, roles.back().layer);
  }
  return roles;
}

}  // namespace

std::string print_written_part(const WrittenPart& part) {
  return Json{{"files", files_to_json(part.files)},
              {"model", tensors_to_json(part.model)},
              {"optimizer", tensors_to_json(part.optimizer)}}
      .dump();
}

WrittenPart parse_written_part(std::string_view text) {
  const Json json = parse_json<Json>(text);
  const auto tensors = [&](const char* group) {
    std::vector<ManifestTensor> list;
    for (const Json& item : json.at(group)) list.push_back(sliced_tensor_from_json(item));
    return list;
  };
  return {.files = files_from_json(json.at("files")), .model = tensors("model"), .optimizer = tensors("optimizer")};
}

std::string print_manifest(const CheckpointManifest& manifest) {
  const CheckpointInfo& info = manifest.info;
  Json json = {{"format_version", kFormatVersion},
               {"step", info.step},
               {"tokens", info.tokens},
               {"flops", info.flops},
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
               {"files", files_to_json(manifest.files)},
               {"model", tensors_to_json(manifest.model)},
               {"optimizer", tensors_to_json(manifest.optimizer)}};
  if (info.arithmetic_changes > 0) json["arithmetic_changes"] = info.arithmetic_changes;
  if (!info.product_identity.empty()) json["product_identity"] = info.product_identity;
  if (!info.experts.places.empty()) {
    json["experts"] = {{"places", info.experts.places}, {"rows", info.experts.rows}};
  }
  for (const PrecisionRole& role : info.precision) {
    json["precision"].push_back(
        {{"layer", role.layer}, {"part", role.part}, {"in_act", role.in_act}, {"votes", role.votes}});
  }
  json[kOwnHashKey] = own_hash(json);
  return json_text(json, 1) + "\n";
}

namespace {

CheckpointManifest manifest_from(const Json& json, bool whole_tensors) {
  CheckpointManifest manifest;
  CheckpointInfo& info = manifest.info;
  const auto count = [&](const char* key, int64_t& number) {
    number = integer_of<int64_t>(json.at(key));
    NMOE_CHECK(number >= 0, "{} = {}", key, number);
  };
  count("step", info.step);
  count("tokens", info.tokens);
  info.flops = json.value("flops", info.flops);
  const Json& cursor = json.at("cursor");
  info.cursor.sequence = integer_of<int64_t>(cursor.at("sequence"));
  info.cursor.stage = integer_of<int64_t>(cursor.at("stage"));
  info.cursor.stage_sequence = integer_of<int64_t>(cursor.at("stage_sequence"));
  info.cursor.credits = integers_of<int64_t>(cursor.at("credits"));
  info.cursor.taken = integers_of<int64_t>(cursor.at("taken"));
  if (const auto experts = json.find("experts"); experts != json.end()) info.experts = experts_from_json(*experts);
  if (const auto roles = json.find("precision"); roles != json.end()) info.precision = precision_from_json(*roles);
  count("num_parameters", info.num_parameters);
  json.at("run_id").get_to(info.run_id);
  NMOE_CHECK(info.run_id.empty() || (is_name_below(info.run_id) && info.run_id.find('/') == std::string::npos),
             "'{}' is not an id of a run", info.run_id);
  json.at("config_fingerprint").get_to(info.config_fingerprint);
  json.at("data_fingerprint").get_to(info.data_fingerprint);
  if (json.contains("arithmetic_changes")) count("arithmetic_changes", info.arithmetic_changes);
  if (const auto products = json.find("product_identity"); products != json.end()) {
    products->get_to(info.product_identity);
  }
  json.at("nmoe_version").get_to(info.nmoe_version);
  json.at("nmoe_commit").get_to(info.nmoe_commit);
  json.at("created_at").get_to(info.created_at);
  json.at("weights_sha256").get_to(manifest.weights_sha256);
  manifest.files = files_from_json(json.at("files"));
  const auto tensors = [&](const char* group) {
    const Json& list = json.at(group);
    return whole_tensors ? whole_tensors_from_json(list, fmt::format("{}.safetensors", group))
                         : tensors_from_json(list);
  };
  manifest.model = tensors("model");
  manifest.optimizer = tensors("optimizer");
  return manifest;
}

}  // namespace

CheckpointManifest parse_manifest(std::string_view text, const fs::path& path) {
  const Json json = try_parse_json<Json>(text);
  if (!json.is_object()) {
    throw runtime_error(fmt::format("'{}' is not a JSON object: cut off or altered", path.string()), "");
  }
  // The version comes first: another one may differ in everything else.
  const Json version = json.value("format_version", Json());
  if (version != kFormatVersion && version != kWholeTensorsVersion) {
    throw runtime_error(fmt::format("'{}' has format version {}; this nmoe reads {} and {}", path.string(),
                                    version.dump(), kWholeTensorsVersion, kFormatVersion),
                        "use the nmoe that wrote it");
  }
  if (json.value(kOwnHashKey, Json()) != own_hash(json)) {
    throw runtime_error(fmt::format("'{}' was altered: its hash differs", path.string()), "");
  }
  // The hash is no secret: whoever can write a manifest can make one.
  const auto refuse = [&](std::string_view what) {
    return runtime_error(fmt::format("'{}' contradicts itself: {}", path.string(), what), "");
  };
  try {
    return manifest_from(json, version == kWholeTensorsVersion);
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();  // "[json.exception.out_of_range.403] key 'step' not found"
    throw refuse(what.substr(what.find(']') + 2));
  } catch (const JsonError& error) {
    throw refuse(error.what());
  } catch (const CheckFailure& failure) {
    throw refuse(failure.what());
  }
}

namespace {

struct WrittenSlice {
  const ManifestTensor* part;
  const TensorSlice* slice;
  std::span<const std::string> chunk_sha256;
};

// Those of a writer's entry, each with the hashes of its chunks.
void append_slices(const ManifestTensor& part, std::vector<WrittenSlice>& slices) {
  const TensorChunks chunks(part.dtype, part.shape);
  std::span<const std::string> hashes = part.chunk_sha256;
  for (const TensorSlice& slice : part.slices) {
    const auto [offset, extent] = slice.range;
    const int64_t count = extent == 0 ? 0 : chunks.index_of(offset + extent - 1) - chunks.index_of(offset) + 1;
    NMOE_CHECK(count <= static_cast<int64_t>(hashes.size()), "tensor '{}' {}: {} hashes of {} chunks in {}", part.name,
               part.shape, hashes.size(), count, slice.file);
    slices.push_back({&part, &slice, hashes.first(static_cast<size_t>(count))});
    hashes = hashes.subspan(static_cast<size_t>(count));
  }
}

}  // namespace

std::vector<ManifestTensor> merge_slices(std::span<const ManifestTensor> parts) {
  std::vector<std::vector<WrittenSlice>> by_tensor;
  std::map<std::string_view, size_t> index;
  for (const ManifestTensor& part : parts) {
    const auto [place, is_new] = index.emplace(part.name, by_tensor.size());
    if (is_new) by_tensor.emplace_back();
    append_slices(part, by_tensor[place->second]);
  }
  std::vector<ManifestTensor> merged;
  for (std::vector<WrittenSlice>& slices : by_tensor) {
    std::ranges::stable_sort(slices, {}, [](const WrittenSlice& slice) { return slice.slice->range.offset; });
    const ManifestTensor& first = *slices.front().part;
    ManifestTensor& tensor = merged.emplace_back();
    tensor.name = first.name;
    tensor.dtype = first.dtype;
    tensor.shape = first.shape;
    tensor.chunks = TensorChunks(first.dtype, first.shape);
    for (const auto& [part, slice, chunks] : slices) {
      NMOE_CHECK(part->dtype == first.dtype && part->shape == first.shape, "tensor '{}' is {} {} in {} and {} {} in {}",
                 first.name, dtype_name(first.dtype), first.shape, slices.front().slice->file, dtype_name(part->dtype),
                 part->shape, slice->file);
      tensor.slices.push_back(*slice);
      tensor.chunk_sha256.insert(tensor.chunk_sha256.end(), chunks.begin(), chunks.end());
    }
    check_whole(tensor);
    tensor.sha256 = tensor_sha256(tensor.chunk_sha256);
  }
  return merged;
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
