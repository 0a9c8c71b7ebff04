#include "infer/engine.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "infer/cached_model.h"
#include "infer/draft/make_drafter.h"
#include "infer/seen_ids.h"
#include "infer/stop_strings.h"
#include "infer/utf8_stream.h"

namespace nmoe {

struct InferenceEngine::Sequence {
  Sequence(GenerationRequest the_request, GenerationListener the_listener)
      : request(std::move(the_request)), listener(std::move(the_listener)), stop(request.stop) {}

  RequestId id = 0;
  GenerationRequest request;
  GenerationListener listener;
  std::vector<int32_t> tokens;  // what the model sees: prompt and output
  // `tokens` is the end of another document, for what follows it: nothing of the sequence's own.
  bool starts_document = false;
  int64_t num_computed = 0;  // of tokens that the slot's states have seen
  int64_t num_run = 0;       // the same, with those of a step that was not told to the sequence
  int64_t slot = -1;
  bool was_admitted = false;
  SeenIds seen;                  // of prompt and output, for the repetition penalty
  std::vector<int32_t> guesses;  // of what follows `tokens`
  int64_t num_drafts = 0;        // of these, the first so many are run in this step
  DraftRate draft_rate;
  std::vector<PromptToken> prompt;
  StopStrings stop;
  Utf8Stream characters;
  GenerationResult result;

  std::span<const int32_t> computed() const { return std::span(tokens).first(static_cast<size_t>(num_computed)); }
  int64_t num_pending() const { return static_cast<int64_t>(tokens.size()) - num_computed; }
  int32_t token_at(int64_t position) const {
    const int64_t guess = position - std::ssize(tokens);
    return guess < 0 ? tokens[static_cast<size_t>(position)] : guesses[static_cast<size_t>(guess)];
  }
  bool reading_prompt_logprobs() const { return request.prompt_logprobs && result.output_tokens == 0; }
  bool wants_logprobs() const { return request.logprobs || reading_prompt_logprobs(); }
  void show(const std::string& piece) const {
    if (!piece.empty() && listener.on_text) listener.on_text(piece);
  }
};

namespace {

// Of a PromptToken or a GeneratedToken, from the first of the rows; `num_ids` of its logits are of ids that mean
// something.
template <class Token>
void set_logprob(Token& token, int top, const LogitRows& rows, size_t num_ids) {
  const LogSum& log_sum = rows.sums.front();
  token.logprob = log_sum.logprob(rows.logits[static_cast<size_t>(token.id)]);
  if (top > 0) token.top = top_logprobs(rows.logits.first(num_ids), log_sum, top);
}

}  // namespace

DraftCounts DraftCounts::since(const DraftCounts& earlier) const {
  DraftCounts counts{.steps = steps - earlier.steps, .drafted = drafted - earlier.drafted};
  std::ranges::transform(reached, earlier.reached, counts.reached.begin(), std::minus());
  std::ranges::transform(accepted, earlier.accepted, counts.accepted.begin(), std::minus());
  return counts;
}

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  NMOE_CHECK(false, "finish reason {}", static_cast<int>(reason));
}

InferenceEngine::InferenceEngine(std::shared_ptr<CachedModel> model, const DraftOptions& draft, DraftModels models)
    : model_(std::move(model)),
      slots_(*model_),
      drafter_(make_drafter(draft, *model_, std::move(models))),
      draft_control_(draft.tokens, drafter_ != nullptr && drafter_->takes_time()) {
  load_.max_sequences = model_->num_slots();
  load_.num_pages = slots_.num_pages();
}

InferenceEngine::~InferenceEngine() = default;

const Config& InferenceEngine::config() const { return model_->config(); }
const Tokenizer& InferenceEngine::tokenizer() const { return model_->tokenizer(); }
int64_t InferenceEngine::max_context() const { return model_->capacity(); }

std::vector<int32_t> InferenceEngine::encode_prompt(std::string_view text) const {
  std::vector<int32_t> ids;
  // A document starts where the last one ended; a model that was trained to see its own only knows nothing of that.
  if (!config().data.mask_documents) ids.push_back(tokenizer().eos_id());
  tokenizer().encode(text, ids);
  return ids;
}

std::unique_ptr<InferenceEngine::Sequence> InferenceEngine::make_sequence(GenerationRequest request,
                                                                          GenerationListener listener) const {
  const int64_t vocab = tokenizer().vocab_size();
  if (request.prompt.empty() && !config().data.mask_documents) {
    throw usage_error("the prompt is empty", "give at least one token: eos_id starts a text");
  }
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= vocab) {
      throw usage_error(fmt::format("the prompt has id {}, the tokenizer has {}", id, vocab),
                        "encode the prompt with the checkpoint's own tokenizer");
    }
  }
  if (request.max_tokens < 0) {
    throw usage_error(fmt::format("max_tokens is {}", request.max_tokens), "give a number of at least 0");
  }
  check_sampling(request.sampling);
  if (std::find(request.stop.begin(), request.stop.end(), "") != request.stop.end()) {
    throw usage_error("a stop string is empty", "give it a character, or leave it out");
  }
  const bool wants_logprobs = request.logprobs || request.prompt_logprobs;
  if (request.top_logprobs < 0 || request.top_logprobs > vocab || (request.top_logprobs > 0 && !wants_logprobs)) {
    throw usage_error(fmt::format("top_logprobs is {}", request.top_logprobs),
                      fmt::format("give a number from 0 to {}, and ask for logprobs", vocab));
  }
  auto sequence = std::make_unique<Sequence>(std::move(request), std::move(listener));
  const std::vector<int32_t>& prompt = sequence->request.prompt;
  sequence->starts_document = prompt.empty();
  sequence->tokens = prompt.empty() ? std::vector{tokenizer().eos_id()} : prompt;
  if (static_cast<int64_t>(sequence->tokens.size()) > max_context()) {
    throw usage_error(fmt::format("the prompt has {} tokens, the context {}", sequence->tokens.size(), max_context()),
                      "shorten the prompt, or choose a longer context (--context) and as many cached positions "
                      "(--cache-positions)");
  }
  if (sequence->request.sampling.repetition_penalty != 1.0) {
    for (const int32_t id : prompt) sequence->seen.add(id);
  }
  sequence->result.prompt_tokens = static_cast<int64_t>(prompt.size());
  if (sequence->request.prompt_logprobs) {
    for (const int32_t id : prompt) sequence->prompt.push_back({.id = id, .logprob = {}, .top = {}});
  }
  return sequence;
}

RequestId InferenceEngine::submit(GenerationRequest request, GenerationListener listener) {
  std::unique_ptr<Sequence> sequence = make_sequence(std::move(request), std::move(listener));
  const std::lock_guard lock(mutex_);
  const RequestId id = sequence->id = ++last_id_;
  submitted_.push_back(std::move(sequence));
  work_.notify_all();
  return id;
}

void InferenceEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancelled_.insert(id);
  work_.notify_all();
}

bool InferenceEngine::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return work_.wait_for(
      lock, timeout, [&] { return !submitted_.empty() || !cancelled_.empty() || load_.running + load_.waiting > 0; });
}

EngineLoad InferenceEngine::load() const {
  const std::lock_guard lock(mutex_);
  EngineLoad load = load_;
  load.waiting += static_cast<int64_t>(submitted_.size());
  return load;
}

void InferenceEngine::publish_load() {
  const std::lock_guard lock(mutex_);
  load_.running = static_cast<int64_t>(running_.size());
  load_.waiting = static_cast<int64_t>(waiting_.size());
  load_.pages_used = slots_.num_used();
  load_.pages_kept = slots_.num_kept();
  load_.preemptions = num_preemptions_;
  load_.drafts = drafts_;
}

bool InferenceEngine::step() {
  try {
    run_step();
  } catch (...) {
    publish_load();
    throw;
  }
  publish_load();
  return load().running + load().waiting > 0;
}

void InferenceEngine::run_step() {
  take_submissions();
  grow();
  admit();
  restart_run_ahead();
  draft();
  const std::vector<Part> parts = plan_step();
  std::vector<CacheRow> rows;
  std::vector<int32_t> wanted;
  std::vector<RanRows> ran;
  for (const Part& part : parts) {
    const Sequence& sequence = *part.sequence;
    if (drafter_ != nullptr) {
      ran.push_back({.id = sequence.id,
                     .first_row = std::ssize(rows),
                     .position = sequence.num_computed,
                     .count = part.num_rows});
    }
    for (int64_t i = 0; i < part.num_rows; ++i) {
      const int64_t position = sequence.num_computed + i;
      if (part.wants(i)) wanted.push_back(static_cast<int32_t>(rows.size()));
      rows.push_back({.token = sequence.token_at(position),
                      .slot = static_cast<int32_t>(sequence.slot),
                      .position = static_cast<int32_t>(position)});
    }
  }
  if (rows.empty()) return;
  if (drafter_ != nullptr) drafter_->ran(ran);
  for (const Part& part : parts) part.sequence->num_run = part.sequence->num_computed + part.num_rows;
  model_->samples() ? sample_step(parts, rows, wanted) : draw_step(parts, rows, wanted);
}

void InferenceEngine::draw_step(const std::vector<Part>& parts, std::span<const CacheRow> rows,
                                std::span<const int32_t> wanted) {
  const bool with_sums = std::ranges::any_of(parts, [](const Part& part) { return part.sequence->wants_logprobs(); });
  const auto begin = Clock::now();
  const LogitRows logits = model_->run(rows, wanted, with_sums);
  record_step(begin, parts, std::ssize(rows));
  // A part that is not reached, because a listener throws, is computed again in the next step.
  for (const Part& part : parts) advance(part, logits, {});
}

// Steps that read prompts say nothing of what guesses cost.
void InferenceEngine::record_step(Clock::time_point begin, std::span<const Part> parts, int64_t num_rows) {
  if (drafter_ == nullptr) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const bool all_write = std::ranges::all_of(parts, [](const Part& part) {
    return part.sequence->num_pending() == 1 && !part.sequence->reading_prompt_logprobs();
  });
  all_write ? draft_control_.record(num_rows, seconds) : draft_control_.record_reading(num_rows, seconds);
}

void InferenceEngine::restart_run_ahead() {
  if (model_->goes_back()) return;
  for (const auto& sequence : running_) {
    if (sequence->num_run != sequence->num_computed) sequence->num_run = sequence->num_computed = 0;
  }
}

void InferenceEngine::sample_step(const std::vector<Part>& parts, std::span<const CacheRow> rows,
                                  std::span<const int32_t> wanted) {
  std::vector<TokenDraw> draws(wanted.size(), TokenDraw{.temperature = 0.0});  // for rows that no token comes from
  std::vector<CachedModel::IdOfRow> seen;
  std::vector<ToldLogits> told(wanted.size());
  for (const Part& part : parts) {
    const Sequence& sequence = *part.sequence;
    const SamplingOptions& sampling = sequence.request.sampling;
    tell(part, std::span(told).subspan(static_cast<size_t>(part.first_logits)));
    for (int64_t i = 0; i < part.num_drawn(); ++i) {
      const auto row = static_cast<int32_t>(part.first_drawn() + i);
      draws[static_cast<size_t>(row)] = token_draw(sampling, sequence.result.output_tokens + i);
      if (sampling.repetition_penalty == 1.0) continue;
      const std::span<const int32_t> guessed = std::span(sequence.guesses).first(static_cast<size_t>(i));
      for (const int32_t id : ids_with(sequence.seen, guessed)) seen.push_back({.wanted_idx = row, .id = id});
    }
  }
  if (std::ranges::none_of(parts, [](const Part& part) { return part.sequence->wants_logprobs(); })) told.clear();
  const auto begin = Clock::now();
  const auto [tokens, logits] = model_->sample(rows, wanted, draws, seen, told);
  record_step(begin, parts, std::ssize(rows));
  for (const Part& part : parts) advance(part, logits, tokens);
}

void InferenceEngine::tell(const Part& part, std::span<ToldLogits> told) {
  const Sequence& sequence = *part.sequence;
  const GenerationRequest& request = sequence.request;
  if (!sequence.wants_logprobs()) return;
  // Penalties change logits where they lie.
  const bool all = request.top_logprobs > 0 || request.sampling.repetition_penalty != 1.0;
  const bool reads = sequence.reading_prompt_logprobs();
  for (int64_t i = 0; i < part.num_logits(); ++i) {
    const int64_t next = sequence.num_computed + i + 1;
    const bool in_prompt = reads && next < std::ssize(sequence.prompt);
    if (!in_prompt && !request.logprobs) continue;
    told[static_cast<size_t>(i)] = {
        .what = all ? ToldLogits::kAll : ToldLogits::kOne,
        .id = in_prompt ? sequence.prompt[static_cast<size_t>(next)].id : -1,
    };
  }
}

void InferenceEngine::take_submissions() {
  {
    const std::lock_guard lock(mutex_);
    std::move(submitted_.begin(), submitted_.end(), std::back_inserter(waiting_));
    submitted_.clear();
    ending_.merge(cancelled_);
    cancelled_.clear();
  }
  while (!ending_.empty()) {
    const RequestId id = *ending_.begin();
    ending_.erase(ending_.begin());
    const auto is_meant = [&](const auto& sequence) { return sequence->id == id; };
    const auto running = std::find_if(running_.begin(), running_.end(), is_meant);
    const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), is_meant);
    if (running != running_.end()) finish(**running, FinishReason::kCancelled);
    if (waiting != waiting_.end()) finish(**waiting, FinishReason::kCancelled);
  }
}

// The older go on: where there are no pages left, the youngest waits until there are.
void InferenceEngine::grow() {
  for (size_t i = 0; i < running_.size(); ++i) {
    const Sequence& sequence = *running_[i];
    while (!slots_.grow(sequence.slot, std::ssize(sequence.tokens))) {
      const bool is_youngest = i + 1 == running_.size();
      NMOE_CHECK(running_.size() > 1, "a single sequence of {} tokens has no pages", sequence.tokens.size());
      preempt();
      if (is_youngest) return;
    }
  }
}

void InferenceEngine::preempt() {
  std::unique_ptr<Sequence> youngest = std::move(running_.back());
  running_.pop_back();
  leave_slot(*youngest);
  youngest->num_run = youngest->num_computed = 0;
  waiting_.push_front(std::move(youngest));
  ++num_preemptions_;
}

void InferenceEngine::leave_slot(Sequence& sequence) {
  const bool is_known = model_->goes_back() || sequence.num_run == sequence.num_computed;
  slots_.leave(std::exchange(sequence.slot, -1), is_known ? sequence.computed() : std::span<const int32_t>());
}

// A page for one in eight sequences, as far as they can grow: it would be a waste to read a prompt and be preempted.
int64_t InferenceEngine::spare_pages(const Sequence& next) const {
  const auto growth = [&](const Sequence& sequence) {
    const int64_t size = std::ssize(sequence.tokens),
                  to_come = sequence.request.max_tokens - sequence.result.output_tokens;
    const int64_t end = std::min(max_context(), size + std::min(to_come, max_context()));
    return PageTable::pages_for(end) - PageTable::pages_for(size);
  };
  int64_t most = growth(next);
  for (const auto& sequence : running_) most += growth(*sequence);
  return std::min(most, 1 + std::ssize(running_) / 8);
}

void InferenceEngine::admit() {
  while (!waiting_.empty()) {
    Sequence& sequence = *waiting_.front();
    const std::span<const int32_t> tokens = sequence.tokens;
    // The last token has to be run for its logits, and all of them where these are wanted.
    const size_t reusable = sequence.reading_prompt_logprobs() ? 0 : tokens.size() - 1;
    const auto place = slots_.enter(tokens.first(reusable), std::ssize(tokens), spare_pages(sequence));
    if (!place) return;
    sequence.slot = place->slot;
    sequence.num_run = sequence.num_computed = place->num_held;
    if (!std::exchange(sequence.was_admitted, true)) sequence.result.cached_tokens = place->num_held;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void InferenceEngine::draft() {
  if (drafter_ == nullptr) return;
  std::vector<Sequence*> writers;
  std::vector<DraftedText> texts;
  std::vector<DraftControl::Offer> offers;
  for (const auto& sequence : running_) {
    sequence->guesses.clear();
    sequence->num_drafts = 0;
    if (sequence->num_pending() != 1 || sequence->starts_document || sequence->reading_prompt_logprobs()) continue;
    // What is given at most: a token beside those that are guessed.
    const int64_t to_come = sequence->request.max_tokens - sequence->result.output_tokens - 1,
                  size = std::ssize(sequence->tokens), most = std::min({kMostDrafts, to_come, max_context() - size});
    writers.push_back(sequence.get());
    texts.push_back({.id = sequence->id,
                     .tokens = sequence->tokens,
                     .sampling = &sequence->request.sampling,
                     .num_written = sequence->result.output_tokens,
                     .seen = &sequence->seen,
                     .max_drafts = most,
                     .drafts = &sequence->guesses});
    offers.push_back({.num_drafts = most,
                      .rate = sequence->draft_rate.rate(draft_rate_.rate()),
                      .num_unread = drafter_->num_unread(sequence->id, size)});
  }
  const int64_t spare_logits = model_->max_logits() - std::ssize(running_),
                spare_rows = model_->max_rows() - std::ssize(running_), room = std::min(spare_logits, spare_rows);
  const auto choose = [&] { draft_control_.choose(std::ssize(writers), room, offers); };
  if (drafter_->takes_time()) {
    choose();
    for (size_t i = 0; i < texts.size(); ++i) texts[i].max_drafts = offers[i].chosen;
  }
  draft_control_.record_drafts(drafter_->draft(texts));
  for (size_t i = 0; i < writers.size(); ++i) offers[i].num_drafts = std::ssize(writers[i]->guesses);
  if (!drafter_->takes_time()) choose();
  for (size_t i = 0; i < writers.size(); ++i) {
    Sequence& writer = *writers[i];
    const int64_t num_drafts = std::min(offers[i].chosen, offers[i].num_drafts);
    if (num_drafts > 0 && slots_.grow(writer.slot, std::ssize(writer.tokens) + num_drafts)) {
      writer.num_drafts = num_drafts;
    }
  }
}

bool InferenceEngine::Part::wants(int64_t row) const {
  return row + 1 + num_drafts >= num_rows || sequence->reading_prompt_logprobs();
}
int64_t InferenceEngine::Part::num_logits() const {
  return sequence->reading_prompt_logprobs() ? num_rows : std::min(num_rows, 1 + num_drafts);
}

// One row for each sequence that writes, and those of guesses, and the rest of the rows for prompts, first come, first
// served.
std::vector<InferenceEngine::Part> InferenceEngine::plan_step() const {
  std::vector<Part> parts;
  int64_t rows_left = model_->max_rows();
  for (const auto& sequence : running_) {
    const bool writes = sequence->num_pending() == 1;
    const int64_t num_drafts = writes ? sequence->num_drafts : 0;
    parts.push_back({.sequence = sequence.get(),
                     .num_rows = writes ? 1 + num_drafts : 0,
                     .num_drafts = num_drafts,
                     .first_logits = 0});
    rows_left -= parts.back().num_rows;
  }
  // Each has the logits of its last row; what is left is for those of prompts.
  int64_t extra_logits = model_->max_logits() - static_cast<int64_t>(parts.size());
  for (const Part& part : parts) extra_logits -= part.num_drafts;
  int64_t num_logits = 0;
  for (Part& part : parts) {
    const Sequence& sequence = *part.sequence;
    if (part.num_rows == 0) {
      part.num_rows = std::min(sequence.num_pending(), rows_left);
      if (sequence.reading_prompt_logprobs()) part.num_rows = std::min(part.num_rows, 1 + extra_logits);
      rows_left -= part.num_rows;
    }
    part.first_logits = num_logits;
    num_logits += part.num_logits();
    extra_logits -= std::max<int64_t>(0, part.num_logits() - 1 - part.num_drafts);
  }
  std::erase_if(parts, [](const Part& part) { return part.num_rows == 0; });
  return parts;
}

void InferenceEngine::advance(const Part& part, const LogitRows& logits, std::span<const int32_t> tokens) {
  Sequence& sequence = *part.sequence;
  const auto logits_from = [&](int64_t row) { return logits.empty() ? logits : logits.from(static_cast<size_t>(row)); };
  const int64_t begin = sequence.num_computed, end = begin + part.num_rows - part.num_drafts;
  if (sequence.reading_prompt_logprobs()) add_prompt_logprobs(sequence, begin, end, logits_from(part.first_logits));
  sequence.num_computed = end;
  slots_.computed(sequence.slot, sequence.computed());
  if (sequence.num_pending() > 0) return;
  if (part.num_drafts > 0) ++drafts_.steps;
  drafts_.drafted += part.num_drafts;
  sequence.result.drafted_tokens += part.num_drafts;
  try {
    if (sequence.reading_prompt_logprobs() && sequence.listener.on_prompt) {
      sequence.listener.on_prompt(sequence.prompt);
    }
    for (int64_t i = 0; i < part.num_drawn(); ++i) {
      const int64_t row = part.first_drawn() + i;
      const auto token = tokens.empty() ? std::nullopt : std::optional(tokens[static_cast<size_t>(row)]);
      if (!add_token(sequence, logits_from(row), token)) return;
      const auto guess = static_cast<size_t>(i);
      if (guess >= sequence.guesses.size()) return;
      const bool was_run = i < part.num_drafts, is_right = sequence.tokens.back() == sequence.guesses[guess];
      judge(sequence, guess, was_run, is_right);
      if (!was_run || !is_right) return;
      ++sequence.num_computed;
      slots_.computed(sequence.slot, sequence.computed());
    }
  } catch (...) {
    const auto still = [&](const auto& other) { return other.get() == &sequence; };
    if (std::any_of(running_.begin(), running_.end(), still)) remove(sequence);
    throw;
  }
}

void InferenceEngine::judge(Sequence& sequence, size_t guess, bool was_run, bool is_right) {
  sequence.draft_rate.judge(is_right);
  draft_rate_.judge(is_right);
  if (!was_run) return;
  ++drafts_.reached[guess];
  if (!is_right) return;
  ++drafts_.accepted[guess];
  ++sequence.result.accepted_tokens;
}

// Row `position` gives the probabilities of the token after it.
void InferenceEngine::add_prompt_logprobs(Sequence& sequence, int64_t begin, int64_t end,
                                          const LogitRows& logits) const {
  const auto num_ids = static_cast<size_t>(tokenizer().vocab_size());
  for (int64_t position = begin; position < std::min(end, std::ssize(sequence.prompt) - 1); ++position) {
    set_logprob(sequence.prompt[static_cast<size_t>(position + 1)], sequence.request.top_logprobs,
                logits.from(static_cast<size_t>(position - begin)), num_ids);
  }
}

GeneratedToken InferenceEngine::describe(int32_t id, const GenerationRequest& request, const LogitRows& logits) const {
  GeneratedToken token{.id = id, .bytes = tokenizer().token_bytes(id), .logprob = {}, .top = {}};
  if (request.logprobs) {
    set_logprob(token, request.top_logprobs, logits, static_cast<size_t>(tokenizer().vocab_size()));
  }
  return token;
}

bool InferenceEngine::add_token(Sequence& sequence, const LogitRows& logits, std::optional<int32_t> token) {
  const GenerationRequest& request = sequence.request;
  if (request.max_tokens == 0) return end(sequence, FinishReason::kLength);
  const int32_t id =
      token ? *token
            : sampler_.sample(logits.logits.first(static_cast<size_t>(tokenizer().vocab_size())), request.sampling,
                              static_cast<uint64_t>(sequence.result.output_tokens), sequence.seen.ids());
  if (id < 0) throw no_finite_logit(sequence.result.output_tokens);
  const bool ends = (id == tokenizer().eos_id() && !request.ignore_eos) ||
                    std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end();
  if (ends) {
    if (request.logprobs) sequence.result.end = describe(id, request, logits);
    return end(sequence, FinishReason::kStop);
  }

  if (std::exchange(sequence.starts_document, false)) {
    sequence.tokens.clear();
    sequence.num_computed = 0;
  }
  sequence.tokens.push_back(id);
  if (request.sampling.repetition_penalty != 1.0) sequence.seen.add(id);
  ++sequence.result.output_tokens;
  const GeneratedToken generated = describe(id, request, logits);
  if (sequence.listener.on_token) sequence.listener.on_token(generated);
  sequence.show(sequence.characters.push(sequence.stop.push(generated.bytes)));
  if (sequence.stop.found() != nullptr) {
    sequence.result.stop = *sequence.stop.found();
    return end(sequence, FinishReason::kStop);
  }
  const bool full = static_cast<int64_t>(sequence.tokens.size()) > max_context();
  return sequence.result.output_tokens < request.max_tokens && !full ? true : end(sequence, FinishReason::kLength);
}

bool InferenceEngine::end(Sequence& sequence, FinishReason reason) {
  finish(sequence, reason);
  return false;
}

std::unique_ptr<InferenceEngine::Sequence> InferenceEngine::remove(Sequence& sequence) {
  if (sequence.slot >= 0) leave_slot(sequence);
  if (drafter_ != nullptr) drafter_->end(sequence.id);
  const auto take_from = [&](auto& sequences) {
    const auto found =
        std::find_if(sequences.begin(), sequences.end(), [&](const auto& other) { return other.get() == &sequence; });
    std::unique_ptr<Sequence> taken;
    if (found != sequences.end()) {
      taken = std::move(*found);
      sequences.erase(found);
    }
    return taken;
  };
  std::unique_ptr<Sequence> taken = take_from(running_);
  return taken != nullptr ? std::move(taken) : take_from(waiting_);
}

void InferenceEngine::finish(Sequence& sequence, FinishReason reason) {
  const std::unique_ptr<Sequence> ended = remove(sequence);
  ended->result.reason = reason;
  std::string rest = ended->characters.push(ended->stop.flush());
  rest += ended->characters.flush();
  ended->show(rest);
  if (ended->listener.on_finish) ended->listener.on_finish(ended->result);
}

}  // namespace nmoe
