// The one thread that drives the engine, and the requests that wait for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "chat/reply_channels.h"
#include "infer/engine.h"
#include "serve/metrics.h"

namespace nmoe {

// What happens to one of several generations; GenerationListener says when and in which order.
struct ReplyEvent {
  struct Text {
    std::string piece;
    bool is_thought = false;  // of a reply that has channels
  };
  struct Prompt {
    std::vector<PromptToken> tokens;
  };
  struct Failed {};  // the engine gave it up; its last event
  size_t choice = 0;
  std::variant<Text, GeneratedToken, Prompt, GenerationResult, Failed> what;
};

// Generations that were submitted together. Destroying it cancels those that run. One thread at a time.
class Reply {
 public:
  ~Reply();
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  // The next event, of whichever choice; nothing when none comes in time.
  std::optional<ReplyEvent> next(std::chrono::milliseconds timeout);

 private:
  friend class GenerationQueue;
  struct Mailbox;
  explicit Reply(InferenceEngine& engine);

  InferenceEngine& engine_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<RequestId> ids_;
};

class GenerationQueue {
 public:
  // Generations beyond the engine's slots wait, at most `max_queue` of them. `engine` is driven by this object alone.
  // Every generation is counted in `metrics`.
  GenerationQueue(InferenceEngine& engine, int64_t max_queue, std::shared_ptr<ServerMetrics> metrics);
  ~GenerationQueue();  // cancels what runs
  GenerationQueue(const GenerationQueue&) = delete;
  GenerationQueue& operator=(const GenerationQueue&) = delete;

  int64_t capacity() const { return capacity_; }  // slots and places to wait
  int64_t in_flight() const { return *in_flight_; }

  // All of them, or none and nullptr when there is not room for all. With `channels`, their texts are the parts of
  // replies that have some. Any thread. Errors: InferenceEngine::submit.
  std::unique_ptr<Reply> submit(std::vector<GenerationRequest> requests,
                                const std::optional<ChannelMarks>& channels = {});

  // What ended the thread, if something did: a bug. Nothing goes on then.
  std::exception_ptr failure() const;

 private:
  void drive();

  InferenceEngine& engine_;
  int64_t capacity_;
  std::shared_ptr<ServerMetrics> metrics_;
  std::shared_ptr<std::atomic<int64_t>> in_flight_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;  // once failed_
  std::thread thread_;
};

}  // namespace nmoe
