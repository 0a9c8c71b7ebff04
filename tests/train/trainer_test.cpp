#include "train/loop/trainer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "config/load.h"
#include "data/synthetic/write.h"
#include "model/spec/cost.h"
#include "track/catalogue.h"
#include "track/metrics_reader.h"
#include "track/run_files.h"
#include "train/loop/training_data.h"
#include "train/plan/run_plan.h"
#include "train/step/step_phase.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

// A corpus of many short documents.
TEST_F(TrainerTest, MaskingDocumentsDefinesTheRun) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "abcde"[i % 5] + std::string("xy\n--\n");
  make_directories(dir_ / "short-text");
  write_file_atomically(dir_ / "short-text/text.txt", text);
  prepare_dataset({.inputs = {(dir_ / "short-text/text.txt").string()},
                   .valid_fraction = 0.3,
                   .records = {.split_on = "--"},
                   .out = dir_ / "short",
                   .threads = 1});
  const std::string data = "data.path=" + (dir_ / "short").string();
  run("plain", {data, "train.steps=4"});
  run("masked", {data, "data.mask_documents=true", "train.steps=4"});
  run("masked_halves", {data, "data.mask_documents=true", "train.steps=2"});
  resume("masked_halves", {data, "data.mask_documents=true", "train.steps=4"});
  expect_same_state(latest_checkpoint(checkpoints("masked")).value(),
                    latest_checkpoint(checkpoints("masked_halves")).value());
  EXPECT_NE(weights_of(checkpoints("masked")), weights_of(checkpoints("plain")));

  // Documents of 5 tokens ("axy\n" and its end), some cut by a sequence's 16: attention is that of the documents.
  const ModelCost cost = model_cost(resolve_vocab_size(test::tiny_config(dir_), *byte_tokenizer()).model);
  const auto plain = series("plain", "train/flops"), masked = series("masked", "train/flops");
  EXPECT_DOUBLE_EQ(plain.at(4), 4 * 8 * cost.document_flops(16));
  EXPECT_LE(masked.at(4), 4 * 8 * 16 * cost.flops_per_token(5));
  EXPECT_GE(masked.at(4), 4 * 8 * 16 * cost.flops_per_token(4));
  EXPECT_EQ(series("masked_halves", "train/flops"), masked);
  const double seconds = series("masked", "throughput/ms_per_step").at(4) / 1e3;
  EXPECT_NEAR(series("masked", "efficiency/tflops").at(4), (masked.at(4) - masked.at(3)) / seconds / 1e12,
              1e-9 * masked.at(4) / seconds / 1e12);
  const Error error = error_of([&] { resume("plain", {data, "data.mask_documents=true", "train.steps=8"}); });
  EXPECT_TRUE(contains(error.what(), "data.mask_documents"));
}

TEST_F(TrainerTest, FortyStepsAreTwentyAndTwentyMore) {
  run("straight", {"train.steps=40"});
  run("halves", {"train.steps=20"});
  const std::string half_way = weights_of(checkpoints("halves"));
  const std::string id = row("halves").id;
  const TrainSummary summary = resume("halves", {"train.steps=40"});
  EXPECT_EQ(summary.steps, 40);
  EXPECT_EQ(summary.steps_now, 20);
  EXPECT_EQ(summary.checkpoint, checkpoints("halves") / "step_00000040");
  expect_same_state(checkpoints("straight"), checkpoints("halves"));
  EXPECT_NE(weights_of(checkpoints("straight")), half_way);

  // One run, with one history.
  EXPECT_EQ(row("halves").id, id);
  EXPECT_EQ(row("halves").status, RunStatus::kCompleted);
  EXPECT_EQ(row("halves").step, 40);
  for (const char* tag : {"train/loss", "train/bpb", "train/grad_norm", "train/tokens_seen", "train/flops",
                          "optimizer/lr", "router/layer_01/cv"}) {
    EXPECT_EQ(series("halves", tag), series("straight", tag)) << tag;
    EXPECT_EQ(series("halves", tag).size(), 40u) << tag;
  }
  // And it learned something: half a nat of what telling bytes from one another is worth.
  const auto losses = series("straight", "train/loss");
  EXPECT_LT(losses.at(40), losses.at(1) - 0.5);
}

TEST_F(TrainerTest, MomentsInBf16AreKeptAsTheyAre) {
  const std::string rounded = "optim.adamw.state=bf16", adamw = "optim.experts.optimizer=adamw";
  run("straight", {rounded, adamw, "train.steps=8"});
  run("halves", {rounded, adamw, "train.steps=3"});
  resume("halves", {rounded, adamw, "train.steps=8"});
  expect_same_state(checkpoints("straight"), checkpoints("halves"));
  const CheckpointReader reader = CheckpointReader::open(checkpoints("straight"));
  int64_t moments = 0;
  for (const ManifestTensor& tensor : reader.optimizer()) {
    if (!tensor.name.starts_with("adamw.")) continue;
    EXPECT_EQ(tensor.dtype, DType::kBF16) << tensor.name;
    ++moments;
  }
  EXPECT_GT(moments, 4);
  // Another format is another run, either way.
  const Error to_fp32 = error_of([&] { resume("halves", {adamw, "train.steps=9"}); });
  EXPECT_TRUE(contains(to_fp32.what(), "optim.adamw.state: \"bf16\" != unused"));
  EXPECT_TRUE(contains(to_fp32.remedy(), "undo these changes"));
  run("whole", {adamw, "train.steps=2"});
  EXPECT_TRUE(contains(error_of([&] {
                         resume("whole", {rounded, adamw, "train.steps=3"});
                       }).what(),
                       "optim.adamw.state: unused != \"bf16\""));
}

TEST_F(TrainerTest, AMomentumInBf16IsKeptAsItIs) {
  const std::string rounded = "optim.muon.state=bf16";
  run("straight", {rounded, "train.steps=8"});
  run("halves", {rounded, "train.steps=3"});
  resume("halves", {rounded, "train.steps=8"});
  expect_same_state(checkpoints("straight"), checkpoints("halves"));
  const CheckpointReader reader = CheckpointReader::open(checkpoints("straight"));
  int64_t momenta = 0, bytes = 0;
  const auto bytes_of = [](const ManifestTensor& tensor) {
    return tensor.shape.num_elements() * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  };
  for (const ManifestTensor& tensor : reader.optimizer()) {
    const bool is_momentum = tensor.name.starts_with("muon.");
    EXPECT_EQ(tensor.dtype, is_momentum ? DType::kBF16 : DType::kF32) << tensor.name;
    momenta += is_momentum ? 1 : 0;
    bytes += bytes_of(tensor);
  }
  EXPECT_GT(momenta, 4);
  for (const ManifestTensor& tensor : reader.model()) bytes += bytes_of(tensor);
  EXPECT_EQ(checkpoint_bytes(parse_config(reader.config_toml(), "config.toml")), bytes);
  EXPECT_TRUE(
      contains(error_of([&] { resume("halves", {"train.steps=9"}); }).what(), "optim.muon.state: \"bf16\" != unused"));
}

TEST_F(TrainerTest, MomentsInFp8AreKeptAsTheyAre) {
  const std::string codes = "optim.adamw.state=fp8", adamw = "optim.experts.optimizer=adamw";
  run("straight", {codes, adamw, "train.steps=8"});
  run("halves", {codes, adamw, "train.steps=3"});
  resume("halves", {codes, adamw, "train.steps=8"});
  expect_same_state(checkpoints("straight"), checkpoints("halves"));
  const CheckpointReader reader = CheckpointReader::open(checkpoints("straight"));
  std::map<std::string, int64_t> elements;
  int64_t bytes = 0;
  const auto count = [&](const ManifestTensor& tensor) {
    elements[tensor.name] = tensor.shape.num_elements();
    bytes += tensor.shape.num_elements() * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  };
  for (const ManifestTensor& tensor : reader.optimizer()) {
    EXPECT_EQ(tensor.dtype, tensor.name.starts_with("muon.") ? DType::kF32 : DType::kU8) << tensor.name;
    count(tensor);
  }
  for (const ManifestTensor& tensor : reader.model()) count(tensor);
  EXPECT_EQ(elements.at("adamw.m.embedding"), elements.at("embedding"));
  EXPECT_EQ(elements.at("adamw.v_scales.embedding"), (elements.at("embedding") + 127) / 128);
  EXPECT_EQ(checkpoint_bytes(parse_config(reader.config_toml(), "config.toml")), bytes);
  EXPECT_TRUE(contains(error_of([&] {
                         resume("halves", {adamw, "train.steps=9"});
                       }).what(),
                       "optim.adamw.state: \"fp8\" != unused"));
}

TEST_F(TrainerTest, GoesOnWithTheProductsItBeganWith) {
  const std::string rounded = "optim.muon.products=bf16";
  run("straight", {rounded, "train.steps=6"});
  run("halves", {rounded, "train.steps=2"});
  run("fp32", {"train.steps=6"});
  resume("halves", {rounded, "train.steps=6"});
  expect_same_state(checkpoints("straight"), checkpoints("halves"));
  EXPECT_NE(weights_of(checkpoints("straight")), weights_of(checkpoints("fp32")));
  EXPECT_TRUE(contains(error_of([&] { resume("halves", {"train.steps=9"}); }).what(),
                       "optim.muon.products: \"bf16\" != unused"));
}

TEST_F(TrainerTest, EveryRateHasOneName) {
  run("rates", {"train.steps=1", "optim.matrices.lr=1e-3", "optim.experts.lr=2e-3", "optim.router.lr=3e-3",
                "optim.rest.lr=4e-3"});
  std::map<double, std::string> rates;
  for (const test::MetricRow& metric : test::last_values(dir_ / "runs/metrics" / row("rates").id / "rank_0.duckdb")) {
    if (!metric.tag.starts_with("optimizer/")) continue;
    const auto [same, is_new] = rates.emplace(metric.value, metric.tag);
    EXPECT_TRUE(is_new) << metric.tag << " and " << same->second;
  }
  EXPECT_EQ(rates.size(), 4u);
}

// Of two ranks that exchange tokens and move experts: everything has an entry in the catalogue, of its kind; rank 0's
// file says what is of all, the other's what is its own.
TEST_F(TrainerTest, EveryTagIsInTheCatalogue) {
  run("tags", {"train.steps=4", "train.valid_every=2", "parallel.ranks=2", "parallel.rebalance_every=2",
               "run.precision=mxfp8", "precision.check_every=3", "train.logit_z_loss=1e-4", "model.mtp.depth=1"});
  const fs::path folder = dir_ / "runs/metrics" / row("tags").id;
  std::set<std::string_view> patterns;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".duckdb") {
      EXPECT_TRUE(entry.path().filename() == "train.log" || entry.path().filename() == "memory_plan.json");
      continue;
    }
    for (const MetricsView::Last& last : MetricsView(entry.path()).last()) {
      const Metric* metric = find_tag(last.tag);
      ASSERT_NE(metric, nullptr) << last.tag;
      EXPECT_EQ(metric->is_array, last.is_array) << last.tag;
      const bool of_each = metric->over_ranks == OverRanks::kEach;
      EXPECT_TRUE(of_each || entry.path().filename() == "rank_0.duckdb") << last.tag;
      patterns.insert(metric->tag);
    }
  }
  // All but what needs GPUs, several sources, tasks, masks, or special targets.
  for (const Metric* metric : tag_catalogue()) {
    const std::string pattern(metric->tag);
    const bool elsewhere = pattern.starts_with("gpu/") || pattern.starts_with("eval/") || contains(pattern, "SOURCE") ||
                           contains(pattern, "answers") || pattern == "valid/special_loss" ||
                           pattern == "valid/special_predicted_share";
    EXPECT_EQ(patterns.contains(metric->tag), !elsewhere) << metric->tag;
  }
  EXPECT_EQ(test::last_values(folder / "rank_1.duckdb").size(), 1u + step_phases().size());
  const std::vector<PlannedRegion> plan = read_memory_plan(memory_plan_path(folder / "rank_0.duckdb"));
  EXPECT_TRUE(std::ranges::any_of(plan, [](const PlannedRegion& r) { return r.name == "process" && r.bytes > 0; }));

  MetricsReader reader(folder / "rank_0.duckdb");
  reader.load(std::vector<std::string>{"router/layer_01/load", "router/layer_01/bias", "router/layer_01/bias_range"});
  const ArraySeries &loads = reader.arrays("router/layer_01/load"), &biases = reader.arrays("router/layer_01/bias");
  ASSERT_EQ(loads.size(), 4u);
  ASSERT_EQ(biases.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(std::accumulate(loads.rows()[i].begin(), loads.rows()[i].end(), 0.0f), 8 * 16 * 2.0f)
        << "tokens times top_k";
    const auto [low, high] = std::ranges::minmax(biases.rows()[i]);
    EXPECT_EQ(reader.series("router/layer_01/bias_range").values()[i], double(high) - double(low));
  }
  const std::string log = read_file(folder / "train.log");
  EXPECT_TRUE(contains(log, "Z  train step 4/4  loss ")) << log;
  EXPECT_TRUE(contains(log, "  step 2: validation loss ")) << log;
}

TEST_F(TrainerTest, CadencesAndThreadsDoNotChangeTheWeights) {
  run("one", {"train.steps=6", "run.threads=1"});
  run("three", {"train.steps=6", "run.threads=3", "checkpoint.every=2", "train.log_every=4", "train.valid_every=1",
                "train.valid_seqs=3"});
  expect_same_state(checkpoints("one"), checkpoints("three"));
}

TEST_F(TrainerTest, KeepsTheLastCheckpoints) {
  run("kept", {"train.steps=7", "checkpoint.every=2", "checkpoint.keep_last=2"});
  const std::vector<fs::path> expected = {checkpoints("kept") / "step_00000006", checkpoints("kept") / "step_00000007"};
  EXPECT_EQ(list_checkpoints(checkpoints("kept")), expected);
}

// A run went on beyond its last checkpoint and was lost there: what it recorded is done again.
TEST_F(TrainerTest, MetricsBeyondTheCheckpointAreRewound) {
  run("straight", {"train.steps=12"});
  run("lost", {"train.steps=15", "checkpoint.every=8"});
  fs::remove_all(checkpoints("lost") / "step_00000015");
  EXPECT_EQ(series("lost", "train/loss").size(), 15u);
  resume("lost", {"train.steps=12"});
  EXPECT_EQ(series("lost", "train/loss"), series("straight", "train/loss"));
  EXPECT_EQ(series("lost", "valid/loss"), series("straight", "valid/loss"));
  expect_same_state(checkpoints("lost"), checkpoints("straight"));
}

TEST_F(TrainerTest, ResumingWhatIsDoneDoesNothing) {
  run("done", {"train.steps=3"});
  const std::string weights = weights_of(checkpoints("done"));
  const TrainSummary summary = resume("done", {"train.steps=3"});
  EXPECT_EQ(summary.steps, 3);
  EXPECT_EQ(summary.steps_now, 0);
  EXPECT_TRUE(summary.valid.has_value());
  EXPECT_EQ(weights_of(checkpoints("done")), weights);
}

// Two sources of answers with one vocabulary. Whether their shares go up is not a matter of so few steps.
TEST_F(TrainerTest, AnswersOfEverySourceAreScored) {
  const auto make = [&](const char* name, const char* entities) {
    synthesize({.kind = "khop",
                .settings = {"pool=6", "max_hops=2", "queries=2", entities},
                .documents = 200,
                .valid_documents = 60,
                .out = dir_ / name,
                .threads = 1});
  };
  make("few", "entities=2");
  make("more", "entities=3");
  std::string mixture = "[stages.train]\ntokens = 1024\nweights = { few = 1, more = 1 }\n[profiles]\nfull.scale = 1\n";
  for (const char* source : {"few", "more"}) {
    mixture += fmt::format("[sources.{}]\npath = \"{}\"\n", source, (dir_ / source).string());
  }
  write_file_atomically(dir_ / "mixture.toml", mixture);
  const TrainSummary summary = run("answers", {"data.path=", "data.mixture=" + (dir_ / "mixture.toml").string(),
                                               "data.profile=full", "data.seq_len=32", "train.steps=4"});
  double answers = 0.0, correct = 0.0;
  for (const char* source : {"few", "more"}) {
    const auto counts = series("answers", fmt::format("valid/{}/answers", source));
    const auto shares = series("answers", fmt::format("valid/{}/answers_correct_share", source));
    ASSERT_EQ(counts.size(), 1u);
    // Two of each of 60 documents, but for those that windows cut.
    EXPECT_GT(counts.at(4), 60);
    EXPECT_LT(counts.at(4), 120);
    answers += counts.at(4);
    correct += counts.at(4) * shares.at(4);
  }
  EXPECT_EQ(series("answers", "valid/answers").at(4), answers);
  EXPECT_NEAR(series("answers", "valid/answers_correct_share").at(4), correct / answers, 1e-12);
  ASSERT_TRUE(summary.valid.has_value());
  EXPECT_EQ(static_cast<double>(summary.valid->answers), answers);

  run("text", {"train.steps=1"});
  EXPECT_TRUE(series("text", "valid/answers").empty());
}

TEST_F(TrainerTest, ResumeWithoutCheckpointsStarts) { EXPECT_EQ(resume("fresh", {"train.steps=2"}).steps_now, 2); }

TEST_F(TrainerTest, DoesNotOverwriteARunOfTheSameName) {
  run("taken", {"train.steps=1"});
  const Error error = error_of([&] { run("taken", {"train.steps=2"}); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), "already holds checkpoints of a run named \"taken\""));
  EXPECT_TRUE(contains(error.remedy(), "--resume"));
}

TEST_F(TrainerTest, RefusesToResumeUnderAnotherConfiguration) {
  run("set", {"train.steps=2"});
  const std::string weights = weights_of(checkpoints("set"));
  const Error error = error_of([&] { resume("set", {"train.steps=4", "optim.router.lr=0.5", "model.moe.top_k=3"}); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), (checkpoints("set") / "step_00000002").string()));
  EXPECT_TRUE(contains(error.what(), "optim.router.lr: 0.01 != 0.5"));
  EXPECT_TRUE(contains(error.what(), "model.moe.top_k: 2 != 3"));
  EXPECT_EQ(std::string(error.what()).find("train.steps"), std::string::npos);
  EXPECT_EQ(weights_of(checkpoints("set")), weights);
}

TEST_F(TrainerTest, RefusesToResumeOnAnotherCorpus) {
  run("corpus", {"train.steps=2"});
  test::write_tiny_corpus(dir_ / "other", /*seed=*/5);
  const Error error = error_of([&] { resume("corpus", {"train.steps=4", "data.path=" + (dir_ / "other").string()}); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), (dir_ / "other").string()));
  EXPECT_TRUE(contains(error.remedy(), "data.path"));
}

TEST_F(TrainerTest, ALossThatIsNotFiniteStopsTheRunWithItsLastGoodWeights) {
  const std::vector<std::string> absurd = {"optim.rest.lr=1e30", "optim.schedule.warmup=0", "train.steps=9"};
  const Error error = error_of([&] { run("nan", absurd); });
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_TRUE(contains(error.what(), "step 2: loss "));
  EXPECT_TRUE(contains(error.what(), "first bad tensor: layers.0."));
  EXPECT_TRUE(contains(error.remedy(), "the weights after step 1 are kept"));

  const RunRow failed = row("nan");
  EXPECT_EQ(failed.status, RunStatus::kFailedNan);
  EXPECT_EQ(failed.reason, error.what());
  EXPECT_EQ(failed.step, 1);
  std::vector<std::string> one_step = absurd;
  one_step.back() = "train.steps=1";
  run("one", one_step);
  expect_same_state(checkpoints("nan"), checkpoints("one"));
}

TEST_F(TrainerTest, ACollapsedRouterStopsTheRun) {
  // All scores are equal, and nothing moves the choice from the first two experts.
  const std::vector<std::string> level = {"model.init.router_std=0", "model.moe.bias_rate=0", "train.steps=3",
                                          "optim.router.lr=0"};
  const Error error = error_of([&] { run("collapse", level); });
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_TRUE(contains(error.what(), "step 1: the router of layer 1 has collapsed"));
  EXPECT_TRUE(contains(error.remedy(), "model.moe.bias_rate"));
  EXPECT_EQ(row("collapse").status, RunStatus::kFailedCollapse);
  EXPECT_EQ(row("collapse").reason, error.what());
  EXPECT_EQ(CheckpointReader::open(checkpoints("collapse")).info().step, 1);

  std::vector<std::string> regardless = level;
  regardless.emplace_back("train.stop_on_collapse=false");
  EXPECT_EQ(run("regardless", regardless).steps, 3);
}

TEST_F(TrainerTest, RefusesWhatDoesNotFitBeforeItStarts) {
  const Error error = error_of([&] { run("big", {"train.memory_limit=1 MiB"}); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), "train.memory_limit is 1.00 MiB"));
  EXPECT_FALSE(fs::exists(dir_ / "runs"));
}

TEST_F(TrainerTest, ACheckpointSaysWhereItIsFrom) {
  const TrainSummary summary = run("told", {"train.steps=3"});
  const CheckpointReader reader = CheckpointReader::open(summary.checkpoint);
  EXPECT_EQ(reader.info().step, 3);
  EXPECT_EQ(reader.info().tokens, 3 * 8 * 16);
  EXPECT_EQ(reader.info().cursor.sequence, 3 * 8);
  EXPECT_EQ(reader.info().run_id, row("told").id);
  EXPECT_EQ(reader.info().nmoe_version, "0.0.0");
  EXPECT_EQ(reader.info().nmoe_commit, "abc");
  EXPECT_EQ(reader.tokenizer_json(), byte_tokenizer()->json());
  const Config config = parse_config(reader.config_toml(), "config.toml");
  EXPECT_EQ(config.model.vocab_size, 257);
  EXPECT_EQ(config_fingerprint(config), reader.info().config_fingerprint);
}

// A checkpoint's weights, before anything is trained.
TEST_F(TrainerTest, StartsFromTheWeightsOfACheckpoint) {
  run("first", {"train.steps=4"});
  const std::string from = fmt::format("model.init.from={}", checkpoints("first").string());
  // Rates of 0 leave the weights as they were; the router's bias moves all the same.
  run("second", {"train.steps=1", from, "model.moe.bias_rate=0", "optim.matrices.lr=0", "optim.experts.lr=0",
                 "optim.router.lr=0", "optim.rest.lr=0"});
  EXPECT_EQ(weights_of(checkpoints("second")), weights_of(checkpoints("first")));
  EXPECT_EQ(CheckpointReader::open(checkpoints("second")).info().step, 1);
}

TEST_F(TrainerTest, RefusesTheWeightsOfAModelThatComputesOtherwise) {
  run("first", {"train.steps=1"});
  const std::string from = fmt::format("model.init.from={}", checkpoints("first").string());
  const Error error = error_of([&] { run("second", {"train.steps=1", from, "model.rope.layout=half_split"}); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), "model.rope.layout")) << error.what();
}

}  // namespace
}  // namespace nmoe
