// What a server has done so far, as Prometheus reads it (its text format, version 0.0.4).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "infer/engine.h"

namespace nmoe {

// Any thread may call any member.
class ServerMetrics {
 public:
  using Duration = std::chrono::duration<double>;

  // A request has been answered, `duration` after it came. `route` is one of those that are served, or "other".
  void count_request(const std::string& route, int status, Duration duration);
  // A generation has its first token, `duration` after it was queued.
  void count_first_token(Duration duration);
  // A generation has ended, for whatever reason.
  void count_generation(const GenerationResult& result);

  // All of it. `in_flight`: requests that are being answered with a text.
  std::string text(const EngineLoad& load, int64_t in_flight) const;

 private:
  // From single tokens of small models to long texts of large ones.
  static constexpr std::array<double, 14> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                     1,     2.5,  5,     10,   30,  60,   300};
  struct Histogram {
    std::array<uint64_t, kBounds.size() + 1> counts{};  // [i]: above bound i - 1, up to bound i; the last: above all
    double sum = 0.0;                                   // seconds
    void add(Duration duration);
  };
  static void append(std::string& text, const std::string& name, const std::string& labels, const Histogram& histogram);

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::pair<std::string, int>, uint64_t> requests_;
  std::map<std::string, Histogram> durations_;  // by route
  Histogram first_tokens_;
  std::map<std::string, uint64_t, std::less<>> generations_;  // by finish reason
  uint64_t prompt_tokens_ = 0;
  uint64_t cached_tokens_ = 0;
  uint64_t output_tokens_ = 0;
};

}  // namespace nmoe
