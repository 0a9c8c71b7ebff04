// What a run keeps beside its metrics for those who look at it, in <run.dir>/metrics/<run id>/: texts that its model
// wrote, and the memory that it planned. Errors (runtime) where one cannot be written.
//
//   samples.jsonl      {"step":100,"ts_ms":1763850000000,"samples":[{"prompt":"Once","text":" upon a time"}]}
//   memory_plan.json   {"regions":[{"name":"parameters","bytes":1024,"meaning":"...","on_device":true}]}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"

namespace nmoe {

struct SampleText {
  std::string prompt;
  std::string text;  // what came behind it
};
// Of one validation.
struct SampleSet {
  int64_t step = 0;
  int64_t ts_ms = 0;
  std::vector<SampleText> samples;
};

fs::path samples_path(const fs::path& database);  // beside a rank's database
void append_samples(const fs::path& path, const SampleSet& set);
// By rising step: what a resumed run does again takes the place of what it had written from there on. The last 16 MiB;
// none where there is no file.
std::vector<SampleSet> read_samples(const fs::path& path);

// A part of the memory of rank 0's process or device.
struct PlannedRegion {
  std::string name;
  int64_t bytes = 0;
  std::string meaning;
  bool on_device = false;  // in the memory of a rank's device, not the host's
};

fs::path memory_plan_path(const fs::path& database);
void write_memory_plan(const fs::path& path, const std::vector<PlannedRegion>& regions);
// None where there is no such file, or another one.
std::vector<PlannedRegion> read_memory_plan(const fs::path& path);

}  // namespace nmoe
