// What the server refuses, and how it ends.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "serve/raw_client.h"
#include "serve/served_model.h"

namespace nmoe {
namespace {

constexpr const char* kCompletionsPath = "/v1/completions";

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
  ServedModel::expect_error(client.Get("/viz.html"), 404, "", "Invalid URL (GET /viz.html)");
  ServedModel::expect_error(client.Get("/v1/completions/x"), 404, "", "Invalid URL (GET /v1/completions/x)");
  ServedModel::expect_error(client.Options("/v1"), 404, "", "Invalid URL (OPTIONS /v1)");
  const httplib::Result unknown = client.Post("/v1/embeddings", "{}", "application/json");
  ServedModel::expect_error(unknown, 404, "", "Invalid URL (POST /v1/embeddings)");
  EXPECT_EQ(unknown->get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(ordered_json::parse(unknown->body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(ordered_json::parse(unknown->body)["error"]["code"], "unknown_url");
  ServedModel::expect_error(client.Get(kCompletionsPath), 405, "", "takes POST");
  ServedModel::expect_error(client.Delete("/v1/models"), 405, "", "takes GET");
  // After all that the connection still works.
  EXPECT_EQ(client.Get("/health")->status, 200);
}

TEST(ServeLimitsTest, Requests) {
  const ServedModel server;
  const auto fails = [&](const ordered_json& request, int status, const std::string& param, const std::string& what) {
    ServedModel::expect_error(server.post(kCompletionsPath, request.dump()), status, param, what);
  };
  const ordered_json overlong = {{"prompt", std::string(64, 'x')}};
  fails(overlong, 400, "prompt", "maximum context length is 64 tokens. However, your prompt has 65 tokens");
  const ordered_json error = ordered_json::parse(server.post(kCompletionsPath, overlong.dump())->body)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["code"], "context_length_exceeded");
  fails({{"prompt", ordered_json::array({257})}}, 400, "prompt", "below 257");
  fails({{"model", "other"}}, 404, "model", "'other' does not exist");
  fails({{"n", 100}}, 400, "prompt", "this server takes 72");
  ServedModel::expect_error(server.post(kCompletionsPath, std::string((8 << 20) + 1, ' ')), 413, "", "larger than");
  ServedModel::expect_error(server.post(kCompletionsPath, "{"), 400, "", "not valid JSON");
  httplib::Client client = server.client();
  ServedModel::expect_error(client.Post(kCompletionsPath, "{}", "text/plain"), 415, "", "application/json");
  // What was too long is not kept: the server goes on.
  const ordered_json request = {{"prompt", std::string(63, 'x')}, {"max_tokens", 5}, {"ignore_eos", true}};
  EXPECT_EQ(server.complete(request)["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(contains(server.complete(ordered_json::object())["id"].get<std::string>(), "cmpl-"));
}

// A model that was trained to see its own document only.
TEST(ServeLimitsTest, AnOverlongPromptWhereDocumentsAreMasked) {
  const test::Outcome trained =
      test::run_n(trained_model(), {"train", "tiny.toml", "--set", "run.name=masked", "--set", "data.seq_len=64",
                                    "--set", "data.mask_documents=true", "--set", "train.steps=1"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const ServedModel server({"--model-name", "tiny", "--chat-template", "chat.jinja"}, "runs/checkpoints/masked");
  const auto fails = [&](const std::string& path, const ordered_json& request, const std::string& param) {
    const httplib::Result result = server.post(path, request.dump());
    ServedModel::expect_error(result, 400, param, "maximum context length is 64 tokens. However, your prompt has ");
    const ordered_json error = ordered_json::parse(result->body)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_FALSE(contains(error["message"].get<std::string>(), "--"));  // an option is not a word to a client
  };
  fails(kCompletionsPath, {{"prompt", std::string(65, 'x')}}, "prompt");
  std::vector<int32_t> ids(70, 'x');
  fails(kCompletionsPath, {{"prompt", ids}}, "prompt");
  ids[40] = 256;  // the end of a document within it
  fails(kCompletionsPath, {{"prompt", ids}}, "prompt");
  fails("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", std::string(64, 'x')}}}}}, "messages");
}

TEST(ServeLimitsTest, AFullQueue) {
  ServedModel server(kOneSlot);
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back([&] { server.post(kCompletionsPath, long_request(false).dump()); });
    EXPECT_TRUE(server.becomes(i == 0 ? "running" : "waiting", 1));
  }
  const httplib::Result refused = server.post(kCompletionsPath, R"({"prompt": "a"})");
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
  request.path = kCompletionsPath;
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
  EXPECT_FALSE(waiting.Post(kCompletionsPath, long_request(false).dump(), "application/json"));
  EXPECT_TRUE(server.becomes("running", 0));
  EXPECT_TRUE(server.program().wait_for("the client left"));
  EXPECT_EQ(server.complete({{"prompt", "a"}, {"max_tokens", 3}, {"temperature", 0}})["usage"]["completion_tokens"], 3);
}

TEST(ServeLimitsTest, AnApiKey) {
  write_file_atomically(trained_model() / "key", "secret\nnot a part of it\n");
  const ServedModel server({"--api-key-file", "key"});
  ServedModel::expect_error(server.client().Get("/v1/models"), 401, "", "API key");
  ServedModel::expect_error(server.post(kCompletionsPath, "{}"), 401, "", "API key");
  ServedModel::expect_error(server.post(kCompletionsPath, "{}", {{"Authorization", "Bearer secre"}}), 401, "",
                            "API key");
  EXPECT_EQ(server.post(kCompletionsPath, "{}", {{"Authorization", "Bearer secret"}})->status, 200);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
  // The page to talk with it asks for the key itself; it has no secret, and may load nothing from elsewhere.
  const httplib::Result page = server.client().Get("/");
  EXPECT_TRUE(contains(page->body, "<title>nmoe chat</title>"));
  EXPECT_TRUE(contains(page->get_header_value("Content-Security-Policy"), "default-src 'none'"));
  EXPECT_EQ(server.client().Get("/chat.js")->status, 200);
}

TEST(ServeLimitsTest, AKeyThatIsNone) {
  write_file_atomically(trained_model() / "empty", "\n");
  const auto serve = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"serve", "runs/checkpoints/tiny", "--port", "0"});
    return test::run_n(trained_model(), options);
  };
  const test::Outcome empty = serve({"--api-key-file", "empty"});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_TRUE(contains(empty.err, "begins with no key"));
  // Everyone on the machine would see it there.
  EXPECT_EQ(serve({"--api-key", "secret"}).exit_code, 2);
  setenv("NMOE_API_KEY", "other", 1);
  const test::Outcome twice = serve({"--api-key-file", "key"});
  unsetenv("NMOE_API_KEY");
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_TRUE(contains(twice.err, "NMOE_API_KEY"));
  const test::Outcome small = serve({"--max-body", "12"});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_TRUE(contains(small.err, "--max-body"));
}

// A page whose name was made to mean this machine (DNS rebinding) says that name.
TEST(ServeLimitsTest, ForeignHosts) {
  const ServedModel server({"--allow-host", "Models.Example"});
  const auto status = [&](const std::string& host) {
    const httplib::Result result = server.client().Get("/v1/models", {{"Host", host}});
    return result ? result->status : -1;
  };
  for (const char* good :
       {"localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "10.0.0.1", "models.example:80"}) {
    EXPECT_EQ(status(good), 200) << good;
  }
  for (const char* bad : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "1.2.3"}) {
    EXPECT_EQ(status(bad), 403) << bad;
  }
  ServedModel::expect_error(server.client().Get("/health", {{"Host", "evil.example"}}), 403, "", "--allow-host");
  ServedModel::expect_error(server.client().Get("/health", {{"Host", "a"}, {"Host", "localhost"}}), 400, "", "once");
}

TEST(ServeLimitsTest, TypesOfABody) {
  const ServedModel server;
  const auto status = [&](const std::string& type, const httplib::Headers& headers = {}) {
    return server.client().Post(kCompletionsPath, headers, R"({"max_tokens": 1})", type)->status;
  };
  EXPECT_EQ(status("APPLICATION/JSON"), 200);
  EXPECT_EQ(status("Application/Json; charset=UTF-8"), 200);
  EXPECT_EQ(status("application/jsonp"), 415);
  EXPECT_EQ(status("application/json", {{"Content-Encoding", "gzip"}}), 415);
}

// More slow clients than there are places: they wait for themselves alone.
TEST(ServeLimitsTest, SlowClients) {
  ServedModel server({"--max-connections", "50"});
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 150; ++i) {
    slow.push_back(std::make_unique<RawClient>(server.port()));
    slow.back()->send(i % 3 == 0   ? "GET /hea"
                      : i % 3 == 1 ? "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: "
                                   : "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                     "application/json\r\nContent-Length: 1000000\r\n\r\n{");
  }
  double worst = 0;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const httplib::Result health = server.client().Get("/health");
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    worst = std::max(worst, time.count());
    ASSERT_TRUE(health);
    EXPECT_EQ(health->status, 200);
  }
  EXPECT_LE(worst, 5.0);  // 0.05 on an idle machine; who is slow is borne for 20
  EXPECT_EQ(server.complete({{"prompt", "a"}, {"max_tokens", 3}, {"temperature", 0}})["usage"]["completion_tokens"], 3);
  const auto begin = std::chrono::steady_clock::now();
  server.program().send(SIGTERM);
  EXPECT_EQ(server.program().wait().exit_code, 0);
  EXPECT_LE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST(ServeLimitsTest, StopsAfterWhatRuns) {
  ServedModel server({"--max-sequences", "2", "--max-context", "201000"});
  std::optional<httplib::Result> finished, aborted;
  // One ends within the time that is given, one does not.
  std::thread slow([&] { aborted = server.post(kCompletionsPath, long_request(true).dump()); });
  EXPECT_TRUE(server.becomes("running", 1));
  std::thread quick([&] {
    finished = server.post(kCompletionsPath, R"({"prompt": "the", "max_tokens": 1500, "ignore_eos": true})");
  });
  EXPECT_TRUE(server.becomes("running", 2));
  server.program().send(SIGTERM);
  httplib::Result refused = server.post(kCompletionsPath, "{}");
  for (int i = 0; i < 100 && refused && refused->status == 200; ++i) refused = server.post(kCompletionsPath, "{}");
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
  const test::Outcome missing =
      test::run_n(trained_model(), {"serve", "runs/checkpoints/tiny", "--chat-template", "nowhere.jinja"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(contains(missing.err, "there is no chat template 'nowhere.jinja'"));
}

}  // namespace
}  // namespace nmoe
