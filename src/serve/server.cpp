#include "serve/server.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "chat/prompt.h"
#include "serve/api_reply.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMaxBody = 8 << 20;
constexpr auto kGrace = std::chrono::seconds(5);    // for what runs when the server stops
constexpr auto kLookForClient = milliseconds(200);  // how often a generation sees whether anyone waits for it
constexpr const char* kJson = "application/json";

// What the log line of the request in work says beside its status. A request stays on one thread.
thread_local std::string log_note;
thread_local Clock::time_point log_start;

// "GET" or "POST" for a path that is served, "" for others.
std::string_view method_of(const std::string& path) {
  if (path == "/v1/completions" || path == "/v1/chat/completions") return "POST";
  return path == "/health" || path == "/v1/models" || path.starts_with("/v1/models/") ? "GET" : "";
}

void set_error(httplib::Response& response, const ApiError& error) {
  response.status = error.status();
  response.set_content(error.json(), kJson);
  if (error.status() == 429 || error.status() == 503) response.set_header("Retry-After", "1");
  log_note = error.what();
}

// For one line of a log or a message: what a client sends must not break it.
std::string printable(std::string text) {
  constexpr size_t kMost = 200;
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  return text;
}

ApiError no_such_path(const httplib::Request& request) {
  const std::string_view method = method_of(request.path);
  if (method.empty()) {
    return ApiError(404, fmt::format("Invalid URL ({} {})", printable(request.method), printable(request.path)), "",
                    "unknown_url");
  }
  return ApiError(405, fmt::format("this path takes {}", method), "", "method_not_allowed");
}

void log_request(const httplib::Request& request, const httplib::Response& response) {
  // What is no request at all has neither beginning nor address.
  const bool known = log_start != Clock::time_point();
  const std::chrono::duration<double> time = known ? Clock::now() - log_start : Clock::duration();
  fmt::print(stderr, "{} {} {} {} {}{}{}\n", known ? request.remote_addr : "-", printable(request.method),
             printable(request.path), response.status, human_seconds(time.count()), log_note.empty() ? "" : ": ",
             printable(log_note));
  log_start = {};
  log_note.clear();
}

// Takes as long whether it is right or not.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
  }
  return difference == 0;
}

// A handler that answers errors as the API does.
template <class Action>
void answer(httplib::Response& response, Action&& action) {
  try {
    action();
  } catch (const ApiError& error) {
    set_error(response, error);
  } catch (const Error& error) {
    const bool bad_request = error.kind() == ErrorKind::kUsage;
    set_error(response, ApiError(bad_request ? 400 : 500, fmt::format("{} ({})", error.what(), error.remedy())));
  }
}

}  // namespace

// A generation and the answer made of it.
struct ApiServer::Exchange {
  Exchange(ApiRequest the_request, std::vector<ReplyPrompt> prompts, const std::string& model,
           const Tokenizer& tokenizer, std::atomic<int64_t>& count)
      : num_exchanges(count), request(std::move(the_request)), reply(request, std::move(prompts), model, tokenizer) {
    ++num_exchanges;
  }
  ~Exchange() { --num_exchanges; }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  std::atomic<int64_t>& num_exchanges;
  ApiRequest request;
  ApiReply reply;
  std::unique_ptr<Reply> events;
};

ApiServer::ApiServer(InferenceEngine& engine, const CheckpointSettings& settings, const ChatTemplate* chat,
                     std::string no_chat, ServerOptions options)
    : engine_(engine),
      settings_(settings),
      chat_(chat),
      no_chat_(std::move(no_chat)),
      options_(std::move(options)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      queue_(engine, options_.max_queue),
      seeds_(std::random_device()()),
      http_(std::make_unique<httplib::Server>()) {
  add_routes();
  // The library's own choice would let a second server take the same port.
  http_->set_socket_options([](int socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  http_->set_tcp_nodelay(true);
  http_->set_payload_max_length(kMaxBody);
  http_->set_keep_alive_max_count(1000);
  // A connection holds a thread: one for each generation there is room for, and some for those that are refused.
  const auto threads = static_cast<size_t>(std::min<int64_t>(queue_.capacity(), 1024)) + 16;
  http_->new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
  port_ = options_.port != 0 ? options_.port : http_->bind_to_any_port(options_.host);
  const bool bound = options_.port != 0 ? http_->bind_to_port(options_.host, options_.port) : port_ > 0;
  if (!bound) {
    throw runtime_error(fmt::format("cannot listen on {}:{}", options_.host, options_.port),
                        "another program may have the port: choose one with --port (0: any), and an address of this "
                        "machine with --host");
  }
}

ApiServer::~ApiServer() = default;

void ApiServer::add_routes() {
  http_->set_pre_routing_handler([](const httplib::Request&, httplib::Response&) {
    log_start = Clock::now();
    return httplib::Server::HandlerResponse::Unhandled;
  });
  http_->set_logger(log_request);
  // For what the library refuses by itself.
  http_->set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return;
    if (response.status == 404) return set_error(response, no_such_path(request));
    const bool large = response.status == 413;
    set_error(response, ApiError(response.status, large ? fmt::format("the body is larger than {} bytes", kMaxBody)
                                                        : "this is no request that the server understands"));
  });
  http_->set_exception_handler([](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
    set_error(response, ApiError(500, "an error of the server"));
  });

  const auto post = [this](const char* path, bool is_chat) {
    http_->Post(path, [this, is_chat](const httplib::Request& request, httplib::Response& response,
                                      const httplib::ContentReader& reader) {
      answer(response, [&] {
        const std::string body = read_body(request, response, reader);
        check_key(request);
        // A page in a browser can send other types to this machine without asking.
        if (!request.get_header_value("Content-Type").starts_with(kJson)) {
          throw ApiError(415, "Content-Type must be application/json", "", "unsupported_media_type");
        }
        generate(body, is_chat, response);
      });
    });
  };
  post("/v1/completions", false);
  post("/v1/chat/completions", true);
  http_->Get("/v1/models(/.*)?", [this](const httplib::Request& request, httplib::Response& response) {
    answer(response, [&] {
      check_key(request);
      const std::string name = request.path.substr(std::min(request.path.size(), std::string("/v1/models/").size()));
      if (!name.empty() && name != options_.model_name) {
        throw ApiError(404, fmt::format("the model '{}' does not exist", name), "model", "model_not_found");
      }
      const ordered_json model = {{"id", options_.model_name},
                                  {"object", "model"},
                                  {"created", created_},
                                  {"owned_by", "nmoe"},
                                  {"max_model_len", engine_.max_context()}};
      const ordered_json list = {{"object", "list"}, {"data", ordered_json::array({model})}};
      response.set_content((name.empty() ? list : model).dump(), kJson);
    });
  });
  http_->Get("/health", [this](const httplib::Request&, httplib::Response& response) {
    const EngineLoad load = engine_.load();
    const ordered_json health = {{"status", stopping_ ? "stopping" : "ok"},
                                 {"running", load.running},
                                 {"waiting", load.waiting},
                                 {"max_sequences", load.max_sequences}};
    response.status = stopping_ ? 503 : 200;
    response.set_content(health.dump(), kJson);
  });
  // Bodies that nobody asked for are read under the same limit.
  const auto refuse = [](const httplib::Request& request, httplib::Response& response,
                         const httplib::ContentReader& reader) {
    answer(response, [&] {
      read_body(request, response, reader);
      throw no_such_path(request);
    });
  };
  http_->Post(".*", refuse);
  http_->Put(".*", refuse);
  http_->Patch(".*", refuse);
  http_->Delete(".*", refuse);
}

void ApiServer::check_key(const httplib::Request& request) const {
  if (options_.api_key.empty()) return;
  if (!same_secret(request.get_header_value("Authorization"), "Bearer " + options_.api_key)) {
    throw ApiError(401, "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'", "",
                   "invalid_api_key");
  }
}

std::string ApiServer::read_body(const httplib::Request& request, const httplib::Response& response,
                                 const httplib::ContentReader& reader) {
  if (request.is_multipart_form_data()) {
    throw ApiError(415, "Content-Type must be application/json", "", "unsupported_media_type");
  }
  std::string body;
  bool too_large = false;
  const bool whole = reader([&](const char* data, size_t size) {
    too_large = body.size() + size > kMaxBody;  // a compressed one may be more than it seemed
    if (!too_large) body.append(data, size);
    return !too_large;
  });
  if (!whole && !too_large && response.status != 413) throw ApiError(400, "the body is not whole");
  if (!whole) throw ApiError(413, fmt::format("the body is larger than {} bytes", kMaxBody), "", "body_too_large");
  return body;
}

std::vector<int32_t> ApiServer::encode_chat(const ApiRequest& request) const {
  if (chat_ == nullptr) throw ApiError(400, no_chat_, "messages", "no_chat_template");
  try {
    return encode_rendered(chat_->render(request.messages, /*add_generation_prompt=*/true, request.template_variables),
                           engine_.tokenizer());
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "messages", "chat_template");
  }
}

void ApiServer::generate(const std::string& body, bool is_chat, httplib::Response& response) {
  if (stopping_) throw ApiError(503, "the server is stopping", "", "stopping");
  ApiRequest request =
      is_chat ? parse_chat_request(body, settings_.sampling) : parse_completion_request(body, settings_.sampling);
  if (!request.model.empty() && request.model != options_.model_name) {
    throw ApiError(404, fmt::format("the model '{}' does not exist; this is '{}'", request.model, options_.model_name),
                   "model", "model_not_found");
  }
  const char* field = is_chat ? "messages" : "prompt";
  const auto wanted = static_cast<int64_t>(std::max<size_t>(1, request.prompts.size())) * request.n;
  if (wanted > queue_.capacity()) {
    throw ApiError(400, fmt::format("{} texts at once; this server takes {}", wanted, queue_.capacity()), field,
                   "too_many_texts");
  }

  std::vector<std::vector<int32_t>> prompts;
  std::vector<ReplyPrompt> shown;
  const Tokenizer& tokenizer = engine_.tokenizer();
  if (is_chat) {
    prompts.push_back(encode_chat(request));
    shown.emplace_back();
  }
  for (const auto& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      prompts.push_back(encode_prompt(settings_, engine_, *text));
      // The text's own ids are never special: a special one in front is ours.
      const int32_t begin = settings_.bos_id.value_or(tokenizer.eos_id());
      const bool hidden = !prompts.back().empty() && prompts.back().front() == begin;
      shown.push_back({.text = *text, .hidden_tokens = hidden ? size_t{1} : 0});
    } else {
      prompts.push_back(std::get<std::vector<int32_t>>(prompt));
      const bool known = std::ranges::all_of(prompts.back(), [&](int32_t id) { return id < tokenizer.vocab_size(); });
      if (!known) throw ApiError(400, fmt::format("ids of a prompt must be below {}", tokenizer.vocab_size()), field);
      shown.push_back({.text = tokenizer.decode(prompts.back()), .hidden_tokens = 0});
    }
  }
  const uint64_t seed = request.seed.value_or(seeds_.fetch_add(static_cast<uint64_t>(request.n)));
  std::vector<GenerationRequest> generations;
  for (const std::vector<int32_t>& prompt : prompts) {
    const auto size = static_cast<int64_t>(prompt.size());
    if (prompt.empty()) throw ApiError(400, "the prompt is empty", field, "empty_prompt");
    if (size > engine_.max_context() && !engine_.config().data.mask_documents) {
      // In OpenAI's words: there are clients that cut their prompt when they read them.
      throw ApiError(
          400,
          fmt::format("This model's maximum context length is {} tokens. However, your prompt has {} tokens. "
                      "Please reduce the length of the prompt.",
                      engine_.max_context(), size),
          field, "context_length_exceeded");
    }
    for (int64_t i = 0; i < request.n; ++i) {
      GenerationRequest generation;
      generation.prompt = prompt;
      generation.max_tokens = request.max_tokens.value_or(engine_.max_context());
      generation.sampling = request.sampling;
      generation.sampling.seed = seed + static_cast<uint64_t>(i);
      generation.stop = request.stop;
      if (!request.ignore_eos) generation.stop_ids = settings_.stop_ids;
      generation.ignore_eos = request.ignore_eos;
      generation.logprobs = request.logprobs;
      generation.prompt_logprobs = request.logprobs && request.echo;
      generation.top_logprobs = request.top_logprobs;
      generations.push_back(std::move(generation));
    }
  }

  auto exchange =
      std::make_shared<Exchange>(std::move(request), std::move(shown), options_.model_name, tokenizer, num_exchanges_);
  exchange->events = queue_.submit(std::move(generations));
  if (exchange->events == nullptr) {
    throw ApiError(
        429,
        fmt::format("{} texts are being written or wait, and there is no room for {} more", queue_.in_flight(), wanted),
        "", "queue_full");
  }
  response.status = 200;
  response.set_header("X-Request-Id", exchange->reply.id());
  if (exchange->request.stream) response.set_header("Cache-Control", "no-cache");
  response.set_chunked_content_provider(
      exchange->request.stream ? "text/event-stream" : kJson,
      [this, exchange](size_t, httplib::DataSink& sink) { return send(*exchange, sink); });
}

// False ends the connection: the client sees that the answer is not whole.
bool ApiServer::send(Exchange& exchange, httplib::DataSink& sink) const {
  ApiReply& reply = exchange.reply;
  const bool stream = exchange.request.stream;
  const auto write_event = [&](const std::string& data) {
    const std::string event = "data: " + data + "\n\n";
    return sink.write(event.data(), event.size());
  };
  const auto write_events = [&](const std::vector<std::string>& events) {
    return std::ranges::all_of(events, write_event);
  };
  const auto client_left = [] {
    log_note = "the client left";
    return false;
  };
  if (stream && !write_events(reply.first_chunks())) return client_left();
  Clock::time_point looked = Clock::now();
  while (!reply.finished() && !aborting_) {
    const std::optional<ReplyEvent> event = exchange.events->next(kLookForClient);
    if (event && !write_events(reply.add(*event))) return client_left();
    if (Clock::now() - looked >= kLookForClient) {
      if (!sink.is_writable()) return client_left();
      looked = Clock::now();
    }
  }
  if (aborting_ || reply.failed()) {
    log_note = aborting_ ? "given up, as the server stops" : "given up, see above";
    if (!stream) return false;
    const ApiError error(500, aborting_ ? "the server is stopping" : "the model failed");
    if (!write_event(error.json())) return client_left();
    sink.done();
    return true;
  }
  if (stream) {
    if (!write_events(reply.last_chunks()) || !write_event("[DONE]")) return client_left();
  } else {
    const std::string whole = reply.whole();
    if (!sink.write(whole.data(), whole.size())) return client_left();
  }
  log_note = fmt::format("{} and {} tokens", reply.prompt_tokens(), reply.output_tokens());
  sink.done();
  return true;
}

void ApiServer::run(const StopSignal& stop) {
  std::atomic<bool> ended = false;
  std::thread listener([&] {
    http_->listen_after_bind();
    ended = true;
  });
  const auto pause = [] { std::this_thread::sleep_for(milliseconds(20)); };
  while (!stop.requested() && queue_.failure() == nullptr && !ended) pause();
  const bool asked = !ended;
  stopping_ = true;
  const auto wait_for_exchanges = [&](Clock::duration most) {
    const Clock::time_point end = Clock::now() + most;
    while (num_exchanges_ > 0 && queue_.failure() == nullptr && Clock::now() < end) pause();
  };
  wait_for_exchanges(kGrace);
  aborting_ = true;
  wait_for_exchanges(2 * kLookForClient);
  while (!http_->is_running() && !ended) pause();
  http_->stop();
  listener.join();
  if (queue_.failure() != nullptr) std::rethrow_exception(queue_.failure());
  if (!asked) {
    throw runtime_error(fmt::format("listening on {}:{} ended", options_.host, port_),
                        "the system says why, if the network changed; start the server again");
  }
}

}  // namespace nmoe
