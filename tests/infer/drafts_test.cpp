// Guesses of what texts go on with: what is guessed, how much of it is run, and that texts have the bits of none.
#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"
#include "data/tokenizer/word_tokenizer.h"
#include "infer/draft/draft_control.h"
#include "infer/draft/ngram_drafter.h"
#include "infer/random_engines.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using test::expect_same;
using test::generate;
using test::make_engine;
using test::run_all;
using test::Transcript;

std::vector<int32_t> guesses_of(const std::vector<int32_t>& tokens, int64_t max_drafts = 4) {
  NgramIndex index;
  std::vector<int32_t> guesses;
  index.draft(tokens, max_drafts, guesses);
  return guesses;
}

TEST(NgramIndexTest, GuessesWhatFollowedTheLastTokensBefore) {
  EXPECT_EQ(guesses_of({7, 1, 2, 3, 4, 5, 1, 2}, 2), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(guesses_of({1, 2, 3, 1, 2, 4, 9, 1, 2}, 1), (std::vector<int32_t>{4})) << "the latest place";
  EXPECT_EQ(guesses_of({8, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2}, 1), (std::vector<int32_t>{3})) << "the longest run";
  EXPECT_EQ(guesses_of({1, 2, 3, 4}), std::vector<int32_t>{});
  EXPECT_EQ(guesses_of({1, 2, 3, 9, 2}), std::vector<int32_t>{}) << "one token is no run";
  EXPECT_EQ(guesses_of({}), std::vector<int32_t>{});
}

TEST(NgramIndexTest, AGuessThatReachesTheEndGoesOnWithItself) {
  EXPECT_EQ(guesses_of({5, 1, 2, 3, 1, 2, 3}, 7), (std::vector<int32_t>{1, 2, 3, 1, 2, 3, 1}));
  EXPECT_EQ(guesses_of({4, 4, 4}, 3), (std::vector<int32_t>{4, 4, 4}));
}

TEST(NgramIndexTest, OfATextThatGrowsItKnowsWhatItWouldOfTheWhole) {
  std::vector<int32_t> tokens;
  NgramIndex index;
  uint64_t state = 1;
  for (int i = 0; i < 300; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    tokens.push_back(static_cast<int32_t>(state >> 62));  // of four, so that runs come again
    std::vector<int32_t> guesses;
    if (i % 3 == 0) continue;  // tokens come by twos and threes, too
    index.draft(tokens, 5, guesses);
    EXPECT_EQ(guesses, guesses_of(tokens, 5)) << i;
  }
}

// The rest of a long prompt becomes known with the calls that follow.
TEST(NgramIndexTest, ALongTextBecomesKnownByAndBy) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 2 * static_cast<int32_t>(NgramIndex::kMostPlaces); ++i) tokens.push_back(i);
  NgramIndex index;
  std::vector<int32_t> guesses;
  for (const int32_t last : {5, 20'000}) {  // of the first half, and of the second
    tokens.insert(tokens.end(), {last, last + 1});
    index.draft(tokens, 2, guesses);
    EXPECT_EQ(guesses, (std::vector<int32_t>{last + 2, last + 3}));
  }
}

using Offers = std::vector<DraftControl::Offer>;

std::vector<int64_t> chosen(const Offers& offers) {
  std::vector<int64_t> counts;
  for (const DraftControl::Offer& offer : offers) counts.push_back(offer.chosen);
  return counts;
}

TEST(DraftControlTest, AGivenNumberIsRunAsFarAsThereIsRoom) {
  DraftControl control(3);
  Offers offers = {{.num_drafts = 5}, {.num_drafts = 0}, {.num_drafts = 2}};
  control.choose(3, 100, offers);
  EXPECT_EQ(chosen(offers), (std::vector<int64_t>{3, 0, 2}));
  control.choose(3, 3, offers);
  EXPECT_EQ(chosen(offers), (std::vector<int64_t>{2, 0, 1}));
  control.choose(3, 0, offers);
  EXPECT_EQ(chosen(offers), (std::vector<int64_t>{0, 0, 0}));
}

// Ten milliseconds, and one more for each row beyond the first.
DraftControl ten_and_one() {
  DraftControl control({});
  for (const int64_t rows : {1, 2, 8, 40}) control.record(rows, 0.009 + 0.001 * static_cast<double>(rows));
  return control;
}

TEST(DraftControlTest, RunsAsManyAsGiveTheMostTokensASecond) {
  // By hand: (1 + 0.8 + ... + 0.8^n) / (10 + n) is largest for n = 8: 4.329 / 18; n = 7: 4.161 / 17, n = 9: 4.463 / 19.
  double best = 0.0, tokens = 1.0, gain = 1.0;
  int64_t most = 0;
  for (int64_t n = 1; n <= 12; ++n) {
    tokens += gain *= 0.8;
    if (tokens / (10.0 + static_cast<double>(n)) > best) best = tokens / (10.0 + static_cast<double>(n)), most = n;
  }
  Offers one = {{.num_drafts = 12, .rate = 0.8}};
  ten_and_one().choose(1, 100, one);
  EXPECT_EQ(chosen(one), (std::vector<int64_t>{most}));
  // Those that are likelier first; one that is right at a rate of 0.05 costs more than it brings.
  Offers two = {{.num_drafts = 4, .rate = 0.05}, {.num_drafts = 4, .rate = 0.9}};
  ten_and_one().choose(2, 100, two);
  EXPECT_EQ(chosen(two), (std::vector<int64_t>{0, 4}));
  ten_and_one().choose(2, 3, two);
  EXPECT_EQ(chosen(two), (std::vector<int64_t>{0, 3}));
}

TEST(DraftControlTest, WhereRowsCostWhatTheyBringNoneAreRun) {
  // A CPU: twice the rows, twice the time.
  DraftControl control({});
  for (const int64_t rows : {1, 2, 4}) control.record(rows, 0.01 * static_cast<double>(rows));
  Offers offers = {{.num_drafts = 8, .rate = 0.9}};
  control.choose(1, 100, offers);
  EXPECT_EQ(chosen(offers), (std::vector<int64_t>{0}));
}

// Of 10,000 steps whose guesses are never worth it, those that look whether that is still so take a fiftieth at most.
TEST(DraftControlTest, ProbesTakeTheirShareOfTheTime) {
  DraftControl control({});
  DraftRate rate;
  double plain = 0.0, taken = 0.0;
  int64_t probes = 0;
  for (int step = 0; step < 10'000; ++step) {
    Offers offers(4, DraftControl::Offer{.num_drafts = 6, .rate = rate.rate()});
    control.choose(4, 100, offers);
    int64_t rows = 4;
    for (const DraftControl::Offer& offer : offers) rows += offer.chosen;
    if (rows > 4) ++probes;
    rate.judge(false);
    const double seconds = 0.001 * static_cast<double>(rows);
    control.record(rows, seconds);
    plain += 0.004;
    taken += seconds;
  }
  EXPECT_GT(probes, 50);
  EXPECT_LT(taken, 1.03 * plain);
}

// A drafter whose passes of a row take two milliseconds, for a model whose steps take ten and one a row more: of a text
// whose guesses are right at 0.8, by hand (1 + 0.8 + ... + 0.8^n) / (10 + n + 2 n) is largest for n = 3.
TEST(DraftControlTest, WhatDraftingTakesCounts) {
  DraftControl control({}, /*drafts_take_time=*/true);
  for (const int64_t rows : {1, 2, 8, 40}) control.record(rows, 0.009 + 0.001 * static_cast<double>(rows));
  const std::vector<DraftPass> passes = {{.rows = 1, .seconds = 0.002}, {.rows = 8, .seconds = 0.002}};
  control.record_drafts(passes);
  Offers one = {{.num_drafts = 12, .rate = 0.8, .num_unread = 1}};
  control.choose(1, 100, one);
  EXPECT_EQ(chosen(one), (std::vector<int64_t>{3}));
  // A pass gives both a guess: (2 + 2 (0.8 + ... + 0.8^n)) / (11 + 2 n + 2 n) is largest for n = 2.
  Offers two(2, DraftControl::Offer{.num_drafts = 12, .rate = 0.8, .num_unread = 1});
  control.choose(2, 100, two);
  EXPECT_EQ(chosen(two), (std::vector<int64_t>{2, 2}));
}

// Of a drafter that does not pay, a text of which little is to be read is asked for a guess at times, and no other.
TEST(DraftControlTest, DraftersThatDoNotPayAreFedForProbesAlone) {
  DraftControl control({}, /*drafts_take_time=*/true);
  control.record_reading(256, 0.004);
  std::vector<double> all, spent;  // by step
  int64_t unread = 200;
  for (int step = 0; step < 4000; ++step) {
    Offers offers = {{.num_drafts = 6, .rate = 0.5, .num_unread = unread + 300},
                     {.num_drafts = 6, .rate = 0.5, .num_unread = unread}};
    control.choose(2, 100, offers);
    EXPECT_EQ(offers[0].chosen, 0) << step;
    ASSERT_LE(offers[1].chosen, 1) << step;
    spent.push_back(0.0);
    if (offers[1].chosen == 1) {
      const std::vector<DraftPass> passes = {
          {.rows = unread, .seconds = 0.0005 + 0.000005 * static_cast<double>(unread)}};
      control.record_drafts(passes);
      spent.back() = passes[0].seconds + 0.001;
      unread = 0;
    }
    ++unread;
    all.push_back(0.002 + spent.back());
    control.record(2 + offers[1].chosen, 0.001 * static_cast<double>(2 + offers[1].chosen));
  }
  EXPECT_GT(std::ranges::count_if(spent, [](double seconds) { return seconds > 0.0; }), 3);
  for (size_t begin = 0; begin + 1000 <= spent.size(); begin += 100) {
    const auto of_steps = [&](const std::vector<double>& seconds) {
      const auto first = seconds.begin() + static_cast<std::ptrdiff_t>(begin);
      return std::accumulate(first, first + 1000, 0.0);
    };
    EXPECT_LE(of_steps(spent), 0.03 * of_steps(all)) << begin;
  }
}

// A drafter that does not pay, by times of which one in twenty is up to ten times as long as it should be: steps of one
// row take 0.6 ms, each further one 0.3 ms and its guess 0.4 ms. Guesses that are right at 0.42 would make it 0.69
// times as fast if one disturbed step could make them look good for long.
TEST(DraftControlTest, DisturbedTimesDoNotMakeGuessesPay) {
  DraftControl control({}, /*drafts_take_time=*/true);
  DraftRate rate;
  const Philox random(1, "disturbances");
  uint64_t draws = 0;
  const auto uniform = [&] { return random.uniform(draws++); };
  const auto disturbed = [&](double seconds) { return uniform() < 0.05 ? seconds * (1.0 + 9.0 * uniform()) : seconds; };
  double plain = 0.0, taken = 0.0;
  int64_t tokens = 0;
  for (int step = 0; step < 20'000; ++step) {
    Offers offers = {{.num_drafts = 16, .rate = rate.rate(), .num_unread = 1}};
    control.choose(1, 100, offers);
    std::vector<DraftPass> passes;
    for (int64_t i = 0; i < offers[0].chosen; ++i) passes.push_back({.rows = 1, .seconds = disturbed(0.0004)});
    control.record_drafts(passes);
    const double seconds = disturbed(0.0006 + 0.0003 * static_cast<double>(offers[0].chosen));
    control.record(1 + offers[0].chosen, seconds);
    taken += seconds;
    for (const DraftPass& pass : passes) taken += pass.seconds;
    ++tokens;
    for (int64_t i = 0; i < offers[0].chosen; ++i) {
      const bool right = uniform() < 0.42;
      rate.judge(right);
      if (!right) break;
      ++tokens;
    }
    plain += disturbed(0.0006);
  }
  EXPECT_GT(static_cast<double>(tokens) / taken, 0.94 * 20'000 / plain);
}

// When steps of many rows become cheap, guesses are run again.
TEST(DraftControlTest, ItNoticesThatGuessesPayAgain) {
  DraftControl control({});
  const auto step = [&](double seconds_a_row) {
    Offers offers = {{.num_drafts = 4, .rate = 0.9}};
    control.choose(1, 100, offers);
    control.record(1 + offers[0].chosen, 0.01 + seconds_a_row * static_cast<double>(offers[0].chosen));
    return offers[0].chosen;
  };
  int64_t run = 0;
  for (int i = 0; i < 1000; ++i) run += step(0.05);
  EXPECT_LT(run, 20);
  int64_t last = 0;
  for (int i = 0; i < 6000; ++i) last = std::max(step(0.0), i < 5900 ? 0 : last);
  EXPECT_EQ(last, 4);
}

// ---- engines ----

struct Draftable {
  DraftOptions options;
  std::optional<Config> drafting = {};  // of kModel
  int64_t least_right = 6;
};

// Texts of `config`, alone, and guessed by `drafter`, any number of tokens at a time, in engines of one slot and of
// several, with few pages for them, too.
void expect_no_bit_changed(const Config& config, Draftable drafter) {
  std::vector<GenerationRequest> requests = test::mixed_requests();
  for (uint64_t i = 0; i < 3; ++i) {  // that repeat themselves sooner or later
    requests.push_back(test::request_of(test::tiny_text(20, i), 60, {.temperature = 0.0, .seed = i}));
    requests.back().top_logprobs = i == 1 ? 2 : 0;
    requests.back().prompt_logprobs = i == 2;
    if (i == 0) requests.back().sampling.repetition_penalty = 1.05;
  }
  std::vector<Transcript> alone;
  for (const GenerationRequest& request : requests) {
    alone.push_back(generate(*make_engine(config, 1, 512, 1), request));
  }
  for (const std::optional<int64_t> tokens : {std::optional<int64_t>(), std::optional<int64_t>(1),
                                              std::optional<int64_t>(5), std::optional<int64_t>(kMostDrafts)}) {
    for (const auto& [slots, pages] : {std::pair<int64_t, int64_t>(1, 0), {5, 0}, {6, 9}}) {
      drafter.options.tokens = tokens;
      const auto engine = make_engine(config, slots, 512, 2, pages * kPagePositions, drafter.options, drafter.drafting);
      std::vector<Transcript> drafted(requests.size());
      for (size_t i = 0; i < requests.size(); ++i) {
        engine->submit(requests[i], drafted[i].listener());
        engine->step();
      }
      run_all(*engine);
      int64_t run = 0, right = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(fmt::format("request {}, {} slots, {} pages, {} tokens", i, slots, pages, tokens.value_or(0)));
        expect_same(drafted[i], alone[i]);
        EXPECT_EQ(drafted[i].result->reason, alone[i].result->reason);
        ASSERT_EQ(drafted[i].tokens.size(), alone[i].tokens.size());
        for (size_t j = 0; j < drafted[i].tokens.size(); ++j) {
          ASSERT_EQ(drafted[i].tokens[j].top.size(), alone[i].tokens[j].top.size());
        }
        run += drafted[i].result->drafted_tokens;
        right += drafted[i].result->accepted_tokens;
        EXPECT_LE(drafted[i].result->accepted_tokens, drafted[i].result->output_tokens);
      }
      const DraftCounts counts = engine->load().drafts;
      EXPECT_EQ(counts.drafted, run);
      EXPECT_EQ(counts.num_accepted(), right);
      if (tokens) {
        EXPECT_GE(right, drafter.least_right) << "nothing was guessed";
        EXPECT_GT(run, 5);
      }
      EXPECT_EQ(engine->load().pages_used, 0);
      EXPECT_LE(run, tokens.value_or(kMostDrafts) * counts.steps);
    }
  }
}

class DraftsOfEveryAttention : public test::AttentionTest {};

TEST_P(DraftsOfEveryAttention, ChangeNoBit) {
  expect_no_bit_changed(config(), {.options = {.kind = DraftKind::kNgram}});
}
INSTANTIATE_TEST_SUITE_P(Drafts, DraftsOfEveryAttention, testing::ValuesIn(test::attentions()),
                         [](const auto& test) { return test.param.name; });

// A model that drafts for itself guesses what it will write, whatever the temperature, top-p, penalties and batch:
// with the same random numbers.
TEST(ModelDrafterTest, ItselfGuessesEveryToken) {
  const Config config = test::random_config();
  for (const int64_t slots : {1, 4}) {
    const auto engine = make_engine(config, slots, 512, 2, 0, {.kind = DraftKind::kModel, .tokens = 3});
    std::vector<Transcript> texts(test::mixed_requests().size());
    for (size_t i = 0; i < texts.size(); ++i) engine->submit(test::mixed_requests()[i], texts[i].listener());
    run_all(*engine);
    const DraftCounts counts = engine->load().drafts;
    EXPECT_GT(counts.drafted, 80);
    EXPECT_EQ(counts.num_accepted(), counts.drafted);
  }
}

// It is right where it wrote the same, by chance and where texts are flat, and changes nothing where it is not.
TEST(ModelDrafterTest, AnotherModelChangesNoBit) {
  const Config config = test::random_config();
  const Config smaller = test::random_config({"model.num_layers=2", "model.init.std=0.02"});
  const DraftOptions model{.kind = DraftKind::kModel};
  expect_no_bit_changed(config, {.options = model});
  expect_no_bit_changed(config, {.options = model, .drafting = smaller, .least_right = 0});
}

TEST(ModelDrafterTest, ModelsThatCannotDraftAreRefusedByName) {
  const auto refusal = [](const Config& drafting, std::shared_ptr<const Tokenizer> tokenizer) {
    const DraftOptions draft{.kind = DraftKind::kModel};
    const LoadOptions options = test::load_options(1, 64, 1, 0, draft);
    const auto model = random_cached_model(test::random_config(), byte_tokenizer(), options);
    const auto draft_model = random_cached_model(drafting, std::move(tokenizer), options);
    return error_of([&] { InferenceEngine(model, draft, {.model = draft_model}); });
  };
  const auto words = [](int count) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back(fmt::format("word{}", i));
    return make_word_tokenizer(all);
  };
  const std::shared_ptr<const Tokenizer> few = words(20);
  const Error other_size = refusal(test::random_config(), few);
  EXPECT_EQ(other_size.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(contains(other_size.what(), "vocabulary has")) << other_size.what();
  const auto missing = static_cast<int>(byte_tokenizer()->vocab_size() - few->vocab_size());
  const Error other_ids = refusal(test::random_config(), words(20 + missing));
  EXPECT_TRUE(contains(other_ids.what(), "another tokenizer")) << other_ids.what();
  const Error no_checkpoint = error_of([] {
    InferenceEngine("/nowhere/model", {.draft = {.kind = DraftKind::kModel, .checkpoint = "/nowhere/draft"}});
  });
  EXPECT_TRUE(contains(no_checkpoint.what(), "/nowhere/model")) << no_checkpoint.what();
}

TEST(MtpDrafterTest, ChangesNoBit) {
  const std::vector<std::vector<std::string>> modules = {
      {"model.mtp.depth=1"}, {"model.mtp.depth=3", "model.mtp.shared=true"}, {"model.mtp.depth=2"}};
  for (const std::vector<std::string>& module : modules) {
    expect_no_bit_changed(test::random_config(module), {.options = {.kind = DraftKind::kMtp}, .least_right = 0});
  }
}

TEST(MtpDrafterTest, ModelsWithoutAModuleAreRefused) {
  const Error error = error_of([] { make_engine(test::random_config(), 1, 64, 1, 0, {.kind = DraftKind::kMtp}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(contains(error.what(), "multi-token prediction")) << error.what();
}

GenerationRequest repeating() {
  return test::request_of("the cat sat near the river, the cat sat near the river, the cat", 80, {.temperature = 0.0});
}

TEST(DraftsTest, StepsAreFewerByWhatWasRight) {
  const auto steps_of = [](const DraftOptions& draft) {
    const auto engine = make_engine(test::random_config(), 1, 256, 1, 0, draft);
    Transcript transcript;
    engine->submit(repeating(), transcript.listener());
    int64_t steps = 1;
    while (engine->step()) ++steps;
    return std::pair(steps, transcript.result->accepted_tokens);
  };
  const auto [plain, none] = steps_of({});
  const auto [drafted, right] = steps_of({.kind = DraftKind::kNgram, .tokens = 8});
  EXPECT_EQ(none, 0);
  EXPECT_GT(right, 10);
  EXPECT_EQ(drafted, plain - right);
}

// ---- ends of texts ----

// The byte tokenizer, whose texts end with any id.
class EndingWith final : public Tokenizer {
 public:
  explicit EndingWith(int32_t eos_id) : eos_id_(eos_id) {}
  std::string_view name() const override { return bytes_->name(); }
  std::vector<std::string> patterns() const override { return bytes_->patterns(); }
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<int32_t>& out) const override { bytes_->encode(text, out); }
  std::span<const NamedToken> special_tokens() const override { return bytes_->special_tokens(); }
  std::string_view token_bytes(int32_t id) const override { return bytes_->token_bytes(id); }
  int64_t vocab_size() const override { return bytes_->vocab_size(); }
  int32_t eos_id() const override { return eos_id_; }
  std::string hash() const override { return bytes_->hash(); }
  std::string json() const override { return bytes_->json(); }
  std::string hash_with_end(int32_t eos_id) const override { return bytes_->hash_with_end(eos_id); }

 private:
  std::shared_ptr<const Tokenizer> bytes_ = byte_tokenizer();
  int32_t eos_id_;
};

struct EndedDrafter {
  std::string name;
  DraftOptions options;
  std::vector<std::string> config;  // keys
  double temperature;
};

// What ends a text behind guesses of it that were right, by each drafter.
class EndsAmongGuesses : public testing::TestWithParam<EndedDrafter> {
 protected:
  // The tokens of each step, and what was told.
  struct Told {
    Transcript transcript;
    std::vector<int64_t> lengths;
  };

  EndsAmongGuesses() : config_(test::random_config(GetParam().config)) {
    request_ = repeating();
    request_.sampling = {.temperature = GetParam().temperature, .seed = 4};
    // What comes next is of the prompt, so that all of it is new to the output and yet known to n-grams.
    const Transcript before = written(request_, {});
    request_.prompt.insert(request_.prompt.end(), before.ids.begin(), before.ids.end());
    request_.max_tokens = 60;
    whole_ = written(request_, {}).ids;
    ends_ = ends_of(run(request_, GetParam().options).lengths);
  }

  std::unique_ptr<InferenceEngine> engine(const DraftOptions& draft, int64_t context = 300,
                                          int32_t eos_id = 256) const {
    const LoadOptions options = test::load_options(2, context, 1, 0, draft);
    const auto tokenizer = std::make_shared<EndingWith>(eos_id);
    LoadedModel loaded = random_model(config_, tokenizer, options);
    DraftModels models{.predictions = std::move(loaded.predictions)};
    if (draft.kind == DraftKind::kModel) models.model = random_cached_model(config_, tokenizer, options);
    return std::make_unique<InferenceEngine>(std::move(loaded.model), draft, std::move(models));
  }
  Transcript written(const GenerationRequest& request, const DraftOptions& draft) const {
    return generate(*engine(draft), request);
  }
  static Told run_in(InferenceEngine& engine, const GenerationRequest& request) {
    Told told;
    engine.submit(request, told.transcript.listener());
    for (bool more = true; more;) {
      const int64_t before = std::ssize(told.transcript.ids);
      more = engine.step();
      told.lengths.push_back(std::ssize(told.transcript.ids) - before);
    }
    return told;
  }
  Told run(const GenerationRequest& request, const DraftOptions& draft, int64_t context = 300,
           int32_t eos_id = 256) const {
    return run_in(*engine(draft, context, eos_id), request);
  }

  // Places of tokens that were given behind right guesses, in the same step.
  static std::vector<size_t> ends_of(const std::vector<int64_t>& lengths) {
    std::vector<size_t> places;
    size_t place = 0;
    for (const int64_t length : lengths) {
      for (int64_t i = 0; i < length; ++i, ++place) {
        if (i > 0) places.push_back(place);
      }
    }
    return places;
  }
  // The first of them whose token is new to the output.
  size_t new_token() const {
    for (const size_t place : ends_) {
      const auto before = std::span(whole_).first(place);
      if (whole_[place] != 256 && std::ranges::find(before, whole_[place]) == before.end()) return place;
    }
    ADD_FAILURE() << "no token is new";
    return 0;
  }

  // The text ends as it does without guesses, in a step that gives it `last_step` tokens and more, some of which were
  // guessed.
  void expect_same_end(const GenerationRequest& request, int64_t last_step, int64_t context = 300,
                       int32_t eos_id = 256) const {
    const Told plain = run(request, {}, context, eos_id), drafted = run(request, GetParam().options, context, eos_id);
    expect_same(drafted.transcript, plain.transcript);
    const GenerationResult &expected = *plain.transcript.result, &result = *drafted.transcript.result;
    EXPECT_EQ(result.reason, expected.reason);
    EXPECT_EQ(result.stop, expected.stop);
    EXPECT_EQ(result.output_tokens, expected.output_tokens);
    ASSERT_EQ(result.end.has_value(), expected.end.has_value());
    if (result.end) {
      EXPECT_EQ(result.end->id, expected.end->id);
      EXPECT_EQ(result.end->logprob, expected.end->logprob);
    }
    EXPECT_GT(result.accepted_tokens, 0);
    EXPECT_GE(drafted.lengths.back(), last_step);
    EXPECT_LT(drafted.lengths.size(), plain.lengths.size());
  }

  Config config_;
  GenerationRequest request_;
  std::vector<int32_t> whole_;  // what it says without an end of its own
  std::vector<size_t> ends_;
};

TEST_P(EndsAmongGuesses, StopIds) {
  request_.stop_ids = {whole_[new_token()]};
  expect_same_end(request_, 1);
  EXPECT_EQ(written(request_, {}).result->reason, FinishReason::kStop);
}

TEST_P(EndsAmongGuesses, TheEndOfSequence) {
  request_.ignore_eos = false;
  const size_t place = new_token();
  expect_same_end(request_, 1, 300, whole_[place]);
  const Told told = run(request_, GetParam().options, 300, whole_[place]);
  EXPECT_EQ(told.transcript.result->reason, FinishReason::kStop);
  EXPECT_EQ(told.transcript.ids.size(), place);
}

TEST_P(EndsAmongGuesses, StopStrings) {
  const size_t place = new_token();
  request_.stop = {std::string(byte_tokenizer()->token_bytes(whole_[place]))};
  expect_same_end(request_, 2);
  EXPECT_EQ(written(request_, GetParam().options).result->stop, request_.stop[0]);
}

TEST_P(EndsAmongGuesses, TheLastTokenThatWasAskedFor) {
  request_.max_tokens = static_cast<int64_t>(ends_.front()) + 1;
  expect_same_end(request_, 2);
}

TEST_P(EndsAmongGuesses, TheEndOfTheContext) {
  const auto prompt = std::ssize(request_.prompt);
  expect_same_end(request_, 2, prompt + static_cast<int64_t>(ends_.front()));
  const int64_t context = prompt + static_cast<int64_t>(ends_.back());
  expect_same_end(request_, 1, context);
  const Told told = run(request_, GetParam().options, context);
  EXPECT_EQ(told.transcript.result->reason, FinishReason::kLength);
  EXPECT_EQ(told.transcript.result->output_tokens, context - prompt + 1);
}

TEST_P(EndsAmongGuesses, TheCancelledEnd) {
  const auto engine = this->engine(GetParam().options);
  Transcript first, second;
  const RequestId id = engine->submit(request_, first.listener());
  engine->submit(request_, second.listener());
  while (engine->load().drafts.num_accepted() < 4) ASSERT_TRUE(engine->step());
  engine->cancel(id);
  run_all(*engine);
  EXPECT_EQ(first.result->reason, FinishReason::kCancelled);
  EXPECT_GT(first.result->accepted_tokens, 0);
  ASSERT_LT(first.ids.size(), whole_.size());
  EXPECT_TRUE(std::ranges::equal(first.ids, std::span(whole_).first(first.ids.size())));
  EXPECT_EQ(second.ids, whole_);
  EXPECT_EQ(engine->load().pages_used, 0);
}

// No end: they give up their pages, guesses' included, and go on from the beginning.
TEST_P(EndsAmongGuesses, ButPreemptedTextsGoOn) {
  std::vector<GenerationRequest> requests = test::paged_requests();
  std::vector<Transcript> alone;
  for (GenerationRequest& request : requests) {
    request.sampling.temperature = GetParam().temperature;
    request.max_tokens = 140;  // over a page and into the next
    alone.push_back(generate(*make_engine(config_, 1, 640, 1), request));
  }
  const auto engine = make_engine(config_, 6, 640, 1, 9 * kPagePositions, GetParam().options);
  std::vector<Transcript> drafted(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) engine->submit(requests[i], drafted[i].listener());
  run_all(*engine);
  EXPECT_GT(engine->load().preemptions, 0);
  EXPECT_GT(engine->load().drafts.num_accepted(), 50);
  EXPECT_EQ(engine->load().pages_used, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(drafted[i], alone[i]);
  }
}

// Where the module's logits and the model's are as good as flat, the same random number draws the same token of both.
const std::vector<EndedDrafter> kEndedDrafters = {
    {"ngram", {.kind = DraftKind::kNgram, .tokens = 16}, {}, 0.0},
    {"model", {.kind = DraftKind::kModel, .tokens = 5}, {}, 0.8},
    {"mtp",
     {.kind = DraftKind::kMtp, .tokens = 4},
     {"model.mtp.depth=1", "model.init.std=0.001", "model.init.embedding_std=0.001"},
     1.0},
};
INSTANTIATE_TEST_SUITE_P(Drafts, EndsAmongGuesses, testing::ValuesIn(kEndedDrafters),
                         [](const auto& test) { return test.param.name; });

TEST(DraftsTest, NumbersOutOfRangeAreRefused) {
  for (const int64_t tokens : {int64_t{0}, int64_t{-1}, kMostDrafts + 1}) {
    const Error error = error_of([&] { check_drafts({.kind = DraftKind::kNgram, .tokens = tokens}); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_TRUE(contains(error.remedy(), "from 1 to 16"));
  }
  const Error of_none = error_of([] { check_drafts({.kind = DraftKind::kNone, .tokens = 4}); });
  EXPECT_EQ(of_none.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(contains(of_none.remedy(), "--draft")) << of_none.remedy();
}

}  // namespace
}  // namespace nmoe
