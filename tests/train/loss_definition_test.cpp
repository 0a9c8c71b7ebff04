// What training and validation report of the same weights and windows is the same.
#include <cmath>

#include "train/trainer_fixture.h"

namespace nmoe {
namespace {

class LossDefinitionTest : public TrainerTest {
 protected:
  // Documents of a few bytes, the same to train on and to validate: one target of five ends a document.
  LossDefinitionTest() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "abcde"[i % 5] + std::string("xyz\n--\n");
    make_directories(dir_ / "texts");
    for (const char* name : {"train.txt", "valid.txt"}) write_file_atomically(dir_ / "texts" / name, text);
    prepare_dataset({.inputs = {(dir_ / "texts/train.txt").string()},
                     .valid_inputs = {(dir_ / "texts/valid.txt").string()},
                     .records = {.split_on = "--"},
                     .out = dir_ / "short",
                     .threads = 1});
  }

  // One step that moves no weight, on the windows that are then validated.
  void run_still(const std::string& name, int ranks) {
    run(name, {"data.path=" + (dir_ / "short").string(), "data.shuffle=none", "train.steps=1", "train.valid_seqs=8",
               "optim.matrices.lr=1e-14", "optim.experts.lr=1e-14", "optim.router.lr=1e-14", "optim.rest.lr=1e-14",
               "model.moe.bias_rate=0", fmt::format("parallel.ranks={}", ranks)});
  }
};

TEST_F(LossDefinitionTest, TrainingsIsValidations) {
  for (const int ranks : {1, 2}) {
    const std::string name = fmt::format("ranks_{}", ranks);
    run_still(name, ranks);
    const auto first = [&](const char* tag) { return series(name, tag).at(1); };
    EXPECT_NEAR(first("train/loss"), first("valid/loss"), 1e-5);
    EXPECT_NEAR(first("train/bpb"), first("valid/bpb"), 1e-5);
    EXPECT_EQ(first("train/special_share"), first("valid/special_share"));

    // Of 128 targets 21 or so are ends, which are no bytes: the whole is both kinds' losses.
    const double tokens = first("valid/tokens"), bytes = first("valid/bytes"), special = first("valid/special_share");
    EXPECT_EQ(tokens, 128);
    EXPECT_EQ(bytes, 128 - special * 128);
    EXPECT_GT(special, 0.15);
    EXPECT_LT(special, 0.25);
    const double text_nats = first("valid/bpb") * std::log(2.0) * bytes;
    EXPECT_NEAR(text_nats + first("valid/special_loss") * special * tokens, first("valid/loss") * tokens, 1e-3);
  }
}

}  // namespace
}  // namespace nmoe
