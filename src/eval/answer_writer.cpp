#include "eval/answer_writer.h"

#include <utility>

#include "base/utf8.h"

namespace nmoe {

void AnswerWriter::write(std::span<const AnswerPrompt> prompts, const GenerationSpec& spec,
                         const std::function<void(std::vector<Written> written)>& done) {
  struct Pending {
    std::vector<WrittenAnswer> answers;
    int64_t missing = 0;
  };
  std::vector<Pending> pending(prompts.size());
  std::vector<Written> written;  // since the last step
  const std::vector<std::string> stops = spec.stops();
  for (size_t i = 0; i < prompts.size(); ++i) {
    pending[i].answers.resize(static_cast<size_t>(spec.samples));
    pending[i].missing = spec.samples;
    for (int64_t sample = 0; sample < spec.samples; ++sample) {
      WrittenAnswer* answer = &pending[i].answers[static_cast<size_t>(sample)];
      engine_.submit({.prompt = *prompts[i].tokens,
                      .max_tokens = spec.max_tokens,
                      .sampling = {.temperature = spec.temperature,
                                   .top_p = spec.top_p,
                                   .seed = prompts[i].seed + static_cast<uint64_t>(sample)},
                      .stop = stops,
                      .stop_ids = stop_ids_},
                     {.on_text = [answer](std::string_view piece) { answer->text += piece; },
                      .on_finish =
                          [&, i, answer](const GenerationResult& result) {
                            computed_tokens_ += result.prompt_tokens - result.cached_tokens + result.output_tokens;
                            answer->tokens = result.output_tokens;
                            answer->cut = result.reason == FinishReason::kLength;
                            answer->text = as_utf8(answer->text);
                            if (--pending[i].missing == 0) written.push_back({i, std::move(pending[i].answers)});
                          }});
    }
  }
  for (bool more = !prompts.empty(); more;) {
    more = engine_.step();
    if (!written.empty()) done(std::exchange(written, {}));
  }
}

}  // namespace nmoe
