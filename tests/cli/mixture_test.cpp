// A mixture of two corpora as a user meets it.
#include "cli/cli_test.h"

namespace nmoe {
namespace {

constexpr std::string_view kMixture = R"([sources.long]
path = "long"
[sources.short]
path = "short"

[stages.pretrain]
tokens = 1024
weights = { long = 3, short = 1 }
[stages.mid]
tokens = 512
weights = { long = 1, short = 1 }

[profiles]
dev.tokens = 768
full.scale = 1
huge.tokens = "1M"
)";

class MixtureTest : public CliTest {
 protected:
  MixtureTest() {
    output({"prep", "train.txt", "--valid", "valid.txt", "--out", "long"});
    output({"prep", "valid.txt", "--out", "short"});
    write("mixture.toml", kMixture);
    std::string config(test::kTinyToml);
    const std::string path = "path = \"data\"\n";
    config.replace(config.find(path), path.size(), "mixture = \"mixture.toml\"\nprofile = \"full\"\n");
    write("tiny.toml", config);
  }
};

TEST_F(MixtureTest, ThePlanIsPrinted) {
  const std::string plan = output({"data", "plan", "tiny.toml", "--set", "train.steps=0"});
  // 64 sequences of 16, then 32; the short corpus has 43 windows.
  EXPECT_TRUE(contains(plan, "pretrain     long                      768           48  75.00 %    0.128\n")) << plan;
  EXPECT_TRUE(contains(plan, "pretrain     short                     256           16  25.00 %    0.372\n")) << plan;
  EXPECT_TRUE(contains(plan, "mid          short                     256           16  50.00 %    0.744\n")) << plan;
  EXPECT_TRUE(contains(plan, "train.steps = 12 of 128 tokens; the plan has 12 steps\n")) << plan;
}

// Stopped and resumed in each stage and at their border.
TEST_F(MixtureTest, ResumesInEveryStage) {
  const Outcome straight = n(train({"train.steps=0", "run.name=straight"}));
  EXPECT_TRUE(contains(straight.err, "note: 'short' has no validation split: n prep makes one"));
  EXPECT_EQ(info("runs/checkpoints/straight", "step"), "12");
  for (const int first : {3, 8, 10}) {
    const std::string name = fmt::format("run.name=cut{}", first);
    output(train({fmt::format("train.steps={}", first), name}));
    output(resume({"train.steps=0", name}));
    EXPECT_EQ(weights(fmt::format("cut{}", first)), weights("straight"));
  }
  expect_error(n(resume({"train.steps=0", "run.name=cut3", "data.profile=dev"})), 2,
               "the data of profile dev of mixture.toml is not what", "restore");
}

// The last stage in sequences four times as long: the same tokens a step, stopped and resumed on both sides of the
// border.
TEST_F(MixtureTest, ALongContextStage) {
  std::string mixture(kMixture);
  const std::string stage = "[stages.mid]\n";
  const auto with_length = [&](int64_t seq_len) {
    std::string changed = mixture;
    write("mixture.toml",
          changed.replace(changed.find(stage), stage.size(), fmt::format("{}seq_len = {}\n", stage, seq_len)));
  };
  const auto error = [&](int64_t seq_len, const std::vector<std::string>& settings, const char* what,
                         const char* remedy) {
    with_length(seq_len);
    expect_error(n(train(settings)), 2, fmt::format("mixture.toml: [stages.mid] has seq_len = {}{}", seq_len, what),
                 remedy);
    EXPECT_FALSE(fs::exists(dir_ / "runs"));
  };
  error(48, {}, ", which does not divide the 128 tokens of a step", "choose a divisor");
  error(64, {}, ", longer than the model is meant for: model.max_positions = 0 (data.seq_len, 16)",
        "set model.max_positions = 64");
  error(64, {"parallel.ranks=4", "train.microbatch_seqs=2", "model.moe.num_experts=8"},
        ": the 2 such sequences of a step cannot be shared by 4 ranks", "raise train.batch_seqs");

  with_length(64);
  const std::string positions = "model.max_positions=64";
  const std::string plan = output({"data", "plan", "tiny.toml", "--set", "train.steps=0", "--set", positions});
  EXPECT_TRUE(
      contains(plan, "mid          short                     256            4  50.00 %    0.800  of 64 tokens\n"))
      << plan;
  EXPECT_TRUE(contains(plan, "the plan has 12 steps\n")) << plan;
  const auto settings = [&](const std::string& name, int steps) {
    return std::vector<std::string>{positions, "parallel.ranks=2", "run.name=" + name,
                                    fmt::format("train.steps={}", steps)};
  };
  output(train(settings("straight", 0)));
  EXPECT_EQ(info("runs/checkpoints/straight", "tokens"), "1536");
  output(train(settings("cut", 7)));
  for (const int steps : {8, 9, 0}) output(resume(settings("cut", steps)));
  EXPECT_EQ(weights("cut"), weights("straight"));
}

TEST_F(MixtureTest, Mistakes) {
  const auto error = [&](const std::vector<std::string>& settings, const char* what, const char* remedy) {
    expect_error(n(train(settings)), 2, what, remedy);
    EXPECT_FALSE(fs::exists(dir_ / "runs"));
  };
  error({"train.steps=13"}, "train.steps = 13, but the plan's 96 sequences make 12 steps", "train.steps = 0");
  error({"data.profile=fool"}, "no profile \"fool\"", "dev, full, huge");
  error({"data.path=long"}, "a run reads one of them", "remove data.path");
  error({"data.profile=huge"}, "stage pretrain lacks ", "raise max_epochs");
  error({"data.mixture=none.toml"}, "there is no mixture file none.toml", "data.mixture");

  output({"tokenizer", "train", "train.txt", "--vocab-size", "270", "--out", "tokenizer.json"});
  output({"prep", "train.txt", "--tokenizer", "tokenizer.json", "--out", "short", "--force"});
  error({}, "sources long and short were prepared with different tokenizers", "one tokenizer");
  fs::remove_all(dir_ / "short");
  error({}, "mixture.toml: sources.short.path = \"short\" holds no prepared corpus", "n prep");
}

// One model learns one way to write conversations.
TEST_F(MixtureTest, ConversationsOfDifferentTemplates) {
  const std::string turn = R"({"messages": [{"role": "user", "content": "the cat"}, )"
                           R"({"role": "assistant", "content": "sat on the mat"}]})";
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += turn + "\n";
  write("chats.jsonl", lines);
  write("held_out.jsonl", turn + "\n");
  const auto prepare_with = [&](const std::string& out, const std::string& form) {
    write("form.jinja", "{% for m in messages %}" + form + "{{ m.content }}\n{% endfor %}" +
                            "{% if add_generation_prompt %}" + form + "{% endif %}");
    output({"prep", "chats.jsonl", "--valid", "held_out.jsonl", "--messages-field", "messages", "--chat-template",
            "form.jinja", "--out", out, "--force"});
  };
  const std::vector<std::string> command = train({"train.steps=0", "data.profile=dev"});
  prepare_with("long", "a: ");
  prepare_with("short", "b: ");
  expect_error(n(command), 2,
               "'long/chat_template.jinja' and 'short/chat_template.jinja' write conversations in different",
               "one --chat-template");
  prepare_with("short", "a: ");
  EXPECT_EQ(n(command).exit_code, 0);
}

TEST_F(MixtureTest, TheLoaderIsTimed) {
  const std::string text = output({"bench", "loader", "tiny.toml", "--set", "train.steps=0"});  // all of a small plan
  EXPECT_TRUE(contains(text, "stream: 96 sequences")) << text;
}

}  // namespace
}  // namespace nmoe
