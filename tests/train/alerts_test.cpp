// What a run alerts of: the rules by themselves, then runs in which something goes wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "support/tensors.h"
#include "track/metrics_reader.h"
#include "train/loop/run_config.h"
#include "train/report/alert_watch.h"
#include "train/report/router_report.h"
#include "train/step/engine.h"
#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using namespace std::chrono_literals;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A healthy step, whose values scatter a little.
MetricRecord step_record(int64_t step) {
  const double wave = std::sin(static_cast<double>(step));
  return {.step = step,
          .ts_ms = 1000 * step,
          .scalars = {{"train/loss", 3.0 + 0.05 * wave},
                      {"train/grad_norm", 1.0 + 0.2 * wave},
                      {"throughput/ms_per_step", 100.0 + 5.0 * wave}}};
}
double& value_of(MetricRecord& record, std::string_view tag) {
  return std::ranges::find(record.scalars, tag, &std::pair<std::string, double>::first)->second;
}

class AlertWatchTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTopK = 2;

  // The alerts of a step that is healthy but for what `change` does.
  std::vector<Alert> next(const std::function<void(MetricRecord&)>& change = {}) {
    MetricRecord record = step_record(++step_);
    if (change) change(record);
    return watch_.take(record);
  }
  void settle(int64_t steps = 40) {
    for (int64_t i = 0; i < steps; ++i) EXPECT_TRUE(next().empty()) << step_;
  }
  static void set_loads(MetricRecord& record, const std::vector<int32_t>& counts, int64_t layer = 3) {
    const std::vector<RouterHealth> layers = {
        {.layer = layer, .counts = counts, .bias = std::vector<float>(counts.size())}};
    report_routers(layers, record);
  }

  AlertWatch watch_{kTopK};
  int64_t step_ = 0;
};

TEST_F(AlertWatchTest, ValuesThatAreNotFinite) {
  settle(3);
  const std::vector<Alert> alerts = next([](MetricRecord& record) {
    value_of(record, "train/loss") = kNan;
    value_of(record, "train/grad_norm") = std::numeric_limits<double>::infinity();
    record.scalars.emplace_back("efficiency/mfu", kNan);  // of a device whose peak is not known
  });
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].kind, AlertKind::kNonFinite);
  EXPECT_EQ(alerts[0].step, 4);
  EXPECT_EQ(alerts[0].ts_ms, 4000);
  EXPECT_EQ(alerts[0].tag, "train/loss");
  EXPECT_TRUE(std::isnan(alerts[0].value));
  EXPECT_EQ(alerts[0].text, "step 4: train/loss is nan; so are 1 more values");
  EXPECT_TRUE(next([](MetricRecord& record) { value_of(record, "train/loss") = kNan; }).empty()) << "still";
  settle(1);
  EXPECT_EQ(next([](MetricRecord& record) { value_of(record, "train/loss") = kNan; }).size(), 1u) << "again";
}

TEST_F(AlertWatchTest, SpikesOfLossAndNorm) {
  const auto spike = [](MetricRecord& record) {
    value_of(record, "train/loss") = 4.5;
    value_of(record, "train/grad_norm") = 30.0;
  };
  settle(5);
  EXPECT_TRUE(next(spike).empty()) << "nothing is usual yet";
  settle();
  const std::vector<Alert> alerts = next(spike);
  ASSERT_EQ(alerts.size(), 2u);
  EXPECT_EQ(alerts[0].kind, AlertKind::kSpike);
  EXPECT_EQ(alerts[0].tag, "train/loss");
  EXPECT_EQ(alerts[0].value, 4.5);
  EXPECT_EQ(alerts[1].tag, "train/grad_norm");
  EXPECT_TRUE(next(spike).empty()) << "the same spike";
  settle();
  EXPECT_EQ(next(spike).size(), 2u);
  // What falls, or rises by less than its scatter, is none.
  settle();
  EXPECT_TRUE(next([](MetricRecord& record) { value_of(record, "train/loss") = 1.0; }).empty());
  EXPECT_TRUE(next([](MetricRecord& record) { value_of(record, "train/loss") = 3.25; }).empty());
}

TEST_F(AlertWatchTest, StepsThatStaySlow) {
  const auto slow = [](MetricRecord& record) { value_of(record, "throughput/ms_per_step") = 170.0; };
  settle();
  EXPECT_TRUE(next(slow).empty());
  EXPECT_TRUE(next(slow).empty());
  settle(1);
  for (int turn = 1; turn < AlertWatch::kTurns; ++turn) EXPECT_TRUE(next(slow).empty());
  const std::vector<Alert> alerts = next(slow);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].kind, AlertKind::kSlow);
  EXPECT_EQ(alerts[0].value, 170.0);
  EXPECT_TRUE(next(slow).empty());
}

TEST_F(AlertWatchTest, ARouterThatCollapses) {
  const auto even = [](MetricRecord& record) { set_loads(record, {100, 90, 110, 100, 95, 105, 100, 100}); };
  const auto collapsed = [](MetricRecord& record) { set_loads(record, {0, 400, 0, 0, 400, 0, 0, 0}); };
  EXPECT_TRUE(next(even).empty());
  const std::vector<Alert> alerts = next(collapsed);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].kind, AlertKind::kCollapse);
  EXPECT_EQ(alerts[0].tag, "router/layer_03/cv");
  EXPECT_EQ(alerts[0].text, "step 2: the router of layer 3 has collapsed: 2 experts get every token");
  EXPECT_TRUE(next(collapsed).empty());
  EXPECT_TRUE(next(even).empty());
  EXPECT_EQ(next(collapsed).size(), 1u);
}

TEST_F(AlertWatchTest, ExpertsThatDie) {
  const auto dead = [](MetricRecord& record) { set_loads(record, {100, 0, 110, 100, 95, 105, 0, 100}); };
  const auto one_is_back = [](MetricRecord& record) { set_loads(record, {100, 0, 110, 100, 95, 105, 3, 100}); };
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(next(dead).empty()) << "routers begin so";
  step_ = AlertWatch::kFirstStep - 1;
  EXPECT_TRUE(next(dead).empty());
  EXPECT_TRUE(next(one_is_back).empty());
  std::vector<Alert> alerts = next(dead);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].kind, AlertKind::kDeadExpert);
  EXPECT_EQ(alerts[0].tag, "router/layer_03/load");
  EXPECT_EQ(alerts[0].text, fmt::format("step {}: 1 expert gets no token (layer 3: 1)", step_));
  EXPECT_TRUE(next(dead).empty());
  alerts = next(dead);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_TRUE(contains(alerts[0].text, "(layer 3: 6)"));
  EXPECT_TRUE(next(dead).empty());
  // Chance leaves some out where there are few rows.
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(next([](MetricRecord& record) { set_loads(record, {9, 0, 8, 9, 9, 9, 9, 9}, 5); }).empty());
  }
}

class SilenceWatchTest : public ::testing::Test {
 protected:
  // All ranks log `count` steps, `interval_ms` apart.
  void log_steps(int64_t count, int64_t interval_ms) {
    for (int64_t i = 0; i < count; ++i) {
      now_ += interval_ms;
      ++step_;
      for (int64_t rank = 0; rank < 3; ++rank) watch_.logged(rank, step_, now_);
      EXPECT_FALSE(watch_.look(now_ + interval_ms - 1));
    }
  }
  SilenceWatch watch_{3};
  int64_t now_ = 1'000'000;
  int64_t step_ = 0;
};

TEST_F(SilenceWatchTest, OfAllRanksWithinTenSeconds) {
  log_steps(5, 500);
  EXPECT_FALSE(watch_.look(now_ + 4000));
  const std::optional<Alert> alert = watch_.look(now_ + 4100);
  ASSERT_TRUE(alert.has_value());
  EXPECT_EQ(alert->kind, AlertKind::kSilent);
  EXPECT_EQ(alert->step, 5);
  EXPECT_EQ(alert->ts_ms, now_ + 4100);
  EXPECT_TRUE(contains(alert->text, "no step was logged for 4.1"));
  EXPECT_FALSE(watch_.look(now_ + 60'000)) << "told";
  now_ += 60'000;
  log_steps(1, 0);
  EXPECT_TRUE(watch_.look(now_ + 60'000));
}

TEST_F(SilenceWatchTest, OfOneRank) {
  log_steps(5, 500);
  std::optional<Alert> alert;
  int64_t waited = 0;
  for (; waited < 10'000 && !alert; waited += 500) {
    ++step_;
    watch_.logged(0, step_, now_ + waited);
    watch_.logged(2, step_, now_ + waited);
    alert = watch_.look(now_ + waited);
  }
  ASSERT_TRUE(alert.has_value());
  EXPECT_TRUE(contains(alert->text, "rank 1 has logged no step for 4.5")) << alert->text;
  EXPECT_TRUE(contains(alert->text, "it is at step 5, others at 15")) << alert->text;
}

TEST_F(SilenceWatchTest, NotWhereSomethingElseTakesLong) {
  log_steps(5, 500);
  watch_.expect_none();
  EXPECT_FALSE(watch_.look(now_ + 600'000));
  now_ += 600'000;
  watch_.logged(0, ++step_, now_);
  EXPECT_FALSE(watch_.look(now_ + 3000)) << "the others have as long from here";
  EXPECT_TRUE(watch_.look(now_ + 4100));
}

TEST_F(SilenceWatchTest, OfLongStepsLater) {
  log_steps(5, 10'000);
  EXPECT_FALSE(watch_.look(now_ + 39'000));
  EXPECT_TRUE(watch_.look(now_ + 41'000));
}

// --- whole runs

class RunAlertsTest : public TrainerTest {
 protected:
  void train_with(const std::string& name, std::vector<std::string> overrides,
                  const std::function<void(Engine&, int64_t)>& before_step) {
    overrides.push_back("run.name=" + name);
    train(test::tiny_config(dir_, overrides), {.version = "0.0.0", .commit = "abc", .before_step = before_step});
  }
  std::vector<Alert> alerts(const std::string& name) const {
    return read_alerts(alerts_path(metrics_path(dir_ / "runs", row(name).id)));
  }
  static void fill_weights(Engine& engine, double value) {
    for (const Weight& weight : engine.model().weights().all()) {
      if (weight.spec.is_trained()) engine.rank().device.ops().fill({weight.value, value});
    }
  }
};

// The step is in the metrics too, and the command sees the alert; nothing that is kept names it.
TEST_F(RunAlertsTest, ANanIsToldToACommand) {
  const std::string heard = (dir_ / "heard").string();
  const Error error = error_of([&] {
    train_with(
        "nan",
        {"train.steps=9",
         fmt::format(
             R"(track.alert_command=["/bin/sh", "-c", "echo \"$1 $NMOE_ALERT\" > {0}.new; mv {0}.new {0}", "sh"])",
             heard)},
        [&](Engine& engine, int64_t step) {
          if (step == 4) fill_weights(engine, kNan);
        });
  });
  EXPECT_TRUE(contains(error.what(), "step 4: loss"));
  const std::vector<Alert> all = alerts("nan");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].kind, AlertKind::kNonFinite);
  EXPECT_EQ(all[0].step, 4);
  EXPECT_EQ(all[0].tag, "train/loss");
  EXPECT_TRUE(std::isnan(series("nan", "train/loss").at(4)));
  for (int i = 0; i < 6000 && !fs::exists(heard); ++i) std::this_thread::sleep_for(10ms);
  ASSERT_TRUE(fs::exists(heard));
  EXPECT_TRUE(contains(read_file(heard), "nan: step 4: train/loss is nan")) << read_file(heard);
  EXPECT_TRUE(contains(read_file(heard), R"("kind":"non_finite")"));
  RunStore store(dir_ / "runs/experiments.db");
  EXPECT_FALSE(contains(store.config(row("nan").id), "alert_command"));
  const fs::path checkpoint = latest_checkpoint(checkpoints("nan")).value();
  EXPECT_FALSE(contains(read_file(checkpoint / "config.toml"), "alert_command"));
}

TEST_F(RunAlertsTest, ARankThatHangs) {
  std::chrono::steady_clock::time_point begin;
  error_of([&] {
    train_with("hangs",
               {"train.microbatch_seqs=2", "model.moe.num_experts=8", "parallel.ranks=2", "parallel.stall_s=5",
                "train.log_every=1", "train.steps=20"},
               // Before there is a usual time of steps, whose alert might come first where tests share the machine.
               [&](Engine& engine, int64_t step) {
                 if (step != 10 || engine.rank().index() != 1) return;
                 begin = std::chrono::steady_clock::now();
                 for (;; std::this_thread::sleep_for(5ms)) engine.rank().communicator.check();
               });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
  const std::vector<Alert> all = alerts("hangs");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].kind, AlertKind::kSilent);
  EXPECT_TRUE(contains(all[0].text, "no step was logged for ")) << all[0].text;
}

TEST_F(RunAlertsTest, ACheckpointsConfigurationRunsNothing) {
  run("first", {"train.steps=2"});
  const fs::path file = latest_checkpoint(checkpoints("first")).value() / "config.toml";
  EXPECT_EQ(load_run_config(file, {}).track.alert_command.size(), 0u);
  fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
  write_file_atomically(file, read_file(file) + "\n[track]\nalert_command = [\"evil\"]\n");
  EXPECT_TRUE(contains(error_of([&] { load_run_config(file, {}); }).what(), "track.alert_command"));
  const std::vector<std::string> own = {"track.alert_command=[\"mine\"]"};
  EXPECT_EQ(load_run_config(file, own).track.alert_command, std::vector<std::string>{"mine"});
}

}  // namespace
}  // namespace nmoe
