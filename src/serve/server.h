// A model behind OpenAI's HTTP API: /v1/completions, /v1/chat/completions, /v1/models and /v1/models/NAME; /health,
// /metrics and a page to chat on (/) beside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/signals.h"
#include "chat/chat_template.h"
#include "chat/checkpoint_settings.h"
#include "chat/reply_channels.h"
#include "infer/engine.h"
#include "serve/api_error.h"
#include "serve/api_reply.h"
#include "serve/api_request.h"
#include "serve/generation_queue.h"
#include "serve/host_names.h"
#include "serve/http_server.h"
#include "serve/metrics.h"

namespace nmoe {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;         // 0: any that is free
  int64_t max_queue = 64;  // generations that wait for a slot; more are refused
  std::string api_key;     // "": none is asked for
  std::string model_name;
  // Names that a request's Host may have beside those that HostNames knows.
  std::vector<std::string> allowed_hosts;
  HttpLimits limits;
};

class ApiServer : private HttpHandler {
 public:
  // What there is to serve. `chat` may be null; then `no_chat` says why. All live as long as the server, which alone
  // drives the engine. Error (runtime) when it cannot listen.
  ApiServer(InferenceEngine& engine, const CheckpointSettings& settings, const ChatTemplate* chat, std::string no_chat,
            ServerOptions options);
  ~ApiServer() override;
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // Where it listens, from construction on.
  int port() const { return http_.port(); }

  // Answers until `stop` is requested; then refuses what is new, gives what runs a few seconds, and returns. One line a
  // request goes to standard error.
  void run(const StopSignal& stop);

 private:
  struct Exchange;

  // GETs are answered here, and what is refused by its head.
  std::optional<HttpReply> on_head(const HttpRequest& request) override;
  void on_request(const HttpRequest& request, HttpAnswer& answer) override;
  HttpReply refusal(int status, const std::string& message) override;
  void log(const HttpLogEntry& entry) override;

  HttpReply get(const HttpRequest& request) const;
  void check_host(const HttpRequest& request) const;
  void check_key(const HttpRequest& request) const;
  void generate(const HttpRequest& request, HttpAnswer& answer);
  std::vector<int32_t> encode_chat(const ApiRequest& request) const;
  // Of a request: ids, and what its reply shows of each.
  struct Prompts {
    std::vector<std::vector<int32_t>> ids;
    std::vector<ReplyPrompt> shown;
  };
  // ApiError where an id is none of the vocabulary's.
  Prompts encode_prompts(const ApiRequest& request, bool is_chat) const;
  // request.n of each prompt, one behind the other. ApiError where a prompt is empty or longer than the context.
  std::vector<GenerationRequest> generations_of(const ApiRequest& request,
                                                std::span<const std::vector<int32_t>> prompts, bool is_chat);
  void send(Exchange& exchange, HttpAnswer& answer) const;

  InferenceEngine& engine_;
  const CheckpointSettings& settings_;
  const ChatTemplate* chat_;
  std::string no_chat_;
  std::optional<int32_t> end_of_turn_;
  std::optional<ChannelMarks> channels_;
  ServerOptions options_;
  HostNames hosts_;
  int64_t created_;  // seconds since 1970
  std::shared_ptr<ServerMetrics> metrics_ = std::make_shared<ServerMetrics>();
  GenerationQueue queue_;
  std::atomic<bool> stopping_ = false;      // nothing new is taken
  std::atomic<bool> aborting_ = false;      // what runs is given up
  std::atomic<uint64_t> seeds_;             // of requests that name none
  std::atomic<int64_t> num_exchanges_ = 0;  // requests that are being answered with a text
  HttpServer http_;                         // last: its threads call the others
};

}  // namespace nmoe
