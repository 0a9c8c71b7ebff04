#include "train/plan/memory_plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/files.h"
#include "base/process.h"
#include "base/text.h"
#include "config/load.h"
#include "support/errors.h"
#include "support/tiny_corpus.h"
#include "train/step/batch_shape.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;

constexpr int64_t kMiB = 1 << 20;

Config planned_config(std::vector<std::string> overrides = {}) {
  overrides.emplace_back("model.vocab_size=50");
  return test::tiny_config("/nowhere", overrides);
}

// As plan_memory would return it for a model of this size.
MemoryPlan plan_of(int64_t weights, int64_t activations, int64_t process) {
  MemoryPlan plan;
  plan.storage.set(ArenaKind::kParameters, weights);
  plan.storage.set(ArenaKind::kActivations, activations);
  plan.total_bytes = weights + activations + process;
  return plan;
}

TEST(MemoryPlanTest, HasALineForEveryOwnerAndTheirSum) {
  const Config config = planned_config();
  const MemoryPlan plan = plan_memory(config, /*data_bytes=*/12345, /*ranks=*/1);
  const StoragePlan engine = plan_engine_storage(config);
  EXPECT_EQ(plan.storage.total(), engine.total());

  std::map<std::string, int64_t> lines;
  int64_t sum = 0;
  for (const MemoryLine& line : plan.lines) {
    lines[line.owner] = line.bytes;
    sum += line.bytes;
  }
  EXPECT_EQ(plan.total_bytes, sum);
  EXPECT_EQ(lines.size(), plan.lines.size());
  for (const ArenaDescription& arena : arena_table()) {
    EXPECT_EQ(lines[std::string(arena.name)], engine[arena.kind]) << arena.name;
  }
  EXPECT_EQ(lines["data"], 12345);
  EXPECT_GT(lines["process"], kMiB);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what the rehearsal has freed
  EXPECT_LE(lines["process"], peak_resident_bytes());
#endif

  const std::string table = print_plan(plan, config);
  for (const MemoryLine& line : plan.lines) EXPECT_TRUE(contains(table, line.owner));
  EXPECT_TRUE(contains(table, "parameters, "));
  EXPECT_TRUE(contains(table, "FLOP per token"));
}

TEST(MemoryPlanTest, MomentsAndStagingFollowFromTheWeights) {
  // AdamW keeps two moments a weight. Router biases and rounding up to whole lines of memory are
  // less than a hundredth.
  const Config config = planned_config({"optim.matrices.optimizer=adamw", "optim.experts.optimizer=adamw"});
  const StoragePlan memory = plan_engine_storage(config);
  EXPECT_NEAR(static_cast<double>(memory[ArenaKind::kOptimizer]),
              2.0 * static_cast<double>(memory[ArenaKind::kGradients]),
              1e-2 * static_cast<double>(memory[ArenaKind::kOptimizer]));
  EXPECT_NEAR(static_cast<double>(memory[ArenaKind::kCheckpointStaging]),
              3.0 * static_cast<double>(memory[ArenaKind::kParameters]),
              1e-2 * static_cast<double>(memory[ArenaKind::kCheckpointStaging]));
}

// What does not fit passes through it, and is not planned for.
TEST(MemoryPlanTest, StagingIsNoMoreThanItsKeySays) {
  constexpr int64_t kBytes = 1 << 16;
  const MemoryPlan all = plan_memory(planned_config({"model.dim=64"}), 0, /*ranks=*/1);
  const MemoryPlan few =
      plan_memory(planned_config({"model.dim=64", fmt::format("checkpoint.staging_bytes={}", kBytes)}), 0, /*ranks=*/1);
  EXPECT_GT(all.storage[ArenaKind::kCheckpointStaging], 4 * kBytes);
  EXPECT_EQ(few.storage[ArenaKind::kCheckpointStaging], kBytes);
  EXPECT_EQ(all.storage.total() - few.storage.total(), all.storage[ArenaKind::kCheckpointStaging] - kBytes);
}

TEST(MemoryPlanTest, ActivationsFallWithEveryLevelOfRecomputation) {
  // Deep enough that what layers keep is more than what the last one needs beside it.
  const auto activations = [](const std::string& recompute) {
    return plan_engine_storage(
        planned_config({"model.num_layers=8", "train.recompute=" + recompute}))[ArenaKind::kActivations];
  };
  EXPECT_LT(activations("norms"), activations("none"));
  EXPECT_LT(activations("experts"), activations("norms"));
  EXPECT_LT(activations("blocks"), activations("experts"));
}

// Every layer adds what it keeps itself, at the bottom of the stack.
TEST(MemoryPlanTest, EveryLayerCountsAsItsOwnLevelSays) {
  const auto activations = [](const std::string& key) {
    return plan_engine_storage(planned_config({"model.num_layers=9", key}))[ArenaKind::kActivations];
  };
  for (const auto& [key, less, more] : {std::tuple{"train.recompute=", "blocks", "none"},
                                        {"train.recompute=", "experts", "norms"},
                                        {"precision.saved=", "fp8", "device"}}) {
    const auto with = [&](int64_t first) {
      return activations(fmt::format("{}1 x {}, {} x {}, {} x {}", key, more, first, less, 8 - first, more));
    };
    const int64_t of_a_layer = with(1) - with(2);
    EXPECT_GT(of_a_layer, 0) << key << less;
    EXPECT_EQ(with(2) - with(5), 3 * of_a_layer) << key << less;
  }
}

// Two slots on the device, and all inputs but the last two in the host, whatever the number of layers.
TEST(MemoryPlanTest, InputsThatWaitInTheHostAreCountedThere) {
  const auto with = [](int64_t layers, const std::string& levels) {
    return planned_config({fmt::format("model.num_layers={}", layers), "train.recompute=" + levels});
  };
  const Config config = with(8, "host");
  const int64_t input =
      config.train.microbatch_seqs * config.data.seq_len * config.model.dim * dtype_bytes(DType::kF32);
  for (const int64_t layers : {5, 8}) {
    const StoragePlan blocks = plan_engine_storage(with(layers, "blocks")),
                      host = plan_engine_storage(with(layers, "host"));
    EXPECT_EQ(blocks[ArenaKind::kHostInputs], 0);
    EXPECT_EQ(host[ArenaKind::kHostInputs], (layers - 2) * input);
    EXPECT_EQ(blocks[ArenaKind::kActivations] - host[ArenaKind::kActivations], (layers - 2) * input);
    // Behind a layer that keeps something, the input lies there.
    const std::string list = fmt::format("norms, {} x host", layers - 1);
    EXPECT_EQ(plan_engine_storage(with(layers, list))[ArenaKind::kHostInputs], (layers - 4) * input);
  }
  const MemoryPlan plan = plan_memory(config, 0, 1);
  const auto line = std::ranges::find(plan.lines, "host inputs", &MemoryLine::owner);
  ASSERT_NE(line, plan.lines.end());
  EXPECT_EQ(line->bytes, 6 * input);
  EXPECT_TRUE(contains(print_plan(plan, config), human_bytes(6 * input) + " of block inputs wait in host memory"));
}

// A layer keeps a byte of each pre-activation and one for each 128, instead of four of each and of each hidden unit.
TEST(MemoryPlanTest, SavedCodesTakeTheirBytes) {
  const auto activations = [](const std::string& saved, int64_t layers) {
    return plan_engine_storage(
        planned_config({"model.moe.num_shared_experts=1", fmt::format("model.num_layers={}", layers),
                        "precision.saved=" + saved}))[ArenaKind::kActivations];
  };
  const auto of_a_layer = [&](const std::string& saved) { return activations(saved, 9) - activations(saved, 8); };
  const Config config = planned_config({});
  const int64_t tokens = batch_shape(config, config.data.seq_len).microbatch_tokens(), F = config.model.moe.expert_dim,
                W = 2 * F, rows = tokens * (config.model.moe.top_k + 1);
  const int64_t saved = rows * (4 * (W + F) - (W + (W + 127) / 128));
  EXPECT_NEAR(static_cast<double>(of_a_layer("device") - of_a_layer("fp8")), static_cast<double>(saved), 2048.0);
}

TEST(MemoryPlanTest, MomentsInBf16TakeHalf) {
  for (const std::string optimizer : {"adamw", "muon"}) {
    const auto with = [&](const std::string& state) {
      return plan_engine_storage(
          planned_config({"model.dim=256", "optim.matrices.optimizer=" + optimizer,
                          "optim.experts.optimizer=" + optimizer, "optim.adamw.state=" + state,
                          optimizer == "muon" ? "optim.muon.state=" + state : "train.steps=1"}))[ArenaKind::kOptimizer];
    };
    EXPECT_NEAR(static_cast<double>(with("bf16")), 0.5 * static_cast<double>(with("fp32")),
                0.01 * static_cast<double>(with("fp32")))
        << optimizer;
  }
}

TEST(MemoryPlanTest, MomentsInFp8TakeAQuarterAndTheirScales) {
  const auto with = [&](const std::string& state) {
    return static_cast<double>(plan_engine_storage(
        planned_config({"model.dim=256", "optim.matrices.optimizer=adamw", "optim.experts.optimizer=adamw",
                        "optim.adamw.state=" + state}))[ArenaKind::kOptimizer]);
  };
  EXPECT_NEAR(with("fp8"), (0.25 + 0.25 / 128) * with("fp32"), 0.01 * with("fp32"));
}

// Of experts alone; the product that is added borrows room from activations.
TEST(MemoryPlanTest, GradientsOfExpertsInBf16TakeHalf) {
  const auto with = [](const std::string& format) {
    return plan_engine_storage(planned_config({"model.dim=256", "train.gradients=" + format}));
  };
  const StoragePlan fp32 = with("fp32"), bf16 = with("bf16");
  int64_t elements = 0, largest = 0;
  for (const WeightSpec& weight : describe_model(planned_config({"model.dim=256"}).model).weights) {
    if (weight.group != WeightGroup::kExperts) continue;
    elements += weight.shape.num_elements();
    largest = std::max(largest, weight.shape.num_elements());
  }
  EXPECT_NEAR(static_cast<double>(fp32[ArenaKind::kGradients] - bf16[ArenaKind::kGradients]),
              2.0 * static_cast<double>(elements), 4096.0);
  const int64_t borrowed = bf16[ArenaKind::kActivations] - fp32[ArenaKind::kActivations];
  EXPECT_GE(borrowed, 0);
  EXPECT_LE(borrowed, 4 * largest + Arena::kAlignment);
}

// State in host memory takes what it took on the device; what stays there are the numbers of experts. The ring of
// buffers is where activations were.
TEST(MemoryPlanTest, StateInHostMemoryIsPlannedThere) {
  for (const std::string state : {"fp32", "bf16"}) {
    const auto with = [&](const std::string& offload, const std::string& batch) {
      return planned_config({"optim.experts.optimizer=adamw", "optim.adamw.state=" + state, "optim.offload=" + offload,
                             "train.batch_seqs=" + batch, "train.microbatch_seqs=" + batch});
    };
    const StoragePlan device = plan_engine_storage(with("none", "8")), host = plan_engine_storage(with("state", "8"));
    EXPECT_EQ(device[ArenaKind::kHostState], 0);
    EXPECT_EQ(host[ArenaKind::kHostState] + host[ArenaKind::kOptimizer], device[ArenaKind::kOptimizer]);
    EXPECT_LE(host[ArenaKind::kOptimizer], 4 * Arena::kAlignment);
    EXPECT_EQ(host[ArenaKind::kActivations], device[ArenaKind::kActivations]);
    EXPECT_EQ(host[ArenaKind::kCheckpointStaging], device[ArenaKind::kCheckpointStaging]);
    // Where activations are fewer than the ring's bytes, they are as many.
    const StoragePlan few = plan_engine_storage(with("none", "1")), ring = plan_engine_storage(with("state", "1"));
    EXPECT_GE(ring[ArenaKind::kActivations], few[ArenaKind::kActivations]);
    EXPECT_LE(ring[ArenaKind::kActivations], std::max(few[ArenaKind::kActivations], 4 * host[ArenaKind::kHostState]));
    const MemoryPlan plan = plan_memory(with("state", "8"), 0, /*ranks=*/1);
    const auto line = std::ranges::find(plan.lines, "host state", &MemoryLine::owner);
    ASSERT_NE(line, plan.lines.end());
    EXPECT_EQ(line->bytes, host[ArenaKind::kHostState]);
    EXPECT_FALSE(line->on_device);
  }
}

// Where all fits, nothing moves; else what is more than the device has, and what is cut off at a weight's end. Of two
// ranks each keeps what fits of its own. Where not even that is enough, all moves and the run is refused.
TEST(MemoryPlanTest, FitMovesWhatHasNoRoom) {
  const auto with = [](const std::string& offload, int64_t ranks, const std::string& limit = "") {
    return planned_config({"run.device=cuda", "model.dim=512", "model.moe.expert_dim=1024", "model.num_layers=8",
                           "optim.experts.optimizer=adamw", "optim.matrices.optimizer=adamw",
                           "optim.offload=" + offload, "train.memory_limit=" + limit,
                           fmt::format("parallel.ranks={}", ranks)});
  };
  const GpuPart part{.name = "part", .memory_bytes = int64_t{8} << 30, .compute_major = 9};
  constexpr int64_t kGranularity = 2 << 20;
  for (const int64_t ranks : {1, 2}) {
    const MemoryPlan none = plan_memory(with("none", ranks), 0, ranks, part),
                     all = plan_memory(with("state", ranks), 0, ranks, part);
    const int64_t state = none.storage[ArenaKind::kOptimizer];
    ASSERT_GT(none.device_bytes, all.device_bytes + 8 * kGranularity);
    const auto fit = [&](int64_t limit) {
      const Config config = with("fit", ranks, fmt::format("{} B", limit));
      return plan_memory(config, 0, ranks, part);
    };
    const MemoryPlan roomy = fit(none.device_bytes);
    EXPECT_EQ(roomy.storage[ArenaKind::kHostState], 0);
    EXPECT_EQ(roomy.device_bytes, none.device_bytes);
    const int64_t limit = (none.device_bytes + all.device_bytes) / 2;
    const MemoryPlan half = fit(limit);
    EXPECT_LE(half.device_bytes, limit);
    EXPECT_GT(half.storage[ArenaKind::kHostState], 0);
    EXPECT_GT(half.storage[ArenaKind::kOptimizer], state / 4);
    EXPECT_LT(half.storage[ArenaKind::kHostState], all.storage[ArenaKind::kHostState]);
    const MemoryPlan none_left = fit(all.device_bytes - kGranularity);
    EXPECT_EQ(none_left.storage[ArenaKind::kHostState], all.storage[ArenaKind::kHostState]);
    const Config too_small = with("fit", ranks, fmt::format("{} B", all.device_bytes - kGranularity));
    try {
      check_memory(none_left, too_small);
      ADD_FAILURE() << "a plan of " << none_left.device_bytes << " bytes is not refused";
    } catch (const Error& error) {
      EXPECT_NE(
          error.remedy().find("optim.offload = \"fit\" has " + human_bytes(none_left.storage[ArenaKind::kHostState])),
          std::string::npos)
          << error.remedy();
    }
    // Whatever there is room for: what the choice comes to leaves a hundredth of that, or all has moved.
    for (int64_t room = all.device_bytes; room < none.device_bytes;
         room += (none.device_bytes - all.device_bytes) / 5) {
      const MemoryPlan fitted = fit(room);
      EXPECT_TRUE(fitted.device_bytes <= room - room / 100 || fitted.state_on_device == 0)
          << fitted.device_bytes << " bytes in " << room;
    }
  }
}

TEST(MemoryPlanTest, RoomForRowsOfExpertsIsAFactorOfTheAverage) {
  const auto with = [](const std::string& factor, const std::string& recompute = "none") {
    return planned_config({"model.num_layers=8", "model.moe.num_experts=16", "train.batch_seqs=16",
                           "train.recompute=" + recompute, "parallel.ranks=4", "parallel.capacity_factor=" + factor});
  };
  for (const char* recompute : {"none", "norms", "experts", "blocks"}) {
    const auto activations = [&](const char* factor) {
      return plan_engine_storage(with(factor, recompute))[ArenaKind::kActivations];
    };
    EXPECT_LT(activations("1"), activations("1.5")) << recompute;
    EXPECT_LT(activations("1.5"), activations("4")) << recompute;
  }
  const MemoryPlan plan = plan_memory(with("1.5"), 0, /*ranks=*/4);
  EXPECT_EQ(plan.worst_bytes, plan_engine_storage(with("4")).total() - plan.storage.total());
  const int64_t average = 4 * 16 * 2;  // tokens of a microbatch, their experts
  EXPECT_EQ(plan.expert_rows.kept, average * 3 / 2);
  EXPECT_EQ(plan.expert_rows.worst, average * 4);
  EXPECT_TRUE(contains(print_plan(plan, with("1.5")),
                       "room for 192 rows a layer, 1.5 of the average; the worst routing has 512, in 3 turns; room for "
                       "all at once would take "));
  MemoryPlan worst;
  worst.expert_rows = plan_expert_rows(with("4"));
  EXPECT_TRUE(contains(print_plan(worst, with("4")), "room for 512 rows a layer, as many as the worst routing has"));
}

TEST(MemoryPlanTest, FlagsAreForRanksThatWaitForOthers) {
  const auto flags = [](const std::string& ranks) {
    return plan_engine_storage(
        planned_config({"model.moe.num_experts=8", "parallel.ranks=" + ranks}))[ArenaKind::kPeerFlags];
  };
  EXPECT_EQ(flags("1"), 0);
  EXPECT_EQ(flags("2"), 3 * Arena::kAlignment);
}

// What a rank receives has room as codes, and plans say what is sent.
TEST(MemoryPlanTest, CodesOnTheWireTakeLessRoomAndFewerBytes) {
  const auto with = [](const std::string& wire) {
    return planned_config({"model.dim=256", "model.moe.num_experts=8", "parallel.ranks=2", "precision.wire=" + wire});
  };
  const auto window = [&](const std::string& wire) { return plan_engine_storage(with(wire))[ArenaKind::kPeerWindow]; };
  const int64_t tokens = batch_shape(with("fp8"), with("fp8").data.seq_len).microbatch_tokens();
  const int64_t saved = 2 * (2 * tokens) * (4 * 256 - (256 + 2));  // of two inboxes
  EXPECT_NEAR(static_cast<double>(window("device") - window("fp8")), static_cast<double>(saved), 4096.0);
  const auto sent = [&](const std::string& wire) {
    const std::string text = print_plan(plan_memory(with(wire), 0, /*ranks=*/2), with(wire));
    const size_t begin = text.find("a step puts ");
    EXPECT_NE(begin, std::string::npos);
    return text.substr(begin, text.find(" to others", begin) - begin);
  };
  EXPECT_NE(sent("fp8"), sent("device"));
}

// A module that all depths share sends its tokens once for each of them.
TEST(MemoryPlanTest, SharedModulesSendForEachDepth) {
  const auto sent = [](int64_t depth) {
    std::vector<std::string> keys = {"model.moe.num_experts=8", "parallel.ranks=2", "train.batch_seqs=8",
                                     "train.microbatch_seqs=4", fmt::format("model.mtp.depth={}", depth)};
    if (depth > 1) keys.emplace_back("model.mtp.shared=true");
    const Config config = planned_config(keys);
    const std::string text = print_plan(plan_memory(config, 0, /*ranks=*/2), config);
    const size_t begin = text.find("a step puts ") + std::string_view("a step puts ").size();
    return parse_bytes(text.substr(begin, text.find(" to others") - begin), "the plan");
  };
  const auto none = static_cast<double>(sent(0)), one = static_cast<double>(sent(1));
  EXPECT_GT(one, none);
  EXPECT_NEAR(static_cast<double>(sent(3)), none + 3.0 * (one - none), 0.01 * none);
}

// Experts' products that take codes get those of their rows: in room that layers share, where codes travel.
TEST(MemoryPlanTest, CodesOnTheWireReachProductsOfCodes) {
  const auto with = [](const std::string& precision, const std::string& wire) {
    return planned_config({"run.device=cuda", "model.dim=256", "model.dense_dim=272", "model.moe.num_experts=8",
                           "model.moe.expert_dim=128", "model.mla.kv_lora_rank=32", "model.mla.qk_nope_head_dim=16",
                           "model.mla.qk_rope_head_dim=16", "model.mla.v_head_dim=16", "parallel.ranks=2",
                           "run.precision=" + precision, "precision.wire=" + wire});
  };
  const GpuPart hopper{.name = "Hopper", .memory_bytes = int64_t{64} << 30, .compute_major = 9};
  const auto more = [&](const std::string& precision) {
    const auto state = [&](const std::string& wire) {
      return plan_engine_storage(with(precision, wire), 0, hopper)[ArenaKind::kStepState];
    };
    return static_cast<double>(state("fp8") - state("device"));
  };
  EXPECT_NEAR(more("fp8"), static_cast<double>(plan_expert_rows(with("fp8", "fp8")).kept * (256 + 2)), 1024.0);
  EXPECT_NEAR(more("bf16"), 0.0, 1024.0);
}

// Where backward reads pre-activations, and the first weight's gradient reads theirs, in FP8 alone, neither has room as
// values: [R, W] of BF16 less, in steps that check precision too.
TEST(MemoryPlanTest, RowsThatNobodyReadsAsValuesHaveNoRoomForThem) {
  const auto activations = [](bool fp8_gradients, const std::string& fallback, GpuPart part) {
    const Config config = load_config(
        fs::path(NMOE_SOURCE_DIR) / "configs/speedrun/moonlet.toml",
        std::vector<std::string>{"run.precision=fp8", "precision.saved=fp8", "precision.fallback=" + fallback,
                                 fmt::format("precision.fp8_weight_gradients={}", fp8_gradients)});
    return plan_engine_storage(config, 0, part)[ArenaKind::kActivations];
  };
  const GpuPart hopper{.name = "Hopper", .memory_bytes = int64_t{141} << 30, .compute_major = 9};
  constexpr int64_t kRows = int64_t{8} * 4096 * 6, kPreActivations = kRows * 2 * 1408 * 2, kGiB = int64_t{1} << 30;
  EXPECT_GT(kPreActivations, kGiB);
  for (const std::string fallback : {"report", "off"}) {
    EXPECT_LT(activations(true, fallback, hopper), activations(false, fallback, hopper) - kGiB / 2) << fallback;
    EXPECT_LE(activations(true, fallback, hopper), 22 * kGiB) << fallback;
  }
}

// Only the ranks of a process share experts, not those of all processes.
TEST(MemoryPlanTest, RanksOfAProcessShareExpertsEqually) {
  const Config config = planned_config({"model.moe.num_experts=8", "parallel.ranks=6", "train.batch_seqs=24"});
  EXPECT_GT(plan_memory(config, 0, /*ranks=*/2).storage.total(), 0);
  const Error error = error_of([&] { plan_memory(config, 0, /*ranks=*/6); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_TRUE(contains(error.what(), "6 ranks of a process share the experts of a layer equally, and there are 8"));
  EXPECT_TRUE(contains(error.remedy(), "parallel.ranks"));
}

TEST(CheckMemoryTest, TheLimitIsTheLastSizeThatFits) {
  const Config config = planned_config({"train.memory_limit=10 MiB"});
  check_memory(plan_of(4 * kMiB, 4 * kMiB, 2 * kMiB), config);
  const Error error = error_of([&] { check_memory(plan_of(4 * kMiB, 4 * kMiB, 2 * kMiB + 1), config); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_TRUE(contains(error.what(), "the run needs 10.00 MiB, train.memory_limit is 10.00 MiB"));
  check_memory(plan_of(4 * kMiB, 4 * kMiB, 3 * kMiB), planned_config());
}

TEST(CheckMemoryTest, TheRemedyNamesWhatTakesMost) {
  const Config config = planned_config({"train.memory_limit=1 MiB"});
  const auto remedy_of = [](const MemoryPlan& plan, const Config& limited) {
    return error_of([&] { check_memory(plan, limited); }).remedy();
  };
  EXPECT_TRUE(contains(remedy_of(plan_of(kMiB, 8 * kMiB, 0), config),
                       "lower train.microbatch_seqs (now 4) or raise train.recompute: activations take 8.00 MiB"));
  EXPECT_TRUE(contains(remedy_of(plan_of(8 * kMiB, kMiB, 0), config),
                       "make the model smaller (model.dim, model.num_layers, "
                       "model.moe.num_experts): weights and their optimizer take 8.00 MiB"));
  // There is no microbatch to halve.
  const Config single = planned_config({"train.memory_limit=1 MiB", "train.microbatch_seqs=1"});
  EXPECT_TRUE(contains(remedy_of(plan_of(kMiB, 8 * kMiB, 0), single), "make the model smaller"));
  // Weights take most, but with fewer sequences at a time the run would fit.
  const Config roomy = planned_config({"train.memory_limit=12 MiB"});
  EXPECT_TRUE(contains(remedy_of(plan_of(8 * kMiB, 5 * kMiB, 0), roomy), "lower train.microbatch_seqs (now 4)"));
  // It may be the limit that is wrong.
  EXPECT_TRUE(contains(remedy_of(plan_of(kMiB, 0, 50 * kMiB), config), "raise train.memory_limit"));
}

TEST(CheckMemoryTest, OfADeviceItNamesWhatTheHostCouldHold) {
  const GpuPart small{.name = "small", .memory_bytes = int64_t{1} << 29, .compute_major = 9};
  const Config config = planned_config({"run.device=cuda"});
  const MemoryPlan plan = plan_memory(config, 0, /*ranks=*/1, small);
  const std::string expected =
      fmt::format("or set optim.offload = \"fit\", by which up to {} of the optimizer lie in the host",
                  human_bytes(plan.storage[ArenaKind::kOptimizer]));
  const std::string remedy = error_of([&] { check_memory(plan, config); }).remedy();
  EXPECT_TRUE(contains(remedy, expected)) << remedy;
  const Config offloaded = planned_config({"run.device=cuda", "optim.offload=state"});
  const Error still = error_of([&] { check_memory(plan_memory(offloaded, 0, 1, small), offloaded); });
  EXPECT_FALSE(contains(still.remedy(), "set optim.offload")) << still.remedy();
  EXPECT_TRUE(contains(still.remedy(), "of each rank's optimizer in the host's memory already")) << still.remedy();
}

// Whoever does what it says has a configuration that is valid: experts that move need their gradients in fp32.
TEST(CheckMemoryTest, WhatItSaysOfGradientsIsAllowed) {
  const GpuPart small{.name = "small", .memory_bytes = int64_t{1} << 29, .compute_major = 9};
  const std::string remedy = "or set train.gradients = \"bf16\"", still = " and parallel.rebalance_every = 0";
  const auto with = [](int64_t ranks, const std::string& rebalance_every, const std::string& gradients) {
    return planned_config({"run.device=cuda", "model.num_layers=8", "model.moe.num_experts=8",
                           fmt::format("parallel.ranks={}", ranks), "parallel.rebalance_every=" + rebalance_every,
                           "train.gradients=" + gradients});
  };
  const auto said = [&](int64_t ranks, const std::string& rebalance_every) {
    const Config config = with(ranks, rebalance_every, "fp32");
    return error_of([&] { check_memory(plan_memory(config, 0, ranks, small), config); }).remedy();
  };
  EXPECT_TRUE(contains(said(2, "100"), remedy + still + ", by which")) << said(2, "100");
  EXPECT_TRUE(contains(said(2, "0"), remedy + ", by which")) << said(2, "0");
  EXPECT_TRUE(contains(error_of([&] { with(2, "100", "bf16"); }).what(), "parallel.rebalance_every"));
  EXPECT_EQ(with(2, "0", "bf16").train.gradients, GradientFormat::kBf16);
}

TEST(CheckMemoryTest, WithoutALimitTheMachineIsTheLimit) {
  constexpr int64_t kTooMuch = int64_t{1} << 60;
  for (const Config& config : {planned_config(), planned_config({"train.memory_limit=2000000 TiB"})}) {
    const Error error = error_of([&] { check_memory(plan_of(kTooMuch, 0, 0), config); });
    EXPECT_TRUE(contains(error.what(), "this machine's free memory is"));
    EXPECT_FALSE(error.remedy().empty());
    EXPECT_EQ(error.remedy().find("train.memory_limit"), std::string::npos) << error.remedy();
  }
}

}  // namespace
}  // namespace nmoe
