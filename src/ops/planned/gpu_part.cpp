#include "ops/planned/gpu_part.h"

#include <fmt/format.h>

#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace nmoe {
namespace {

constexpr int64_t mebibytes(int64_t count) { return count << 20; }

// What the driver leaves of what is sold, rounded down.
struct KnownPart {
  std::string_view name;
  int64_t memory_bytes;
  int compute_major;
};
constexpr KnownPart kKnown[] = {
    {"h100-80g", mebibytes(81'000), 9},
    {"h200-141g", mebibytes(143'000), 9},
    {"b200-192g", mebibytes(182'000), 10},
};

}  // namespace

GpuPart parse_gpu_part(std::string_view text, std::string_view what) {
  std::vector<std::string> names;
  for (const KnownPart& known : kKnown) {
    if (known.name == text) return {std::string(text), known.memory_bytes, known.compute_major};
    names.emplace_back(known.name);
  }
  if (const auto bytes = try_parse_bytes(text); bytes && *bytes > 0) return {std::string(text), *bytes, 9};
  throw usage_error(fmt::format("{} {}: that is neither a size nor a part that is known", what, text),
                    fmt::format("name {}, or a size such as \"80 GiB\"", join_or(names)));
}

}  // namespace nmoe
