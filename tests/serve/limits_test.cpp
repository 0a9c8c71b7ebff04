// What the server refuses, and how it ends.
#include <csignal>
#include <optional>
#include <thread>

#include "serve/served_model.h"

namespace nmoe {
namespace {

constexpr const char* kPath = "/v1/completions";

// A text that takes a while.
ordered_json long_request(bool stream) {
  return {{"prompt", "the"}, {"max_tokens", 200000}, {"ignore_eos", true}, {"stream", stream}};
}
const std::vector<std::string> kOneSlot = {"--max-sequences", "1", "--max-queue", "1", "--max-context", "201000"};

TEST(ServeLimitsTest, Paths) {
  const ServedModel server;
  httplib::Client client = server.client();
  const ordered_json models = ordered_json::parse(client.Get("/v1/models")->body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 64);
  EXPECT_EQ(ordered_json::parse(client.Get("/v1/models/tiny")->body)["id"], "tiny");
  EXPECT_EQ(ordered_json::parse(client.Get("/health")->body)["status"], "ok");
  ServedModel::expect_error(client.Get("/v1/models/other"), 404, "model", "'other' does not exist");
  ServedModel::expect_error(client.Get("/"), 404, "", "Invalid URL (GET /)");
  ServedModel::expect_error(client.Get("/v1/completions/x"), 404, "", "Invalid URL (GET /v1/completions/x)");
  ServedModel::expect_error(client.Options("/v1"), 404, "", "Invalid URL (OPTIONS /v1)");
  const httplib::Result unknown = client.Post("/v1/embeddings", "{}", "application/json");
  ServedModel::expect_error(unknown, 404, "", "Invalid URL (POST /v1/embeddings)");
  EXPECT_EQ(unknown->get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(ordered_json::parse(unknown->body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(ordered_json::parse(unknown->body)["error"]["code"], "unknown_url");
  ServedModel::expect_error(client.Get(kPath), 405, "", "takes POST");
  ServedModel::expect_error(client.Delete("/v1/models"), 405, "", "takes GET");
  // After all that the connection still works.
  EXPECT_EQ(client.Get("/health")->status, 200);
}

TEST(ServeLimitsTest, Requests) {
  const ServedModel server;
  const auto fails = [&](const ordered_json& request, int status, const std::string& param, const std::string& what) {
    ServedModel::expect_error(server.post(kPath, request.dump()), status, param, what);
  };
  const ordered_json overlong = {{"prompt", std::string(64, 'x')}};
  fails(overlong, 400, "prompt", "maximum context length is 64 tokens. However, your prompt has 65 tokens");
  const ordered_json error = ordered_json::parse(server.post(kPath, overlong.dump())->body)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["code"], "context_length_exceeded");
  fails({{"prompt", ordered_json::array({257})}}, 400, "prompt", "below 257");
  fails({{"model", "other"}}, 404, "model", "'other' does not exist");
  fails({{"n", 100}}, 400, "prompt", "this server takes 72");
  ServedModel::expect_error(server.post(kPath, std::string((8 << 20) + 1, ' ')), 413, "", "larger than");
  ServedModel::expect_error(server.post(kPath, "{"), 400, "", "not valid JSON");
  httplib::Client client = server.client();
  ServedModel::expect_error(client.Post(kPath, "{}", "text/plain"), 415, "", "application/json");
  // What was too long is not kept: the server goes on.
  EXPECT_EQ(server.complete({{"prompt", std::string(63, 'x')}, {"max_tokens", 5}})["choices"][0]["finish_reason"],
            "length");
  EXPECT_TRUE(contains(server.complete(ordered_json::object())["id"].get<std::string>(), "cmpl-"));
}

TEST(ServeLimitsTest, AFullQueue) {
  ServedModel server(kOneSlot);
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back([&] { server.post(kPath, long_request(false).dump()); });
    EXPECT_TRUE(server.becomes(i == 0 ? "running" : "waiting", 1));
  }
  const httplib::Result refused = server.post(kPath, R"({"prompt": "a"})");
  ServedModel::expect_error(refused, 429, "", "no room for 1 more");
  EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
  server.program().send(SIGKILL);
  for (std::thread& client : clients) client.join();
}

TEST(ServeLimitsTest, AClientThatLeaves) {
  ServedModel server(kOneSlot);
  httplib::Client reader = server.client();
  size_t received = 0;
  httplib::Request request;
  request.method = "POST";
  request.path = kPath;
  request.body = long_request(true).dump();
  request.set_header("Content-Type", "application/json");
  request.content_receiver = [&](const char*, size_t size, uint64_t, uint64_t) {
    received += size;
    return received < 1000;
  };
  EXPECT_FALSE(reader.send(request));
  EXPECT_TRUE(server.becomes("running", 0));

  httplib::Client waiting = server.client();
  waiting.set_read_timeout(0, 300000);
  EXPECT_FALSE(waiting.Post(kPath, long_request(false).dump(), "application/json"));
  EXPECT_TRUE(server.becomes("running", 0));
  EXPECT_TRUE(server.program().wait_for("the client left"));
  EXPECT_EQ(server.complete({{"prompt", "a"}, {"max_tokens", 3}, {"temperature", 0}})["usage"]["completion_tokens"], 3);
}

TEST(ServeLimitsTest, AnApiKey) {
  const ServedModel server({"--api-key", "secret"});
  ServedModel::expect_error(server.client().Get("/v1/models"), 401, "", "API key");
  ServedModel::expect_error(server.post(kPath, "{}"), 401, "", "API key");
  ServedModel::expect_error(server.post(kPath, "{}", {{"Authorization", "Bearer secre"}}), 401, "", "API key");
  EXPECT_EQ(server.post(kPath, "{}", {{"Authorization", "Bearer secret"}})->status, 200);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
}

TEST(ServeLimitsTest, StopsAfterWhatRuns) {
  ServedModel server({"--max-sequences", "2", "--max-context", "201000"});
  std::optional<httplib::Result> finished, aborted;
  // One ends within the time that is given, one does not.
  std::thread quick(
      [&] { finished = server.post(kPath, R"({"prompt": "the", "max_tokens": 1500, "ignore_eos": true})"); });
  std::thread slow([&] { aborted = server.post(kPath, long_request(true).dump()); });
  EXPECT_TRUE(server.becomes("running", 2));
  server.program().send(SIGTERM);
  httplib::Result refused = server.post(kPath, "{}");
  for (int i = 0; i < 100 && refused && refused->status == 200; ++i) refused = server.post(kPath, "{}");
  ServedModel::expect_error(refused, 503, "", "stopping");
  quick.join();
  slow.join();
  ASSERT_TRUE(finished && *finished);
  EXPECT_EQ(ordered_json::parse((*finished)->body)["usage"]["completion_tokens"], 1500);
  ASSERT_TRUE(aborted && *aborted);
  const std::string& cut = (*aborted)->body;
  EXPECT_TRUE(contains(cut.substr(cut.size() - std::min<size_t>(cut.size(), 300)), "the server is stopping"));
  const test::Outcome outcome = server.program().wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(contains(outcome.err, "stopped by SIGTERM"));
}

TEST(ServeLimitsTest, APortThatIsTaken) {
  const ServedModel server;
  const test::Outcome second =
      test::run_n(trained_model(), {"serve", "runs/checkpoints/tiny", "--port", std::to_string(server.port())});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_TRUE(contains(second.err, "cannot listen on 127.0.0.1:" + std::to_string(server.port())));
  EXPECT_TRUE(contains(second.err, "--port"));
  const test::Outcome bad = test::run_n(trained_model(), {"serve", "runs/checkpoints/tiny", "--chat-template",
                                                          "tiny.toml", "--host", "no.such.host.invalid"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_TRUE(contains(bad.err, "cannot listen on no.such.host.invalid"));
}

}  // namespace
}  // namespace nmoe
