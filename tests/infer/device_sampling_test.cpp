// Generation over a device that samples where the logits are: what travels to the host, and that it is what a device
// without a sampler gives. The device is the CPU, with a sampler of the host's.
#include <gtest/gtest.h>

#include <cstring>

#include "config/load.h"
#include "infer/engine.h"
#include "infer/recurrent_model.h"
#include "infer/transcript.h"
#include "ops/checked/wrapped_device.h"
#include "support/errors.h"
#include "support/tiny_run.h"

namespace nmoe {
namespace {

using test::run_all;
using test::Transcript;

// By the rule of TokenSampler: logits in place, draws with their random numbers.
class HostSampler final : public TokenSampler {
 public:
  void sample_tokens(const SampleTokens& args) override {
    for (int64_t row = 0; row < args.tokens.dim(0); ++row) {
      // The largest, whatever the draw: what is tested is what becomes of its logit.
      const std::span<const float> logits = args.logits[row].span<float>().first(static_cast<size_t>(args.vocab));
      args.tokens.data<int32_t>()[row] = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
    }
  }
  void penalise_logits(const PenaliseLogits& args) override {
    for (int64_t i = 0; i < args.seen.dim(0); ++i) {
      const int32_t* const pair = args.seen.data<int32_t>() + 2 * i;
      TokenDraw draw;
      std::memcpy(&draw, static_cast<const std::byte*>(args.draws.raw()) + pair[0] * std::ssize(bytes_of(draw)),
                  sizeof(draw));
      float& logit = args.logits[pair[0]].data<float>()[pair[1]];
      logit = logit > 0 ? logit / static_cast<float>(draw.penalty) : logit * static_cast<float>(draw.penalty);
    }
  }
  void pick_logits(const PickLogits& args) override {
    for (int64_t i = 0; i < args.ids.dim(0); ++i) {
      const int32_t* const pair = args.ids.data<int32_t>() + 2 * i;
      args.picked.data<float>()[i] = args.logits[pair[0]].data<float>()[pair[1]];
    }
  }

 private:
  static std::span<const std::byte> bytes_of(const TokenDraw& draw) { return std::as_bytes(std::span(&draw, 1)); }
};

class SamplingDevice final : public checked::WrappedDevice {
 public:
  explicit SamplingDevice(Device& device) : WrappedDevice(device), ops_(*this) {}
  TokenSampler* token_sampler() override { return &sampler_; }
  void download(void* host, Tensor source) override {
    downloaded_ += source.num_bytes();
    WrappedDevice::download(host, source);
  }
  int64_t downloaded() const { return downloaded_; }

 private:
  class ForwardingOps final : public Ops {
   public:
    explicit ForwardingOps(SamplingDevice& owner)
        : Ops(owner, Lane::kCompute, Arithmetic::kBatchInvariant),
          ops_(owner.wrapped().ops(Arithmetic::kBatchInvariant)) {}
    DType compute_dtype() const override { return ops_.compute_dtype(); }
    WeightRounding weight_rounding(OperandFormat format) const override { return ops_.weight_rounding(format); }
#define NMOE_DEFINE_OVERRIDE(name, Arguments) \
  void name(const Arguments& args) override { ops_.name(args); }
    NMOE_OPERATIONS(NMOE_DEFINE_OVERRIDE)
#undef NMOE_DEFINE_OVERRIDE

   private:
    Ops& ops_;
  };
  Ops& lane_ops(Lane, Arithmetic) override { return ops_; }

  ForwardingOps ops_;
  HostSampler sampler_;
  int64_t downloaded_ = 0;
};

// An engine over the model of a running sum, on a device that samples.
class DeviceSampling : public testing::Test {
 protected:
  DeviceSampling() {
    for (Arena* arena : {&kept_, &states_, &activations_, &cpu_->scratch(Lane::kCompute)}) {
      arena->reserve(cpu_->memory(), 16 << 20);
    }
    const Config config = parse_config(test::kTinyToml, "tiny.toml", std::vector<std::string>{"model.vocab_size=257"});
    const CachedModelOptions options{.num_slots = 4, .capacity = 512, .records = false};
    model_ = std::make_shared<CachedModel>(config, byte_tokenizer(), sums_, RunnerRoom{kept_, states_, activations_},
                                           options);
    engine_ = std::make_unique<InferenceEngine>(model_);
    host_ = std::make_unique<InferenceEngine>(test::recurrent_model(config, options));
  }

  static GenerationRequest request(const std::string& prompt) {
    GenerationRequest request;
    request.prompt.assign(prompt.begin(), prompt.end());
    request.max_tokens = 10;
    request.sampling = {.temperature = 0};
    request.ignore_eos = true;
    return request;
  }
  // Submits all at once to the engine. Returns the bytes that came from the device.
  int64_t run(const std::vector<GenerationRequest>& requests, std::vector<Transcript>& got) {
    got.resize(requests.size());
    const int64_t before = device_.downloaded();
    for (size_t i = 0; i < requests.size(); ++i) engine_->submit(requests[i], got[i].listener());
    run_all(*engine_);
    return device_.downloaded() - before;
  }

  std::unique_ptr<Device> cpu_ = make_device({.num_threads = 1});
  SamplingDevice device_{*cpu_};
  test::RunningSumModel sums_{device_.ops(Arithmetic::kBatchInvariant)};
  Arena kept_{"kept"}, states_{"states"}, activations_{"activations"};
  std::shared_ptr<CachedModel> model_;
  std::unique_ptr<InferenceEngine> engine_, host_;
};

constexpr int64_t kRowBytes = test::kRecurrentVocab * static_cast<int64_t>(sizeof(float));

TEST_F(DeviceSampling, TellsWhatTheHostComputes) {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 9; ++i) {
    GenerationRequest one = request(test::tiny_text(5 + 60 * (i % 3), static_cast<uint64_t>(i)));
    one.logprobs = i % 4 != 0;
    one.prompt_logprobs = i % 2 == 0;
    one.top_logprobs = i % 3 == 1 && (one.logprobs || one.prompt_logprobs) ? 4 : 0;
    one.sampling.repetition_penalty = i % 5 == 2 ? 1.3 : 1.0;
    if (i == 8) one.max_tokens = 0;
    requests.push_back(one);
  }
  std::vector<Transcript> got;
  run(requests, got);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    const Transcript expected = test::generate(*host_, requests[i]);
    EXPECT_EQ(got[i].ids, expected.ids);
    const auto expect_same = [](const auto& a, const auto& b) {
      ASSERT_EQ(a.size(), b.size());
      for (size_t k = 0; k < a.size(); ++k) {
        EXPECT_EQ(a[k].logprob, b[k].logprob) << k;
        ASSERT_EQ(a[k].top.size(), b[k].top.size());
        for (size_t rank = 0; rank < a[k].top.size(); ++rank) {
          EXPECT_EQ(a[k].top[rank].id, b[k].top[rank].id);
          EXPECT_EQ(a[k].top[rank].logprob, b[k].top[rank].logprob);
        }
      }
    };
    expect_same(got[i].tokens, expected.tokens);
    expect_same(got[i].prompt, expected.prompt);
  }
}

// A number and three of a sum for each log-probability, and the token; whole rows only of who asks for several ids.
TEST_F(DeviceSampling, OnlyWhatIsAskedForTravels) {
  GenerationRequest plain = request("abc"), with_logprobs = request("xyz"), with_top = request("the old house");
  with_logprobs.logprobs = with_top.logprobs = true;
  with_top.top_logprobs = 2;
  std::vector<Transcript> got;
  constexpr int64_t kNumber = sizeof(float), kTokens = 10;
  EXPECT_EQ(run({plain}, got), kTokens * kNumber);
  EXPECT_EQ(run({plain, with_logprobs}, got), kTokens * (2 * (1 + kLogSumMembers) + 1) * kNumber);
  EXPECT_EQ(run({plain, with_logprobs, with_top}, got),
            kTokens * ((3 * (1 + kLogSumMembers) + 1) * kNumber + kRowBytes));
  with_logprobs.prompt_logprobs = true;
  with_logprobs.logprobs = false;
  with_logprobs.max_tokens = 0;
  with_logprobs.prompt = {'l', 'o', 'n', 'g'};
  EXPECT_EQ(run({with_logprobs}, got), (4 * (1 + kLogSumMembers) + 3) * kNumber);
}

class ModelOfManyIds final : public SequenceModel {
 public:
  explicit ModelOfManyIds(Ops& ops) : ops_(ops) {}
  Ops& ops() const override { return ops_; }
  int64_t vocab_size() const override { return kMostSampledIds + 1; }
  std::vector<StateSpec> states() const override { return {{.widths = {1}}}; }
  void cached_logits(const CachedRows&, const ModelStates&, Arena&, Tensor, Tensor) override {}
  void cached_scores(const CachedRows&, const ModelStates&, Arena&, const ScoredRows&) override {}

 private:
  Ops& ops_;
};

TEST_F(DeviceSampling, MoreIdsThanASamplerTakesAreRefused) {
  ModelOfManyIds model(device_.ops(Arithmetic::kBatchInvariant));
  const Error told = test::error_of([&] {
    CachedModel(model_->config(), byte_tokenizer(), model, RunnerRoom{kept_, states_, activations_},
                {.num_slots = 1, .capacity = 128});
  });
  EXPECT_TRUE(test::contains(told.what(), "model.vocab_size is 1048577"));
  EXPECT_TRUE(test::contains(told.remedy(), "--device cpu"));
}

}  // namespace
}  // namespace nmoe
