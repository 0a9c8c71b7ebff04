#include "track/run_files.h"

#include "base/json.h"
#include "track/json_lines.h"

namespace nmoe {

using Json = nlohmann::ordered_json;

fs::path samples_path(const fs::path& database) { return database.parent_path() / "samples.jsonl"; }

void append_samples(const fs::path& path, const SampleSet& set) {
  Json json = {{"step", set.step}, {"ts_ms", set.ts_ms}, {"samples", Json::array()}};
  for (const SampleText& sample : set.samples) {
    json["samples"].push_back({{"prompt", sample.prompt}, {"text", sample.text}});
  }
  append_line(path, json_text(json));
}

std::vector<SampleSet> read_samples(const fs::path& path) {
  constexpr size_t kMostBytes = size_t{16} << 20;
  std::vector<SampleSet> sets;
  each_json_line(path, kMostBytes, [&](const Json& json) {
    SampleSet set{
        .step = integer_of<int64_t>(json.at("step")), .ts_ms = integer_of<int64_t>(json.at("ts_ms")), .samples = {}};
    for (const Json& sample : json.at("samples")) {
      set.samples.push_back({sample.at("prompt").get<std::string>(), sample.at("text").get<std::string>()});
    }
    while (!sets.empty() && sets.back().step >= set.step) sets.pop_back();
    sets.push_back(std::move(set));
  });
  return sets;
}

fs::path memory_plan_path(const fs::path& database) { return database.parent_path() / "memory_plan.json"; }

void write_memory_plan(const fs::path& path, const std::vector<PlannedRegion>& regions) {
  Json json = {{"regions", Json::array()}};
  for (const PlannedRegion& region : regions) {
    json["regions"].push_back(
        {{"name", region.name}, {"bytes", region.bytes}, {"meaning", region.meaning}, {"on_device", region.on_device}});
  }
  write_file_atomically(path, json_text(json) + '\n');
}

std::vector<PlannedRegion> read_memory_plan(const fs::path& path) {
  std::vector<PlannedRegion> regions;
  each_json_line(path, size_t{1} << 20, [&](const Json& json) {
    for (const Json& region : json.at("regions")) {
      regions.push_back({.name = region.at("name").get<std::string>(),
                         .bytes = integer_of<int64_t>(region.at("bytes")),
                         .meaning = region.at("meaning").get<std::string>(),
                         .on_device = region.at("on_device").get<bool>()});
    }
  });
  return regions;
}

}  // namespace nmoe
