// What a request is told, kept.
#pragma once

#include <string>
#include <vector>

#include "infer/engine.h"

namespace nmoe::test {

struct Transcript {
  std::string text;
  std::vector<std::string> pieces;
  std::vector<int32_t> ids;
  std::vector<GeneratedToken> tokens;
  std::vector<PromptToken> prompt;
  int prompts = 0;  // how often on_prompt was called
  std::optional<GenerationResult> result;

  // Keeps a reference to this.
  GenerationListener listener() {
    GenerationListener listener;
    listener.on_text = [this](std::string_view piece) {
      text += piece;
      pieces.emplace_back(piece);
    };
    listener.on_token = [this](const GeneratedToken& token) {
      ids.push_back(token.id);
      tokens.push_back(token);
    };
    listener.on_prompt = [this](std::span<const PromptToken> tokens_of_prompt) {
      prompt.assign(tokens_of_prompt.begin(), tokens_of_prompt.end());
      ++prompts;
    };
    listener.on_finish = [this](const GenerationResult& end) { result = end; };
    return listener;
  }
};

inline void run_all(InferenceEngine& engine) {
  while (engine.step()) {
  }
}

inline Transcript generate(InferenceEngine& engine, const GenerationRequest& request) {
  Transcript transcript;
  engine.submit(request, transcript.listener());
  run_all(engine);
  return transcript;
}

}  // namespace nmoe::test
