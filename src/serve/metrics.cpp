#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace nmoe {
namespace {

void begin_metric(std::string& text, std::string_view name, std::string_view type, std::string_view help) {
  text += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

void append_value(std::string& text, std::string_view name, std::string_view type, std::string_view help,
                  uint64_t value) {
  begin_metric(text, name, type, help);
  text += fmt::format("{} {}\n", name, value);
}

// Nothing where nothing was ever guessed.
void append_drafts(std::string& text, const DraftCounts& drafts) {
  if (drafts.steps == 0) return;
  append_value(text, "nmoe_draft_steps_total", "counter", "Steps of single texts in which guesses of them were run.",
               static_cast<uint64_t>(drafts.steps));
  append_value(text, "nmoe_draft_tokens_total", "counter", "Guesses that were run.",
               static_cast<uint64_t>(drafts.drafted));
  const auto append_places = [&](std::string_view name, std::string_view help, const auto& counts) {
    begin_metric(text, name, "counter", help);
    for (size_t i = 0; i < counts.size() && drafts.reached[i] > 0; ++i) {
      text += fmt::format("{}{{position=\"{}\"}} {}\n", name, i + 1, counts[i]);
    }
  };
  append_places("nmoe_draft_reached_total", "Guesses by their place in a step, where those before were right.",
                drafts.reached);
  append_places("nmoe_draft_accepted_total", "Of these, those that were right.", drafts.accepted);
}

}  // namespace

void ServerMetrics::Histogram::add(Duration duration) {
  const double seconds = duration.count();
  ++counts[static_cast<size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
  sum += seconds;
}

void ServerMetrics::count_request(const std::string& route, int status, Duration duration) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
  durations_[route].add(duration);
}

void ServerMetrics::count_first_token(Duration duration) {
  const std::lock_guard lock(mutex_);
  first_tokens_.add(duration);
}

void ServerMetrics::count_generation(const GenerationResult& result) {
  const std::lock_guard lock(mutex_);
  ++generations_[std::string(finish_reason_name(result.reason))];
  prompt_tokens_ += static_cast<uint64_t>(result.prompt_tokens);
  cached_tokens_ += static_cast<uint64_t>(result.cached_tokens);
  output_tokens_ += static_cast<uint64_t>(result.output_tokens);
}

void ServerMetrics::append(std::string& text, const std::string& name, const std::string& labels,
                           const Histogram& histogram) {
  const std::string separator = labels.empty() ? "" : ",", braces = labels.empty() ? "" : "{" + labels + "}";
  uint64_t count = 0;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    count += histogram.counts[i];  // a bucket holds those below it too
    const std::string bound = i < kBounds.size() ? fmt::format("{}", kBounds[i]) : "+Inf";
    text += fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, separator, bound, count);
  }
  text += fmt::format("{0}_sum{1} {2}\n{0}_count{1} {3}\n", name, braces, histogram.sum, count);
}

std::string ServerMetrics::text(const EngineLoad& load, int64_t in_flight) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  begin_metric(text, "nmoe_requests_total", "counter", "HTTP requests that were answered.");
  for (const auto& [key, count] : requests_) {
    text += fmt::format("nmoe_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
  }
  append_value(text, "nmoe_requests_in_flight", "gauge", "HTTP requests that are being answered with a text.",
               static_cast<uint64_t>(in_flight));
  append_value(text, "nmoe_sequences_running", "gauge", "Texts that are being written.",
               static_cast<uint64_t>(load.running));
  append_value(text, "nmoe_sequences_waiting", "gauge", "Texts that wait for one of the slots.",
               static_cast<uint64_t>(load.waiting));
  append_value(text, "nmoe_sequences_max", "gauge", "Slots: texts that can be written at the same time.",
               static_cast<uint64_t>(load.max_sequences));
  append_value(text, "nmoe_cache_pages", "gauge", "Pages of the cache, each of as many positions of a text.",
               static_cast<uint64_t>(load.num_pages));
  append_value(text, "nmoe_cache_pages_used", "gauge", "Of these, those of texts that are being written.",
               static_cast<uint64_t>(load.pages_used));
  append_value(text, "nmoe_cache_pages_kept", "gauge", "Of these, those that texts to come may begin with.",
               static_cast<uint64_t>(load.pages_kept));
  append_value(text, "nmoe_preemptions_total", "counter",
               "Texts that had to wait again, since there were no pages left.",
               static_cast<uint64_t>(load.preemptions));
  append_drafts(text, load.drafts);
  begin_metric(text, "nmoe_generations_total", "counter", "Texts that ended, by what ended them.");
  for (const auto& [reason, count] : generations_) {
    text += fmt::format("nmoe_generations_total{{reason=\"{}\"}} {}\n", reason, count);
  }
  append_value(text, "nmoe_prompt_tokens_total", "counter", "Tokens of the prompts of texts that ended.",
               prompt_tokens_);
  append_value(text, "nmoe_cached_prompt_tokens_total", "counter", "Of these, those that were in the cache already.",
               cached_tokens_);
  append_value(text, "nmoe_output_tokens_total", "counter", "Tokens written in texts that ended.", output_tokens_);
  begin_metric(text, "nmoe_time_to_first_token_seconds", "histogram",
               "From when a text was queued to its first token.");
  append(text, "nmoe_time_to_first_token_seconds", "", first_tokens_);
  begin_metric(text, "nmoe_request_duration_seconds", "histogram",
               "From the beginning of an HTTP request to the end of its answer.");
  for (const auto& [route, histogram] : durations_) {
    append(text, "nmoe_request_duration_seconds", fmt::format("route=\"{}\"", route), histogram);
  }
  return text;
}

}  // namespace nmoe
