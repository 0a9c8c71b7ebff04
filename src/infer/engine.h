// Generation for many requests at once: they wait for a slot of the model's states and for pages of its cache, join the
// running ones as soon as there are, and every step gives each running sequence one token (continuous batching; Orca,
// OSDI 2022, section 3). Where pages run out, the youngest sequence gives up its own, waits in front of all others, and
// goes on by reading its prompt and its output so far.
//
// With a drafter (infer/draft) a step reads guesses of what follows a sequence's last token, too, and draws a token
// behind each of them: the sequence is given those up to the first that is not the guess behind it. Each is drawn from
// the logits and with the random number that it would have had in a step of its own.
//
// The result of a request depends on the request and the model alone, to the bit: not on what runs at the same time, on
// the number of threads, on how its prompt is split, on whether part of it was in the cache, on guesses, or on whether
// it was preempted (infer/cached_model.h explains how).
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/cache_slots.h"
#include "infer/draft/draft_control.h"
#include "infer/draft/drafter.h"
#include "infer/draft/make_drafter.h"
#include "infer/logprobs.h"
#include "infer/sampler.h"

namespace nmoe {

class CachedModel;
struct EngineModels;
struct CacheRow;
struct ToldLogits;

struct GenerationRequest {
  // encode_prompt() makes it from text. At least one id; empty only with data.mask_documents: the text is a document
  // from its first token, which is what follows the end of another.
  std::vector<int32_t> prompt;
  int64_t max_tokens = 200;  // of output; 0: the prompt is only read (prompt_logprobs)
  SamplingOptions sampling;
  // The text ends before the first of these that appears in the output; they are never shown. None may be empty.
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;  // ids that end it beside the tokenizer's eos_id
  bool ignore_eos = false;        // eos_id is a token like others (it stands for no text)
  bool logprobs = false;          // GeneratedToken::logprob is wanted
  bool prompt_logprobs = false;   // on_prompt is called
  int top_logprobs = 0;           // how many ids of each `top`; more than 0 needs one of the two above
};

struct GeneratedToken {
  int32_t id = 0;
  std::string_view bytes;         // what it stands for, maybe not whole characters; valid as long as the engine
  std::optional<float> logprob;   // with GenerationRequest::logprobs
  std::vector<TokenLogprob> top;  // infer/logprobs.h
};

// One token of the prompt, given those before it. The first has no logprob.
struct PromptToken {
  int32_t id = 0;
  std::optional<float> logprob;
  std::vector<TokenLogprob> top;
};

enum class FinishReason {
  kStop,       // eos_id, a stop id or a stop string
  kLength,     // max_tokens, or the context is full
  kCancelled,  // cancel()
};
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"

struct GenerationResult {
  FinishReason reason = FinishReason::kStop;
  std::string stop;             // the stop string that ended it, if one did
  int64_t prompt_tokens = 0;    // of the request
  int64_t cached_tokens = 0;    // of these, how many were in the cache already
  int64_t output_tokens = 0;    // sampled, without the id that ended it (eos_id, a stop id)
  int64_t drafted_tokens = 0;   // guesses that were run
  int64_t accepted_tokens = 0;  // of these, those that were right: so many output tokens cost no step of their own
  // That id, with GenerationRequest::logprobs: it stands for no text, and its probability is one of the model's.
  std::optional<GeneratedToken> end;
};

// What happens to a request, called by the thread that drives step(), in this order: on_prompt once if asked for; for
// every token but an id that ends the output on_token, then on_text if there is text that can be shown; on_finish once,
// last. Any may be empty. They may call submit() and cancel(), but not step(). What they throw leaves step(): then the
// request has ended without on_finish, and the others go on with the next step().
struct GenerationListener {
  // A piece of text: whole UTF-8 characters (bytes that are none come at the end), nothing of a stop string, and
  // nothing that may still become one. Never empty.
  std::function<void(std::string_view piece)> on_text;
  std::function<void(const GeneratedToken& token)> on_token;
  std::function<void(std::span<const PromptToken> prompt)> on_prompt;
  std::function<void(const GenerationResult& result)> on_finish;
};

struct InferenceOptions {
  std::string device = "cpu";  // as LoadOptions (infer/load_model.h) has it
  int num_threads = 0;         // 0: one per available CPU
  int64_t max_sequences = 8;   // slots: sequences that run at the same time
  // Tokens of prompt and output together that a sequence has room for; the last one of the output needs none. A text
  // that fills it ends (FinishReason::kLength). 0: model.max_positions or, when that is 0,
  // data.seq_len. More than the model was trained with is possible, and the text will show it.
  int64_t max_context = 0;
  // Of all sequences together, and of what is kept of those that have ended, in whole pages of kPagePositions. Less
  // than max_context is the context too. 0: max_sequences times max_context.
  int64_t cache_positions = 0;
  std::optional<GenerationArithmetic> arithmetic = {};  // in place of the checkpoint's generation.arithmetic
  DraftOptions draft = {};
};

// What has come of guesses so far.
struct DraftCounts {
  int64_t steps = 0;    // of single sequences, in which guesses of them were run
  int64_t drafted = 0;  // guesses that were run
  // [i]: those that were the i-th of their step, from 0 on: how many were reached, which those before them must be
  // right for, and how many of these were right.
  std::array<int64_t, kMostDrafts> reached{}, accepted{};

  int64_t num_accepted() const { return std::accumulate(accepted.begin(), accepted.end(), int64_t{0}); }
  // Tokens that a step with guesses gave its sequence, on average. There was one.
  double acceptance_length() const { return 1.0 + static_cast<double>(num_accepted()) / static_cast<double>(steps); }
  // Since those earlier ones.
  DraftCounts since(const DraftCounts& earlier) const;
};

// The current load.
struct EngineLoad {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t max_sequences = 0;
  // Pages of the cache (ops/contracts/cache.h): all, those of running sequences, and those of none of them that are
  // kept for others.
  int64_t num_pages = 0, pages_used = 0, pages_kept = 0;
  int64_t preemptions = 0;  // so far
  DraftCounts drafts;
};

using RequestId = uint64_t;

class InferenceEngine {
 public:
  // Over a model that runs weights of whomever, and that no other engine steps meanwhile; `models`: what drafts, with
  // room for as many texts and positions. Errors: make_drafter's.
  explicit InferenceEngine(std::shared_ptr<CachedModel> model, const DraftOptions& draft = {}, DraftModels models = {});
  InferenceEngine(EngineModels models, const DraftOptions& draft);  // the same
  // `checkpoint` is a checkpoint folder or a folder of them (the latest). All memory is taken here. Errors: those of
  // CheckpointReader, and make_drafter's; usage, with what to lower, when it does not fit the machine.
  InferenceEngine(const std::filesystem::path& checkpoint, const InferenceOptions& options);
  ~InferenceEngine();
  InferenceEngine(const InferenceEngine&) = delete;
  InferenceEngine& operator=(const InferenceEngine&) = delete;

  const Config& config() const;
  const Tokenizer& tokenizer() const;
  int64_t max_context() const;

  // The ids of a text to go on from, as the model saw the beginning of a document: after the end of the last one, or,
  // with data.mask_documents, without it: then there are none for "". Any thread.
  std::vector<int32_t> encode_prompt(std::string_view text) const;

  // Queues a request; first come, first served. Any thread. Error (usage) when the request cannot be served: a prompt
  // that is empty, longer than max_context or with ids the tokenizer has not, options out of their range.
  //
  // Prompt and output are one document: every token sees all before it, whatever ends a turn or a document in them.
  RequestId submit(GenerationRequest request, GenerationListener listener);
  // The request ends with kCancelled at the next step. Any thread. Without effect when it has ended.
  void cancel(RequestId id);

  // Admits waiting requests to free slots and pages, reads a part of their prompts, and gives every running sequence
  // whose prompt has been read one token. False when nothing is left to do. One thread at a time.
  bool step();
  // Returns when there is something to do for step(), or after `timeout`. True when there is. The driving thread.
  bool wait(std::chrono::milliseconds timeout);

  EngineLoad load() const;  // any thread

 private:
  using Clock = std::chrono::steady_clock;
  struct Sequence;  // a request and how far it is
  // The next rows of a sequence, as many as a step has room for.
  struct Part {
    Sequence* sequence;
    int64_t num_rows;
    int64_t num_drafts;    // of these, those of guesses behind the last token
    int64_t first_logits;  // of the step's logits: of its last row and those of guesses or, while prompt_logprobs are
                           // made, of all its rows

    bool wants(int64_t row) const;  // its logits
    int64_t num_logits() const;
    // The first of its logits that a token is drawn from, and how many there are, if its prompt has been read then.
    int64_t first_drawn() const { return first_logits + num_logits() - num_drawn(); }
    int64_t num_drawn() const { return 1 + num_drafts; }
  };

  std::unique_ptr<Sequence> make_sequence(GenerationRequest request, GenerationListener listener) const;
  void run_step();
  // A step that began to run then has run.
  void record_step(Clock::time_point begin, std::span<const Part> parts, int64_t num_rows);
  // Where states do not go back, sequences whose rows were run without their being told begin anew.
  void restart_run_ahead();
  void take_submissions();
  // Gives running sequences the pages that their next tokens need, and preempts others for them.
  void grow();
  void preempt();  // the youngest
  void leave_slot(Sequence& sequence);
  // Pages that stay free when `next` is admitted.
  int64_t spare_pages(const Sequence& next) const;
  void admit();
  // Guesses for sequences that write, as many as are to be run.
  void draft();
  std::vector<Part> plan_step() const;
  // Gives the part's sequence its next tokens, if its prompt has been read to its end: the step's `tokens` where the
  // device has sampled them, else drawn from the step's logits [., V], which are there also where their probabilities
  // are wanted.
  void advance(const Part& part, const LogitRows& logits, std::span<const int32_t> tokens);
  // Counts a guess that those before it were right for.
  void judge(Sequence& sequence, size_t guess, bool was_run, bool is_right);
  // What the host needs of the logits of a part's rows, for log-probabilities.
  static void tell(const Part& part, std::span<ToldLogits> told);
  // Runs the rows on a device that samples, and advances all parts.
  void sample_step(const std::vector<Part>& parts, std::span<const CacheRow> rows, std::span<const int32_t> wanted);
  // Runs the rows where the host samples, and advances all parts.
  void draw_step(const std::vector<Part>& parts, std::span<const CacheRow> rows, std::span<const int32_t> wanted);
  void add_prompt_logprobs(Sequence& sequence, int64_t begin, int64_t end, const LogitRows& logits) const;
  GeneratedToken describe(int32_t id, const GenerationRequest& request, const LogitRows& logits) const;
  // False: the sequence has ended, and is gone.
  bool add_token(Sequence& sequence, const LogitRows& logits, std::optional<int32_t> token);
  // Shows the rest of the text and tells the end of it, after the slot has been given back.
  void finish(Sequence& sequence, FinishReason reason);
  bool end(Sequence& sequence, FinishReason reason);  // the same; false
  std::unique_ptr<Sequence> remove(Sequence& sequence);
  void publish_load();

  std::shared_ptr<CachedModel> model_;
  // Of the driving thread:
  CacheSlots slots_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of arrival
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::set<RequestId> ending_;  // to be cancelled in this step
  Sampler sampler_;
  std::unique_ptr<Drafter> drafter_;  // null: nothing is guessed
  DraftControl draft_control_;
  DraftRate draft_rate_;  // of all texts
  DraftCounts drafts_;
  int64_t num_preemptions_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  std::deque<std::unique_ptr<Sequence>> submitted_;
  std::set<RequestId> cancelled_;
  RequestId last_id_ = 0;
  EngineLoad load_;
};

}  // namespace nmoe
