// A small model behind `n serve`, and a client of it.
#pragma once

#include <gtest/gtest.h>
#include <httplib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/program.h"
#include "support/temp_dir.h"
#include "support/tiny_run.h"

namespace nmoe {

using nlohmann::ordered_json;
using test::contains;

inline constexpr const char* kChatTemplate =
    "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if shout %}LOUD {% endif %}{% if add_generation_prompt %}<|endoftext|>assistant: the{% endif %}";

// The folder of a run, trained once for all tests of the program.
inline const fs::path& trained_model() {
  static const test::TempDir dir;
  static const bool made = [] {
    const auto run = [](std::vector<std::string> arguments) {
      const test::Outcome outcome = test::run_n(dir.path(), std::move(arguments));
      NMOE_CHECK(outcome.exit_code == 0, "{}", outcome.err);
    };
    write_file_atomically(dir.path() / "tiny.toml", test::kTinyToml);
    write_file_atomically(dir.path() / "train.txt", test::tiny_text(6000, 1));
    write_file_atomically(dir.path() / "valid.txt", test::tiny_text(700, 2));
    write_file_atomically(dir.path() / "chat.jinja", kChatTemplate);
    run({"prep", "train.txt", "--valid", "valid.txt", "--out", "data", "--threads", "1"});
    run({"train", "tiny.toml", "--set", "data.seq_len=64", "--set", "train.steps=55"});
    return true;
  }();
  NMOE_CHECK(made, "the model is made once");
  return dir.path();
}

// `n serve` on a free port, and what a client does.
class ServedModel {
 public:
  explicit ServedModel(const std::vector<std::string>& options = {},
                       const std::string& checkpoint = "runs/checkpoints/tiny") {
    std::vector<std::string> command = {NMOE_PROGRAM, "serve", checkpoint, "--port", "0", "--threads", "1"};
    command.insert(command.end(), options.begin(), options.end());
    program_ = std::make_unique<test::Program>(trained_model(), command);
    NMOE_CHECK(program_->wait_for("serving tiny at http://"), "{}", program_->errors());
    const std::string text = program_->errors();
    port_ = std::stoi(text.substr(text.find(':', text.find("http://") + 7) + 1));
  }

  test::Program& program() { return *program_; }
  int port() const { return port_; }

  httplib::Client client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(60);
    return client;
  }
  httplib::Result post(const std::string& path, const std::string& body, const httplib::Headers& headers = {}) const {
    return client().Post(path, headers, body, "application/json");
  }

  // The answer of a request that must be good.
  ordered_json ask(const std::string& path, const ordered_json& request) const {
    const httplib::Result result = post(path, request.dump());
    if (!result || result->status != 200) {
      ADD_FAILURE() << (result ? result->body : httplib::to_string(result.error()));
      return {};
    }
    return ordered_json::parse(result->body);
  }
  ordered_json complete(const ordered_json& request) const { return ask("/v1/completions", request); }
  // The text of its only choice.
  std::string text(const ordered_json& request) const { return complete(request)["choices"][0]["text"]; }

  // The events of a stream, but for the [DONE] that must end it.
  std::vector<ordered_json> stream(const std::string& path, ordered_json request) const {
    request["stream"] = true;
    const httplib::Result result = post(path, request.dump());
    std::vector<ordered_json> events;
    if (!result || result->status != 200) {
      ADD_FAILURE() << (result ? result->body : httplib::to_string(result.error()));
      return events;
    }
    EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
    bool done = false;
    size_t begin = 0;
    for (size_t end = result->body.find("\n\n"); end != std::string::npos; end = result->body.find("\n\n", begin)) {
      const std::string event = result->body.substr(begin, end - begin);
      begin = end + 2;
      EXPECT_FALSE(done) << event;
      EXPECT_EQ(event.substr(0, 6), "data: ");
      done = event == "data: [DONE]";
      if (!done) events.push_back(ordered_json::parse(event.substr(6)));
    }
    EXPECT_TRUE(done);
    EXPECT_EQ(begin, result->body.size());
    return events;
  }

  // The status, and the error it comes with.
  static void expect_error(const httplib::Result& result, int status, const std::string& param,
                           const std::string& message) {
    ASSERT_TRUE(result) << httplib::to_string(result.error());
    EXPECT_EQ(result->status, status) << result->body;
    const ordered_json error = ordered_json::parse(result->body).at("error");
    EXPECT_EQ(error.at("param"), param.empty() ? ordered_json() : ordered_json(param)) << result->body;
    EXPECT_TRUE(contains(error.at("message").get<std::string>(), message));
    EXPECT_TRUE(error.at("type").is_string());
    EXPECT_TRUE(error.contains("code"));
  }

  // Whether /health says so within ten seconds.
  bool becomes(const std::string& key, int64_t value) const {
    for (int i = 0; i < 1000; ++i) {
      const httplib::Result result = client().Get("/health");
      if (result && ordered_json::parse(result->body).at(key) == value) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  std::unique_ptr<test::Program> program_;
  int port_ = 0;
};

}  // namespace nmoe
