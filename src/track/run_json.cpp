#include "track/run_json.h"

#include <cmath>
#include <string>
#include <variant>

#include "track/run_query.h"

namespace nmoe {
namespace {

constexpr const char* kJsonFields[] = {"id",        "name",    "experiment", "status", "reason",     "host",
                                       "started",   "updated", "ended",      "step",   "tokens",     "loss",
                                       "last_loss", "valid",   "bpb",        "rate",   "checkpoint", "note"};

}  // namespace

nlohmann::ordered_json run_json(const RunRow& run) {
  using Json = nlohmann::ordered_json;
  Json json;
  for (const char* name : kJsonFields) {
    const RunField field = run_field(run, name);
    if (const auto* number = std::get_if<double>(&field)) {
      json[name] = std::floor(*number) == *number && std::abs(*number) < 1e15 ? Json(static_cast<int64_t>(*number))
                                                                              : Json(*number);
    } else if (const auto* text = std::get_if<std::string>(&field)) {
      json[name] = *text;
    } else {
      json[name] = nullptr;
    }
  }
  return json;
}

}  // namespace nmoe
