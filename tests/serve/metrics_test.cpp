// What Prometheus would read.
#include "serve/metrics.h"

#include <chrono>
#include <map>
#include <regex>
#include <thread>

#include "serve/served_model.h"

namespace nmoe {
namespace {

// Samples by name and labels. Every line must be of the text format, and every sample of a metric that was declared.
std::map<std::string, double> samples_of(const std::string& text) {
  static const std::regex help(R"(# HELP [a-z_]+ [A-Z].*\.)"), type(R"(# TYPE ([a-z_]+) (counter|gauge|histogram))");
  static const std::regex sample(R"(([a-z_]+)(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? ([0-9.e+-]+))");
  std::map<std::string, double> samples;
  std::string declared;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    std::smatch match;
    if (std::regex_match(line, match, type)) {
      declared = match[1];
    } else if (std::regex_match(line, match, sample)) {
      EXPECT_TRUE(match[1].str().starts_with(declared)) << line;
      EXPECT_TRUE(samples.emplace(match[1].str() + match[2].str(), std::stod(match[4])).second) << "twice: " << line;
    } else {
      EXPECT_TRUE(std::regex_match(line, help)) << line;
    }
  }
  EXPECT_TRUE(text.ends_with("\n"));
  return samples;
}

std::map<std::string, double> metrics_of(const ServedModel& server) {
  const httplib::Result result = server.client().Get("/metrics");
  NMOE_CHECK(result && result->status == 200, "no metrics");
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  return samples_of(result->body);
}

TEST(ServerMetricsTest, Buckets) {
  ServerMetrics metrics;
  for (const double seconds : {0.005, 0.006, 2.5, 1e4}) {
    metrics.count_request("/v1/completions", 200, ServerMetrics::Duration(seconds));
  }
  metrics.count_request("/v1/completions", 429, ServerMetrics::Duration(0));
  const auto samples = samples_of(metrics.text({.running = 2,
                                                .waiting = 3,
                                                .max_sequences = 8,
                                                .num_pages = 70,
                                                .pages_used = 20,
                                                .pages_kept = 30,
                                                .preemptions = 5},
                                               4));
  const auto bucket = [&](const std::string& bound) {
    return samples.at("nmoe_request_duration_seconds_bucket{route=\"/v1/completions\",le=\"" + bound + "\"}");
  };
  EXPECT_EQ(bucket("0.005"), 2);  // a bound is in its bucket, and so is what is below
  EXPECT_EQ(bucket("0.01"), 3);
  EXPECT_EQ(bucket("1"), 3);
  EXPECT_EQ(bucket("2.5"), 4);
  EXPECT_EQ(bucket("300"), 4);
  EXPECT_EQ(bucket("+Inf"), 5);
  EXPECT_EQ(samples.at("nmoe_request_duration_seconds_count{route=\"/v1/completions\"}"), 5);
  EXPECT_EQ(samples.at("nmoe_request_duration_seconds_sum{route=\"/v1/completions\"}"), 10002.511);
  EXPECT_EQ(samples.at("nmoe_requests_total{route=\"/v1/completions\",status=\"200\"}"), 4);
  EXPECT_EQ(samples.at("nmoe_requests_total{route=\"/v1/completions\",status=\"429\"}"), 1);
  EXPECT_EQ(samples.at("nmoe_sequences_running"), 2);
  EXPECT_EQ(samples.at("nmoe_sequences_waiting"), 3);
  EXPECT_EQ(samples.at("nmoe_sequences_max"), 8);
  EXPECT_EQ(samples.at("nmoe_cache_pages"), 70);
  EXPECT_EQ(samples.at("nmoe_cache_pages_used"), 20);
  EXPECT_EQ(samples.at("nmoe_cache_pages_kept"), 30);
  EXPECT_EQ(samples.at("nmoe_preemptions_total"), 5);
  EXPECT_EQ(samples.at("nmoe_requests_in_flight"), 4);
  EXPECT_EQ(samples.at("nmoe_time_to_first_token_seconds_count"), 0);
}

TEST(ServerMetricsTest, Guesses) {
  DraftCounts drafts{.steps = 4, .drafted = 9};
  drafts.reached = {4, 3};
  drafts.accepted = {3, 1};
  const auto samples = samples_of(ServerMetrics().text({.drafts = drafts}, 0));
  EXPECT_EQ(samples.at("nmoe_draft_steps_total"), 4);
  EXPECT_EQ(samples.at("nmoe_draft_tokens_total"), 9);
  EXPECT_EQ(samples.at("nmoe_draft_reached_total{position=\"1\"}"), 4);
  EXPECT_EQ(samples.at("nmoe_draft_reached_total{position=\"2\"}"), 3);
  EXPECT_EQ(samples.at("nmoe_draft_accepted_total{position=\"1\"}"), 3);
  EXPECT_EQ(samples.at("nmoe_draft_accepted_total{position=\"2\"}"), 1);
  EXPECT_FALSE(samples.contains("nmoe_draft_reached_total{position=\"3\"}"));
}

// The same texts, and each says what came of its guesses.
TEST(ServerMetricsTest, OfAServerThatGuesses) {
  const ServedModel plain, guessing({"--draft", "ngram", "--draft-tokens", "6"});
  const ordered_json request = {
      {"prompt", "the cat sat. the cat sat. the cat"}, {"max_tokens", 40}, {"temperature", 0}, {"ignore_eos", true}};
  const ordered_json expected = plain.complete(request), actual = guessing.complete(request);
  EXPECT_EQ(actual["choices"], expected["choices"]);
  EXPECT_FALSE(expected["usage"].contains("completion_tokens_details"));
  const ordered_json& details = actual["usage"]["completion_tokens_details"];
  const auto samples = metrics_of(guessing);
  double accepted = 0.0;
  for (const auto& [name, value] : samples) accepted += name.starts_with("nmoe_draft_accepted_total{") ? value : 0.0;
  EXPECT_GT(accepted, 0);
  EXPECT_EQ(details["accepted_prediction_tokens"], accepted);
  EXPECT_EQ(details["rejected_prediction_tokens"], samples.at("nmoe_draft_tokens_total") - accepted);
}

TEST(ServerMetricsTest, OfAServer) {
  const ServedModel server({"--chat-template", "chat.jinja", "--cache-positions", "300"});
  EXPECT_EQ(metrics_of(server).at("nmoe_output_tokens_total"), 0);
  EXPECT_EQ(metrics_of(server).at("nmoe_cache_pages"), 3);
  const auto begin = std::chrono::steady_clock::now();
  server.complete({{"prompt", "the cat"}, {"max_tokens", 5}, {"n", 2}, {"ignore_eos", true}});
  server.stream("/v1/completions",
                {{"prompt", ordered_json::array({97, 98})}, {"max_tokens", 7}, {"ignore_eos", true}});
  server.complete({{"prompt", "the"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}});
  server.post("/v1/chat/completions", "{}");
  server.client().Get("/v1/models/tiny");
  server.client().Get("/no/such/path");

  std::map<std::string, double> samples;
  const auto requests = [&](const std::string& route, int status) {
    return samples["nmoe_requests_total{route=\"" + route + "\",status=\"" + std::to_string(status) + "\"}"];
  };
  // A request is counted once its answer has been sent, which the client may see before.
  const auto answered = [&] {
    return requests("/v1/completions", 200) + requests("/v1/chat/completions", 400) + requests("/v1/models", 200) +
           requests("other", 404);
  };
  for (int i = 0; i < 1000 && answered() < 6; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    samples = metrics_of(server);
  }
  EXPECT_EQ(requests("/v1/completions", 200), 3);
  EXPECT_EQ(requests("/v1/chat/completions", 400), 1);
  EXPECT_EQ(requests("/v1/models", 200), 1);
  EXPECT_EQ(requests("other", 404), 1);
  EXPECT_GE(requests("/metrics", 200), 1);
  EXPECT_EQ(samples["nmoe_generations_total{reason=\"length\"}"], 4);
  EXPECT_EQ(samples["nmoe_prompt_tokens_total"], 2 * 8 + 2 + 4);
  EXPECT_EQ(samples["nmoe_output_tokens_total"], 2 * 5 + 7);
  EXPECT_EQ(samples["nmoe_sequences_running"], 0);
  EXPECT_EQ(samples["nmoe_time_to_first_token_seconds_count"], 3);  // one had no token to write
  const double first_tokens = samples["nmoe_time_to_first_token_seconds_sum"],
               whole = samples["nmoe_request_duration_seconds_sum{route=\"/v1/completions\"}"];
  EXPECT_GT(first_tokens, 0);
  EXPECT_LT(first_tokens, 2 * whole);  // of two generations in one request, and one in another
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(whole, taken.count());
}

TEST(ServerMetricsTest, WhatRunsAndWaits) {
  ServedModel server({"--max-sequences", "1", "--max-queue", "1", "--max-context", "201000"});
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back(
        [&] { server.post("/v1/completions", R"({"prompt": "the", "max_tokens": 200000, "ignore_eos": true})"); });
    EXPECT_TRUE(server.becomes(i == 0 ? "running" : "waiting", 1));
  }
  std::map<std::string, double> samples = metrics_of(server);
  EXPECT_EQ(samples["nmoe_sequences_running"], 1);
  EXPECT_EQ(samples["nmoe_sequences_waiting"], 1);
  EXPECT_EQ(samples["nmoe_requests_in_flight"], 2);
  server.program().send(SIGKILL);
  for (std::thread& client : clients) client.join();
}

TEST(ServerMetricsTest, NeedTheKey) {
  write_file_atomically(trained_model() / "key", "secret\n");
  const ServedModel server({"--api-key-file", "key"});
  ServedModel::expect_error(server.client().Get("/metrics"), 401, "", "API key");
}

}  // namespace
}  // namespace nmoe
