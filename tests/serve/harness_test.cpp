// The requests of lm-evaluation-harness (0.4.9: local-completions and local-chat-completions), and what it reads of the
// answers, beside the model's own logits for the whole text.
#include <algorithm>
#include <cmath>
#include <map>

#include "checkpoint/reader.h"
#include "config/load.h"
#include "infer/whole_logits.h"
#include "serve/served_model.h"

namespace nmoe {
namespace {

constexpr int32_t kEos = 256;
using Ids = std::vector<int32_t>;

Ids ids_of(const std::string& text) { return {text.begin(), text.end()}; }

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Score {
  double logprob = 0.0;
  bool greedy = true;  // each token is the likeliest
};

class HarnessTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new ServedModel({"--chat-template", "chat.jinja"});
    const CheckpointReader reader = CheckpointReader::open(trained_model() / "runs/checkpoints/tiny");
    config_ = parse_config(reader.config_toml(), "config.toml");
  }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }

  // log p of all ids as what follows `ids`, by the definition, in double precision; and the likeliest.
  static std::vector<std::vector<double>> log_softmax(const Ids& ids) {
    const auto load = [](WeightSet& weights, Ops&) {
      std::vector<NamedTensor> tensors;
      for (const Weight& weight : weights.all()) tensors.push_back({weight.spec.name, weight.value});
      CheckpointReader::open(trained_model() / "runs/checkpoints/tiny").load_model(tensors);
    };
    std::vector<std::vector<double>> rows;
    for (const std::vector<float>& logits : test::whole_logits(config_, ids, load)) {
      double sum = 0.0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      std::vector<double>& row = rows.emplace_back();
      for (const float logit : logits) row.push_back(static_cast<double>(logit) - std::log(sum));
    }
    return rows;
  }
  static int32_t likeliest_after(const Ids& ids) {
    const std::vector<double> row = log_softmax(ids).back();
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  }
  static Ids greedy(const Ids& context, size_t size) {
    Ids written;
    while (written.size() < size) written.push_back(likeliest_after(context + written));
    return written;
  }
  static Score expected(const Ids& context, const Ids& continuation) {
    const auto rows = log_softmax(context + continuation);
    Score score;
    for (size_t i = 0; i < continuation.size(); ++i) {
      const std::vector<double>& row = rows[context.size() + i - 1];
      const double logprob = row.at(static_cast<size_t>(continuation[i]));
      score.logprob += logprob;
      score.greedy = score.greedy && logprob == *std::max_element(row.begin(), row.end());
    }
    return score;
  }

  // As the harness asks how likely texts are.
  static ordered_json scoring(const ordered_json& prompt) {
    return {{"model", "tiny"}, {"prompt", prompt}, {"temperature", 0}, {"max_tokens", 1},
            {"logprobs", 1},   {"seed", 1234},     {"echo", true}};
  }
  // What it reads for a continuation behind `context_size` tokens: one token is cut off as the one that was sampled.
  static Score read(const ordered_json& choice, size_t context_size) {
    const ordered_json& logprobs = choice["logprobs"];
    Score score;
    for (size_t i = context_size; i + 1 < logprobs["token_logprobs"].size(); ++i) {
      const auto logprob = logprobs["token_logprobs"][i].get<double>();
      double best = -INFINITY;
      for (const auto& [token, other] : logprobs["top_logprobs"][i].items()) best = std::max(best, other.get<double>());
      score.logprob += logprob;
      score.greedy = score.greedy && logprob == best;
    }
    return score;
  }

  static inline ServedModel* server_ = nullptr;
  static inline Config config_;
};

TEST_F(HarnessTest, LoglikelihoodOfIdsInABatch) {
  const Ids cat = ids_of("the cat "), likely = greedy(cat, 5);
  // One the model would write, others not; the last as of a whole text, with nothing but the end of a document before.
  const std::vector<std::pair<Ids, Ids>> pairs = {{cat, likely},
                                                  {cat, ids_of("xq")},
                                                  {ids_of("a wild dog sat by the "), ids_of("river")},
                                                  {{kEos}, ids_of("the house ran under it")}};
  ordered_json prompts = ordered_json::array();
  for (const auto& [context, continuation] : pairs) prompts.push_back(context + continuation);
  const ordered_json answer = server_->complete(scoring(prompts));
  ASSERT_EQ(answer["choices"].size(), pairs.size());
  size_t num_greedy = 0;
  for (const ordered_json& choice : answer["choices"]) {
    const auto& [context, continuation] = pairs.at(choice["index"].get<size_t>());
    const size_t size = context.size() + continuation.size();
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      ASSERT_EQ(choice["logprobs"][list].size(), size + 1) << list;
    }
    const Score score = read(choice, context.size()), own = expected(context, continuation);
    EXPECT_NEAR(score.logprob, own.logprob, 1e-4);  // fp32, summed in another order
    EXPECT_EQ(score.greedy, own.greedy);
    num_greedy += score.greedy ? 1 : 0;
  }
  EXPECT_GE(num_greedy, 1U);
  EXPECT_LT(num_greedy, pairs.size());
}

// tokenized_requests=False: the harness counts tokens with its own tokenizer, and the answer must have as many.
TEST_F(HarnessTest, LoglikelihoodOfAString) {
  const std::string context = "an old dog ", continuation = "ran near it";
  const ordered_json choice = server_->complete(scoring(context + continuation))["choices"][0];
  const Score own = expected(Ids{kEos} + ids_of(context), ids_of(continuation));
  EXPECT_NEAR(read(choice, context.size()).logprob, own.logprob, 1e-4);
  EXPECT_EQ(read(choice, context.size()).greedy, own.greedy);
  const auto text = choice["text"].get<std::string>();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto token = choice["logprobs"]["tokens"][i].get<std::string>();
    EXPECT_EQ(text.substr(choice["logprobs"]["text_offset"][i].get<size_t>(), token.size()), token);
  }
}

// Where the token that was asked for ends the text, it must be there all the same: the harness would cut off another.
TEST_F(HarnessTest, LoglikelihoodWhereTheTextEnds) {
  const Ids context = ids_of("the ca"), continuation = ids_of("t");
  const int32_t end = likeliest_after(context + continuation);
  const fs::path ending = trained_model() / "ending";
  fs::remove_all(ending);  // of a repetition
  fs::copy(CheckpointReader::open(trained_model() / "runs/checkpoints/tiny").path(), ending);
  make_directories(ending / "huggingface");
  write_file_atomically(ending / "huggingface/generation_config.json",
                        ordered_json{{"eos_token_id", {kEos, end}}}.dump());
  const ServedModel server({}, "ending");
  const ordered_json choice = server.complete(scoring(ordered_json::array({context + continuation})))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["text"], "the cat");
  ASSERT_EQ(choice["logprobs"]["tokens"].size(), 8U);
  EXPECT_NEAR(choice["logprobs"]["token_logprobs"][7].get<double>(),
              log_softmax(context + continuation).back().at(static_cast<size_t>(end)), 1e-4);
  EXPECT_NEAR(read(choice, context.size()).logprob, expected(context, continuation).logprob, 1e-4);
  // The events of a stream have it, too.
  size_t num_tokens = 0;
  for (const ordered_json& event : server.stream("/v1/completions", scoring(context + continuation))) {
    num_tokens += event["choices"][0]["logprobs"]["tokens"].size();
  }
  EXPECT_EQ(num_tokens, 8U);
}

TEST_F(HarnessTest, GenerationInABatch) {
  const ordered_json prompts = ordered_json::array({ids_of("the cat "), ids_of("a river and ")});
  const ordered_json answer = server_->complete({{"prompt", prompts},
                                                 {"model", "tiny"},
                                                 {"max_tokens", 20},
                                                 {"temperature", 0},
                                                 {"stop", {"\n\n", "Question:", "<|endoftext|>"}},
                                                 {"seed", 1234}});
  ASSERT_EQ(answer["choices"].size(), 2U);
  for (const ordered_json& choice : answer["choices"]) {
    const Ids written = greedy(prompts.at(choice["index"].get<size_t>()).get<Ids>(), 20);
    EXPECT_EQ(choice["text"], std::string(written.begin(), written.end()));
  }
}

TEST_F(HarnessTest, Chat) {
  const ordered_json request = {{"messages", {{{"role", "user"}, {"content", "hi"}, {"type", "text"}}}},
                                {"model", "tiny"},
                                {"max_tokens", 10},
                                {"temperature", 0},
                                {"stop", {"\n\n"}},
                                {"seed", 1234}};
  const Ids prompt = Ids{kEos} + ids_of("user: hi\n") + Ids{kEos} + ids_of("assistant: the");
  const Ids written = greedy(prompt, 10);
  const ordered_json choice = server_->ask("/v1/chat/completions", request)["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["message"]["content"], std::string(written.begin(), written.end()));
}

// It asks whether the server has a tokenizer of its own, and must hear that it has not.
TEST_F(HarnessTest, NoTokenizerOfTheServer) {
  ServedModel::expect_error(server_->client().Get("/tokenizer_info"), 404, "", "Invalid URL (GET /tokenizer_info)");
}

}  // namespace
}  // namespace nmoe
